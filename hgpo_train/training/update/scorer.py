"""Forward passes over responses: log-probabilities and entropies of their tokens, under a policy and its reference."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
import torch

from hgpo_envs.errors import InputError
from hgpo_train.models.forward_check import can_pack
from hgpo_train.models.hf import unwrap_peft
from hgpo_train.models.packed_attention import (
    disable_packed_kernel,
    enable_packed_kernel,
)
from hgpo_train.scores.rows import TokenScores
from hgpo_train.training.memory_plan import memory_advice
from hgpo_train.training.update.batches import (
    check_rows,
    micro_batches,
    samples_from_steps,
)
from hgpo_train.training.update.logprobs import response_logprobs

if TYPE_CHECKING:
    import polars as pl
    from numpy.typing import NDArray
    from torch import Tensor

    from hgpo_train.models.hf import Model
    from hgpo_train.training.config import Config, SftConfig
    from hgpo_train.training.update.batches import Layout, MicroBatch, Samples


class TokenScorer:
    """A causal language model that scores the tokens of responses.

    Args:
        model: The model, bare or wrapped by peft.
        config: The settings, of which the sections `update` and `model` are used.
        temperature: The sampling temperature of the scored distribution.

    Raises:
        InputError: Packed rows are asked for, and those of the model see one another.

    Attributes:
        context_length: The number of tokens of the longest sequence that the model accepts; None if its configuration
            names none.
        vocabulary_size: The number of token ids: the rows of the input embedding, which can exceed the tokenizer's.
        layout: How the rows of a micro-batch are arranged.
        reference: The model of reference log-probabilities. A model with adapters can be its own: it is then used
            without them. None if there is none.
    """

    def __init__(
        self,
        model: Model,
        config: Config | SftConfig,
        *,
        temperature: float = 1.0,
    ) -> None:
        self.config = config
        self.temperature = temperature
        self.model = model
        self.reference: Model | None = None
        self.device = next(model.parameters()).device
        self.dtype: torch.dtype = getattr(torch, config.model.compute_dtype)
        plain = unwrap_peft(model)
        self.vocabulary_size = len(plain.get_input_embeddings().weight)
        sizes = plain.config.get_text_config()
        self.context_length: int | None
        self.context_length = getattr(sizes, "max_position_embeddings", None)

        # Rows are packed if that is asked for, or if a kernel computes packed rows; and if the model can.
        wanted = config.update.layout
        has_kernel = enable_packed_kernel(model, self.dtype)
        is_packed = wanted == "packed" or (wanted == "auto" and has_kernel)
        if is_packed and not can_pack(model):
            problem = (
                f"rows of {type(plain).__name__} see one another when they are packed"
            )
            if wanted == "packed":
                raise InputError(
                    f'update.layout: {problem}; set update.layout = "padded"'
                )
            warnings.warn(
                f"{problem}, so they are padded (update.layout)", stacklevel=2
            )
            disable_packed_kernel(model)
            is_packed = False
        self.layout: Layout = "packed" if is_packed else "padded"

    def score(self, steps: pl.DataFrame, *, reference: bool = False) -> TokenScores:
        """Score the response tokens of rows; see `hgpo_train.scores.Scorer`."""
        check_rows(steps, self.vocabulary_size)
        samples = samples_from_steps(
            steps, share_prefixes=self.config.update.share_prefixes
        )
        return self.score_samples(samples, reference=reference)

    def score_samples(
        self, samples: Samples, *, reference: bool = False
    ) -> TokenScores:
        """Score the response tokens of samples, under the present policy or under the reference model.

        Raises:
            InputError: There is no reference model, or the device ran out of memory.
        """
        if not reference:
            return self._scores(self.model, samples)
        if self.reference is None:
            raise InputError(
                "expected a reference model for reference_logprobs, received none; name one (--reference)"
            )
        # A model with adapters is its own reference while they are disabled.
        is_adapted = self.reference is self.model
        with self.model.disable_adapter() if is_adapted else nullcontext():
            return self._scores(self.reference, samples)

    def logprobs(self, samples: Samples) -> NDArray[np.float32]:
        """Return log π of all response tokens under the present policy, float32 of shape (response tokens,)."""
        return self.score_samples(samples).logprobs

    def reference_logprobs(self, samples: Samples) -> NDArray[np.float32]:
        """Return log π_ref of all response tokens, float32 of shape (response tokens,)."""
        return self.score_samples(samples, reference=True).logprobs

    def _scores(self, model: Model, samples: Samples) -> TokenScores:
        model.eval()
        tokens = len(samples.rollout_logprob)
        scores = TokenScores(np.zeros(tokens, np.float32), np.zeros(tokens, np.float32))
        with torch.no_grad(), memory_advice(self.config):
            rows = np.arange(len(samples))
            limit = self.config.update.micro_batch_tokens
            for micro in micro_batches(
                samples, rows, max_tokens=limit, layout=self.layout
            ):
                found = self.forward(model, micro, entropy_gradient=False)
                for values, part in zip(scores, found, strict=True):
                    values[micro.token] = part.cpu().numpy()
        return scores

    def forward(
        self,
        model: Model,
        micro: MicroBatch,
        *,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        """Return the log-probabilities and entropies of a micro-batch's tokens, float32 of shape (tokens,)."""
        # Weights are float32; products are computed in the compute dtype, as in the update.
        is_half = self.dtype != torch.float32
        with torch.autocast(self.device.type, self.dtype, enabled=is_half):
            return response_logprobs(
                model,
                micro.input_ids.to(self.device),
                micro.position_ids.to(self.device),
                micro.source.to(self.device),
                micro.target.to(self.device),
                temperature=self.temperature,
                entropy_gradient=entropy_gradient,
                chunk=self.config.update.logit_chunk,
            )
