"""GiGPO: group-in-group policy optimisation (arXiv 2505.10978; core_gigpo.py of verl-agent).

    A(t) = A_episode(t) + w · A_step(t)
    A_step(t) = (R_t - mean G(t)) / (std G(t) + ε)             `mean_std_norm`; without division `mean_norm`

A_episode is GRPO's (`grpo.py`). G(t) are the steps of the task at the same state, or, with `similarity`, at a state
whose text is similar: difflib's ratio with the group's first text is at least `similarity_threshold`.

Special cases, as in the official code: std divides by n - 1; a lone step has A_step 0; a trajectory that comes back
to a state is in its group each time. By similarity, a text joins the first group that it is similar to, in the order
in which groups were opened. The official code goes through rows as they come; here they are gone through by
trajectory (in order of name) and step, so that row order does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from hgpo_train.advantages.estimators.grpo import episode_advantages
from hgpo_train.advantages.groups import Groups, encode_pairs, normalise, value_order
from hgpo_train.advantages.parameters import Mode, Parameters
from hgpo_train.advantages.registry import Estimator, Needs, register
from hgpo_train.advantages.returns import step_returns
from hgpo_train.advantages.similarity import similar_groups

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hgpo_train.advantages.registry import Columns
    from hgpo_train.advantages.steps import Steps


@dataclass(frozen=True, kw_only=True)
class GiGPO(Parameters):
    """GiGPO's parameters, besides those of returns.

    Attributes:
        mode: Whether deviations are divided by standard deviations, in both parts.
        step_weight: w, the weight of the step's part; 0 skips it.
        episode_weight: The weight of the episode's part; 0 skips it.
        cross_steps: Whether the episode's mean and std are over rows (the official default) or over trajectories.
        similarity: Whether states with similar texts are one group.
        similarity_threshold: The least ratio of similar texts, in (0, 1).
        ddof: 0 divides squares by n, 1 by n - 1.
    """

    mode: Mode = "mean_std_norm"
    step_weight: float = 1.0
    episode_weight: float = 1.0
    cross_steps: bool = True
    similarity: bool = False
    similarity_threshold: float = 0.95
    ddof: Literal[0, 1] = 1


def estimate(steps: Steps, p: GiGPO, details: bool) -> Columns:
    """GiGPO's advantages: `advantage`; with details its parts `episode` and `step`, and `size` of the step's group."""
    groups = step_groups(steps, p)
    episode, step = np.zeros(steps.height), np.zeros(steps.height)
    if p.episode_weight:
        episode = episode_advantages(steps, p, mode=p.mode, cross_steps=p.cross_steps, ddof=p.ddof)
    if p.step_weight:
        step = step_advantages(step_returns(steps, p), groups, p.mode, p.ddof, p.epsilon)
    columns: Columns = {"advantage": p.episode_weight * episode + p.step_weight * step}
    if details:
        columns |= {"episode": episode, "step": step, "size": groups.size()[groups.code]}
    return columns


def step_groups(steps: Steps, p: GiGPO) -> Groups:
    """The steps that are compared."""
    if p.similarity:
        return similar_groups(steps, p.similarity_threshold)
    state, _ = steps.context(0, "states")
    return encode_pairs(steps.task, state)


def step_advantages(
    returns: NDArray[np.float64], groups: Groups, mode: Mode, ddof: int, epsilon: float
) -> NDArray[np.float64]:
    """Returns normalised within groups of steps; float64 of shape (rows,)."""
    order = value_order(returns)
    advantages = np.empty(len(returns))
    advantages[order] = normalise(returns[order], groups.take(order), mode=mode, ddof=ddof, epsilon=epsilon)
    return advantages


def needs(p: GiGPO) -> Needs:
    """States, by hash or by text."""
    return Needs(state_text=True) if p.similarity else Needs(depth=0)


def detail_columns(p: GiGPO) -> dict[str, pl.DataType]:  # noqa: ARG001  (an Estimator's signature)
    """The optional columns."""
    return {"episode": pl.Float64(), "step": pl.Float64(), "size": pl.Int64()}


ESTIMATOR = register(
    Estimator(
        "gigpo", "Episode scores, and steps against those at the same state", GiGPO, estimate, needs, detail_columns
    )
)
