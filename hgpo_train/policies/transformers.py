"""A Transformers model in process as a policy: the same weights that are trained, so publishing them costs nothing."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch

from hgpo_train.policies.base import BatchPolicy, Failure, Reply, Request
from hgpo_train.policies.sampling import SamplingOptions, sample

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hgpo_train.hf import Model, Tokenizer


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """How prompts are read and responses drawn.

    Attributes:
        temperature: Of the sampling; 0 takes the most likely token.
        max_prompt_tokens: Longer prompts are cut.
        max_response_tokens: Responses end here.
        overflow: How a prompt is cut: ``left`` drops its beginning, as verl does; ``history`` first shows fewer past
            steps.
        max_batch_tokens: Bound on tokens in memory at a time.
        chat_template: Further arguments of the chat template, for example ``enable_thinking``.
    """

    temperature: float = 1.0
    max_prompt_tokens: int = 4096
    max_response_tokens: int = 512
    overflow: Literal["left", "history"] = "left"
    max_batch_tokens: int = 131_072
    chat_template: Mapping[str, Any] = field(default_factory=dict)


class TransformersPolicy(BatchPolicy):
    """Answers by sampling from a causal language model.

    A reply depends on its request's prompt and seed and on the weights. On a CPU that makes it reproducible.

    Args:
        model: The model; read as it is at each call.
        tokenizer: With a chat template.
        options: How prompts are read and responses drawn; may be replaced between calls.
        dtype: What autocast computes in.
    """

    name = "transformers"

    def __init__(
        self, model: Model, tokenizer: Tokenizer, options: GenerationOptions, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.options = options
        self._model, self._tokenizer, self._dtype = model, tokenizer, dtype
        self._device: torch.device = next(model.parameters()).device
        self.reproducible = self._device.type == "cpu"
        self._stop = stop_tokens(model, tokenizer)

    def publish(self, model: Model, version: int) -> None:
        """Takes new weights: the model is the same object, so only the version changes."""
        assert model is self._model
        self.version = version

    def respond(self, requests: Sequence[Request]) -> Sequence[Reply | Failure]:
        """See `BatchPolicy`."""
        prompts = self._encode([request.prompt for request in requests])
        fitted = [self._fit(request, tokens) for request, tokens in zip(requests, prompts, strict=True)]
        options = SamplingOptions(
            max_new_tokens=self.options.max_response_tokens,
            temperature=self.options.temperature,
            stop=self._stop,
            max_batch_tokens=self.options.max_batch_tokens,
        )
        with self._computing():
            drawn = sample(self._model, [tokens for tokens, _, _ in fitted], [r.seed for r in requests], options)
        texts = self._tokenizer.batch_decode([one.tokens for one in drawn], skip_special_tokens=True)
        return [
            Reply(
                response=text,
                prompt=prompt,
                prompt_token_ids=tokens,
                response_token_ids=one.tokens.tolist(),
                response_logprobs=one.logprobs.tolist(),
                finish_reason="stop" if int(one.tokens[-1]) in self._stop else "length",
                cut_pairs=cut,
            )
            for (tokens, prompt, cut), one, text in zip(fitted, drawn, texts, strict=True)
        ]

    def _encode(self, prompts: Sequence[str]) -> list[list[int]]:
        """Prompts as one user's turn each, in tokens."""
        return encode_prompts(self._tokenizer, prompts, self.options.chat_template)

    def _fit(self, request: Request, tokens: list[int]) -> tuple[list[int], str | None, int]:
        """The tokens within the budget, the prompt's text if another was taken, and how many pairs were left out."""
        budget = self.options.max_prompt_tokens
        prompt: str | None = None
        cut = 0
        if len(tokens) > budget and self.options.overflow == "history":
            shown = request.step
            while len(tokens) > budget and shown > 0:
                shown, cut = shown - 1, cut + 1
                prompt = request.shorter(shown)
                tokens = self._encode([prompt])[0]
        return tokens[-budget:], prompt, cut

    @contextlib.contextmanager
    def _computing(self) -> Iterator[None]:
        with torch.autocast(self._device.type, self._dtype, enabled=self._dtype != torch.float32):
            yield


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


def stop_tokens(model: Model, tokenizer: Tokenizer) -> tuple[int, ...]:
    """The tokens that end a response: the tokenizer's end of turn and those of the model's generation settings."""
    named = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    listed = named if isinstance(named, list) else [named]
    return tuple(dict.fromkeys(token for token in (tokenizer.eos_token_id, *listed) if token is not None))
