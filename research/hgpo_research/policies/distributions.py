"""Policies whose action probabilities are known.

`known_policy` returns one for a policy's name, as the registry of policies reads it: ``random``, ``outdated``,
``expert``, ``explorer``, ``softmax``, ``transformers:MODEL``, a mixture of these, or a policy of your own with
`distributions` and `fork`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections import defaultdict
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hgpo_envs.environment_spec import make_player, spec_named
from hgpo_envs.errors import InputError
from hgpo_train.policies.base import BatchPolicy
from hgpo_train.policies.registry import make_policy
from hgpo_train.policies.scripted import (
    MOST_WORDS,
    OPEN_QUERY,
    format_action,
    instruction_words,
    parse_weights,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hgpo_envs.engine import Engine, Player
    from hgpo_research.arrays import Floats
    from hgpo_train.policies.base import Request
    from hgpo_train.policies.registry import PolicyContext


class Distribution(NamedTuple):
    """What a policy replies to one request, and with which probabilities.

    Attributes:
        responses: The distinct responses, in the environment's action format. Some may be inadmissible.
        probabilities: Their probabilities, float64 of shape (n,) with the sum 1. Not to be changed.

    >>> import numpy as np
    >>> coin = Distribution(("heads", "tails"), np.array([0.25, 0.75]))
    >>> coin.draw(0.2), coin.draw(0.3)
    ('heads', 'tails')
    """

    responses: tuple[str, ...]
    probabilities: Floats

    def draw(self, uniform: float) -> str:
        """Return the response that a uniform number in [0, 1) selects, by inverting the cumulative distribution.

        A response of probability 0 is never drawn.
        """
        # Plain numbers: most distributions have few responses.
        cumulative = list(accumulate(self.probabilities.tolist()))
        total = cumulative[-1]
        # of positive probability, in case the product is rounded up to the sum
        last = bisect_left(cumulative, total)
        return self.responses[min(bisect_right(cumulative, uniform * total), last)]


class KnownPolicy(ABC):
    """The action probabilities of a policy. Its replies follow them, independently for requests of different seeds.

    Attributes:
        name: The policy's name.
        memoryless: Whether the distribution depends on nothing but the request: the task's instruction, the state's
            text and actions, the history and the prompt. Other policies have a memory of the trajectory in each slot.
        history_read: Number of the newest pairs of the history that the distribution depends on; None for all.
        prompt_read: Whether it depends on the prompt. If not, the request's prompt may be empty.
    """

    name: str
    memoryless: bool = True
    history_read: int | None = None
    prompt_read: bool = False

    @abstractmethod
    def distributions(self, requests: Sequence[Request]) -> list[Distribution]:
        """Return the distribution of the reply to each request. The policy's memory is unchanged.

        Raises:
            InputError: The probabilities of a reply are not known.
        """

    def observe(self, request: Request) -> None:  # noqa: B027 - most policies have no memory
        """Let the memory of the request's slot see the request. Step 0 begins a new trajectory."""

    def fork(self, slot: int, new_slot: int, engine: Engine | None = None) -> None:  # noqa: B027 - as above
        """Make the memory of `new_slot` an independent copy of that of `slot`.

        Args:
            slot: The slot to copy. Its trajectory has begun.
            new_slot: The slot that continues from there on its own; what it contained is replaced.
            engine: The engine of `new_slot`, for players that inspect it.

        Raises:
            InputError: The memory cannot be copied.
        """

    def close(self) -> None:  # noqa: B027 - as above
        """Release the policy's resources."""


def known_policy(spec: str, context: PolicyContext) -> KnownPolicy:
    """Return the action probabilities of a policy.

    Args:
        spec: The policy, as in `hgpo_train.policies.registry.make_policy`.
        context: The properties of the run.

    Raises:
        InputError: The policy cannot be made, or its action probabilities are not known.
    """
    name, _, argument = spec.partition(":")
    if name == "mixture":
        weights = parse_weights(argument)
        return KnownMixture(
            [(known_policy(part, context), weight) for part, weight in weights.items()]
        )
    # Made in any case: options and arguments that are wrong are refused as by a rollout.
    policy = make_policy(spec, context)
    if name == "random":
        return KnownRandom(context.action_format, context.benchmark)
    if name == "outdated":
        return KnownOutdated(context.action_format, context.benchmark)
    if name in ("expert", "explorer"):
        return KnownPlayer(name, context)
    if name == "transformers":
        from hgpo_research.policies.scored_model import ScoredModel

        return ScoredModel(policy, context.action_format, context.benchmark)  # type: ignore[arg-type]  # the policy of this name
    return OwnPolicy(policy)


