"""Features of actions: numbers that describe each choice of a state, from what a prompt shows and nothing else.

The policy `softmax` is a log-linear function of them. ALFWorld and WebShop have features of their own;
`WordFeatures` are those of every other text environment.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Protocol

from hgpo_train.policies.scripted import OPEN_QUERY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hgpo_envs.memory import Pair

_WORD: Final = re.compile(r"[^\W_]+")


Features = dict[str, float]
"""The values of a choice's features by name. Missing features are 0."""


class StateFeatures(Protocol):
    """The features of a state's choices. The history is separate, because states recur far more often than histories.

    Attributes:
        choices: The choices with their features for an empty history, usually an admissible action each. An open query
            is replaced by one or more texts.
    """

    choices: Mapping[str, Features]

    def changes(self, history: Sequence[Pair]) -> Mapping[str, Features]:
        """Return the choices whose features the history changes, with all of their features.

        Args:
            history: Past pairs, oldest first. The features do not depend on their numbers.
        """
        ...


class ActionFeatures(Protocol):
    """Describes the choices of states.

    Attributes:
        weights: The weight of each feature for a capable player, by name.
    """

    weights: Mapping[str, float]

    def read(
        self, instruction: str, observation: str, actions: tuple[str, ...]
    ) -> StateFeatures:
        """Return the features of a state with these admissible actions."""
        ...


class WordFeatures:
    """Features of any text environment: words that an action shares with the instruction, and repetitions.

    - instruction: share of the action's words that the instruction contains
    - observation: share of the action's words that the observation contains
    - repeated: how often the history contains the action at the same observation

    >>> features = WordFeatures().read("open the door", "A door.", ("open door", "wait")).choices
    >>> features["open door"], features["wait"]
    ({'instruction': 1.0, 'observation': 0.5}, {})
    """

    weights: Mapping[str, float] = {
        "instruction": 3.0,
        "observation": 0.5,
        "repeated": -1.5,
    }

    def read(
        self, instruction: str, observation: str, actions: tuple[str, ...]
    ) -> CountedFeatures:
        """See `ActionFeatures`."""
        wanted = _words(instruction)
        shown = _words(observation)
        choices = {}
        for action in actions:
            # An open query is filled with the whole instruction, the only text that a task has for it.
            choice = (
                action.replace(OPEN_QUERY, instruction)
                if OPEN_QUERY in action
                else action
            )
            words = _words(choice)
            values = {
                "instruction": _share(words, wanted),
                "observation": _share(words, shown),
            }
            choices[choice] = {name: value for name, value in values.items() if value}
        return CountedFeatures(observation, choices)


class CountedFeatures:
    """`StateFeatures` that the history changes by repetitions alone.

    Args:
        observation: The state text.
        choices: The features for an empty history.
    """

    def __init__(self, observation: str, choices: Mapping[str, Features]) -> None:
        self._observation = observation
        self.choices = choices

    def changes(self, history: Sequence[Pair]) -> dict[str, Features]:
        """See `StateFeatures`."""
        return {
            action: {**self.choices[action], "repeated": float(times)}
            for action, times in repetitions(self._observation, history).items()
            if action in self.choices
        }


def repetitions(observation: str, history: Sequence[Pair]) -> Mapping[str, int]:
    """Return how often the history contains each action at an observation."""
    times: dict[str, int] = {}
    # The same action elsewhere is no repetition.
    for _, observed, action in history:
        if observed == observation:
            times[action] = times.get(action, 0) + 1
    return times


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower()))


def _share(words: frozenset[str], others: frozenset[str]) -> float:
    return len(words & others) / len(words) if words else 0.0
