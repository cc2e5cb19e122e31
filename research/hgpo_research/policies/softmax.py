"""``softmax``: a log-linear softmax over features of the actions, from what the prompt shows and nothing else.

The probability of a choice is proportional to exp((skill · score + taste · noise) / temperature). The score is the
weighted sum of its features (`hgpo_research.features`) and the noise is a fixed number of variance 1 for each
instruction, observation and choice. One inadmissible action is among the choices; without noise it is as probable as
`invalid` choices of score 0.

Its true action probabilities are known, it has no memory, and one number moves it from random to nearly deterministic.
It therefore serves to measure estimators. A language model's mistakes are other ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import exp, log, sqrt
from typing import TYPE_CHECKING, Annotated, Final, Literal, NamedTuple

import numpy as np
from msgspec import Meta

from hgpo_envs.errors import InputError
from hgpo_envs.hashing import text_hash
from hgpo_research.features.alfworld import CommandFeatures
from hgpo_research.features.webshop import ShopFeatures
from hgpo_research.features.words import ActionFeatures, WordFeatures
from hgpo_research.policies.distributions import (
    Distribution,
    formatted_actions,
    inadmissible_action,
)
from hgpo_train.policies.base import BatchPolicy, Failure, Reply, Request
from hgpo_train.policies.registry import (
    PolicySpec,
    check_admissible_actions,
)
from hgpo_train.settings import (
    NonNegativeFloat,
    NonNegativeInt,
    build,
    check,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hgpo_envs.engine import Engine
    from hgpo_envs.memory import Pair
    from hgpo_research.arrays import Floats
    from hgpo_research.features.words import StateFeatures
    from hgpo_train.policies.registry import PolicyContext

FEATURES: Final[Mapping[str, Callable[[], ActionFeatures]]] = {
    "ALFWorld": CommandFeatures,
    "WebShop": ShopFeatures,
}
"""The features of each benchmark; `WordFeatures` for all others."""

_STATES: Final = 1 << 14
"""The number of states that are kept: some tens of megabytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftmaxOptions:
    """Options of `softmax`."""

    skill: NonNegativeFloat = 1.0
    """Factor of the scores; 0 ignores the features."""
    temperature: Annotated[float, Meta(gt=0)] = 1.0
    """Sampling temperature: a small one makes the policy nearly deterministic, whatever its skill."""
    taste: NonNegativeFloat = 0.5
    """Standard deviation of the noise in the scores, by which the policy prefers some actions without reason."""
    invalid: NonNegativeFloat = 1.0
    """Weight of the inadmissible action, in units of an admissible one of score 0; 0 removes it."""
    memory: NonNegativeInt | Literal["all"] = "all"
    """Number of past steps that the features take into account, of those that the prompt shows."""
    variant: NonNegativeInt = 0
    """Another number is another policy of the same kind: another noise, and weights multiplied by 0.5 to 1.5. The
    weights of variant 0 are unchanged."""

    def __post_init__(self) -> None:
        check(self, "policy option")


