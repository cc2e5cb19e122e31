"""What a policy sees of the past: the last K pairs of observation and action."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Pair(NamedTuple):
    """An observation and the action that answered it; `number` counts from 1 over the whole episode."""

    number: int
    observation: str
    action: str


class Memory:
    """The last K pairs of one episode.

    Args:
        length: K, the history length; with 0 nothing is remembered but the number of steps taken.

    >>> memory = Memory(length=1)
    >>> memory.store("A door.", "open door")
    >>> memory.store("A garden.", "look")
    >>> memory.text()
    "[Observation 2: 'A garden.', Action 2: 'look']"
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.steps_taken = 0
        self._pairs: deque[Pair] = deque(maxlen=length)

    def clear(self) -> None:
        """Forgets everything: a new episode begins."""
        self.steps_taken = 0
        self._pairs.clear()

    def store(self, observation: str, action: str) -> None:
        """Appends what was shown and what was done; the oldest pair is forgotten beyond K."""
        self.steps_taken += 1
        self._pairs.append(Pair(self.steps_taken, observation, action))

    def pairs(self, length: int | None = None) -> list[Pair]:
        """The last pairs, oldest first: all K of them, or at most `length`."""
        pairs = list(self._pairs)
        return pairs if length is None else pairs[max(0, len(pairs) - length) :]

    def text(self, length: int | None = None) -> str:
        """The last pairs in verl-agent's text form, one a line; empty when there are none."""
        return as_text(self.pairs(length))


def as_text(pairs: Iterable[Pair]) -> str:
    """Pairs in verl-agent's text form, one a line.

    Source: verl-agent, ``agent_system/memory``.
    """
    return "\n".join(
        [
            f"[Observation {number}: '{observation}', Action {number}: '{action}']"
            for number, observation, action in pairs
        ]
    )