class KnownRandom(KnownPolicy):
    """``random``. Every query that can fill an open search is a response, thousands for a shop."""

    name = "random"
    history_read: int | None = 0

    def __init__(self, action_format: str, benchmark: str = "") -> None:
        self._action_format = action_format
        self._spec = spec_named(benchmark) if benchmark else None

    def distributions(self, requests: Sequence[Request]) -> list[Distribution]:
        """See `KnownPolicy`."""
        return [self._uniform(request, self._actions(request)) for request in requests]

    def _actions(self, request: Request) -> Sequence[str]:
        return request.state.actions

    def _uniform(self, request: Request, actions: Sequence[str]) -> Distribution:
        """Return the distribution of a uniform draw from actions."""
        replies = []
        for action in actions or ("",):
            for filled, probability in _fillings(action, request.task.instruction):
                response = format_action(
                    filled,
                    self._action_format,
                    request.state.actions,
                    self._spec,
                )
                replies.append((response, probability / max(len(actions), 1)))
        return _summed(replies)


class KnownOutdated(KnownRandom):
    """``outdated``, which remembers the admissible actions of the trajectory."""

    name = "outdated"
    memoryless = False
    history_read = None

    def __init__(self, action_format: str, benchmark: str = "") -> None:
        super().__init__(action_format, benchmark)
        self._seen: dict[int, dict[str, None]] = {}

    def observe(self, request: Request) -> None:
        """See `KnownPolicy`."""
        if request.is_first:
            self._seen[request.slot] = {}
        self._seen[request.slot].update(dict.fromkeys(request.state.actions))

    def fork(self, slot: int, new_slot: int, engine: Engine | None = None) -> None:
        """See `KnownPolicy`."""
        del engine
        self._seen[new_slot] = self._seen[slot].copy()

    def _actions(self, request: Request) -> Sequence[str]:
        # The first request begins a new trajectory, whatever the slot has seen before.
        seen = self._seen[request.slot] if request.step else ()
        now = request.state.actions
        return [action for action in seen if action not in now] or now


class KnownPlayer(KnownPolicy):
    """``expert`` and ``explorer``: a player in each slot. Players are deterministic: one response has probability 1."""

    memoryless = False

    def __init__(self, name: str, context: PolicyContext) -> None:
        self.name = name
        self._context = context
        self._players: dict[int, Player] = {}

    def distributions(self, requests: Sequence[Request]) -> list[Distribution]:
        """See `KnownPolicy`. A copy of the player acts."""
        action_format = self._context.action_format
        spec = spec_named(self._context.benchmark)
        found = []
        for request in requests:
            # The player itself must not move: its own request may come later.
            player = (
                self._copy(request.slot, request.engine)
                if request.step
                else self._new(request)
            )
            action = player.act(request.state)
            response = format_action(action, action_format, request.state.actions, spec)
            found.append(Distribution((response,), np.ones(1)))
        return found

    def observe(self, request: Request) -> None:
        """See `KnownPolicy`."""
        if request.is_first:
            self._players[request.slot] = self._new(request)
        self._players[request.slot].act(request.state)

    def fork(self, slot: int, new_slot: int, engine: Engine | None = None) -> None:
        """See `KnownPolicy`."""
        self._players[new_slot] = self._copy(slot, engine)

    def _new(self, request: Request) -> Player:
        player = make_player(self.name, self._context.benchmark)
        player.reset(request.task, request.state, request.engine)
        return player

    def _copy(self, slot: int, engine: Engine | None) -> Player:
        """Return an independent copy of a slot's player in the same state, which inspects an engine."""
        player: Any = self._players[slot]
        if not hasattr(player, "fork"):
            raise InputError(
                f"expected a player with the method `fork(engine)`, received {type(player).__qualname__}"
            )
        copy: Player = player.fork(engine)
        return copy


class KnownMixture(KnownPolicy):
    """A mixture: the weighted mean of the distributions of its parts.

    Args:
        parts: Policies with their weights, which are normalized to a sum of 1.
    """

    name = "mixture"

    def __init__(self, parts: Sequence[tuple[KnownPolicy, float]]) -> None:
        total = sum(weight for _, weight in parts)
        self._parts = [(policy, weight / total) for policy, weight in parts]
        self.memoryless = all(policy.memoryless for policy, _ in parts)
        self.prompt_read = any(policy.prompt_read for policy, _ in parts)
        lengths = [policy.history_read for policy, _ in parts]
        # One part that reads the whole history makes the mixture read it.
        known = [length for length in lengths if length is not None]
        self.history_read = max(known) if len(known) == len(lengths) else None

    def distributions(self, requests: Sequence[Request]) -> list[Distribution]:
        """See `KnownPolicy`."""
        # The part is drawn at each step: probabilities of equal responses add up.
        replies: list[list[tuple[str, float]]] = [[] for _ in requests]
        for policy, weight in self._parts:
            for known, (responses, probabilities) in zip(
                replies, policy.distributions(requests), strict=True
            ):
                known.extend(
                    zip(
                        responses,
                        (weight * probabilities).tolist(),
                        strict=True,
                    )
                )
        return [_summed(known) for known in replies]

    def observe(self, request: Request) -> None:
        """See `KnownPolicy`."""
        for policy, _ in self._parts:
            policy.observe(request)

    def fork(self, slot: int, new_slot: int, engine: Engine | None = None) -> None:
        """See `KnownPolicy`."""
        for policy, _ in self._parts:
            policy.fork(slot, new_slot, engine)

    def close(self) -> None:
        """See `KnownPolicy`."""
        for policy, _ in self._parts:
            policy.close()


