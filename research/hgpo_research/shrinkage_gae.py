"""Shrinkage GAE: bootstrapped advantages from values that are shrunk along histories. Experimental, of this project.

The value of a step is estimated from coarse to fine contexts: the task, then the state, then the state with 1 … K past
states (HGPO's contexts). M_k is the mean return of the steps of the task in the context of depth k, and m_k the number
of their rollouts. The mean of few rollouts is noise, so each level moves the value only part of the way (empirical
Bayes):

    V_task = M_task,   V_k = V_{k-1} + w_k (M_k - V_{k-1})        k = 0 … min(K, t)
    w_k    = τ_k² / (τ_k² + σ_k² / m_k)
    P_k    = (1 - w_k)² P_{k-1} + (1 - w_k) τ_k²                  the error E (V_k - E[R | C_k])²

σ_k² is the variance of returns within contexts of depth k, and τ_k² how much of that within depth k - 1 they explain.
Both are estimated from the rows of the batch, with no constant. With the mean M'_k over the m'_k other rollouts,

    q_k  = (R - M'_k)² m'_k / (m'_k + 1)
    σ_k² = mean of q_k,   τ_k² = max(0, mean of q_{k-1} - q_k)    over the steps with another rollout at depth k

The value after a step is then combined with the step's own rollout, the finest context, which is known from a single
return with the variance σ². λ is high where the value is uncertain, and low where it is well known:

    G_t = r_t + γ (V(s_{t+1}) + λ_{t+1} (G_{t+1} - V(s_{t+1}))),   λ = P_K / (P_K + σ²)
    A_t = G_t - V(s_t)

This is generalised advantage estimation (arXiv 1506.02438) with a λ per step. V is 0 after the last step. With
`gae_lambda=1` nothing is bootstrapped: A_t = R_t - V(s_t). σ² is that of the deepest level that any two rollouts of the
batch share.

A penalty of invalid actions with ``penalty_at="return"`` is compared like the return and not bootstrapped: the last
equation is A_t = G_t - c_t - V'(s_t), where V' is computed from R - c with the same weights.

With `leave_one_out`, M_k and m_k are those of the other rollouts, and contexts without one are skipped (w_k = 0).

Special cases: a task with a single rollout has advantage 0. λ is 1 where nothing varies. The error P goes on to k = K
also where t < K: a level that the step does not have counts as one that no other rollout shares, with w_k = 0 and
P_k = P_{k-1} + τ_k², although nothing is left to know there. So λ is larger at the first K steps than P_min(K, t) would
make it. docs/shrinkage_gae.md derives the equations.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import polars as pl

from hgpo_train.advantages import estimator
from hgpo_train.advantages.discounting import discounted
from hgpo_train.advantages.input_columns import CHAINS
from hgpo_train.advantages.parameters import (
    GAMMA,
    HISTORY_LENGTH,
    Context,
    Discount,
)
from hgpo_train.advantages.windows import (
    chain,
    mean,
    neighbour,
    normalise,
    within,
)
from hgpo_train.settings import NonNegativeFloat, NonNegativeInt  # noqa: TC001 - evaluated with the annotations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_VALUES = {"plain": "plain_return", "return": "return"}


@estimator(
    reads=lambda p: [f"{CHAINS[p.context]}{k}" for k in range(p.history_length + 1)],
    details=("value", "lambda"),
    scope="batch",
)
def shrinkage_gae(
    steps: pl.LazyFrame,
    *,
    history_length: NonNegativeInt = HISTORY_LENGTH,
    context: Context = "states",
    gamma: Discount = GAMMA,
    gae_lambda: Discount | None = None,
    leave_one_out: bool = False,
    unit_scale: bool = False,
    epsilon: NonNegativeFloat = 1e-6,
) -> pl.LazyFrame:
    """Experimental: bootstraps from state values that are shrunk along histories.

    Args:
        steps: A table with the input columns of estimators.
        history_length: K, the maximum depth of contexts.
        context: ``states`` for contexts of states, ``states_actions`` for states and the actions between them.
        gamma: γ, the discount per step.
        gae_lambda: λ in [0, 1]; None estimates it per step. 1 does not bootstrap.
        leave_one_out: Whether a rollout's own returns are left out of its values. If false, advantages in contexts
            that few rollouts share are smaller: they are biased towards 0, and have less variance.
        unit_scale: Whether advantages are divided by the root of the batch's mean square (+ ε).
        epsilon: ε, added to the scale of advantages.
    """
    levels = {"task": within()} | {
        f"k{k}": within(f"{CHAINS[context]}{k}") for k in range(history_length + 1)
    }
    # From the task to the deepest history: deviations from other rollouts, variances from these, then values.
    for level, group in levels.items():
        steps = _from_others(steps, level, group)
    steps = _with_variances(steps, list(levels))
    if not leave_one_out:
        steps = _from_all(steps, levels)
    steps = _with_values(steps, list(levels))
    # All values below are relative to the plain return, R: they are exactly 0 where all returns are equal.
    value = pl.col("(plain value)")
    trust = pl.col("lambda") if gae_lambda is None else pl.lit(gae_lambda)
    steps = steps.with_columns(trust.alias("lambda"))
    # With y_t = (1 - λ_t) (V_t - R_t) + λ_t (G_t - R_t), the equation of G_t minus R_t = r_t + γ R_{t+1} reads
    # G_t - R_t = γ y_{t+1}, so that y is a sum of its own: y_t = (1 - λ_t) (V_t - R_t) + γ λ_t y_{t+1}.
    ahead = _accumulated((1.0 - pl.col("lambda")) * value, gamma * pl.col("lambda"))
    bootstrapped = gamma * neighbour("(ahead)", 1).fill_null(0.0)
    steps = steps.with_columns(
        ahead.alias("(ahead)"),
        (value + pl.col("plain_return")).alias("value"),
    )
    steps = steps.with_columns(advantage=bootstrapped - pl.col("(return value)"))
    if not unit_scale:
        return steps
    # Advantages of one scale, whatever that of rewards.
    steps = mean(
        steps,
        "(square)",
        pl.col("advantage") ** 2,
        within(of="batch_key"),
    )
    return steps.with_columns(
        advantage=pl.col("advantage") / (pl.col("(square)").sqrt() + epsilon)
    )


def _accumulated(value: pl.Expr, factor: pl.Expr) -> pl.Expr:
    """Return y_t = x_t + f_t y_{t+1}, a sum from a step to the end of its trajectory with a factor per step."""

    def add(columns: Sequence[pl.Series]) -> pl.Series:
        values, factors, first = (column.to_numpy() for column in columns)
        return pl.Series(discounted(values, factors, first.nonzero()[0]))

    return pl.map_batches(
        [value.alias("value"), factor.alias("factor"), "first"],
        add,
        return_dtype=pl.Float64,
    )


def _deviation(value: str, level: str) -> str:
    """Return the name of a column of deviations that `_from_others` adds."""
    return f"{value} from others at {level}"


def _others(level: str) -> str:
    """Return the name of a column of numbers of other trajectories that `_from_others` adds."""
    return f"others at {level}"


def _from_others(steps: pl.LazyFrame, level: str, group: pl.Expr) -> pl.LazyFrame:
    """Add how far returns are from the mean of the other trajectories' steps in the group; exactly 0 if all are equal.

    Both columns, the deviation and the number of other trajectories, are null where there are none.
    """
    steps = steps.with_columns(
        group.alias("(group)"),
        chain(group, pl.col("trajectory_key")).alias("(own)"),
    )
    steps = steps.with_columns(
        (
            pl.col("trajectory_key").n_unique().over("(group)").cast(pl.Float64) - 1.0
        ).alias(_others(level)),
        (
            pl.len().over("(group)").cast(pl.Float64)
            - pl.len().over("(own)").cast(pl.Float64)
        ).alias("(count)"),
        *(
            (pl.col(value) - pl.col(value).min().over("(group)")).alias(f"({name})")
            for name, value in _VALUES.items()
        ),
    )
    shared = pl.col("(group)").is_not_null() & (pl.col(_others(level)) > 0)
    results = {_others(level): pl.col(_others(level))}
    for name in _VALUES:
        # Sums without the least value of the group are exact where all values are equal.
        x = pl.col(f"({name})")
        results[_deviation(name, level)] = x - (
            x.sum().over("(group)") - x.sum().over("(own)")
        ) / pl.col("(count)")
    return steps.with_columns(
        pl.when(shared).then(value).alias(name) for name, value in results.items()
    )


def _with_variances(steps: pl.LazyFrame, levels: list[str]) -> pl.LazyFrame:
    """Add the batch's `σ² level` and `τ² level`; null where no rollouts share the level."""
    far = {
        level: (
            pl.col(_deviation("plain", level)),
            pl.col(_others(level)),
        )
        for level in levels
    }
    # A deviation from the mean of m others has the variance σ² (m + 1) / m.
    steps = steps.with_columns(
        (d * d * (m / (m + 1.0))).alias(f"q {level}") for level, (d, m) in far.items()
    )
    variances = {f"σ² {level}": pl.col(f"q {level}") for level in levels}
    variances |= {
        f"τ² {level}": pl.col(f"q {above}") - pl.col(f"q {level}")
        for above, level in pairwise(levels)
    }
    # A mean of differences can be negative by noise, a variance cannot.
    for name, value in variances.items():
        steps = mean(steps, name, value, within(of="batch_key"))
    return steps.with_columns(pl.col(name).clip(lower_bound=0.0) for name in variances)


