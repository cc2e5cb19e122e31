"""What a score is computed from: the rows of a step table, and a model's forward passes over them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from hgpo_train.models.hf import Tokenizer

TOKENS = pl.List(pl.Float32())
"""The dtype of a score with one value per response token."""


class TokenScores(NamedTuple):
    """What a forward pass gives to the response tokens of all rows, one row after another.

    Attributes:
        logprobs: log π of the tokens, float32 of shape (response tokens,), in nats.
        entropies: The entropies of the distributions that the tokens are drawn from, of the same shape, in nats.
    """

    logprobs: NDArray[np.float32]
    entropies: NDArray[np.float32]


class Scorer(Protocol):
    """A model that scores the tokens of responses (`hgpo_train.training.update.scorer`)."""

    @property
    def context_length(self) -> int | None:
        """The number of tokens of the longest sequence that the model accepts; None if it names none."""

    def score(self, steps: pl.DataFrame, *, reference: bool = False) -> TokenScores:
        """Score the response tokens of rows, in the order of the rows, under the policy or under the reference model.

        Raises:
            InputError: There is no reference model, or the rows have tokens that the model lacks.
        """


class ScoredRows:
    """Rows of a step table that a model scores. Each forward pass is computed once, when a score first asks for it.

    Args:
        steps: Rows with the columns `prompt_token_ids` and `response_token_ids`.
        scorer: The model.
        trajectories: All rows of their trajectories, also those without a response; by default `steps`.
        load_tokenizer: Returns the model's tokenizer, which few scores need.
    """

    def __init__(
        self,
        steps: pl.DataFrame,
        scorer: Scorer,
        trajectories: pl.DataFrame | None = None,
        load_tokenizer: Callable[[], Tokenizer] | None = None,
    ) -> None:
        self.steps = steps
        self.scorer = scorer
        self.trajectories = steps if trajectories is None else trajectories
        self._load_tokenizer = load_tokenizer

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            InputError: There is none.
        """
        if self._load_tokenizer is None:
            raise InputError(
                "expected a model with a tokenizer for this score, received one without"
            )
        return self._load_tokenizer()

    @cached_property
    def policy(self) -> TokenScores:
        """The scores of the response tokens under the policy."""
        return self.scorer.score(self.steps)

    @cached_property
    def reference(self) -> TokenScores:
        """The scores of the response tokens under the reference model."""
        return self.scorer.score(self.steps, reference=True)

    def with_prompts(self, prompt_token_ids: pl.Series) -> ScoredRows:
        """Return the same responses after other prompts, a list of token ids for each row."""
        steps = self.steps.with_columns(prompt_token_ids=prompt_token_ids)
        return ScoredRows(steps, self.scorer, self.trajectories, self._load_tokenizer)

    def per_token(self, values: NDArray[np.float32]) -> pl.Series:
        """Return values of response tokens as a column of lists, one list per row; empty for a row without tokens."""
        lengths = self.steps["response_token_ids"].list.len().fill_null(0).to_numpy()
        rows = np.repeat(np.arange(len(lengths)), lengths)
        # A row without tokens is in no group; the join adds it, with null in place of an empty list.
        present = (
            pl.DataFrame({"row": rows, "value": values})
            .group_by("row", maintain_order=True)
            .agg("value")
        )
        every = pl.DataFrame({"row": np.arange(len(lengths))})
        lists = every.join(present, on="row", how="left", maintain_order="left")[
            "value"
        ]
        return lists.fill_null(pl.Series([[]], dtype=TOKENS)).cast(TOKENS)
