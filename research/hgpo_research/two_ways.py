"""Two ways: a game where the longer way wins more often, `--env hgpo_research.two_ways:TWO_WAYS`.

A player at a fork takes the short way or the long one, and at its end spins a wheel four times, red or black. After the
short way, the first and the last spin must differ: at best one of two wins. After the long way, two of them must
differ: at best seven of eight. The texts show the way and not the spins, so nothing can be learned about the wheel but
to be fair. An estimator that discounts prefers the short way.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from hgpo_envs.engine import State
from hgpo_envs.environment_spec import EnvironmentSpec
from hgpo_research.levers import Game

if TYPE_CHECKING:
    from collections.abc import Hashable

SPINS = 4
WAYS = ("short", "long")
COLOURS = ("red", "black")


class TwoWaysEngine:
    """Plays one task at a time."""

    _length = 0
    _taken: tuple[str, ...] = ()

    def start(self, task_id: str) -> State:
        """Start a task, whose long way has 16 to 24 steps."""
        split, _, number = task_id.rpartition("-")
        self._length = int(
            np.random.default_rng([int(number), split == "train"]).integers(16, 25)
        )
        self._taken = ()
        return self._state()

    def act(self, command: str) -> State:
        """Execute a command."""
        if command not in self._state().actions:
            return self._state(valid=False)
        self._taken += (command.split()[1],)
        return self._state()

    def fork(self) -> TwoWaysEngine:
        """Return an independent engine in the same state."""
        return copy(self)

    def key(self) -> Hashable:
        """Return the hidden state."""
        return self._taken

    def _state(self, valid: bool = True) -> State:
        if not self._taken:
            return State("A fork.", tuple(f"take {way} way" for way in WAYS), valid)
        way = self._taken[0]
        walked = self._taken.count("on")
        if way == "long" and walked < self._length:
            return State(f"The long way, milestone {walked}.", ("walk on",), valid)
        # After the way, only the spins are left, which no text shows.
        spins = self._taken[1 + walked :]
        if len(spins) < SPINS:
            return State(
                f"A wheel at the end of the {way} way.",
                tuple(f"spin {each}" for each in COLOURS),
                valid,
            )
        # Fair spins differ in one of two pairs; of four, two differ in seven of eight cases.
        won = spins[0] != spins[-1] if way == "short" else len(set(spins)) > 1
        return State("The wheel stops.", (), valid, True, won, float(won), float(won))


class TwoWays(Game):
    """The tasks."""

    name = "TwoWays"
    kind = "two ways"
    instruction = "Win at the wheel."

    def engine(self) -> TwoWaysEngine:
        """Return a new engine."""
        return TwoWaysEngine()


TWO_WAYS = EnvironmentSpec(
    id="HGPO/TwoWays-v0",
    source=TwoWays,
    max_steps=40,
    evaluation_split="test",
)
"""The game for `gymnasium.make`, commands and training."""
