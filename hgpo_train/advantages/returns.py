"""Step returns and episode scores, from stored columns, by choice."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hgpo_train.advantages.groups import add_up
from hgpo_train.advantages.steps import require

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import ArrayLike, NDArray

    from hgpo_train.advantages.parameters import Parameters
    from hgpo_train.advantages.steps import Steps


def columns(available: Collection[str], parameters: Parameters) -> list[str]:
    """The columns that returns are made from."""
    source = {"reward": "reward", "success": "won", "score": "score"}[parameters.reward]
    needed = [require(available, source, why=f"reward={parameters.reward!r}")]
    if parameters.invalid_action_penalty:
        needed.append(require(available, "action_valid", why="invalid_action_penalty"))
    return needed


def step_returns(steps: Steps, parameters: Parameters) -> NDArray[np.float64]:
    """R_t, with the penalty of an invalid action taken off; float64 of shape (rows,).

    Source: Eq. 5 of GiGPO (arXiv 2505.10978); `compute_step_discounted_returns` of verl-agent's core_gigpo.py, and
    `apply_invalid_action_penalty` of its trainers for when the penalty comes off.
    """
    rewards = step_rewards(steps, parameters)
    if parameters.returns == "from_end":
        ends = np.where(steps.last, np.repeat(_sums(steps, rewards), steps.lengths), 0.0)
        return penalised(discounted(steps, ends, parameters.gamma), steps, parameters)
    return penalised(discounted(steps, rewards, parameters.gamma), steps, parameters)


def episode_scores(steps: Steps, parameters: Parameters) -> NDArray[np.float64]:
    """The sum of an episode's rewards, on each of its rows, with that row's penalty; float64 of shape (rows,)."""
    return penalised(episode_rewards(steps, parameters), steps, parameters)


def episode_rewards(steps: Steps, parameters: Parameters) -> NDArray[np.float64]:
    """The sum of an episode's rewards on each of its rows, without penalties that come off returns."""
    return np.repeat(_sums(steps, step_rewards(steps, parameters)), steps.lengths)


def step_rewards(steps: Steps, parameters: Parameters) -> NDArray[np.float64]:
    """Each step's reward, chosen, scaled and rounded as the parameters say; float64 of shape (rows,)."""
    if parameters.reward == "reward":
        chosen = steps.numbers("reward")
    elif parameters.reward == "success":
        chosen = np.where(steps.last, steps.flags("won"), 0.0)
    else:
        chosen = np.where(steps.last, steps.numbers("score"), 0.0)
    scaled = rounded(chosen * parameters.reward_scale, parameters)
    return scaled - rounded(penalties(steps, parameters), parameters) if parameters.penalty_at == "reward" else scaled


def penalised(values: NDArray[np.float64], steps: Steps, parameters: Parameters) -> NDArray[np.float64]:
    """Returns or scores, rounded, with the penalty off where penalties come off these."""
    values = rounded(values, parameters)
    if parameters.penalty_at == "return":
        values = rounded(values - rounded(penalties(steps, parameters), parameters), parameters)
    return values


def penalties(steps: Steps, parameters: Parameters) -> NDArray[np.float64]:
    """What each row's action costs: 0, or `invalid_action_penalty` where it was invalid."""
    if not parameters.invalid_action_penalty:
        return np.zeros(steps.height)
    return np.where(steps.flags("action_valid"), 0.0, parameters.invalid_action_penalty)


def rounded(values: ArrayLike, parameters: Parameters) -> NDArray[np.float64]:
    """Values rounded to float32 (and held as float64), unless the precision is float64."""
    if parameters.precision == "float64":
        return np.asarray(values, dtype=np.float64) + 0.0
    return np.asarray(values, dtype=np.float32).astype(np.float64) + 0.0  # one zero, not two


def discounted(steps: Steps, rewards: NDArray[np.float64], gamma: float) -> NDArray[np.float64]:
    """Σ_j γ^(j-t) r_j over the rest of each trajectory; float64 of shape (rows,).

    All trajectories go back one step at a time together, the longest first, so that those still running are a prefix.
    """
    by_length = np.argsort(-steps.lengths, kind="stable")
    ends = (steps.starts + steps.lengths - 1)[by_length]
    lengths = steps.lengths[by_length]
    returns = np.empty(len(rewards))
    running = np.zeros(len(lengths))
    for back in range(int(lengths.max(initial=0))):
        going = int(np.searchsorted(-lengths, -back))  # those of more than `back` steps
        at = ends[:going] - back
        running = rewards[at] + gamma * running[:going]
        returns[at] = running
    return returns


def _sums(steps: Steps, rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each trajectory's sum of rewards, added from its first step to its last; float64 of shape (trajectories,)."""
    return add_up(steps.trajectory.code, rewards, steps.trajectory.number)
