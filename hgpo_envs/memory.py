"""The history in a policy's prompt: pairs of observation and action."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
