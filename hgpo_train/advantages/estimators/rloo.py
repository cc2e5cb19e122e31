"""RLOO: REINFORCE with a leave-one-out baseline (arXiv 2402.14740; core_algos.py of verl).

    A(t) = S_i - mean_{j ≠ i} S_j = (S_i - mean S) · n / (n - 1)

S_i is the episode's score, n how many scores the task has.

Special cases, as in the official code: with `cross_steps` (its default) scores are counted once a *row*, so what is
left out is one step, not one rollout; without it, once a trajectory, by its first row. A task with one score keeps
it: its advantage is the score itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hgpo_train.advantages.groups import centre, value_order
from hgpo_train.advantages.parameters import Parameters
from hgpo_train.advantages.registry import Estimator, register
from hgpo_train.advantages.returns import episode_scores

if TYPE_CHECKING:
    from hgpo_train.advantages.registry import Columns
    from hgpo_train.advantages.steps import Steps


@dataclass(frozen=True, kw_only=True)
class RLOO(Parameters):
    """RLOO's parameters, besides those of returns.

    Attributes:
        cross_steps: Whether scores are counted by rows (the official default) or by trajectories.
    """

    cross_steps: bool = True


def estimate(steps: Steps, p: RLOO, details: bool) -> Columns:  # noqa: ARG001  (an Estimator's signature)
    """RLOO's advantages: column `advantage`."""
    scores = episode_scores(steps, p)
    order = value_order(scores)
    task = steps.task.take(order)
    sample = None if p.cross_steps else steps.first[order]
    number = task.size() if sample is None else task.take(sample).size()
    stretch = np.where(number > 1, number / (number - 1).clip(min=1), 1.0)
    advantages = np.empty(steps.height)
    advantages[order] = centre(scores[order], task, sample, keep_lone=True) * stretch[task.code]
    return {"advantage": advantages}


ESTIMATOR = register(Estimator("rloo", "Episode scores against the mean of the task's other ones", RLOO, estimate))
