"""Any OpenAI-compatible server as a policy: `openai:MODEL`, served by OpenAI, vLLM, SGLang, llama.cpp, a gateway.

The client library retries what is worth retrying (rate limits with their Retry-After, time-outs, broken connections,
5xx) and gives up after `retries`; what then fails costs one trajectory. What no retry mends (no key, no such model, no
server) is found before the first rollout. Every try has a deadline for the whole of it, and a limit on the size of the
answer, which goes by what was asked for: a server may send its answer byte by byte, or never stop sending.

The key is read from the environment alone and is in no log and no table (`hgpo_envs.secrets`).
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from msgspec import Meta

from hgpo_envs.errors import InputError, unknown
from hgpo_envs.secrets import Secret, redact, redact_logging, register, register_url
from hgpo_train.policies.base import AsyncPolicy, Failure, Reply
from hgpo_train.policies.registry import PolicySpec
from hgpo_train.policies.validation import preview
from hgpo_train.settings import LARGEST_FLOAT, NonNegativeFloat, NonNegativeInt, PositiveInt, Temperature, build, check

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion

    from hgpo_train.policies.base import Request
    from hgpo_train.policies.registry import PolicyContext

LOCAL_URL: Final = "http://localhost:8000/v1"

LARGEST_ANSWER: Final = 64 << 20
"""Bytes of an answer, decompressed, at which it is given up unless `ServerOptions.max_answer_mb` allows more."""

_OVERHEAD: Final = 1 << 20
_PER_RESPONSE_TOKEN: Final = 4 << 10  # its text, id and log-probability, and those of twenty alternatives
_PER_SENT_BYTE: Final = 16  # a prompt has no more tokens than bytes; an id in JSON takes about 8 bytes

_PAUSE_S: Final = 60.0  # the longest that the client library waits before another try
_CHECK_S: Final = 90.0
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
    """How a server is asked."""

    base_url: str = ""
    """The server's address up to /v1; empty takes OPENAI_BASE_URL, and without it http://localhost:8000/v1."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key. Servers on this machine need none."""
    temperature: Temperature = 1.0
    """Of the sampling."""
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Nucleus sampling; 1 takes all tokens."""
    max_response_tokens: PositiveInt = 512
    """Responses end here."""
    stop: tuple[str, ...] = ()
    """Texts that end a response."""
    send_seed: bool = True
    """Send each step's own seed; some servers refuse the field."""
    logprobs: bool = False
    """Ask for the response tokens' log-probabilities."""
    token_ids: bool = False
    """Ask for prompt and response token ids, as vLLM's server gives them (return_token_ids)."""
    overflow: Literal["history", "error"] = "history"
    """When the server says that the prompt is too long: show fewer past steps, or fail."""
    concurrency: PositiveInt = 128
    """Requests at once."""
    timeout_s: Annotated[float, Meta(gt=0, le=LARGEST_FLOAT)] = 120.0
    """Seconds from sending a request to the last byte of its answer; after that it is sent again."""
    retries: NonNegativeInt = 5
    """How often a request is sent again."""
    max_answer_mb: NonNegativeFloat = 0.0
    """An answer that is larger fails, in megabytes; 0 goes by the lengths of prompt and response (`largest_answer`)."""
    check_model: bool = True
    """Ask the server for its models before the first rollout, and refuse one that it does not list."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of the request's body, for example { top_k = 20 }."""

    def __post_init__(self) -> None:
        check(self, "policy option")


class ServerPolicy(AsyncPolicy):
    """Answers by asking a server for a chat completion a step.

    Args:
        model: The model's name on the server.
        options: How it is asked.
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
                    return Failure.of("PolicyFailed", error)
                shown, prompt = self._shorten(request, shown, prompt)
            except openai.OpenAIError as error:
                return Failure.of("PolicyFailed", error)

    async def _ask(self, prompt: str, seed: int) -> ChatCompletion:
        options = self.options
        body: dict[str, Any] = {"temperature": options.temperature, "top_p": options.top_p}
        if options.stop:
            body["stop"] = list(options.stop)
        if options.send_seed:
            body["seed"] = seed % (1 << 31)  # the widest that every server takes
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
        """The client, made in the loop that it runs in."""
        if self._client is None:
            self._client = _client(self._given, partial(largest_answer, self.options))
        return self._client

    async def release(self) -> None:
        """Closes the connections."""
        if self._client is not None:
            await self._client.close()

    def check(self) -> None:
        """Asks the server whether it is there, takes the key, and knows the model.

        Raises:
            InputError: It is not, does not, or gives no list of models.
        """
        asking = asyncio.run_coroutine_threadsafe(self._models(), self.loop)
        try:
            known = asking.result(_CHECK_S)
        except TimeoutError:
            asking.cancel()
            raise InputError(
                f"{_shown_url(self.options)} did not answer within {_CHECK_S:g} s; is it the server?"
            ) from None
        if known and self._model not in known:
            raise InputError(f"{_shown_url(self.options)}: {unknown('model', self._model, known)}")

    async def _models(self) -> list[str]:
        """The models that the server lists; empty where it has no such list."""
        import openai

        url = _shown_url(self.options)
        given = {**self._given, "max_retries": 2, "timeout": min(20.0, self.options.timeout_s)}
        client = _client(given)
        try:
            listed = await client.models.with_raw_response.list()
            return _model_names(json.loads(listed.http_response.content))
        except openai.AuthenticationError as error:
            raise InputError(f"{url} refuses the key in {self.options.api_key_env} (401)") from error
        except openai.APIStatusError:
            return []  # a server without a list of models: the first request will tell
        except openai.APIConnectionError as error:
            reason = Failure.of("", error.__cause__ or error).line
            raise InputError(
                f"no OpenAI-compatible server answers at {url} ({reason}); "
                "start it, or name another with --policy-option base_url=…"
            ) from None
        except Exception as error:  # noqa: BLE001 - whatever it answers, and whatever the client makes of it
            raise InputError(
                f"{url}/models gave no list of models ({Failure.of('', error).line}); expected the address of an "
                "OpenAI-compatible server up to /v1; if it is one, add --policy-option check_model=false"
            ) from None
        finally:
            await client.close()

    def _read(self, completion: object, prompt: str, cut: int) -> Reply | Failure:
        """The reply in a completion. Its values may be of any type: they are validated where the reply arrives."""
        choices = getattr(completion, "choices", None)
        if not isinstance(choices, list) or not choices:
            return Failure("PolicyFailed", f"the server's reply holds no choice: {preview(completion)}")
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
        )

    def _shorten(self, request: Request, shown: int, prompt: str) -> tuple[int, str]:
        """The longest prompt that is shorter than this one, by fewer past steps; with none it is the shortest."""
        while shown:
            shown -= 1
            with_shorter_history = request.with_shorter_history(shown)
            if len(with_shorter_history) < len(prompt):
                return shown, with_shorter_history
        return 0, request.with_shorter_history(0)


def make(argument: str, context: PolicyContext) -> ServerPolicy:
    """`openai:MODEL`, after asking the server whether it is there and knows the model.

    Raises:
        InputError: No model is named, an option is wrong, the key is missing or refused, there is no server at the
            address, or it does not know the model.
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