def _from_all(steps: pl.LazyFrame, levels: Mapping[str, pl.Expr]) -> pl.LazyFrame:
    """Replace deviations from the other rollouts by those from all rollouts, and likewise the numbers of rollouts."""
    steps = steps.with_columns(
        pl.col(_others("task")).is_not_null().alias("(compared)")
    )
    for level, group in levels.items():
        for name, value in _VALUES.items():
            steps = normalise(
                steps,
                _deviation(name, level),
                value,
                group,
                mode="mean_norm",
                alone=0.0,
            )
        # A group without other rollouts has no information, also where the rollout itself counts.
        known = pl.col("(compared)") & pl.col(_deviation("plain", level)).is_not_null()
        rollouts = pl.col(_others(level)).fill_null(0.0) + 1.0
        steps = steps.with_columns(
            pl.when(known).then(rollouts).alias(_others(level)),
            *(
                pl.when("(compared)")
                .then(_deviation(name, level))
                .alias(_deviation(name, level))
                for name in _VALUES
            ),
        )
    return steps


def _with_values(steps: pl.LazyFrame, levels: list[str]) -> pl.LazyFrame:
    """Add `(plain value)` and `(return value)`, V - R and V' - (R - c), 0 in a task of one rollout; and `lambda`."""
    task, *deeper = levels
    # The coarsest value: the mean of the task, whose error is that of a mean of its rollouts.
    error = pl.col(f"σ² {task}") / pl.col(_others(task))
    steps = steps.with_columns(
        *(
            (-pl.col(_deviation(name, task))).fill_null(0.0).alias(f"({name} value)")
            for name in ("plain", "return")
        ),
        error.fill_null(0.0).alias("(error)"),
    )
    for level in deeper:
        spread = pl.col(f"σ² {level}")
        explained = pl.col(f"τ² {level}").fill_null(0.0)
        # Empirical Bayes: the more a level explains and the more rollouts share it, the more it moves the value. Where
        # none share it, noise is null, and it moves nothing.
        noise = spread / pl.col(_others(level))
        weight = (
            pl.when(explained > 0)
            .then(explained / (explained + noise))
            .otherwise(0.0)
            .fill_null(0.0)
        )
        steps = steps.with_columns(
            weight.alias("(weight)"),
            explained.alias("(explained)"),
        )
        w = pl.col("(weight)")
        rest = 1.0 - w
        # A deviation is R - M_k, and a value is V - R: their sum is V - M_k, of which the share w goes.
        moved = (
            pl.col(f"({name} value)")
            - w
            * (
                pl.col(_deviation(name, level)).fill_null(0.0)
                + pl.col(f"({name} value)")
            )
            for name in ("plain", "return")
        )
        steps = steps.with_columns(
            *moved,
            (rest * rest * pl.col("(error)") + rest * pl.col("(explained)")).alias(
                "(error)"
            ),
        )
    # σ² of the deepest level that any two rollouts of the batch share.
    noise = pl.coalesce(pl.col(f"σ² {level}") for level in reversed(levels)).fill_null(
        0.0
    )
    total = pl.col("(error)") + noise
    return steps.with_columns(
        pl.when(total > 0)
        .then(pl.col("(error)") / total)
        .otherwise(1.0)
        .alias("lambda")
    )
