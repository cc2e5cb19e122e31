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

Special cases: a task with a single rollout has advantage 0. λ is 1 where nothing varies. docs/shrinkage_gae.md derives
the equations, and says what is known about the estimator.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import polars as pl

from hgpo_train.advantages.input_columns import CHAINS
from hgpo_train.advantages.parameters import Context, Discount, Parameters
from hgpo_train.advantages.registry import Estimator, register
from hgpo_train.advantages.trajectories import accumulated, neighbour
from hgpo_train.advantages.windows import Level, deviation, from_others, means, normalise, others, quotient
from hgpo_train.settings import NonNegativeInt  # noqa: TC001 - evaluated with the annotations


@dataclass(frozen=True, kw_only=True)
class ShrinkageGAE(Parameters):
    """The parameters of shrinkage GAE, in addition to those of returns.

    Attributes:
        history_length: K, the maximum depth of contexts.
        context: ``states`` for contexts of states, ``states_actions`` for states and the actions between them.
        gae_lambda: λ in [0, 1]; None estimates it per step. 1 does not bootstrap.
        leave_one_out: Whether a rollout's own returns are left out of its values. If false, advantages in contexts
            that few rollouts share are smaller: they are biased towards 0, and have less variance.
        unit_scale: Whether advantages are divided by the root of the batch's mean square (+ ε).
    """

    history_length: NonNegativeInt = 2
    context: Context = "states"
    gae_lambda: Discount | None = None
    leave_one_out: bool = False
    unit_scale: bool = False


def shrinkage_gae_advantages(steps: pl.LazyFrame, p: ShrinkageGAE) -> pl.LazyFrame:
    """Add `advantage`, the estimated `value` of the state, and `lambda`."""
    levels = {"task": [], **{f"k{k}": [f"{CHAINS[p.context]}{k}"] for k in range(p.history_length + 1)}}
    steps = from_others(steps, {"plain": "plain_return", "return": "return"}, levels)
    steps = _with_variances(steps, list(levels))
    if not p.leave_one_out:
        steps = _from_all(steps, levels)
    steps = _with_values(steps, list(levels))
    # All values below are relative to the plain return, R: they are exactly 0 where all returns are equal.
    value, trust = pl.col("(plain value)"), pl.col("lambda") if p.gae_lambda is None else pl.lit(p.gae_lambda)
    steps = steps.with_columns(trust.alias("lambda"))
    ahead = accumulated((1.0 - pl.col("lambda")) * value, p.gamma * pl.col("lambda"))
    bootstrapped = p.gamma * neighbour(pl.col("(ahead)"), 1).fill_null(0.0)
    steps = steps.with_columns(ahead.alias("(ahead)"), (value + pl.col("plain_return")).alias("value"))
    steps = steps.with_columns(advantage=bootstrapped - pl.col("(return value)"))
    if not p.unit_scale:
        return steps
    square = pl.col("advantage") * pl.col("advantage")
    steps = means(steps, {"(square)": square}, of="batch_key")
    return steps.with_columns(advantage=quotient(pl.col("advantage"), pl.col("(square)").sqrt() + p.epsilon))


def _with_variances(steps: pl.LazyFrame, levels: list[str]) -> pl.LazyFrame:
    """Add the batch's `σ² level` and `τ² level`; null where no rollouts share the level."""
    far = {level: (pl.col(deviation("plain", level)), pl.col(others(level))) for level in levels}
    steps = steps.with_columns((d * d * quotient(m, m + 1.0)).alias(f"q {level}") for level, (d, m) in far.items())
    found = {f"σ² {level}": pl.col(f"q {level}") for level in levels}
    found |= {f"τ² {level}": pl.col(f"q {above}") - pl.col(f"q {level}") for above, level in pairwise(levels)}
    steps = means(steps, found, of="batch_key")
    return steps.with_columns(pl.col(name).fill_nan(None).clip(lower_bound=0.0) for name in found)


def _from_all(steps: pl.LazyFrame, levels: dict[str, list[str]]) -> pl.LazyFrame:
    """Replace deviations from the other rollouts by those from all rollouts, and likewise the numbers of rollouts."""
    values = {"plain": "plain_return", "return": "return"}
    whole = {
        deviation(name, level): Level(value, columns, alone=pl.lit(0.0))
        for level, columns in levels.items()
        for name, value in values.items()
    }
    rollouts = {level: pl.col(others(level)).fill_null(0.0) + 1.0 for level in levels}
    steps = steps.with_columns(pl.col(others("task")).is_not_null().alias("(compared)"))
    steps = normalise(steps, whole, mode="mean_norm").with_columns(
        n.alias(others(level)) for level, n in rollouts.items()
    )
    known = {others(level): pl.col(deviation("plain", level)).is_not_null() for level in levels}
    steps = steps.with_columns(pl.when(there).then(name).alias(name) for name, there in known.items())
    replaced = [*whole, *known]
    return steps.with_columns(pl.when("(compared)").then(name).alias(name) for name in replaced)


def _with_values(steps: pl.LazyFrame, levels: list[str]) -> pl.LazyFrame:
    """Add `(plain value)` and `(return value)`, V - R and V' - (R - c), 0 in a task of one rollout; and `lambda`."""
    task, *deeper = levels
    error = quotient(pl.col(f"σ² {task}"), pl.col(others(task)))
    steps = steps.with_columns(
        *((-pl.col(deviation(name, task))).fill_null(0.0).alias(f"({name} value)") for name in ("plain", "return")),
        error.fill_null(0.0).alias("(error)"),
    )
    for level in deeper:
        within, explained = pl.col(f"σ² {level}"), pl.col(f"τ² {level}").fill_null(0.0)
        noise = quotient(within, pl.col(others(level)))
        weight = pl.when(explained > 0).then(quotient(explained, explained + noise)).otherwise(0.0).fill_null(0.0)
        steps = steps.with_columns(weight.alias("(weight)"), explained.alias("(explained)"))
        w, rest = pl.col("(weight)"), 1.0 - pl.col("(weight)")
        moved = (
            pl.col(f"({name} value)") - w * (pl.col(deviation(name, level)).fill_null(0.0) + pl.col(f"({name} value)"))
            for name in ("plain", "return")
        )
        steps = steps.with_columns(
            *moved, (rest * rest * pl.col("(error)") + rest * pl.col("(explained)")).alias("(error)")
        )
    noise = pl.coalesce(pl.col(f"σ² {level}") for level in reversed(levels)).fill_null(0.0)
    total = pl.col("(error)") + noise
    return steps.with_columns(
        pl.when(total > 0).then(quotient(pl.col("(error)"), total)).otherwise(1.0).alias("lambda")
    )


ESTIMATOR = register(
    Estimator(
        "shrinkage_gae",
        "Experimental: bootstraps from state values that are shrunk along histories",
        ShrinkageGAE,
        shrinkage_gae_advantages,
        lambda _: ("value", "lambda"),
        scope="batch",
        complete=lambda p: (f"{CHAINS[p.context]}0",),
    )
)
