"""Checks of the expected gradient of the choice to stop, computed from all groups that can occur."""

from __future__ import annotations

from itertools import combinations_with_replacement
from math import factorial, prod
from typing import TYPE_CHECKING

import numpy as np

from hgpo_record.conform.rollouts import table
from hgpo_record.conform.verdicts import NOISE, Estimate

if TYPE_CHECKING:
    from collections.abc import Mapping


def stopping(estimate: Estimate) -> str | None:
    """The expected gradient of a choice to stop that makes no difference is 0 (verl #7244)."""
    bias = stop_gradient(estimate, {(1.0,): 0.5, (0.5, 1.0): 0.25, (0.5, 0.0): 0.25})
    if abs(bias) <= 100 * NOISE:
        return None
    more = "going on" if bias > 0 else "stopping"
    return (
        f"stopping and going on have equal returns, and the expected gradient favours {more} by {bias:+.3g}: "
        "a baseline depends on when a rollout stops"
    )


def better(estimate: Estimate) -> str | None:
    """The expected gradient points to the better choice: to go on, or to stop."""
    for name, wins in (("going on", 0.45), ("stopping", 0.05)):
        game = {(0.5,): 0.5, (0.0, 1.0): wins, (0.0, 0.0): 0.5 - wins}
        gradient = stop_gradient(estimate, game)
        if (gradient > 0) != (name == "going on"):
            return f"{name} is better, and the expected gradient points to the other choice ({gradient:+.3g})"
    return None


def stop_gradient(
    estimate: Estimate, game: Mapping[tuple[float, ...], float], size: int = 4
) -> float:
    """Return the expected gradient of the probability to go on, by all groups that can occur.

    Rollouts of one step have stopped, those of two went on, each with probability 1/2 by the policy, and what happens
    then is chance. The gradient of the log-probability of going on is 2 for those that went on and -2 for the others,
    so that the expectation is over the counts of outcomes in a group, with their multinomial probabilities.

    Args:
        estimate: The code.
        game: For each outcome, as rewards of its steps, its probability.
        size: Number of rollouts of a group.
    """
    groups = list(combinations_with_replacement(game, size))
    tasks = {
        f"group {number}": [list(rewards) for rewards in group]
        for number, group in enumerate(groups)
    }
    steps = table(tasks)
    if size * len(groups) != steps.filter(step=0).height:
        raise AssertionError("a rollout of the game is missing")
    values = (
        estimate(steps)
        .values[(steps["step"] == 0).to_numpy()]
        .reshape(len(groups), size)
    )
    total = 0.0
    for group, advantages in zip(groups, values, strict=True):
        ways = factorial(size) / prod(
            factorial(group.count(outcome)) for outcome in game
        )
        probability = ways * prod(game[outcome] for outcome in group)
        scores = np.array([2.0 if len(outcome) > 1 else -2.0 for outcome in group])
        total += probability * float((advantages * scores).mean())
    return total
