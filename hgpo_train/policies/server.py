"""`openai:MODEL`: any OpenAI-compatible server as a policy (OpenAI, vLLM, SGLang, llama.cpp, a gateway).

Transient errors (rate limits, timeouts, broken connections, 5xx) are retried (`http_client.py`); a request that still
fails aborts one trajectory. Permanent errors (no key, unknown model, no server) are detected before the first rollout.

The key is read only from the environment and appears in no log and no table (`hgpo_envs.files.secrets`).
"""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

import msgspec
import orjson
from msgspec import Meta

from hgpo_envs.errors import InputError, unknown
from hgpo_envs.files.secrets import names_variable, redact, redact_logging, register, register_url
from hgpo_envs.plugins import install_command
from hgpo_envs.responses import message_text
from hgpo_train.models.chat_format import with_opened_thought
from hgpo_train.policies.base import AsyncPolicy, Failure, Reply
from hgpo_train.policies.conversation import chat_messages, without_oldest
from hgpo_train.policies.http_client import HttpClient, RequestError, error_message
from hgpo_train.policies.registry import PolicySpec
from hgpo_train.settings import LARGEST_FLOAT, NonNegativeInt, PositiveInt, Temperature, build, check

if TYPE_CHECKING:
    from yarl import URL

    from hgpo_train.policies.base import Request
    from hgpo_train.policies.registry import PolicyContext

LOCAL_URL: Final = "http://localhost:8000/v1"

