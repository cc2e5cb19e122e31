"""The history in a policy's prompt: pairs of observation and action."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from hgpo_envs.engine import State


class Pair(NamedTuple):
    """An observation and the action taken on it. `number` counts the pairs of the episode from 1."""

    number: int
    observation: str
    action: str


Memory: TypeAlias = Callable[[Sequence[Pair], State], str]
"""A function of all past pairs, oldest first, and of the current state, which returns the text that stands for the past
in the prompt, such as a summary. It is called from the second state on."""


def as_text(pairs: Iterable[Pair]) -> str:
    """Return pairs in verl-agent's text form, one per line.

    Source: verl-agent, ``agent_system/memory``.

    >>> as_text([Pair(3, "A garden.", "look")])
    "[Observation 3: 'A garden.', Action 3: 'look']"
    """
    return "\n".join(
        [
            f"[Observation {number}: '{observation}', Action {number}: '{action}']"
            for number, observation, action in pairs
        ]
    )
