"""`openai:MODEL`: any OpenAI-compatible server as a policy (OpenAI, vLLM, SGLang, llama.cpp, a gateway).

The client library retries transient errors (rate limits with Retry-After, time-outs, broken connections, 5xx) up to
`retries` times; a request that still fails aborts one trajectory. Permanent errors (no key, unknown model, no server)
are detected before the first rollout. A server may send its answer byte by byte, or never stop sending: every try has a
deadline for the complete answer and a limit on its size, which depends on the request.

The key is read only from the environment and appears in no log and no table (`hgpo_envs.files.secrets`).
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal

from msgspec import Meta

from hgpo_envs.errors import InputError, unknown
from hgpo_envs.files.secrets import Secret, redact, redact_logging, register, register_url
from hgpo_train.policies.base import AsyncPolicy, Failure, Reply
from hgpo_train.policies.registry import PolicySpec
from hgpo_train.policies.validation import preview
from hgpo_train.settings import LARGEST_FLOAT, NonNegativeFloat, NonNegativeInt, PositiveInt, Temperature, build, check

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import openai
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion

    from hgpo_train.policies.base import Request
    from hgpo_train.policies.registry import PolicyContext

LOCAL_URL: Final = "http://localhost:8000/v1"

LARGEST_ANSWER: Final = 64 << 20
"""Maximum size of an answer in bytes, decompressed, unless `ServerOptions.max_answer_mb` allows more."""

_OVERHEAD: Final = 1 << 20
_PER_RESPONSE_TOKEN: Final = 4 << 10  # text, id and log-probability of the token and of twenty alternatives
_PER_SENT_BYTE: Final = 16  # a prompt has at most as many tokens as bytes; a token id in JSON takes about 8 bytes

_PAUSE_S: Final = 60.0  # the longest pause of the client library between two tries
_CHECK_S: Final = 90.0
_TIMEOUTS: Final = 4
_OF_THE_BODY: Final = frozenset({"content-encoding", "content-length", "transfer-encoding"})
_LOCAL_HOSTS: Final = ("http://localhost", "http://127.0.0.1", "http://[::1]", "http://0.0.0.0")
_TOO_LONG: Final = (
    "context length",
    "context_length",
    "maximum context",
    "too long",
    "max_model_len",
    "too many tokens",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Options of `openai:MODEL`."""

    EXECUTION: ClassVar = (
        "base_url",
        "api_key_env",
        "concurrency",
        "timeout_s",
        "retries",
        "max_answer_mb",
        "check_model",
    )
    """The options that do not affect replies (`hgpo_train.policies.registry.execution_options`)."""

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
    max_answer_mb: NonNegativeFloat = 0.0
    """Maximum size of an answer in megabytes; 0 derives it from the lengths of prompt and response
    (`largest_answer`)."""
    check_model: bool = True
    """Request the server's list of models before the first rollout, and raise an error if it lacks the model."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of the request's body, for example { top_k = 20 }."""

    def __post_init__(self) -> None:
        check(self, "policy option")