_LOCAL_HOSTS: Final = ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104 - an address to connect to
_TOO_LONG: Final = re.compile("(?i)context.(length|size)|maximum context|max_model_len|too (long|many tokens)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of `openai:MODEL`."""

    EXECUTION: ClassVar = ("base_url", "api_key_env", "concurrency", "timeout_s", "retries", "check_model")
    """The options that do not affect replies (`hgpo_train.policies.registry.PolicySpec`)."""

    base_url: str = ""
    """The server's address up to /v1. Default: the environment variable OPENAI_BASE_URL, else
    http://localhost:8000/v1."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable with the key. Servers on this machine need none."""
    temperature: Temperature = 1.0
    """Sampling temperature."""
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Nucleus sampling; 1 includes all tokens."""
    max_response_tokens: PositiveInt = 512
    """Maximum length of a response, in tokens."""
    stop: tuple[str, ...] = ()
    """Texts that end a response."""
    send_seed: bool = True
    """Send each step's seed; some servers reject the field."""
    logprobs: bool = False
    """Request the log-probabilities of the response tokens."""
    token_ids: bool = False
    """Request prompt and response token ids (return_token_ids of vLLM's server)."""
    overflow: Literal["history", "error"] = "history"
    """If the server rejects a prompt as too long: history shows fewer past steps, error fails the rollout."""
    concurrency: PositiveInt = 128
    """Maximum number of concurrent requests."""
    timeout_s: Annotated[float, Meta(gt=0, le=LARGEST_FLOAT)] = 120.0
    """Maximum seconds from sending a request to the last byte of its answer; then it is sent again."""
    retries: NonNegativeInt = 5
    """How often a failed request is sent again."""
    check_model: bool = True
    """Request the server's list of models before the first rollout, and raise an error if it lacks the model."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of the request's body, for example { top_k = 20 }."""

    def __post_init__(self) -> None:
        check(self, "policy option")


# The parts of an answer that are read. All others are skipped.


class _Function(msgspec.Struct):
    name: str
    arguments: str = ""  # JSON


class _ToolCall(msgspec.Struct):
    function: _Function


class _Message(msgspec.Struct):
    content: str | None = None
    tool_calls: list[_ToolCall] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same, as other servers name it


class _TokenLogprob(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_TokenLogprob] | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None
    token_ids: list[int] | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    prompt_token_ids: list[int] | None = None


class _ModelList(msgspec.Struct):
    data: list[Any]


_COMPLETION: Final = msgspec.json.Decoder(_Completion)


class ServerPolicy(AsyncPolicy):
    """A policy that requests one chat completion per step from a server.

    Args:
        model: The model's name on the server.
        options: Options of the requests.

    Raises:
        InputError: The key is missing or not allowed in a header, or the address is not an HTTP address.
    """

    def __init__(self, model: str, options: ServerOptions) -> None:
        redact_logging()
        self.name, self.options = f"openai:{model}", options
        self._model = model
        self._url = _url(options)
        self._completions = _below(self._url, "chat/completions")
        self._headers = {"Content-Type": "application/json", **_authorization(options, self._url)}
        self._client = HttpClient(self._headers, timeout_s=options.timeout_s, retries=options.retries)
        self._fields = {
            "model": model,
            "max_completion_tokens": options.max_response_tokens,
            "temperature": options.temperature,
            "top_p": options.top_p,
            **({"stop": options.stop} if options.stop else {}),
            **({"logprobs": True} if options.logprobs else {}),
            **({"return_token_ids": True} if options.token_ids else {}),
            **options.extra,
        }
        super().__init__(options.concurrency)

    @property
    def endpoint(self) -> str:
        """The server's address, without secrets."""
        return redact(str(self._url)).rstrip("/")

    async def reply(self, request: Request) -> Reply | Failure:
        """See `AsyncPolicy`."""
        prompt, turns, shown = request.prompt, request.turns, request.step
        while True:
            messages = chat_messages(request.system_prompt, turns, prompt, request.tools)
            fields: dict[str, Any] = {"messages": messages}
            if request.tools:
                fields["tools"] = request.tools
            fields |= self._fields
            if self.options.send_seed:
                fields["seed"] = request.seed % (1 << 31)  # some servers accept only 31 bits
            try:
                answer = await self._client.request("POST", self._completions, orjson.dumps(fields))
            except RequestError as error:
                exhausted = len(turns) == 1 or shown == 0
                if self.options.overflow != "history" or exhausted or not _is_too_long(error):
                    return Failure("PolicyFailed", str(error))
                if turns:  # a quarter at a time: each try sends the whole conversation
                    turns = without_oldest(turns, max(1, len(turns) // 4))
                    shown = request.step - len(request.turns) + len(turns)
                else:
                    shown, prompt = _shorten(request, shown, prompt)
            else:
                return _read(answer, prompt, request.step - shown, has_tools="tools" in fields)

    async def release(self) -> None:
        """Close the connections."""
        await self._client.close()

    def check(self) -> None:
        """Check that the server is reachable, accepts the key and serves the model.

        A server without a list of models (an HTTP error other than 401) passes the check.

        Raises:
            InputError: The server is not reachable, rejects the key, does not list the model, or returns something
                else than a list of models.
        """
        names = asyncio.run_coroutine_threadsafe(self._models(), self.loop).result()
        if names and self._model not in names:
            raise InputError(f"{self.endpoint}: {unknown('model', self._model, names)}")

    async def _models(self) -> list[str]:
        """Return the models that the server lists; empty if it has no such list."""
        client = HttpClient(self._headers, timeout_s=min(20.0, self.options.timeout_s), retries=2)
        try:
            answer = await client.request("GET", _below(self._url, "models"))
            entries = msgspec.json.decode(answer, type=_ModelList).data
        except RequestError as error:
            if error.status == 401:
                raise InputError(f"{self.endpoint} rejects the key in {self.options.api_key_env} (401)") from None
            if error.status is not None and not 300 <= error.status < 400:
                return []  # the server has no list of models: the first request shows whether it serves the model
            raise InputError(
                f"no OpenAI-compatible server answers at {self.endpoint} ({error}); "
                "start it, or set another address with --policy-option base_url=…"
            ) from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise InputError(
                f"{self.endpoint}/models returned no list of models ({error}); expected the address of an "
                "OpenAI-compatible server up to /v1; if it is one, add --policy-option check_model=false"
            ) from None
        finally:
            await client.close()
        return [entry["id"] for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def make(argument: str, context: PolicyContext) -> ServerPolicy:
    """Create the policy `openai:MODEL`, and check that the server is reachable and serves the model.

    Raises:
        InputError: The model is missing, an option is not valid, the key is missing or rejected, no server answers at
            the address, or it does not serve the model.
    """
    if find_spec("aiohttp") is None:
        raise InputError(f"policy openai needs the aiohttp package: {install_command('api')}")
    if not argument:
        raise InputError("policy openai: expected a model, as in openai:Qwen2.5-1.5B-Instruct")
    policy = ServerPolicy(argument, build(ServerOptions, context.options, "policy option"))
    try:
        if policy.options.check_model:
            policy.check()
    except BaseException:
        policy.close()
        raise
    return policy


def _read(answer: bytes, prompt: str, cut_pairs: int, *, has_tools: bool) -> Reply | Failure:
    """Return the reply in an answer. Its text is what the model wrote: reasoning and tool calls are part of it."""
    try:
        completion = _COMPLETION.decode(answer)
    except (msgspec.DecodeError, RecursionError) as error:
        return Failure("PolicyFailed", f"the answer is not a chat completion: {error}")
    if not completion.choices:  # some gateways report errors with the status 200
        return Failure("PolicyFailed", f"the server's reply contains no choice: {error_message(answer)}")
    choice, usage = completion.choices[0], completion.usage or _Usage()
    message = choice.message
    if message.tool_calls and not has_tools:
        name = message.tool_calls[0].function.name
        return Failure("PolicyFailed", f"the reply calls the tool {name!r}, but the environment has no tools")
    try:
        # The chat template of some models opens the thought, and their servers return what follows.
        response = with_opened_thought(message_text(msgspec.to_builtins(message)), "<think>\n")
    except (ValueError, RecursionError) as error:
        return Failure("PolicyFailed", f"the reply's tool calls have malformed arguments: {error}")
    logprobs = None if choice.logprobs is None else choice.logprobs.content
    return Reply(
        response=response,  # an empty one is an invalid action, not a failure
        prompt=prompt,
        prompt_token_ids=completion.prompt_token_ids,
        response_token_ids=choice.token_ids,
        response_logprobs=None if logprobs is None else [token.logprob for token in logprobs],
        finish_reason=choice.finish_reason,
        cut_pairs=cut_pairs,
        prompt_tokens=usage.prompt_tokens,
        response_tokens=usage.completion_tokens,
    )


def _is_too_long(error: RequestError) -> bool:
    return error.status in (400, 413, 422) and bool(_TOO_LONG.search(str(error)))


def _shorten(request: Request, shown: int, prompt: str) -> tuple[int, str]:
    """Return the longest prompt with fewer past steps that is shorter than this one, and its number of past steps.

    If no such prompt is shorter, return the prompt without past steps.
    """
    for steps in range(shown - 1, 0, -1):
        shorter = request.with_shorter_history(steps)
        if len(shorter) < len(prompt):
            return steps, shorter
    return 0, request.with_shorter_history(0)


def _url(options: ServerOptions) -> URL:
    """Return the server's address, and register the secrets in it.

    Raises:
        InputError: It is not an HTTP address.
    """
    from yarl import URL

    name = "base_url" if options.base_url else "OPENAI_BASE_URL"
    text = options.base_url or os.environ.get("OPENAI_BASE_URL", "") or LOCAL_URL
    register_url(text)
    if not text.startswith(("http://", "https://")):
        register_url(f"http://{text}")
        raise InputError(f"{name}: expected an address such as {LOCAL_URL}, received {redact(text)!r}")
    try:
        url = URL(text)
        url.origin()
    except ValueError as error:
        raise InputError(f"{name}: expected the address of a server, received {redact(text)!r} ({error})") from None
    if url.fragment:
        shown = redact(str(url.with_fragment(None)))
        raise InputError(f"{name}: expected an address without a fragment (#…), received one after {shown}; remove it")
    return url


def _below(url: URL, path: str) -> URL:
    return url.joinpath(path).with_query(url.query)


def _authorization(options: ServerOptions, url: URL) -> dict[str, str]:
    """Return the header with the key, and register the key. A password in the address takes its place.

    Raises:
        InputError: The key is missing or not allowed in a header.
    """
    if not names_variable(options.api_key_env):  # perhaps the key
        register(options.api_key_env)
        raise InputError(
            "api_key_env: expected the name of an environment variable, such as OPENAI_API_KEY, received another text; "
            "set a variable to the key, and give its name"
        )
    key = os.environ.get(options.api_key_env, "").strip()
    register(key)
    if not key and url.host not in _LOCAL_HOSTS:
        raise InputError(
            f"{redact(str(url))} needs a key: expected it in the environment variable {options.api_key_env}"
        )
    if not (key.isascii() and key.isprintable()):
        raise InputError(
            f"the key in {options.api_key_env} contains a character that is not allowed in a header (a line break, a "
            "control character, or one that is not ASCII); set the variable again"
        )
    return {} if url.user or url.password else {"Authorization": f"Bearer {key or 'none'}"}


OPENAI = PolicySpec(make, options=ServerOptions)
