"""Common parts of in-process language models: tokenization of prompts within a budget, and sampling options."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Protocol, TypeVar

from msgspec import Meta

from hgpo_envs.errors import InputError
from hgpo_train.policies.base import Failure, Policy, Reply
from hgpo_train.settings import PositiveInt, Temperature, build, check

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hgpo_train.models.hf import Model, Tokenizer
    from hgpo_train.policies.base import Request
    from hgpo_train.policies.registry import PolicyContext

Options = TypeVar("Options", bound="GenerationOptions")

PROMPT_TOO_LONG: Final = "PromptTooLong"
"""The kind of failure of a rollout whose prompt is too long, with `overflow = "error"`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """Options of tokenization and sampling."""

    temperature: Temperature = 1.0
    """Sampling temperature; 0 selects the most likely token."""
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Nucleus sampling: the smallest set of most likely tokens that reaches this probability; 1 includes all."""
    stop: tuple[str, ...] = ()
    """Texts that end a response; the response includes the one that ended it."""
    max_prompt_tokens: PositiveInt = 4096
    """Maximum length of a prompt, in tokens; see overflow for longer ones."""
    max_response_tokens: PositiveInt = 512
    """Maximum length of a response, in tokens."""
    overflow: Literal["left", "history", "error"] = "left"
    """How a prompt that is too long is shortened: left drops its start, as verl does; history first shows fewer past
    steps; error fails the rollout."""
    max_batch_tokens: PositiveInt = 131_072
    """Maximum number of tokens in memory at a time."""
    chat_template: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the chat template, for example { enable_thinking = false }."""

    def __post_init__(self) -> None:
        check(self, "policy option")


class TrainablePolicy(Policy, Protocol):
    """A policy whose weights can be replaced.

    Attributes:
        options: Options of tokenization and sampling; may be replaced between calls.
    """

    options: GenerationOptions

    def publish(self, model: Model, version: int) -> None:
        """Use the model's current weights from now on, and clear caches computed with the old ones.

        Args:
            model: The model that is trained.
            version: The policy version written to rows from now on.
        """
        ...


class FittedPrompt(NamedTuple):
    """A prompt that fits the token budget.

    Attributes:
        tokens: Token ids of the prompt.
        prompt: Text of the prompt, if it is not the request's.
        cut_pairs: Number of past steps that were left out.
        cut_tokens: Number of tokens that were dropped from its start.
    """

    tokens: list[int]
    prompt: str | None = None
    cut_pairs: int = 0
    cut_tokens: int = 0

    def reply(
        self, response: str, tokens: Sequence[int], logprobs: Sequence[float] | None, finish_reason: str
    ) -> Reply:
        """Return the reply with a generated response: its text, token ids, log-probabilities and why it ends."""
        return Reply(
            response=response,
            prompt=self.prompt,
            prompt_token_ids=self.tokens,
            response_token_ids=tokens,
            response_logprobs=logprobs,
            finish_reason=finish_reason,
            cut_pairs=self.cut_pairs,
            cut_tokens=self.cut_tokens,
        )


def model_options(policy: str, model: str, options: type[Options], context: PolicyContext) -> Options:
    """Return the options of a policy that runs a model in this process.

    Raises:
        InputError: The model is missing, or an option is not valid.
    """
    if not model:
        raise InputError(f"policy {policy}: expected a model, as in {policy}:Qwen/Qwen2.5-1.5B-Instruct")
    return build(options, context.options, "policy option")


def encode_prompts(
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    chat_template: Mapping[str, Any] | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[list[int]]:
    """Render each prompt as a user turn of the chat template, with the start of the assistant turn, and tokenize it.

    Args:
        tokenizer: A tokenizer with a chat template.
        prompts: The prompts.
        chat_template: Further arguments of the chat template.
        tools: The tools that a response may call, as JSON schemas, which the chat template renders.

    Returns:
        One list of token ids per prompt.

    Raises:
        InputError: There are tools, and the chat template does not render them.
    """
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    arguments = {**({"tools": list(tools)} if tools else {}), **(chat_template or {})}
    texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False, **arguments)
    if tools and not all(tools[0]["function"]["name"] in text for text in texts):
        raise InputError(
            "the environment has tools, which the model's chat template does not render; use another model"
        )
    tokens: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return tokens


def fit_prompts(
    tokenizer: Tokenizer, requests: Sequence[Request], options: GenerationOptions
) -> list[FittedPrompt | Failure]:
    """Tokenize the requests' prompts; shorten those over the budget according to `options.overflow`."""
    encoded: list[list[int]] = []
    for tools, same in groupby(requests, key=attrgetter("tools")):
        encoded += encode_prompts(tokenizer, [request.prompt for request in same], options.chat_template, tools)
    return [_fit(tokenizer, request, tokens, options) for request, tokens in zip(requests, encoded, strict=True)]


def _fit(
    tokenizer: Tokenizer, request: Request, tokens: list[int], options: GenerationOptions
) -> FittedPrompt | Failure:
    budget = options.max_prompt_tokens
    prompt: str | None = None
    shown = request.step
    while len(tokens) > budget and options.overflow == "history" and shown > 0:
        shown -= 1
        if (shorter := request.with_shorter_history(shown)) != prompt:
            prompt = shorter
            tokens = encode_prompts(tokenizer, [prompt], options.chat_template, request.tools)[0]
    dropped = max(0, len(tokens) - budget)
    if dropped and options.overflow == "error":
        return Failure(PROMPT_TOO_LONG, f"{len(tokens)} tokens, more than max_prompt_tokens = {budget}")
    return FittedPrompt(tokens[dropped:], prompt, request.step - shown, dropped)
