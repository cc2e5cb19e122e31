"""``random``: a uniformly drawn admissible action."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from hgpo_envs.hashing import text_hash
from hgpo_train.policies.base import BatchPolicy, Failure, Reply, Request
from hgpo_train.policies.registry import PolicySpec, check_admissible_actions, refuse_settings
from hgpo_train.policies.scripted import format_action

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_train.policies.registry import PolicyContext

OPEN_QUERY: Final = "<your query>"
"""The part of an admissible action that stands for any text."""
MOST_WORDS: Final = 3
"""The largest number of words of a query."""

_WORD: Final = re.compile(r"[^\W_]+")


class RandomPolicy(BatchPolicy):
    """A policy that draws uniformly from the admissible actions, by the request's seed.

    An open search query is filled with one to three words of the instruction.

    Args:
        action_format: The format of the action: ``command``, ``response`` or ``number``.
    """

    name = "random"
    reproducible = True

    def __init__(self, action_format: str) -> None:
        super().__init__()
        self._action_format = action_format

    def respond(self, requests: Sequence[Request]) -> Sequence[Reply | Failure]:
        """See `Policy`."""
        return [
            Reply(format_action(self._choose(request), self._action_format, request.state.actions))
            for request in requests
        ]

    def _choose(self, request: Request) -> str:
        actions = request.state.actions
        return fill_query(actions[seeded_choice(request.seed, "action", len(actions))], request) if actions else ""


def fill_query(action: str, request: Request) -> str:
    """Replace an open query in the action by words of the instruction."""
    return action.replace(OPEN_QUERY, _query(request)) if OPEN_QUERY in action else action


def _query(request: Request) -> str:
    words = instruction_words(request.task.instruction)
    count = 1 + seeded_choice(request.seed, "words", MOST_WORDS)
    return " ".join(words[seeded_choice(request.seed, f"word {n}", len(words))] for n in range(count))


def instruction_words(instruction: str) -> list[str]:
    """Return the words that queries consist of."""
    return _WORD.findall(instruction) or [""]


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
