"""`openai:MODEL`: any OpenAI-compatible server as a policy (OpenAI, vLLM, SGLang, llama.cpp, a gateway).

Transient errors (rate limits, timeouts, broken connections, 5xx) are retried (`http_client.py`); a request that still
fails aborts one trajectory. Permanent errors (no key, unknown model, no server) are detected before the first rollout.
`chat_completion.py` reads the answers, `server_errors.py` the errors.

The key is read only from the environment and appears in no log and no table (`hgpo_envs.files.secrets`).
"""

from __future__ import annotations

import asyncio
import os
import re
import warnings
from dataclasses import dataclass, field, fields, replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

import msgspec
import orjson
from msgspec import Meta

from hgpo_envs.errors import InputError, one_line, unknown
from hgpo_envs.files.secrets import (
    names_variable,
    redact,
    redact_logging,
    register,
    register_url,
    register_values,
)
from hgpo_envs.plugins import install_command
from hgpo_envs.responses import WINDOW_FULL
from hgpo_train.policies.base import AsyncPolicy, Failure, Reply, Request
from hgpo_train.policies.chat_completion import completion_reply, read_completion
from hgpo_train.policies.conversation import chat_messages, without_oldest
from hgpo_train.policies.http_client import LOCAL_HOSTS, HttpClient, RequestError
from hgpo_train.policies.registry import PolicyContext, PolicySpec
from hgpo_train.policies.server_errors import ServerError
from hgpo_train.settings import (
    LARGEST_FLOAT,
    NonNegativeInt,
    PositiveInt,
    StopTexts,
    Temperature,
    build,
    check,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from yarl import URL


LOCAL_URL: Final = "http://localhost:8000/v1"

_OPENAI_HOSTS: Final = ("openai.com", "openai.azure.com")
_LIMITS: Final = ("max_tokens", "max_completion_tokens")
"""The limit of a response in tokens: the older name, which many servers know alone, and the newer one of OpenAI's."""

_REFUSED: Final = re.compile(
    "(?i)support|permit|allow|recogni|unknown|unexpected|extra|both|same time|exclusive|instead"
)

_CUT_PROMPT: Final = (1000, 8)
"""A prompt is probably cut by a server that counts so many tokens, with more than so many characters each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of `openai:MODEL`."""

    EXECUTION: ClassVar = (
        "base_url",
        "api_key_env",
        "concurrency",
        "timeout_s",
        "retries",
        "check_model",
    )
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
    stop: StopTexts = ()
    """Texts that end a response. Most servers leave them out of it."""
    chat_template_options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the server's chat template, for example { enable_thinking = false } (chat_template_kwargs
    of vLLM, SGLang and llama.cpp)."""
    send_seed: bool = True
    """Send each step's seed; some servers reject the field."""
    logprobs: bool = False
    """Request the log-probabilities of the response tokens."""
    logprobs_mode: Literal["raw", "processed"] = "raw"
    """Which log-probabilities the server returns: raw, at temperature 1, as most do; or processed, of the distribution
    that it samples from, as vllm serve with --logprobs-mode processed_logprobs."""
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
        for name in self.extra.keys() & {each.name for each in fields(self)}:
            raise InputError(
                f"policy option extra: expected fields that are no options, received {name}; set {name}"
            )


