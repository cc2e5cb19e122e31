"""``forgetful``: a benchmark's explorer with the weaknesses of small models, which wins about half of ALFWorld's games.

It makes mistakes, of which most can be undone; and at some step of many rollouts it loses track of the task, and makes
nothing but mistakes. Both follow habits, which depend on the task and the state alone, so that rollouts of a task share
states and histories, as those of a trained model do. Whether it has lost track is seen in the history and not in the
state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hgpo_envs.hashing import text_hash
from hgpo_train.policies.base import BatchPolicy, Reply
from hgpo_train.policies.registry import (
    PolicySpec,
    check_admissible_actions,
    make_policy,
    refuse_settings,
)
from hgpo_train.policies.scripted import OPEN_QUERY, SLOTS, format_action

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_train.policies.base import Answer, Request
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


class ForgetfulPolicy(BatchPolicy):
    """The explorer with mistakes; a rollout's later actions are habits once it has lost track.

    Args:
        context: The benchmark and the format of actions.
    """

    name = "forgetful"
    reproducible = True
    slots = SLOTS

    def __init__(self, context: PolicyContext) -> None:
        super().__init__()
        explorer = make_policy("explorer", context)
        assert isinstance(explorer, BatchPolicy)
        self._explorer = explorer
        self._context = context
        self._lost: set[int] = set()  # the slots of rollouts that have lost track
        # by slot: what was admissible one step before
        self._before: dict[int, list[str]] = {}

    def respond(self, requests: Sequence[Request]) -> Sequence[Answer]:
        """See `Policy`."""
        # The explorer sees every state, so that it can continue after a mistake.
        answers = self._explorer.respond(requests)
        return [
            self._act(request, answer)
            for request, answer in zip(requests, answers, strict=True)
        ]

    def _act(self, request: Request, answer: Answer) -> Answer:
        slot = request.slot
        draw = request.rng
        if request.is_first:
            self._lost.discard(slot)
            self._before[slot] = []
        if draw.random() < LOST:
            self._lost.add(slot)
        now = [each for each in request.admissible_actions if OPEN_QUERY not in each]
        stale = [action for action in self._before[slot] if action not in now]
        self._before[slot] = now
        if stale and draw.random() < STALE:
            return self._reply(request, draw.choice(stale))
        if slot not in self._lost and draw.random() >= MISTAKE:
            return answer
        # the mistakes in a state are always the same of a task
        actions = [action for action in now if not action.startswith(IDLE)]
        if not actions:
            return answer
        order = {
            action: text_hash(f"{request.task.id} {request.state.text} {action}")
            for action in actions
        }
        habits = sorted(actions, key=order.__getitem__)[:HABITS]
        return self._reply(request, draw.choice(habits))

    def _reply(self, request: Request, action: str) -> Reply:
        context = self._context
        actions = request.state.actions
        return Reply(
            format_action(action, context.action_format, actions, context.benchmark)
        )


def _make(argument: str, context: PolicyContext) -> ForgetfulPolicy:
    refuse_settings(ForgetfulPolicy.name, argument, context)
    check_admissible_actions(ForgetfulPolicy.name, context)
    return ForgetfulPolicy(context)


FORGETFUL = PolicySpec(_make)
