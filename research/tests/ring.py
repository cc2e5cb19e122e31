"""A small benchmark whose values are computed by hand: a ring of places, most of which look alike, and treasures.

The engine can be forked and has keys. The policy repeats its last action more often than others.
"""

from __future__ import annotations

from copy import copy
from functools import cache

import numpy as np

from hgpo_envs.engine import State, Task
from hgpo_envs.episode import settings_for
from hgpo_envs.sources import SharedSource
from hgpo_research.policies.distributions import Distribution
from hgpo_train.policies.base import BatchPolicy

PLACES = 12
TREASURES = (2, 9, 10)
LIMIT = 10
ACTIONS = ("dig", "left", "right")
MOVES = {"dig": 0, "left": -1, "right": 1}
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
        self.won = command == "dig" and self.place in TREASURES
        self.place = (self.place + MOVES.get(command, 0)) % PLACES
        return self._state(valid=command in ACTIONS)

    def fork(self) -> RingEngine:
        return copy(self)

    def key(self) -> tuple[int, bool]:
        return self.place, self.won

    def _state(self, valid: bool = True) -> State:
        return State(
            TEXTS[self.place],
            ACTIONS,
            valid,
            self.won,
            self.won,
            float(self.won),
            self.place / PLACES,
        )


class RingSource:
    """One task."""

    name = "Ring"

    def ids(self, split: str) -> list[str]:
        return ["ring"]

    def task(self, task_id: str) -> Task:
        return Task(task_id, "test", "find a treasure", "ring")

    def engine(self) -> RingEngine:
        return RingEngine()


SHARED = SharedSource(RingSource())
SETTINGS = settings_for("Ring", max_steps=LIMIT, action_format="command")


def probabilities(text: str, last: str | None) -> np.ndarray:
    """Return the policy's probabilities of `ACTIONS`."""
    weights = np.array([1.0, 2.0, 2.0] if text == "wall" else [0.0, 1.0, 3.0])
    if last in ACTIONS:
        weights[ACTIONS.index(last)] += 2.0
    return weights / weights.sum()


class Asked(BatchPolicy):
    """A policy without a memory of which only the probabilities are asked."""

    memoryless = True

    def respond(self, requests):
        raise AssertionError("not asked")

    def fork(self, slot, new_slot, engine=None):
        pass


class RingPolicy(Asked):
    """The policy, which reads one past pair."""

    name = "ring"
    prompt_read = False
    history_read = 1

    def distributions(self, requests):
        lasts = [
            [None, *(pair.action for pair in request.history)][-1]
            for request in requests
        ]
        return [
            Distribution(ACTIONS, probabilities(request.state.text, last))
            for request, last in zip(requests, lasts, strict=True)
        ]


@cache
def value(place: int, last: str | None, step: int, gamma: float) -> float:
    """Return V by its definition."""
    shares = zip(probabilities(TEXTS[place], last).tolist(), ACTIONS, strict=True)
    return sum(
        probability * q(place, action, step, gamma) for probability, action in shares
    )


def q(place: int, action: str, step: int, gamma: float) -> float:
    """Return Q by its definition."""
    if action == "dig" and place in TREASURES:
        return 1.0
    if step + 1 == LIMIT:
        return 0.0
    return gamma * value((place + MOVES[action]) % PLACES, action, step + 1, gamma)