class _ModelList(msgspec.Struct):
    data: list[Any]


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
        self.name = f"openai:{model}"
        self.options = options
        self._model = model
        self._url = _url(options)
        self._completions = _below(self._url, "chat/completions")
        self._headers = {
            "Content-Type": "application/json",
            **_authorization(options, self._url),
        }
        self._client = HttpClient(
            self._headers, timeout_s=options.timeout_s, retries=options.retries
        )
        # OpenAI's models refuse the older name of the limit, older servers ignore the newer one.
        newer_alone = (self._url.host or "").endswith(_OPENAI_HOSTS)
        limits = _LIMITS[1:] if newer_alone else _LIMITS
        optional = {
            "stop": options.stop,
            "logprobs": options.logprobs,
            "chat_template_kwargs": options.chat_template_options,
            "return_token_ids": options.token_ids,
        }
        self._fields = {
            "model": model,
            **dict.fromkeys(limits, options.max_response_tokens),
            "temperature": options.temperature,
            "top_p": options.top_p,
            **{name: value for name, value in optional.items() if value},
            **options.extra,
        }
        register_values(self._fields)
        self._noted: set[str] = set()  # the kinds of warnings that were given
        super().__init__(options.concurrency)

    @property
    def endpoint(self) -> str:
        """The server's address, without secrets."""
        return redact(str(self._url)).rstrip("/")

    async def reply(self, request: Request) -> Reply | Failure:
        """See `AsyncPolicy`."""
        prompt = request.prompt
        turns = request.turns
        shown = request.step
        while True:
            messages = chat_messages(
                request.system_prompt, turns, prompt, request.tools
            )
            body = self._body(request, messages)
            try:
                completion = await self._client.request(
                    "POST", self._completions, read_completion, orjson.dumps(body)
                )
                reply = completion_reply(
                    completion, with_logprobs="logprobs" in self._fields
                )
                self._check_room(reply, completion["choices"][0].get("finish_reason"))
                self._note_ignored_limits(reply, messages)
            except RequestError as error:
                if self._drop_refused_limit(error, body):
                    continue
                reported = error.reported
                if reported is not None and reported.malformed:
                    reply = self._malformed(reported.message)
                    break
                # Only a prompt that is too long can be shortened, and only while there is history to leave out.
                is_shortest = len(turns) == 1 or shown == 0
                too_long = reported is not None and reported.too_long
                if self.options.overflow != "history" or is_shortest or not too_long:
                    return Failure("PolicyFailed", str(error))
                if turns:  # a quarter at a time: each try sends the whole conversation
                    turns = without_oldest(turns, max(1, len(turns) // 4))
                    shown = request.step - len(request.turns) + len(turns)
                else:
                    shown, prompt = _shorten(request, shown, prompt)
            else:
                break
        shorter = None if prompt == request.prompt else prompt
        return replace(reply, prompt=shorter, cut_pairs=request.step - shown)

    def _malformed(self, report: str) -> Reply:
        """Return a reply that the server cannot parse, as a malformed call of the model's; what it reports is the text.

        Such a request is not sent again: the reply to it would be chosen for its form.
        """
        self._note(
            "reply",
            f"could not parse a reply, which counts as an invalid action ({one_line(report, 200)})",
        )
        return Reply(f"<tool_call>\n{report}\n</tool_call>", finish_reason=None)

    def _body(self, request: Request, messages: list[dict[str, Any]]) -> dict[str, Any]:
        body: dict[str, Any] = {"messages": messages}
        if request.tools:
            body["tools"] = request.tools
        body |= self._fields
        if self.options.send_seed:
            body["seed"] = request.seed % (1 << 31)  # some servers accept only 31 bits
        return body

    def _drop_refused_limit(self, error: RequestError, sent: Mapping[str, Any]) -> bool:
        """Leave out one of the two names of the limit if the server refuses it. Return whether one was left out."""
        if error.reported is None or error.reported.too_long:
            return False
        reason = error.reported.message
        named = re.search(r"\bmax_(completion_)?tokens\b", reason)
        if (
            named is None
            or named[0] in self.options.extra
            or not _REFUSED.search(reason)
        ):
            return False
        if not all(name in sent for name in _LIMITS):
            return False  # the other name is all that is left
        self._fields.pop(named[0], None)  # another request may have left it out already
        return True

    def _check_room(self, reply: Reply, reported: object) -> None:
        """Raise `RequestError` if the prompt fills the context window, so that the model could not answer."""
        is_full = reported == WINDOW_FULL or (
            reply.finish_reason == "length"
            and reply.response_tokens in (0, 1)
            and self.options.max_response_tokens > 1
        )
        if is_full and not reply.response:
            message = "the prompt fills the context window of the server; no room for a response"
            raise RequestError(
                message, reported=ServerError(message, transient=False, too_long=True)
            )

    def _note_ignored_limits(
        self, reply: Reply, messages: Sequence[Mapping[str, Any]]
    ) -> None:
        """Warn once if the server's counts show that it ignores the limit of responses, or that it cuts prompts."""
        limit = self.options.max_response_tokens
        count = reply.response_tokens or 0
        if count > limit:
            self._note(
                "response",
                f"counted {count} tokens for a limit of {limit}: the server ignores max_response_tokens",
            )
        texts = [message.get("content") for message in messages]
        shown = sum(len(text) for text in texts if isinstance(text, str))
        least, characters = _CUT_PROMPT
        count = reply.prompt_tokens or 0
        if shown / characters > count >= least:
            counts = f"counted {count} tokens for a prompt of {shown} characters"
            self._note(
                "prompt",
                f"{counts}: the server probably cuts prompts; set a larger context in its options",
            )

    def _note(self, kind: str, text: str) -> None:
        if kind not in self._noted:
            self._noted.add(kind)
            warnings.warn(f"{self.endpoint} {text}", stacklevel=2)

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
        client = HttpClient(
            self._headers, timeout_s=min(20.0, self.options.timeout_s), retries=2
        )
        decode = msgspec.json.Decoder(_ModelList).decode
        try:
            models = await client.request("GET", _below(self._url, "models"), decode)
        except RequestError as error:
            if error.status == 401:
                raise InputError(
                    f"{self.endpoint} rejects the key in {self.options.api_key_env} (401)"
                ) from None
            if error.status is not None and not 300 <= error.status < 400:
                # the server has no list of models: the first request shows whether it serves the model
                return []
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
        names = [entry.get("id") for entry in models.data if isinstance(entry, dict)]
        return [name for name in names if isinstance(name, str)]


def make(argument: str, context: PolicyContext) -> ServerPolicy:
    """Create the policy `openai:MODEL`, and check that the server is reachable and serves the model.

    Raises:
        InputError: The model is missing, an option is not valid, the key is missing or rejected, no server answers at
            the address, or it does not serve the model.
    """
    if find_spec("aiohttp") is None:
        raise InputError(
            f"policy openai needs the aiohttp package: {install_command('api')}"
        )
    if not argument:
        raise InputError(
            "policy openai: expected a model, as in openai:Qwen2.5-1.5B-Instruct"
        )
    policy = ServerPolicy(
        argument, build(ServerOptions, context.options, "policy option")
    )
    try:
        if policy.options.check_model:
            policy.check()
    except BaseException:
        policy.close()
        raise
    return policy


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
        raise InputError(
            f"{name}: expected an address such as {LOCAL_URL}, received {redact(text)!r}"
        )
    try:
        url = URL(text)
        url.origin()
    except ValueError as error:
        raise InputError(
            f"{name}: expected the address of a server, received {redact(text)!r} ({error})"
        ) from None
    if url.fragment:
        shown = redact(str(url.with_fragment(None)))
        raise InputError(
            f"{name}: expected an address without a fragment (#…), received one after {shown}; remove it"
        )
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
    if not key and url.host not in LOCAL_HOSTS:
        raise InputError(
            f"{redact(str(url))} needs a key: expected it in the environment variable {options.api_key_env}"
        )
    if not (key.isascii() and key.isprintable()):
        raise InputError(
            f"the key in {options.api_key_env} contains a character that is not allowed in a header (a line break, a "
            "control character, or one that is not ASCII); set the variable again"
        )
    return (
        {} if url.user or url.password else {"Authorization": f"Bearer {key or 'none'}"}
    )


OPENAI = PolicySpec(make, options=ServerOptions)
