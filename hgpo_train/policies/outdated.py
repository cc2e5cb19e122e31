"""``outdated``: an action that was possible earlier in the episode and is not now, the mistake that small models make.

Mixed into demonstrations (``mixture:explorer=0.85,outdated=0.15``) it leads the player into the states that follow a
mistake, so that a model which imitates the player's own steps learns to go on from them (noise injection, DART,
arXiv 1703.09327). Supervised training leaves rows of invalid actions out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hgpo_train.policies.random_choice import RandomPolicy, fill_query, seeded_choice
from hgpo_train.policies.registry import PolicySpec, refuse_settings

if TYPE_CHECKING:
    from hgpo_train.policies.base import Request
    from hgpo_train.policies.registry import PolicyContext


class OutdatedActionPolicy(RandomPolicy):
    """Draws from the actions that were admissible in the episode and are not now, by the request's seed.

    Where there is none, as at the first step, any admissible action is drawn.
    """

    name = "outdated"

    def __init__(self, action_format: str) -> None:
        super().__init__(action_format)
        self._seen: dict[int, dict[str, None]] = {}

    def _choose(self, request: Request) -> str:
        if request.step == 0:
            self._seen[request.slot] = {}
        seen, now = self._seen[request.slot], request.state.actions
        actions = [action for action in seen if action not in now] or list(now)
        seen.update(dict.fromkeys(now))
        return (
            fill_query(actions[seeded_choice(request.seed, "stale action", len(actions))], request) if actions else ""
        )


def make(argument: str, context: PolicyContext) -> OutdatedActionPolicy:
    """`outdated`, called `stale` in version 0.1.

    Raises:
        InputError: Something follows the name.
    """
    refuse_settings("outdated", argument, context)
    return OutdatedActionPolicy(context.action_format)


OUTDATED = PolicySpec(make)
