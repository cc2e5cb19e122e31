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

from hgpo_train.advantages.estimators.grpo import episode_advantages
from hgpo_train.advantages.input_columns import CHAINS
from hgpo_train.advantages.parameters import Context, Mode, Parameters
from hgpo_train.advantages.registry import Estimator, register
from hgpo_train.advantages.windows import normalise, size, weighted_mean
from hgpo_train.settings import NonNegativeInt  # noqa: TC001 - evaluated with the annotations

if TYPE_CHECKING:
    import polars as pl


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

    history_length: NonNegativeInt = 2
    alpha: float = 1.0
    mode: Mode = "mean_std_norm"
    base_group: bool = False
    context: Context = "states"
    weights: Literal["code", "paper"] = "code"
    skip_zero_advantages: bool = True
    ddof: Literal[0, 1] = 0


def hgpo_advantages(steps: pl.LazyFrame, p: HGPO) -> pl.LazyFrame:
    """Adds `advantage`, and for each level `k0` … (and `episode`) its advantage, null where a step is alone.

    Besides, `size_k0` … of the step's group, null where k > t, and the level's effective weight, `weight_k0` ….
    """
    levels = {f"k{k}": [f"{CHAINS[p.context]}{k}"] for k in range(p.history_length + 1)}
    weights = {f"k{k}": weight(k, p) for k in range(p.history_length + 1)}
    if p.base_group:
        steps = episode_advantages(steps, p, mode=p.mode)
        weights = {"episode": 1.0, **weights}
    steps = normalise(steps, "return", levels, mode=p.mode, ddof=p.ddof, epsilon=p.epsilon, nested=True)
    return weighted_mean(steps, weights, skip_zero=p.skip_zero_advantages, epsilon=p.epsilon)


def weight(k: int, p: HGPO) -> float:
    """The weight of level k, before weights are made to sum to 1."""
    first = 1 if p.weights == "paper" and not p.base_group else 2
    return float((k + first) ** p.alpha)


def details(p: HGPO) -> list[str]:
    """The optional columns."""
    levels = [f"k{k}" for k in range(p.history_length + 1)]
    named = (["episode"] if p.base_group else []) + levels
    return [*named, *(f"weight_{name}" for name in named), *map(size, levels)]


ESTIMATOR = register(
    Estimator(
        "hgpo",
        "Steps against those with the same history",
        HGPO,
        hgpo_advantages,
        details,
        complete=lambda p: (f"{CHAINS[p.context]}0",),
    )
)
