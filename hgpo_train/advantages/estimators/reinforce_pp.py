"""REINFORCE++: episode scores whitened over the whole batch (arXiv 2501.03262; core_algos.py of verl).

    A(t) = (x_t - mean x) / √(var x + ε)          x_t = S_i, or S_i - mean S of its task with `baseline`

Mean and variance (by n - 1) are over all rows of the batch: the rows of one run and iteration, or of the whole table
where it has no such columns.

Special cases, as in the official code: ε is 1e-8, under the root, and it is also added to the number of rows when a
mean is taken, so that a batch of equal scores S is not quite 0 but up to S · ε/n / √ε. With `baseline`, a task with
one score keeps it. A batch of one row, where the official code raises an error, has variance 0.

Where the official code differs: it whitens over tokens, so that rows with long responses weigh more; a step table's
rows weigh the same. With `gamma` below 1 it also discounts scores back over the tokens of one response; steps have
no such tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hgpo_train.advantages.groups import Groups, add_up, centre, value_order
from hgpo_train.advantages.parameters import Parameters
from hgpo_train.advantages.registry import Estimator, register
from hgpo_train.advantages.returns import episode_scores

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hgpo_train.advantages.registry import Columns
    from hgpo_train.advantages.steps import Steps


@dataclass(frozen=True, kw_only=True)
class ReinforcePP(Parameters):
    """REINFORCE++'s parameters, besides those of returns.

    Attributes:
        baseline: Whether the task's mean score is subtracted first.
        cross_steps: With `baseline`: whether that mean is over rows (the official default) or over trajectories.
        epsilon: Added to the variance, and to the number of rows.
    """

    baseline: bool = False
    cross_steps: bool = True
    epsilon: float = 1e-8


def estimate(steps: Steps, p: ReinforcePP, details: bool) -> Columns:  # noqa: ARG001  (an Estimator's signature)
    """REINFORCE++'s advantages: column `advantage`."""
    scores = episode_scores(steps, p)
    if p.baseline:
        order = value_order(scores)
        sample = None if p.cross_steps else steps.first[order]
        scores[order] = centre(scores[order], steps.task.take(order), sample, keep_lone=True)
    return {"advantage": whiten(scores, steps.batch, p.epsilon)}


def whiten(values: NDArray[np.float64], batch: Groups, epsilon: float) -> NDArray[np.float64]:
    """(x - mean) / √(var + ε) within each batch."""
    order = value_order(values)
    ascending, members = values[order], batch.take(order)
    number = members.size()
    mean = add_up(members.code, ascending, members.number) / (number + epsilon)
    centred = ascending - mean[members.code]
    variance = add_up(members.code, centred * centred, members.number) / (number + epsilon)
    variance *= number / (number - 1).clip(min=1)
    whitened = np.empty(len(values))
    whitened[order] = centred / np.sqrt(variance + epsilon)[members.code]
    return whitened


ESTIMATOR = register(
    Estimator("reinforce_pp", "Episode scores whitened over the batch", ReinforcePP, estimate, scope="batch")
)
