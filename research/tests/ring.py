"""A small benchmark whose values are computed by hand: a ring of places, most of which look alike, and treasures.

The engine can be forked and has keys. The policy repeats its last action more often than others.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from hgpo_envs.engine import State, Task
from hgpo_research.policies.distributions import Distribution
from hgpo_train.policies.base import BatchPolicy

PLACES = 12
TREASURES = (2, 9, 10)
LIMIT = 10
ACTIONS = ("dig", "left", "right")
TEXTS = ("gate", *["wall"] * (PLACES - 1))


class RingEngine:
    """A player on the ring, at place 0 at the start. Digging at a treasure wins."""

    place = 0
    won = False

    def start(self, task_id: str) -> State:
        self.place = 0
        self.won = False
        return self._state()

    def act(self, command: str) -> State:
        if command == "dig":
            self.won = self.place in TREASURES
        if command in ("left", "right"):
            self.place = (self.place + (1 if command == "right" else -1)) % PLACES
        return self._state(valid=command in ACTIONS)

    def fork(self) -> RingEngine:
        other = RingEngine()
        other.place = self.place
        other.won = self.won
        return other

    def key(self) -> tuple[int, bool]:
        return self.place, self.won

    def _state(self, valid: bool = True) -> State:
        score = float(self.won)
        return State(TEXTS[self.place], ACTIONS, valid, self.won, self.won, score, score)


class RingSource:
    """One task."""

    name = "Ring"

    def ids(self, split: str) -> list[str]:
        return ["ring"]

    def task(self, task_id: str) -> Task:
        return Task(task_id, "test", "find a treasure", "ring")

    def engine(self) -> RingEngine:
        return RingEngine()


def probabilities(text: str, last: str | None) -> np.ndarray:
    """Return the policy's probabilities of `ACTIONS`."""
    weights = np.array([1.0, 2.0, 2.0] if text == "wall" else [0.0, 1.0, 3.0])
    if last in ACTIONS:
        weights[ACTIONS.index(last)] += 2.0
    return weights / weights.sum()


class RingPolicy(BatchPolicy):
    """The policy, which reads one past pair."""

    name = "ring"
    memoryless = True
    prompt_read = False
    history_read = 1

    def respond(self, requests):
        raise AssertionError("not asked")

    def distributions(self, requests):
        return [
            Distribution(
                ACTIONS, probabilities(request.state.text, request.history[-1].action if request.history else None)
            )
            for request in requests
        ]

    def fork(self, slot, new_slot, engine=None):
        pass


@cache
def value(place: int, last: str | None, step: int, gamma: float) -> float:
    """Return V by its definition."""
    return sum(
        probability * q(place, action, step, gamma)
        for probability, action in zip(probabilities(TEXTS[place], last).tolist(), ACTIONS, strict=True)
    )


def q(place: int, action: str, step: int, gamma: float) -> float:
    """Return Q by its definition."""
    if action == "dig" and place in TREASURES:
        return 1.0
    if step + 1 == LIMIT:
        return 0.0
    after = (place + {"dig": 0, "left": -1, "right": 1}[action]) % PLACES
    return gamma * value(after, action, step + 1, gamma)
