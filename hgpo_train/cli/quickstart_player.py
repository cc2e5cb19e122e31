"""The policy of `hgpo quickstart`: it wins about half of the games, and fails in different ways.

It is the explorer, which acts on what it observes, with the weaknesses of small models: it makes mistakes, of which
most can be undone; and at some step of many rollouts it loses track of the task, and makes nothing but mistakes. Both
follow habits, which depend on the game and the state alone, so that rollouts of a game share states and histories, as
those of a trained model do. Whether it has lost track is seen in the history and not in the state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hgpo_envs.hashing import text_hash
from hgpo_train.policies.base import BatchPolicy, Failure, Reply
from hgpo_train.policies.registry import PolicySpec, make_policy, refuse_settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_train.policies.base import Request
    from hgpo_train.policies.registry import PolicyContext

MISTAKE: Final = 0.2
"""The probability of a mistake."""
STALE: Final = 0.02
"""The probability of an action that was admissible one step before, and may not be any more."""
LOST: Final = 0.06
"""The probability of losing track of the task, at each step."""
HABITS: Final = 2
"""The number of mistakes that it makes in a state."""
IDLE: Final = ("look", "inventory", "examine", "help")
"""Actions that change nothing."""


class QuickstartPlayer(BatchPolicy):
    """The explorer with mistakes; a rollout's later actions are habits once it has lost track."""

    name = "hgpo_train.cli.quickstart_player:PLAYER"
    reproducible = True

    def __init__(self, context: PolicyContext) -> None:
        super().__init__()
        explorer = make_policy("explorer", context)
        assert isinstance(explorer, BatchPolicy)
        self._explorer = explorer
        self._lost: set[int] = set()  # the slots of rollouts that have lost track
        self._before: dict[int, list[str]] = {}  # by slot: what was admissible one step before

    def respond(self, requests: Sequence[Request]) -> Sequence[str | Reply | Failure]:
        """See `Policy`."""
        # The explorer sees every state, so that it can continue after a mistake.
        answers = self._explorer.respond(requests)
        return [self._act(request, answer) for request, answer in zip(requests, answers, strict=True)]

    def _act(self, request: Request, answer: str | Reply | Failure) -> str | Reply | Failure:
        slot, draw = request.slot, request.rng
        if request.step == 0:
            self._lost.discard(slot)
            self._before[slot] = []
        if draw.random() < LOST:
            self._lost.add(slot)
        stale = [action for action in self._before[slot] if action not in request.admissible_actions]
        self._before[slot] = request.admissible_actions
        if stale and draw.random() < STALE:
            return draw.choice(stale)
        return draw.choice(_habits(request)) if slot in self._lost or draw.random() < MISTAKE else answer


def _habits(request: Request) -> list[str]:
    """Return the mistakes that it makes in a state: always the same of a game."""
    actions = [action for action in request.admissible_actions if not action.startswith(IDLE)]
    order = {action: text_hash(f"{request.task.id} {request.state.text} {action}") for action in actions}
    return sorted(actions, key=order.__getitem__)[:HABITS]


def make(argument: str, context: PolicyContext) -> QuickstartPlayer:
    """Create the policy.

    Raises:
        InputError: There is an argument or an option.
    """
    refuse_settings("the quickstart's player", argument, context)
    return QuickstartPlayer(context)


PLAYER = PolicySpec(make, action_format="command")
