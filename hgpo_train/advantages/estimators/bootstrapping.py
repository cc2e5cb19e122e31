"""Generalised advantage estimation (GAE, arXiv 1506.02438) from values of states, as in GAGPO and BEPO.

    δ_t = r_t + γ V(s_{t+1}) - V(s_t)              V is 0 after the last step
    A_t = Σ_j (γλ)^j δ_{t+j}

Everything is computed relative to returns. With the surplus E_t = V(s_t) - R_t, rewards cancel:

    δ_t = γ E_{t+1} - E_t,     A_t = γ B_{t+1} - E_t,     B_t = (1 - λ) E_t + γλ B_{t+1}

So advantages are exactly 0 where the values are the returns, whatever the rounding of rewards and discounts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import polars as pl
from msgspec import Meta

from hgpo_train.advantages.discounting import discounted
from hgpo_train.advantages.windows import neighbour

if TYPE_CHECKING:
    from collections.abc import Sequence

GaeLambda = Annotated[
    float,
    Meta(
        ge=0,
        le=1,
        description="λ of GAE, in [0, 1]: 0 trusts the values after one step, 1 the rollout's return.",
    ),
]


def generalised_advantage(
    steps: pl.LazyFrame,
    into: str,
    *,
    gamma: float,
    gae_lambda: float,
) -> pl.LazyFrame:
    """Add the advantage of each step, A_t.

    Args:
        steps: A table with the input columns of estimators, and two Float64 columns: `(surplus)`, E_t = V(s_t) - R_t,
            and `(charged surplus)`, the same from returns minus penalties. A penalty with ``penalty_at="return"`` is
            compared within the state, and not part of the values of the steps before.
        into: The name of the new column (Float64).
        gamma: γ, the discount per step.
        gae_lambda: λ.
    """

    def accumulated(columns: Sequence[pl.Series]) -> pl.Series:
        surplus, first = (column.to_numpy() for column in columns)
        return pl.Series(
            discounted(
                (1.0 - gae_lambda) * surplus, gamma * gae_lambda, first.nonzero()[0]
            )
        )

    ahead = pl.map_batches(["(surplus)", "first"], accumulated, return_dtype=pl.Float64)
    steps = steps.with_columns(ahead.alias("(ahead)"))
    later = neighbour("(ahead)", 1).fill_null(0.0)
    return steps.with_columns((gamma * later - pl.col("(charged surplus)")).alias(into))
