"""The history in a policy's prompt: the last K pairs of observation and action."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable


class Pair(NamedTuple):
    """An observation and the action taken on it. `number` counts the pairs of the episode from 1."""

    number: int
    observation: str
    action: str


class Memory:
    """The last K pairs of one episode.

    Args:
        length: K, the history length. With 0 only the number of steps is stored.

    >>> memory = Memory(length=1)
    >>> memory.store("A door.", "open door")
    >>> memory.store("A garden.", "look")
    >>> as_text(memory.pairs())
    "[Observation 2: 'A garden.', Action 2: 'look']"
    """

    def __init__(self, length: int) -> None:
        self.length = length
        self.steps_taken = 0
        self._pairs: deque[Pair] = deque(maxlen=length)

    def clear(self) -> None:
        """Remove all pairs, for a new episode."""
        self.steps_taken = 0
        self._pairs.clear()

    def store(self, observation: str, action: str) -> None:
        """Append a pair. If there are more than K pairs, the oldest is removed."""
        self.steps_taken += 1
        self._pairs.append(Pair(self.steps_taken, observation, action))

    def resume(self, pairs: Iterable[Pair], steps_taken: int) -> None:
        """Continue from past pairs, oldest first, and the number of steps so far."""
        self.clear()
        self._pairs.extend(pairs)
        self.steps_taken = steps_taken

    def fork(self) -> Memory:
        """Return an independent copy."""
        other = Memory(self.length)
        other.steps_taken, other._pairs = self.steps_taken, self._pairs.copy()
        return other

    def pairs(self, length: int | None = None) -> list[Pair]:
        """Return the last pairs, oldest first: all K, or at most `length`."""
        pairs = list(self._pairs)
        return pairs if length is None else pairs[max(0, len(pairs) - length) :]


def as_text(pairs: Iterable[Pair]) -> str:
    """Return pairs in verl-agent's text form, one per line.

    Source: verl-agent, ``agent_system/memory``.
    """
    return "\n".join(
        [
            f"[Observation {number}: '{observation}', Action {number}: '{action}']"
            for number, observation, action in pairs
        ]
    )
