"""Common parts of in-process language models: tokenization of prompts within a budget, and sampling options."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial, partialmethod
from itertools import groupby
from typing import (
    TYPE_CHECKING,
    Annotated,
    Final,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
)

from msgspec import Meta

from hgpo_envs.errors import InputError
from hgpo_train.models.chat_format import THOUGHT, opened_thought, stop_length
from hgpo_train.models.config import ChatTemplate
from hgpo_train.policies.base import Failure, Policy, Reply, Request
from hgpo_train.policies.conversation import (
    Turn,
    encode_chats,
    encode_conversation,
    fewest_dropped,
    without_oldest,
)
from hgpo_train.settings import PositiveInt, StopTexts, Temperature, build, check

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from _typeshed import DataclassInstance

    from hgpo_train.models.hf import Model, Tokenizer
    from hgpo_train.policies.registry import PolicyContext

Options = TypeVar("Options", bound="GenerationOptions")

PROMPT_TOO_LONG: Final = "PromptTooLong"
"""The kind of failure of a rollout whose prompt is too long, with `overflow = "error"`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationOptions(ChatTemplate):
    """Options of tokenization and sampling."""

    temperature: Temperature = 1.0
    """Sampling temperature; 0 selects the most likely token."""
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Nucleus sampling: the smallest set of most likely tokens that reaches this probability; 1 includes all."""
    stop: StopTexts = ()
    """Texts that end a response, which includes the one that ended it, up to the end of that token."""
    max_prompt_tokens: PositiveInt = 4096
    """Maximum length of a prompt, in tokens; see overflow for longer ones."""
    max_response_tokens: PositiveInt = 512
    """Maximum length of a response, in tokens."""
    overflow: Literal["left", "history", "error"] = "left"
    """How a prompt that is too long is shortened: left drops its start, as verl does; history first shows fewer past
    steps, in a conversation without its oldest turns after the first; error fails the rollout."""
    max_batch_tokens: PositiveInt = 131_072
    """Maximum number of tokens in memory at a time."""

    __post_init__ = partialmethod(check, "policy option")  # type: ignore[misc]


def generation_options(rollout: DataclassInstance) -> GenerationOptions:
    """Return the options of a training run: the settings of `rollout` with the same names."""
    names = {each.name for each in fields(rollout)}
    same = [each.name for each in fields(GenerationOptions) if each.name in names]
    return GenerationOptions(**{name: getattr(rollout, name) for name in same})


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
        self,
        tokenizer: Tokenizer,
        options: GenerationOptions,
        ends: Sequence[int | None],
        tokens: Sequence[int],
        logprobs: Sequence[float] | None,
        finish_reason: str | None = None,
    ) -> Reply:
        """Return the reply with a generated response: its text, token ids, log-probabilities and why it ends.

        The text is without the tokens that end a response; other special tokens are part of it. If it closes a thought
        that the prompt has opened, it begins with the tag that the prompt ends with.

        Args:
            tokenizer: The model's tokenizer.
            options: Options of tokenization and sampling.
            ends: Ids of the tokens that end a response (`hgpo_train.models.chat_format.end_tokens`).
            tokens: Token ids of the response.
            logprobs: Their log-probabilities, if they are known.
            finish_reason: ``stop``, or ``length`` if the response was cut. None if stop texts have to be found yet.
        """
        # 1. Why it ends. Stop texts are found after sampling, because they may begin and end within tokens.
        if finish_reason is None:
            is_full = len(tokens) == options.max_response_tokens
            finish_reason = "length" if is_full and tokens[-1] not in ends else "stop"
            count = (
                stop_length(tokenizer, tokens, options.stop) if options.stop else None
            )
            if count is not None:
                finish_reason = "stop"
                tokens = tokens[:count]
                logprobs = logprobs and logprobs[:count]

        # 2. Its text.
        dropped = {*ends, tokenizer.pad_token_id}
        count = len(tokens)
        while count and tokens[count - 1] in dropped:
            count -= 1
        response = tokenizer.decode(tokens[:count], skip_special_tokens=False)
        before, closed, _ = response.partition("</think>")
        if closed and THOUGHT not in before:
            response = opened_thought(tokenizer, self.tokens) + response
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


def model_options(
    policy: str,
    model: str,
    options: type[Options],
    context: PolicyContext,
) -> Options:
    """Return the options of a policy that runs a model in this process.

    Raises:
        InputError: The model is missing, or an option is not valid.
    """
    if not model:
        raise InputError(
            f"policy {policy}: expected a model, as in {policy}:Qwen/Qwen2.5-1.5B-Instruct"
        )
    return build(options, context.options, "policy option")


def fit_prompts(
    tokenizer: Tokenizer, requests: Sequence[Request], options: GenerationOptions
) -> list[FittedPrompt | Failure]:
    """Tokenize the requests' prompts; shorten those over the budget according to `options.overflow`."""
    # 1. Prompts without earlier turns are encoded together, which is several times faster than one after another.
    encoded: dict[int, list[int]] = {}  # by the request's place
    single = [place for place, request in enumerate(requests) if not request.turns]
    for tools, group in groupby(single, key=lambda place: requests[place].tools):
        places = list(group)
        chats = [requests[place].messages for place in places]
        tokens = encode_chats(tokenizer, chats, options.chat_template_options, tools)
        encoded |= zip(places, tokens, strict=True)

    # 2. The others one after another, whose earlier tokens are known. What is too long is shortened.
    fitted: list[FittedPrompt | Failure] = []
    for place, request in enumerate(requests):
        encode = partial(
            encode_conversation,
            tokenizer,
            request.system_prompt,
            chat_template_options=options.chat_template_options,
            tools=request.tools,
        )
        if place not in encoded:
            encoded[place] = encode(request.turns, request.prompt)
        prompt: FittedPrompt | Failure = FittedPrompt(encoded[place])
        if len(encoded[place]) > options.max_prompt_tokens:
            prompt = _shortened(request, encoded[place], encode, options)
        fitted.append(prompt)
    return fitted


def _shortened(
    request: Request,
    tokens: list[int],
    encode: Callable[[Sequence[Turn], str], list[int]],
    options: GenerationOptions,
) -> FittedPrompt | Failure:
    """Shorten a prompt that is over the token budget.

    Args:
        request: The request.
        tokens: Token ids of the whole prompt.
        encode: Returns those of a prompt with other past turns or another text.
        options: Options of tokenization.
    """
    budget = options.max_prompt_tokens
    turns = request.turns

    # 1. Past steps are left out, if the user wants that: of a conversation its oldest turns, or else one after another.
    shorter = None  # the text of the prompt, if it is another
    cut_pairs = 0
    if options.overflow == "history" and turns:
        cut_pairs = fewest_dropped(
            turns, lambda kept: len(encode(kept, request.prompt)) <= budget
        )
        tokens = encode(without_oldest(turns, cut_pairs), request.prompt)
    elif options.overflow == "history":
        while len(tokens) > budget and cut_pairs < request.step:
            cut_pairs += 1
            prompt = request.with_shorter_history(request.step - cut_pairs)
            if prompt != shorter:  # an environment may show fewer steps already
                shorter = prompt
                tokens = encode((), prompt)

    # 2. What is still too long loses its beginning.
    excess = max(0, len(tokens) - budget)
    if excess and options.overflow == "error":
        return Failure(
            PROMPT_TOO_LONG,
            f"{len(tokens)} tokens, more than max_prompt_tokens = {budget}",
        )
    return FittedPrompt(tokens[excess:], shorter, cut_pairs, excess)