class SoftmaxPolicy(BatchPolicy):
    """A log-linear softmax policy.

    Args:
        features: Features and weights of the benchmark.
        action_format: ``command``, ``response`` or ``number``.
        options: The options.
        benchmark: The benchmark's name, whose form responses have.
    """

    name = "softmax"
    reproducible = True
    memoryless = True
    prompt_read = False

    def __init__(
        self,
        features: ActionFeatures,
        action_format: str,
        options: SoftmaxOptions,
        benchmark: str = "",
    ) -> None:
        super().__init__()
        self.history_read = None if options.memory == "all" else options.memory
        self._features = features
        self._action_format = action_format
        self._options = options
        self._benchmark = benchmark
        # Skill and temperature are factors of the same scores: they are part of the weights.
        scale = options.skill / options.temperature
        self._weights = {
            name: scale * weight * _weight_factor(options.variant, name)
            for name, weight in features.weights.items()
        }
        self._read_once = lru_cache(_STATES)(self._read)

    def respond(self, requests: Sequence[Request]) -> Sequence[Reply | Failure]:
        """See `Policy`."""
        # A reply is a function of the request and its seed, however many are asked at once.
        drawn = zip(self.distributions(requests), requests, strict=True)
        return [
            Reply(distribution.draw(_uniform(f"{request.seed}/choice")))
            for distribution, request in drawn
        ]

    def distributions(self, requests: Sequence[Request]) -> list[Distribution]:
        """Return the distribution of the reply to each request (`KnownPolicy`)."""
        states = [self._state(request) for request in requests]
        powers = [
            self._powers(state, self._history(request))
            for state, request in zip(states, requests, strict=True)
        ]
        sizes = [len(each) for each in powers]
        # One array for all requests: most have few responses, and calls of NumPy would take most of the time.
        totals = np.repeat([sum(each) for each in powers], sizes)
        probabilities = np.split(
            np.array(list(chain.from_iterable(powers))) / totals,
            np.cumsum(sizes)[:-1],
        )
        return [
            Distribution(state.responses, each)
            for state, each in zip(states, probabilities, strict=True)
        ]

    def features(self, request: Request) -> Floats:
        """Return the features of each response of the request's distribution, of shape (responses, features).

        The logits are their products with the weights, and a noise that the weights do not affect. The inadmissible
        response has none.
        """
        state = self._state(request)
        choices = {
            **state.features.choices,
            **state.features.changes(self._history(request)),
        }
        found = np.zeros((len(state.responses), len(self._weights)))
        for row, values in zip(found, choices.values(), strict=False):
            row[:] = [values.get(name, 0.0) for name in self._weights]
        return found

    def fork(self, slot: int, new_slot: int, engine: Engine | None = None) -> None:
        """See `KnownPolicy`. There is no memory."""

    def _history(self, request: Request) -> Sequence[Pair]:
        """Return the past steps that the features take into account."""
        history = request.read_history()
        return (
            history
            if self.history_read is None
            else history[max(0, len(history) - self.history_read) :]
        )

    def _state(self, request: Request) -> _State:
        """Return what is the same for all histories of the request's state."""
        return self._read_once(
            request.task.instruction,
            request.state.text,
            tuple(request.state.actions),
        )

    def _powers(self, state: _State, history: Sequence[Pair]) -> list[float]:
        """Return exp(logit - most) of each response, where `most` is the largest logit."""
        changes = state.features.changes(history) if history else None
        if not changes:
            return state.powers
        logits = state.logits.copy()
        for choice, values in changes.items():
            place = state.places[choice]
            logits[place] = state.noise[place] + self._score(values)
        most = max(logits)
        if most != state.most:
            return [exp(logit - most) for logit in logits]
        # Only the powers of changed choices differ.
        powers = state.powers.copy()
        for choice in changes:
            place = state.places[choice]
            powers[place] = exp(logits[place] - most)
        return powers

    def _read(
        self, instruction: str, observation: str, actions: tuple[str, ...]
    ) -> _State:
        features = self._features.read(instruction, observation, actions)
        choices = features.choices
        taste = self._options.taste / self._options.temperature
        noise = [0.0] * len(choices)
        if taste:
            # The noise is of the state and the choice, not of the history: it is the same whenever the state is seen.
            here = text_hash(f"{self._options.variant}/{instruction}/{observation}")
            noise = [taste * _noise(f"{here}/{choice}") for choice in choices]
        logits = [
            offset + self._score(values)
            for offset, values in zip(noise, choices.values(), strict=True)
        ]
        responses = formatted_actions(
            choices, self._action_format, actions, self._benchmark
        )
        if self._options.invalid or not responses:
            responses.append(inadmissible_action(actions))
            logits.append(log(self._options.invalid or 1.0))
        places = {choice: place for place, choice in enumerate(choices)}
        most = max(logits)
        powers = [exp(logit - most) for logit in logits]
        return _State(features, tuple(responses), logits, most, powers, noise, places)

    def _score(self, values: Mapping[str, float]) -> float:
        return sum([self._weights[name] * value for name, value in values.items()])


class _State(NamedTuple):
    """What is the same for all histories of a state.

    Attributes:
        features: The features of its choices.
        responses: The responses; the inadmissible one is the last.
        logits: The logit of each response, for an empty history.
        most: The largest logit.
        powers: exp(logit - most) of each response.
        noise: The noise in the logit of each admissible response.
        places: The place of each choice in these lists.
    """

    features: StateFeatures
    responses: tuple[str, ...]
    logits: list[float]
    most: float
    powers: list[float]
    noise: list[float]
    places: dict[str, int]


def _uniform(text: str) -> float:
    """Return a number in [0, 1) that is a function of a text."""
    # A hash is signed: the remainder reads its first 53 bits, all that a float holds, as a number from 0.
    return ((text_hash(text) >> 11) % (1 << 53)) / (1 << 53)


def _noise(text: str) -> float:
    """Return a number of mean 0 and variance 1, uniformly distributed over texts."""
    return (_uniform(text) - 0.5) * sqrt(12)


def _weight_factor(variant: int, feature: str) -> float:
    return 0.5 + _uniform(f"{variant}/{feature}") if variant else 1.0


def make(argument: str, context: PolicyContext) -> SoftmaxPolicy:
    """Create the policy `softmax`.

    Raises:
        InputError: There is an argument, an option is not valid, or the benchmark lists no admissible actions.
    """
    check_admissible_actions("softmax", context)
    if argument:
        raise InputError(
            f"policy softmax: expected nothing after its name, received {argument!r}; use --policy-option"
        )
    options = build(SoftmaxOptions, context.options, "policy option")
    features = FEATURES.get(context.benchmark, WordFeatures)()
    return SoftmaxPolicy(features, context.action_format, options, context.benchmark)


SOFTMAX = PolicySpec(make, options=SoftmaxOptions)
