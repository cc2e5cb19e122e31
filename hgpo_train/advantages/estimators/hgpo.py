"""HGPO: history-based group policy optimisation (arXiv 2602.22817; recipe/hgpo of verl-agent, core_hgpo.py).

The context of depth k of a step is its state and the k states before it. Steps of one task with equal contexts of
depth k form a group, and a step has one advantage a depth:

    C_k(s_t) = (s_{t-k}, …, s_t)                 k = 0 … K, as far back as the trajectory goes
    A_k(t)   = (R_t - mean G_k(t)) / (std G_k(t) + ε)          `mean_std_norm`
    A_k(t)   =  R_t - mean G_k(t)                              `mean_norm`
    A(t)     = Σ_k w_k A_k(t),   w_k ∝ (k + 2)^α               Σ_k w_k = 1 over the levels that count

K = 0 is GiGPO's step term alone; a large α lets the deepest context decide.

Special cases, as in the official code: a depth k > t does not exist for step t; a group of one counts for nothing; a
trajectory that comes back to a context is in its group each time; levels whose advantage is exactly 0 are left out of
the weights; a step with no level left has advantage 0. `base_group` adds the episode's advantage (`grpo.py`) as
one more level of the least weight.

Where paper and code differ: the paper's weights are (k + 1)^α (`weights="paper"`) and do not depend on which
advantages are 0 (`skip_zero_advantages=False`). The official code computes in float32, where equal returns give
advantages that are not quite 0 and so do count; see `precision`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from hgpo_train.advantages.contexts import levels
from hgpo_train.advantages.estimators.grpo import episode_advantages
from hgpo_train.advantages.groups import normalise, value_order
from hgpo_train.advantages.parameters import Context, Mode, Parameters
from hgpo_train.advantages.registry import Estimator, Needs, register
from hgpo_train.advantages.returns import step_returns

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hgpo_train.advantages.registry import Columns
    from hgpo_train.advantages.steps import Steps


@dataclass(frozen=True, kw_only=True)
class HGPO(Parameters):
    """HGPO's parameters, besides those of returns.

    Attributes:
        history_length: K, the deepest context.
        alpha: How much deeper levels weigh more.
        mode: Whether deviations are divided by their group's standard deviation. The official scripts use
            `mean_std_norm` for ALFWorld and `mean_norm` for WebShop.
        base_group: Whether the episode's advantage is a level too.
        context: `states` groups by states alone; `states_actions` also by the actions between them, which is what
            the prompt shows.
        weights: `code` for (k + 2)^α, `paper` for (k + 1)^α (with `base_group` both count the levels from 1, the
            episode's, and agree).
        skip_zero_advantages: Whether levels of advantage 0 are left out of the weights.
        ddof: 0 divides squares by n, 1 by n - 1.
    """

    history_length: int = 2
    alpha: float = 1.0
    mode: Mode = "mean_std_norm"
    base_group: bool = False
    context: Context = "states"
    weights: Literal["code", "paper"] = "code"
    skip_zero_advantages: bool = True
    ddof: Literal[0, 1] = 0


def estimate(steps: Steps, p: HGPO, details: bool) -> Columns:
    """HGPO's advantages.

    Returns:
        `advantage`. With details, for each level `k0`, `k1` … (and `episode`) its advantage, null where the step has
        no company there; `size_k0` … of the step's group, null where k > t; its effective `weight_k0` ….
    """
    returns = step_returns(steps, p)
    mean = WeightedMean(steps.height, p, details)
    if p.base_group:
        every = np.arange(steps.height)
        mean.add("episode", 1.0, every, episode_advantages(steps, p, mode=p.mode))
    for level in levels(steps, p.history_length, p.context, value_order(returns)):
        rows, groups = level.company()
        advantages = normalise(returns[rows], groups, mode=p.mode, ddof=p.ddof, epsilon=p.epsilon)
        mean.add(f"k{level.k}", factor(level.k, p), rows, advantages)
        if details:
            size = np.ma.array(np.ones(steps.height, dtype=np.int64), mask=~steps.context(level.k, p.context)[1])
            size[level.rows] = level.size
            mean.columns[f"size_k{level.k}"] = size
    return mean.finish()


def factor(k: int, p: HGPO) -> float:
    """The weight of level k, before weights are made to sum to 1."""
    first = 1 if p.weights == "paper" and not p.base_group else 2
    return float((k + first) ** p.alpha)


class WeightedMean:
    """The weighted mean of each step's levels: Σ w_k A_k / (Σ w_k + ε) over those that count."""

    def __init__(self, height: int, p: HGPO, details: bool) -> None:
        self.p, self.details = p, details
        self.total, self.weight = np.zeros(height), np.zeros(height)
        self.columns: Columns = {}

    def add(self, name: str, weight: float, rows: NDArray[np.int64], advantages: NDArray[np.float64]) -> None:
        """One level: the advantages of the rows that have it."""
        weights = weight * (advantages != 0) if self.p.skip_zero_advantages else np.full(len(rows), weight)
        self.total[rows] += weight * advantages
        self.weight[rows] += weights
        if self.details:
            self.columns[name] = np.ma.array(np.zeros(len(self.total)), mask=True)
            self.columns[name][rows] = advantages
            self.columns[f"weight_{name}"] = np.zeros(len(self.total))
            self.columns[f"weight_{name}"][rows] = weights

    def finish(self) -> Columns:
        """The weighted means, and the details with effective weights; 0 where no level counts."""
        weight = np.where(self.weight > 0, self.weight + self.p.epsilon, 1.0)
        for name in self.columns:
            if name.startswith("weight_"):
                self.columns[name] /= weight
        return {"advantage": self.total / weight, **self.columns}


def needs(p: HGPO) -> Needs:
    """The contexts down to K."""
    return Needs(depth=p.history_length, context=p.context)


def detail_columns(p: HGPO) -> dict[str, pl.DataType]:
    """The optional columns."""
    levels = (["episode"] if p.base_group else []) + [f"k{k}" for k in range(p.history_length + 1)]
    kinds: dict[str, pl.DataType] = {}
    for name in levels:
        kinds |= {name: pl.Float64(), f"weight_{name}": pl.Float64()}
        if name != "episode":
            kinds[f"size_{name}"] = pl.Int64()
    return kinds


ESTIMATOR = register(
    Estimator("hgpo", "Steps against those with the same history", HGPO, estimate, needs, detail_columns)
)
