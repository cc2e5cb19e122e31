"""``random``: a uniformly drawn admissible action."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from hgpo_envs.action_features import OPEN_QUERY
from hgpo_envs.hashing import text_hash
from hgpo_train.policies.base import Distribution, Failure, MemorylessPolicy, Reply, Request
from hgpo_train.policies.registry import PolicySpec, check_admissible_actions, refuse_settings
from hgpo_train.policies.scripted import format_action

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_train.policies.registry import PolicyContext

_WORD = re.compile(r"[^\W_]+")
_MOST_WORDS = 3


class RandomPolicy(MemorylessPolicy):
    """A policy that draws uniformly from the admissible actions, by the request's seed.

    An open search query is filled with one to three words of the instruction.

    Args:
        action_format: The format of the action: ``command``, ``response`` or ``number``.
    """

    name = "random"
    reproducible = True
    history_read = 0
    prompt_read = False

    def __init__(self, action_format: str) -> None:
        super().__init__()
        self._action_format = action_format

    def respond(self, requests: Sequence[Request]) -> Sequence[Reply | Failure]:
        """See `Policy`."""
        return [
            Reply(format_action(self._choose(request), self._action_format, request.state.actions))
            for request in requests
        ]

    def distributions(self, requests: Sequence[Request]) -> list[Distribution]:
        """See `DistributionPolicy`. Every query that can fill an open search is a response, thousands for a shop."""
        return [self._distribution(request, request.state.actions) for request in requests]

    def _distribution(self, request: Request, actions: Sequence[str]) -> Distribution:
        """Return the distribution of a uniform draw from actions."""
        probabilities: dict[str, float] = defaultdict(float)
        for action in actions or ("",):
            for filled, probability in _fillings(action, request.task.instruction):
                response = format_action(filled, self._action_format, request.state.actions)
                probabilities[response] += probability / max(len(actions), 1)
        return Distribution(tuple(probabilities), np.array(list(probabilities.values())))

    def _choose(self, request: Request) -> str:
        actions = request.state.actions
        return fill_query(actions[seeded_choice(request.seed, "action", len(actions))], request) if actions else ""


def fill_query(action: str, request: Request) -> str:
    """Replace an open query in the action by words of the instruction."""
    return action.replace(OPEN_QUERY, _query(request)) if OPEN_QUERY in action else action


def _query(request: Request) -> str:
    words = _words(request.task.instruction)
    count = 1 + seeded_choice(request.seed, "words", _MOST_WORDS)
    return " ".join(words[seeded_choice(request.seed, f"word {n}", len(words))] for n in range(count))


def _words(instruction: str) -> list[str]:
    return _WORD.findall(instruction) or [""]


def _fillings(action: str, instruction: str) -> Sequence[tuple[str, float]]:
    """Return what `fill_query` makes of an action, with probabilities."""
    if OPEN_QUERY not in action:
        return [(action, 1.0)]
    return [(action.replace(OPEN_QUERY, query), probability) for query, probability in _queries(instruction)]


@lru_cache(maxsize=8)
def _queries(instruction: str) -> list[tuple[str, float]]:
    """Return all queries of `fill_query` with their probabilities."""
    words = _words(instruction)
    queries: dict[str, float] = defaultdict(float)
    longer: dict[str, float] = {"": 1.0}
    for _ in range(_MOST_WORDS):
        shorter, longer = longer, defaultdict(float)
        for query, probability in shorter.items():
            for word in words:
                longer[f"{query} {word}" if query else word] += probability / len(words)
        for query, probability in longer.items():
            queries[query] += probability / _MOST_WORDS
    return list(queries.items())


def seeded_choice(seed: int, what: str, choices: int) -> int:
    """Return an integer in [0, choices) for a seed and a name: the text hash of ``"<seed>/<name>"``, scaled."""
    return ((text_hash(f"{seed}/{what}") % (1 << 64)) * choices) >> 64


def make(argument: str, context: PolicyContext) -> RandomPolicy:
    """Create the policy `random`.

    Raises:
        InputError: There is an argument or an option, or the benchmark lists no admissible actions.
    """
    refuse_settings("random", argument, context)
    check_admissible_actions("random", context)
    return RandomPolicy(context.action_format)


RANDOM = PolicySpec(make)
