"""``random``: any admissible action, every one as likely."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hgpo_envs.hashing import text_hash
from hgpo_train.policies.base import BatchPolicy, Failure, Reply, Request
from hgpo_train.policies.registry import PolicySpec, refuse_settings
from hgpo_train.policies.scripted import format_action

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_train.policies.registry import PolicyContext

_QUERY = "<your query>"
_WORD = re.compile(r"[^\W_]+")


class RandomPolicy(BatchPolicy):
    """Draws from the admissible actions by the request's seed alone.

    A search whose query is left open is given one to three words of the instruction.

    Args:
        action_format: How the action is written, ``command``, ``response`` or ``number``.
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
    """The action, with words of the instruction where it leaves a query open."""
    return action.replace(_QUERY, _query(request)) if _QUERY in action else action


def _query(request: Request) -> str:
    words = _WORD.findall(request.task.instruction) or [""]
    count = 1 + seeded_choice(request.seed, "words", 3)
    return " ".join(words[seeded_choice(request.seed, f"word {n}", len(words))] for n in range(count))


def seeded_choice(seed: int, what: str, choices: int) -> int:
    """An integer in [0, choices) from a seed and a name: the text hash of ``"<seed>/<name>"``, scaled."""
    return ((text_hash(f"{seed}/{what}") % (1 << 64)) * choices) >> 64


def make(argument: str, context: PolicyContext) -> RandomPolicy:
    """`random`.

    Raises:
        InputError: Something follows the name.
    """
    refuse_settings("random", argument, context)
    return RandomPolicy(context.action_format)


RANDOM = PolicySpec(make)