def _url(options: ServerOptions) -> str:
    return options.base_url or os.environ.get("OPENAI_BASE_URL", "") or LOCAL_URL


def _shown_url(options: ServerOptions) -> str:
    return redact(_url(options)).rstrip("/")


def _model_names(listed: object) -> list[str]:
    """The names in a server's list of models.

    Raises:
        ValueError: It is no such list.
    """
    entries = listed.get("data") if isinstance(listed, dict) else None
    if not isinstance(entries, list):
        raise ValueError(f'expected {{"data": [...]}}, got {preview(listed)}')  # noqa: TRY004 - of data, not of an argument
    names = [entry.get("id") for entry in entries if isinstance(entry, dict)]
    return [name for name in names if isinstance(name, str)]


def _client_options(options: ServerOptions) -> dict[str, Any]:
    """The arguments of the client; whatever is secret in them is registered.

    Raises:
        InputError: The key is missing, or no header can hold it; or the address is none.
    """
    redact_logging()
    url = _url(options)
    register_url(url)
    key = Secret(os.environ.get(options.api_key_env, ""))
    register(key.reveal().strip())
    text = key.reveal().strip()
    if not text and not url.startswith(_LOCAL_HOSTS):
        raise InputError(f"{redact(url)} needs a key: expected it in the environment variable {options.api_key_env}")
    if not (text.isascii() and text.isprintable()):
        raise InputError(
            f"the key in {options.api_key_env} holds a character that no header can (a line break in the middle, a "
            "control character, or one that is not ASCII); set the variable again"
        )
    if not url.startswith(("http://", "https://")):
        raise InputError(f"base_url: expected an address that begins with http:// or https://, got {redact(url)!r}")
    return {"base_url": url, "api_key": key, "max_retries": options.retries, "timeout": options.timeout_s}


def largest_answer(options: ServerOptions, sent: int) -> int:
    """The most bytes that an answer to a prompt may have.

    A limit that fits every model would let each of `concurrency` answers take that much memory. So it goes by what was
    asked for, with ample room.

    Args:
        options: How the server is asked.
        sent: Bytes of the request, whose tokens the answer may repeat.

    >>> largest_answer(ServerOptions(), 10_000), largest_answer(ServerOptions(max_response_tokens=10**6), 10_000)
    (3305728, 67108864)
    """
    if options.max_answer_mb:
        return int(options.max_answer_mb * (1 << 20))
    asked_for = _OVERHEAD + _PER_RESPONSE_TOKEN * options.max_response_tokens + _PER_SENT_BYTE * sent
    return min(LARGEST_ANSWER, asked_for)


def _client(given: Mapping[str, Any], largest: Callable[[int], int] = lambda _: LARGEST_ANSWER) -> AsyncOpenAI:
    """A client whose every try ends after the time-out, and whose answers are of a bounded size.

    Args:
        given: The client's arguments.
        largest: The most bytes of an answer to a request of so many bytes.
    """
    import openai

    base: Any = openai.DefaultAsyncHttpxClient
    library = importlib.import_module(
        next(kind.__module__ for kind in base.__mro__ if kind.__name__ == "AsyncClient").partition(".")[0]
    )
    limit = given["timeout"]

    class BoundedClient(base):  # type: ignore[misc]  # the class depends on the library's version
        async def send(self, request: Any, **options: Any) -> Any:  # noqa: ANN401 - of httpx or httpx2
            deadline = asyncio.timeout(limit)
            try:
                async with deadline:
                    response = await super().send(request, **{**options, "stream": True})
                    return await self._whole(request, response)
            except TimeoutError:
                raise library.ReadTimeout(f"no whole answer within {limit:g} s", request=request) from None

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
