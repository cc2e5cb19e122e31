"""HGPO: history-based group policy optimisation (arXiv 2602.22817; recipe/hgpo of verl-agent, core_hgpo.py).

The context of depth k of a step is its state and the k previous states. Steps of a task with equal contexts of depth k
form a group G_k, and a step has one advantage per depth:

    C_k(s_t) = (s_{t-k}, …, s_t)                               k = 0 … min(K, t)
    A_k(t)   = (R_t - mean G_k(t)) / (std G_k(t) + ε)          `mean_std_norm`
    A_k(t)   =  R_t - mean G_k(t)                              `mean_norm`
    A(t)     = Σ_k w_k A_k(t),   w_k ∝ (k + 2)^α               Σ_k w_k = 1 over the included levels

K = 0 is GiGPO's step term without its episode term. With a large α, the deepest context dominates.

Special cases, as in the official code: singleton groups are excluded; a trajectory that repeats a context is in its
group several times; levels with an advantage of exactly 0 are excluded from the weights; a step without included levels
has advantage 0. `base_group` adds the episode's advantage (`grpo.py`) as a level with the smallest weight.

Differences of paper and code: the paper's weights are (k + 1)^α (`weights="paper"`) and do not depend on which
advantages are 0 (`skip_zero_advantages=False`). The official code computes in float32, in which the advantages of equal
returns are often slightly different from 0, so that these levels are included; see `precision`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Unpack

import polars as pl
from msgspec import Meta

from hgpo_train.advantages.estimators.grpo import with_episode
from hgpo_train.advantages.input_columns import CHAINS
from hgpo_train.advantages.parameters import (
    HISTORY_LENGTH,
    Context,
    Ddof,
    Epsilon,
    HistoryLength,
    Mode,
    Precision,
    SharedOptions,
)
from hgpo_train.advantages.registry import estimator
from hgpo_train.advantages.windows import normalise, weighted_mean, within

Alpha = Annotated[
    float,
    Meta(
        description="α, the exponent of the weights. Larger values give more weight to deeper levels."
    ),
]
BaseGroup = Annotated[
    bool, Meta(description="Whether the episode's advantage is an additional level.")
]
Weights = Annotated[
    Literal["code", "paper"],
    Meta(
        description="code for (k + 2)^α, paper for (k + 1)^α. With base_group both are (k + 2)^α, because the "
        "episode's level has the weight 1."
    ),
]
SkipZeroAdvantages = Annotated[
    bool,
    Meta(
        description="Whether levels with an advantage of 0 are excluded from the weights."
    ),
]


def details(p: Any) -> list[str]:  # noqa: ANN401 - of a class that is made of the signature below
    """Return the names of the optional columns.

    These are each level's advantage `k0` … (and `episode`), null in singleton groups; its effective weight,
    `weight_k0` …; and the size of the step's group, `size_k0` …, null if k > t.
    """
    levels = [f"k{k}" for k in range(p.history_length + 1)]
    named = (["episode"] if p.base_group else []) + levels
    return [
        *named,
        *(f"weight_{name}" for name in named),
        *(f"size_{name}" for name in levels),
    ]


@estimator(
    reads=lambda p: [f"{CHAINS[p.context]}{k}" for k in range(p.history_length + 1)],
    details=details,
)
def hgpo(
    steps: pl.LazyFrame,
    *,
    history_length: HistoryLength = HISTORY_LENGTH,
    alpha: Alpha = 1.0,
    mode: Mode = "mean_std_norm",
    base_group: BaseGroup = False,
    context: Context = "states",
    weights: Weights = "code",
    skip_zero_advantages: SkipZeroAdvantages = True,
    ddof: Ddof = 0,
    epsilon: Epsilon = 1e-6,
    precision: Precision = "mixed",
    **_: Unpack[SharedOptions],
) -> pl.LazyFrame:
    """Compare steps with equal histories of states."""
    first = 1 if weights == "paper" and not base_group else 2
    levels = {}
    if base_group:
        steps = with_episode(steps, mode=mode, epsilon=epsilon, precision=precision)
        levels["episode"] = 1.0
    for k in range(history_length + 1):
        group = within(f"{CHAINS[context]}{k}")
        # a step that shares no context of depth k - 1 shares none of depth k: fewer groups are faster
        if k:
            group = pl.when(pl.col(f"size_k{k - 1}") > 1).then(group)
        steps = normalise(
            steps, f"k{k}", "return", group, mode=mode, ddof=ddof, epsilon=epsilon
        )
        levels[f"k{k}"] = float((k + first) ** alpha)
    sizes = {
        f"size_k{k}": pl.col(f"{CHAINS[context]}{k}").is_not_null()
        for k in range(history_length + 1)
    }
    steps = steps.with_columns(
        pl.when(known).then(pl.col(n).fill_null(1.0)).alias(n)
        for n, known in sizes.items()
    )
    return weighted_mean(steps, levels, skip_zero=skip_zero_advantages, epsilon=epsilon)