class ServerPolicy(AsyncPolicy):
    """A policy that requests one chat completion per step from a server.

    Args:
        model: The model's name on the server.
        options: Options of the requests.
    """

    def __init__(self, model: str, options: ServerOptions) -> None:
        self.name, self.options = f"openai:{model}", options
        self._model = model
        self._given = _client_options(options)
        self.deadline_s = (options.timeout_s + _PAUSE_S) * (options.retries + 1)
        super().__init__(options.concurrency)
        self._client: AsyncOpenAI | None = None

    async def reply(self, request: Request) -> Reply | Failure:
        """See `AsyncPolicy`."""
        import openai

        prompt, shown = request.prompt, request.step
        while True:
            try:
                return self._read(await self._ask(prompt, request.seed), prompt, request.step - shown)
            except openai.BadRequestError as error:
                if self.options.overflow != "history" or shown == 0 or not _is_too_long(error):
                    return Failure("PolicyFailed", self._describe(error))
                shown, prompt = self._shorten(request, shown, prompt)
            except (openai.OpenAIError, ValueError) as error:
                return Failure("PolicyFailed", self._describe(error))

    def _describe(self, error: Exception) -> str:
        """Describe an error of the client in words that do not depend on the library and its version."""
        import openai

        if isinstance(error, openai.APITimeoutError):
            return f"timed out: no complete answer within {self.options.timeout_s:g} s"
        if isinstance(error, openai.APIStatusError):
            return f"HTTP {error.status_code}: {_message(error)}"
        if isinstance(error, openai.APIConnectionError):
            return f"the connection failed: {Failure.of('', error.__cause__ or error).line}"
        if isinstance(error, json.JSONDecodeError):
            return f"the answer is not JSON: {error}"
        return Failure.of("", error).line

    async def _ask(self, prompt: str, seed: int) -> ChatCompletion:
        options = self.options
        body: dict[str, Any] = {"temperature": options.temperature, "top_p": options.top_p}
        if options.stop:
            body["stop"] = list(options.stop)
        if options.send_seed:
            body["seed"] = seed % (1 << 31)  # some servers accept only 31 bits
        if options.logprobs:
            body["logprobs"] = True
        extra = {**options.extra, **({"return_token_ids": True} if options.token_ids else {})}
        completion: ChatCompletion = await self._connection().chat.completions.create(
            model=self._model,
            messages=[{"role": "user", "content": prompt}],
            max_completion_tokens=options.max_response_tokens,
            extra_body=extra or None,
            **body,
        )
        return completion

    def _connection(self) -> AsyncOpenAI:
        """Return the client. It is created on first use, in the event loop that it belongs to."""
        if self._client is None:
            self._client = _client(self._given, partial(largest_answer, self.options))
        return self._client

    @property
    def endpoint(self) -> str:
        """The server's address, without secrets."""
        return _shown_url(self.options)

    async def release(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.close()

    def check(self) -> None:
        """Check that the server is reachable, accepts the key and serves the model.

        A server without a list of models (an HTTP error other than 401) passes the check.

        Raises:
            InputError: The server is not reachable, rejects the key, does not list the model, or returns something
                else than a list of models.
        """
        asking = asyncio.run_coroutine_threadsafe(self._models(), self.loop)
        try:
            known = asking.result(_CHECK_S)
        except TimeoutError:
            asking.cancel()
            raise InputError(
                f"{_shown_url(self.options)} did not answer within {_CHECK_S:g} s; check the address of the server"
            ) from None
        if known and self._model not in known:
            raise InputError(f"{_shown_url(self.options)}: {unknown('model', self._model, known)}")

    async def _models(self) -> list[str]:
        """Return the models that the server lists; empty if it has no such list."""
        import openai

        url = _shown_url(self.options)
        given = {**self._given, "max_retries": 2, "timeout": min(20.0, self.options.timeout_s)}
        client = _client(given)
        try:
            listed = await client.models.with_raw_response.list()
            return _model_names(json.loads(listed.http_response.content))
        except openai.AuthenticationError as error:
            raise InputError(f"{url} rejects the key in {self.options.api_key_env} (401)") from error
        except openai.APIStatusError:
            return []  # the server has no list of models: the first request shows whether it serves the model
        except openai.APIConnectionError as error:
            reason = Failure.of("", error.__cause__ or error).line
            raise InputError(
                f"no OpenAI-compatible server answers at {url} ({reason}); "
                "start it, or set another address with --policy-option base_url=…"
            ) from None
        except Exception as error:  # noqa: BLE001 - the answer may be anything, and so may the client's exception
            raise InputError(
                f"{url}/models returned no list of models ({Failure.of('', error).line}); expected the address of an "
                "OpenAI-compatible server up to /v1; if it is one, add --policy-option check_model=false"
            ) from None
        finally:
            await client.close()

    def _read(self, completion: object, prompt: str, cut: int) -> Reply | Failure:
        """Return the reply in a completion. Its values may be of any type: the collector validates them."""
        choices = getattr(completion, "choices", None)
        if not isinstance(choices, list) or not choices:
            return Failure("PolicyFailed", f"the server's reply contains no choice: {preview(completion)}")
        choice = choices[0]
        content = getattr(getattr(choice, "message", None), "content", None)
        logprobs = getattr(getattr(choice, "logprobs", None), "content", None)
        if isinstance(logprobs, list):
            logprobs = [getattr(token, "logprob", None) for token in logprobs]
        return Reply(
            response="" if content is None else content,  # an empty response is an invalid action, not a failure
            prompt=prompt,
            prompt_token_ids=getattr(completion, "prompt_token_ids", None),
            response_token_ids=getattr(choice, "token_ids", None),
            response_logprobs=logprobs,
            finish_reason=getattr(choice, "finish_reason", None),
            cut_pairs=cut,
            prompt_tokens=_count(completion, "prompt_tokens"),
            response_tokens=_count(completion, "completion_tokens"),
        )

    def _shorten(self, request: Request, shown: int, prompt: str) -> tuple[int, str]:
        """Return the longest prompt with fewer past steps that is shorter than this one, and its number of past steps.

        If no such prompt is shorter, return the prompt without past steps.
        """
        while shown:
            shown -= 1
            with_shorter_history = request.with_shorter_history(shown)
            if len(with_shorter_history) < len(prompt):
                return shown, with_shorter_history
        return 0, request.with_shorter_history(0)


def make(argument: str, context: PolicyContext) -> ServerPolicy:
    """Create the policy `openai:MODEL`, and check that the server is reachable and serves the model.

    Raises:
        InputError: The model is missing, an option is not valid, the key is missing or rejected, no server answers at
            the address, or it does not serve the model.
    """
    try:
        import openai
    except ImportError as error:
        raise InputError("policy openai needs the openai package: pip install 'hgpo[api]'") from error
    if not argument:
        raise InputError("policy openai: expected a model, as in openai:Qwen2.5-1.5B-Instruct")
    del openai
    policy = ServerPolicy(argument, build(ServerOptions, context.options, "policy option"))
    try:
        if policy.options.check_model:
            policy.check()
    except BaseException:
        policy.close()
        raise
    return policy


def _count(completion: object, name: str) -> int | None:
    """Return a number of tokens that a server counted. Servers may report none, or nonsense, which is ignored."""
    value = getattr(getattr(completion, "usage", None), name, None)
    return value if type(value) is int and 0 <= value < 1 << 31 else None


def _message(error: openai.APIStatusError) -> str:
    """Return the message of an error's body, or the start of the body."""
    body: object = error.body
    for name in ("error", "message", "detail"):
        body = body.get(name, body) if isinstance(body, dict) else body
    return body if isinstance(body, str) and body.strip() else preview(body) if body else error.response.reason_phrase


def _url(options: ServerOptions) -> str:
    return options.base_url or os.environ.get("OPENAI_BASE_URL", "") or LOCAL_URL


def _shown_url(options: ServerOptions) -> str:
    return redact(_url(options)).rstrip("/")


def _model_names(listed: object) -> list[str]:
    """Return the names in a server's list of models.

    Raises:
        ValueError: The answer is not a list of models.
    """
    entries = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(entries, list):
        raise ValueError(f'expected {{"data": [...]}}, received {preview(listed)}')  # noqa: TRY004 - of data, not of an argument
    names = [entry.get("id") for entry in entries if isinstance(entry, dict)]
    return [name for name in names if isinstance(name, str)]


def _client_options(options: ServerOptions) -> dict[str, Any]:
    """Return the arguments of the client, and register the secrets among them.

    Raises:
        InputError: The key is missing or not allowed in a header, or the address is not an HTTP address.
    """
    redact_logging()
    url = _url(options)
    register_url(url)
    _check_scheme(url, "base_url" if options.base_url else "OPENAI_BASE_URL")
    key = Secret(os.environ.get(options.api_key_env, ""))
    register(key.reveal().strip())
    text = key.reveal().strip()
    if not text and not url.startswith(_LOCAL_HOSTS):
        raise InputError(f"{redact(url)} needs a key: expected it in the environment variable {options.api_key_env}")
    if not (text.isascii() and text.isprintable()):
        raise InputError(
            f"the key in {options.api_key_env} contains a character that is not allowed in a header (a line break, a "
            "control character, or one that is not ASCII); set the variable again"
        )
    return {"base_url": url, "api_key": key, "max_retries": options.retries, "timeout": options.timeout_s}


def _check_scheme(url: str, name: str) -> None:
    if url.startswith(("http://", "https://")):
        return
    path = url.rpartition("://")[2]
    local = path.startswith(tuple(host.removeprefix("http://") for host in _LOCAL_HOSTS))
    written = f"{'http' if local else 'https'}://{path}"
    register_url(written)
    shown = redact(written)
    raise InputError(
        f"{name}: expected an address that begins with http:// or https://, received {shown.partition('://')[2]!r}; "
        f"write {shown!r}"
    )


def largest_answer(options: ServerOptions, sent: int) -> int:
    """Return the maximum size in bytes of an answer to a request.

    With a limit that fits every request, each of `concurrency` answers could take that much memory. The limit therefore
    depends on the request, with a wide margin.

    Args:
        options: Options of the requests.
        sent: Size of the request in bytes; the answer may repeat its tokens.

    >>> largest_answer(ServerOptions(), 10_000), largest_answer(ServerOptions(max_response_tokens=10**6), 10_000)
    (3305728, 67108864)
    """
    if options.max_answer_mb:
        return int(options.max_answer_mb * (1 << 20))
    asked_for = _OVERHEAD + _PER_RESPONSE_TOKEN * options.max_response_tokens + _PER_SENT_BYTE * sent
    return min(LARGEST_ANSWER, asked_for)


def _client(given: Mapping[str, Any], largest: Callable[[int], int] = lambda _: LARGEST_ANSWER) -> AsyncOpenAI:
    """Create a client with a deadline for every try and a limit on the size of every answer.

    A request that timed out at least twice is not sent again if the last `_TIMEOUTS` tries of all requests timed out,
    without an answer in between. Otherwise a server that hangs would delay the end of a run by the time limits of all
    retries.

    Args:
        given: The client's arguments.
        largest: Maps the size of a request to the maximum size of its answer, in bytes.
    """
    import openai

    base: Any = openai.DefaultAsyncHttpxClient
    library = importlib.import_module(
        next(kind.__module__ for kind in base.__mro__ if kind.__name__ == "AsyncClient").partition(".")[0]
    )
    limit = given["timeout"]
    timeouts = 0  # in a row

    class BoundedClient(base):  # type: ignore[misc]  # the class depends on the library's version
        async def send(self, request: Any, **options: Any) -> Any:  # noqa: ANN401 - of httpx or httpx2
            nonlocal timeouts
            try:
                async with asyncio.timeout(limit):
                    response = await super().send(request, **{**options, "stream": True})
                    whole = await self._whole(request, response)
            except (TimeoutError, library.TimeoutException) as error:
                timeouts += 1
                tried_before = request.headers.get("x-stainless-retry-count", "0") != "0"
                if tried_before and timeouts >= _TIMEOUTS:
                    raise openai.APITimeoutError(request=request) from error  # not retried
                raise library.ReadTimeout(f"no complete answer within {limit:g} s", request=request) from None
            timeouts = 0
            return whole

        async def _whole(self, request: Any, response: Any) -> Any:  # noqa: ANN401 - see above
            most = largest(len(request.content))
            body = bytearray()
            try:
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > most:
                        size = f"{most / 2**20:.3g} MB"
                        raise openai.OpenAIError(
                            f"the answer is larger than {size}; the policy option max_answer_mb allows more"
                        )
            finally:
                await response.aclose()
            headers = [(k, v) for k, v in response.headers.multi_items() if k.lower() not in _OF_THE_BODY]
            return library.Response(response.status_code, headers=headers, content=bytes(body), request=request)

    return openai.AsyncOpenAI(
        **{**given, "api_key": given["api_key"].reveal().strip() or "none"},
        http_client=BoundedClient(base_url=given["base_url"], timeout=limit),
    )


def _is_too_long(error: Exception) -> bool:
    line = str(error).lower()
    return any(mark in line for mark in _TOO_LONG)


OPENAI = PolicySpec(make, options=ServerOptions)
