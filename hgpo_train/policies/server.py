"""Any OpenAI-compatible server as a policy: `openai:MODEL`, served by OpenAI, vLLM, SGLang, llama.cpp, a gateway.

The client library retries what is worth retrying (rate limits with their Retry-After, time-outs, broken connections,
5xx) and gives up after `retries`; what then fails costs one trajectory. What no retry mends (no key, no such model, no
server) is found out before the first rollout. The key is read from the environment alone and is in no log and no table.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from hgpo_envs.errors import InputError, unknown
from hgpo_train.policies.base import AsyncPolicy, Failure, Reply
from hgpo_train.settings import build

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI
    from openai.types.chat import ChatCompletion

    from hgpo_train.policies.base import Request
    from hgpo_train.policies.registry import PolicyContext

LOCAL_URL: Final = "http://localhost:8000/v1"
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
    temperature: float = 1.0
    """Of the sampling."""
    top_p: float = 1.0
    """Nucleus sampling; 1 takes all tokens."""
    max_response_tokens: int = 512
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
    """When the server says that the prompt is too long: show fewer past steps, or break off."""
    concurrency: int = 128
    """Requests at once."""
    timeout_s: float = 120.0
    """Seconds until a request counts as lost and is sent again."""
    retries: int = 5
    """How often a request is sent again."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of the request's body, for example { top_k = 20 }."""

    def __post_init__(self) -> None:
        for name, least in (("concurrency", 1), ("max_response_tokens", 1), ("retries", 0), ("temperature", 0)):
            if getattr(self, name) < least:
                raise InputError(f"policy option {name}: expected at least {least}, got {getattr(self, name)}")
        if self.timeout_s <= 0 or not 0 < self.top_p <= 1:
            raise InputError(f"expected timeout_s > 0 and 0 < top_p ≤ 1, got {self.timeout_s} and {self.top_p}")


class ServerPolicy(AsyncPolicy):
    """Answers by asking a server for a chat completion a step.

    Args:
        model: The model's name on the server.
        options: How it is asked.
    """

    def __init__(self, model: str, options: ServerOptions) -> None:
        super().__init__(options.concurrency)
        self.name, self.options = f"openai:{model}", options
        self._model = model
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
        if self._client is None:  # made in the loop that it runs in
            import openai

            self._client = openai.AsyncOpenAI(**_client_options(options))
        body: dict[str, Any] = {"temperature": options.temperature, "top_p": options.top_p}
        if options.stop:
            body["stop"] = list(options.stop)
        if options.send_seed:
            body["seed"] = seed % (1 << 31)  # the widest that every server takes
        if options.logprobs:
            body["logprobs"] = True
        extra = {**options.extra, **({"return_token_ids": True} if options.token_ids else {})}
        completion: ChatCompletion = await self._client.chat.completions.create(
            model=self._model,
            messages=[{"role": "user", "content": prompt}],
            max_completion_tokens=options.max_response_tokens,
            extra_body=extra or None,
            **body,
        )
        return completion

    def _read(self, completion: ChatCompletion, prompt: str, cut: int) -> Reply | Failure:
        if not completion.choices:
            return Failure("PolicyFailed", "the server's reply holds no choice")
        choice = completion.choices[0]
        told = (choice.logprobs.content or []) if choice.logprobs else None
        return Reply(
            response=choice.message.content or "",  # an empty response is an invalid action, not a failure
            prompt=prompt,
            prompt_token_ids=getattr(completion, "prompt_token_ids", None),
            response_token_ids=getattr(choice, "token_ids", None),
            response_logprobs=None if told is None else [token.logprob for token in told],
            finish_reason=choice.finish_reason,
            cut_pairs=cut,
        )

    def _shorten(self, request: Request, shown: int, prompt: str) -> tuple[int, str]:
        """The longest prompt that is shorter than this one, by fewer past steps; with none it is the shortest."""
        while shown:
            shown -= 1
            shorter = request.shorter(shown)
            if len(shorter) < len(prompt):
                return shown, shorter
        return 0, request.shorter(0)


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
    options = build(ServerOptions, dict(context.options), "policy option ")
    with openai.OpenAI(**{**_client_options(options), "max_retries": 2, "timeout": 20.0}) as client:
        _check(client, argument, options)
    return ServerPolicy(argument, options)


def _check(client: OpenAI, model: str, options: ServerOptions) -> None:
    import openai

    try:
        known = [entry.id for entry in client.models.list()]
    except openai.AuthenticationError as error:
        raise InputError(f"{_url(options)} refuses the key in {options.api_key_env} (401)") from error
    except openai.APIConnectionError as error:
        reason = error.__cause__ or error
        raise InputError(
            f"no OpenAI-compatible server answers at {_url(options)} ({reason}); "
            "start it, or name another with --policy-option base_url=…"
        ) from error
    except openai.APIStatusError:
        return  # a server without a list of models: the first request will tell
    if known and model not in known:
        raise InputError(f"{_url(options)}: {unknown('model', model, known)}")


def _url(options: ServerOptions) -> str:
    return options.base_url or os.environ.get("OPENAI_BASE_URL", "") or LOCAL_URL


def _client_options(options: ServerOptions) -> dict[str, Any]:
    url = _url(options)
    key = os.environ.get(options.api_key_env, "")
    if not key and not url.startswith(_LOCAL_HOSTS):
        raise InputError(f"{url} needs a key: expected it in the environment variable {options.api_key_env}")
    return {
        "base_url": url,
        "api_key": key or "none",
        "max_retries": options.retries,
        "timeout": options.timeout_s,
    }


def _is_too_long(error: Exception) -> bool:
    line = str(error).lower()
    return any(mark in line for mark in _TOO_LONG)
