"""What in-process language models share: how prompts become tokens within a budget, and how responses are drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from msgspec import Meta

from hgpo_train.policies.base import Failure
from hgpo_train.settings import PositiveInt, Temperature, check

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hgpo_train.models.hf import Tokenizer
    from hgpo_train.policies.base import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions:
    """How prompts are read and responses drawn."""

    temperature: Temperature = 1.0
    """Of the sampling; 0 takes the most likely token."""
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Nucleus sampling: the fewest most likely tokens that reach this probability; 1 takes all."""
    stop: tuple[str, ...] = ()
    """Texts that end a response; the one that did is part of it."""
    max_prompt_tokens: PositiveInt = 4096
    """Longer prompts are cut, see overflow."""
    max_response_tokens: PositiveInt = 512
    """Responses end here."""
    overflow: Literal["left", "history", "error"] = "left"
    """How too long a prompt is cut: left drops its beginning, as verl does; history first shows fewer past steps;
    error fails the rollout."""
    max_batch_tokens: PositiveInt = 131_072
    """Bound on tokens in memory at a time."""
    chat_template: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the chat template, for example { enable_thinking = false }."""

    def __post_init__(self) -> None:
        check(self, "policy option")


class FittedPrompt(NamedTuple):
    """A prompt within the budget.

    Attributes:
        tokens: Its token ids.
        prompt: Its text, if that is not the request's.
        cut_pairs: How many past steps were left out.
        cut_tokens: How many tokens were dropped from its beginning.
    """

    tokens: list[int]
    prompt: str | None = None
    cut_pairs: int = 0
    cut_tokens: int = 0


def encode_prompts(
    tokenizer: Tokenizer, prompts: Sequence[str], chat_template: Mapping[str, Any] | None = None
) -> list[list[int]]:
    """Each prompt as a user's turn in the chat template, followed by the beginning of the assistant's turn.

    Returns:
        Token ids, one list a prompt.
    """
    chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
    texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False, **(chat_template or {}))
    tokens: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return tokens


def fit_prompts(
    tokenizer: Tokenizer, requests: Sequence[Request], options: GenerationOptions
) -> list[FittedPrompt | Failure]:
    """The requests' prompts in tokens, each within the budget as `options.overflow` says."""
    encoded = encode_prompts(tokenizer, [request.prompt for request in requests], options.chat_template)
    return [_fit(tokenizer, request, tokens, options) for request, tokens in zip(requests, encoded, strict=True)]


def _fit(
    tokenizer: Tokenizer, request: Request, tokens: list[int], options: GenerationOptions
) -> FittedPrompt | Failure:
    budget = options.max_prompt_tokens
    prompt: str | None = None
    shown = request.step
    while len(tokens) > budget and options.overflow == "history" and shown > 0:
        shown -= 1
        with_shorter_history = request.with_shorter_history(shown)
        if with_shorter_history != prompt:
            prompt = with_shorter_history
            tokens = encode_prompts(tokenizer, [prompt], options.chat_template)[0]
    dropped = max(0, len(tokens) - budget)
    if dropped and options.overflow == "error":
        return Failure("PromptTooLong", f"{len(tokens)} tokens, more than max_prompt_tokens = {budget}")
    return FittedPrompt(tokens[dropped:], prompt, request.step - shown, dropped)