class OwnPolicy(KnownPolicy):
    """A policy that has the methods `distributions` and `fork`. It sees requests by `respond`.

    Raises:
        InputError: It does not have them, or it has a memory and does not reply in this process.
    """

    def __init__(self, policy: Any) -> None:  # noqa: ANN401 - a policy with further methods
        self.name = getattr(policy, "name", type(policy).__name__)
        if not (hasattr(policy, "distributions") and hasattr(policy, "fork")):
            raise InputError(
                f"policy {self.name}: expected a policy whose action probabilities are known: random, outdated, "
                "expert, explorer, softmax, transformers, a mixture of these, or a policy of your own with "
                "`distributions` and `fork`; play the run with one: hgpo rollout --policy softmax"
            )
        self.memoryless = getattr(policy, "memoryless", False)
        self.history_read = getattr(policy, "history_read", None)
        self.prompt_read = getattr(policy, "prompt_read", True)
        if not self.memoryless and not isinstance(policy, BatchPolicy):
            raise InputError(
                f"policy {self.name}: expected a policy without a memory of its own, or one that replies in this "
                "process (hgpo_train.policies.base.BatchPolicy)"
            )
        self._policy = policy

    def distributions(self, requests: Sequence[Request]) -> list[Distribution]:
        """See `KnownPolicy`."""
        distributions: list[Distribution] = self._policy.distributions(requests)
        return distributions

    def observe(self, request: Request) -> None:
        """See `KnownPolicy`."""
        self._policy.respond([request])

    def fork(self, slot: int, new_slot: int, engine: Engine | None = None) -> None:
        """See `KnownPolicy`."""
        self._policy.fork(slot, new_slot, engine)

    def close(self) -> None:
        """See `KnownPolicy`."""
        self._policy.close()


def formatted_actions(
    chosen: Iterable[str],
    action_format: str,
    admissible: Sequence[str],
    benchmark: str = "",
) -> list[str]:
    """Format many actions, as `format_action` does.

    >>> formatted_actions(["look", "go", "search[shoes]"], "number", ["go", "look"])
    ['2', '1', 'search[shoes]']
    """
    if action_format == "number":
        # The first of equal actions has its number, as `list.index` finds it.
        numbers = {
            action: str(number)
            for number, action in reversed(list(enumerate(admissible, 1)))
        }
        return [numbers.get(action, action) for action in chosen]
    spec = spec_named(benchmark) if benchmark else None
    return [format_action(action, action_format, admissible, spec) for action in chosen]


def inadmissible_action(admissible: Sequence[str]) -> str:
    """Return an action that is not admissible. It is no well-formed response either.

    >>> inadmissible_action(["look"])
    'do nothing'
    """
    action = "do nothing"
    while action in admissible:
        action += "!"
    return action


def _fillings(action: str, instruction: str) -> Sequence[tuple[str, float]]:
    """Return what `random` makes of an open query, with probabilities."""
    if OPEN_QUERY not in action:
        return [(action, 1.0)]
    return [
        (action.replace(OPEN_QUERY, query), probability)
        for query, probability in _queries(instruction)
    ]


@lru_cache(maxsize=8)
def _queries(instruction: str) -> list[tuple[str, float]]:
    """Return all its queries with their probabilities."""
    words = instruction_words(instruction)
    queries: dict[str, float] = defaultdict(float)
    longer: dict[str, float] = {"": 1.0}
    # Queries of one word, of two …: each word is drawn from the instruction with replacement.
    for _ in range(MOST_WORDS):
        shorter = longer
        longer = defaultdict(float)
        for query, probability in shorter.items():
            for word in words:
                longer[f"{query} {word}" if query else word] += probability / len(words)
        for query, probability in longer.items():
            queries[query] += probability / MOST_WORDS
    return list(queries.items())


def _summed(replies: Iterable[tuple[str, float]]) -> Distribution:
    """Return the distribution of responses with probabilities, some of which may be equal."""
    probabilities: dict[str, float] = defaultdict(float)
    for response, probability in replies:
        probabilities[response] += probability
    return Distribution(tuple(probabilities), np.array(list(probabilities.values())))
