"""GAGPO on WebShop: python -m research.benchmarks.gagpo [FOLDER].

FOLDER has the outputs of the commands of research/docs/gagpo.md, one folder per command. Their final success and areas
are kept in research/results/gagpo.parquet, from which the picture is drawn and `research.benchmarks.tables` writes the
tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import polars as pl

from hgpo_train.advantages import estimator
from hgpo_train.advantages.estimators.gagpo import gagpo
from hgpo_train.advantages.estimators.grpo import with_episode

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def contexts(parameters: Any) -> Sequence[str]:  # noqa: ANN401 - of a class that is made of the signature below
    """Return the hashes of a step with its last states and actions."""
    return [f"context_hash_{depth}" for depth in range(parameters.past + 1)]


@estimator("gagpo_variant", reads=contexts, scope="batch")
def variant(
    steps: pl.LazyFrame,
    *,
    past: int = 0,
    episode_weight: float = 0.0,
    gamma: float = 0.95,
    gae_lambda: float = 0.95,
    normalize: Literal["group", "batch"] = "group",
) -> pl.LazyFrame:
    """GAGPO whose states are states with `past` steps before them, plus the advantage of GRPO."""
    deepest = pl.coalesce(f"context_hash_{depth}" for depth in reversed(range(past + 1)))
    steps = with_episode(steps.with_columns(state_hash=deepest), cross_steps=False)
    steps = gagpo.function(steps, gamma=gamma, gae_lambda=gae_lambda, normalize=normalize)
    return steps.with_columns(advantage=pl.col("advantage") + episode_weight * pl.col("episode"))
