"""``outdated``: an action that was admissible earlier in the episode and no longer is, a usual mistake of small models.

In demonstrations (``mixture:explorer=0.85,outdated=0.15``) it leads to the states that follow a mistake, so a model
that imitates the player's steps learns to recover from them (noise injection, DART, arXiv 1703.09327). Supervised
training excludes rows with invalid actions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hgpo_train.policies.random_choice import RandomPolicy, fill_query, seeded_choice
from hgpo_train.policies.registry import PolicySpec, check_admissible_actions, refuse_settings

if TYPE_CHECKING:
    from hgpo_train.policies.base import Request
    from hgpo_train.policies.registry import PolicyContext


class OutdatedActionPolicy(RandomPolicy):
    """A policy that draws from the actions that were admissible earlier in the episode and no longer are.

    If there is none, as at the first step, it draws any admissible action. Draws use the request's seed.
    """

    name = "outdated"

    def __init__(self, action_format: str) -> None:
        super().__init__(action_format)
        self._seen: dict[int, dict[str, None]] = {}

    def _actions(self, request: Request) -> list[str]:
        """Return the actions to draw from."""
        seen = self._seen[request.slot] if request.step else ()
        now = request.state.actions
        return [action for action in seen if action not in now] or list(now)

    def _choose(self, request: Request) -> str:
        actions = self._actions(request)
        if request.step == 0:
            self._seen[request.slot] = {}
        self._seen[request.slot].update(dict.fromkeys(request.state.actions))
        return (
            fill_query(actions[seeded_choice(request.seed, "stale action", len(actions))], request) if actions else ""
        )


def make(argument: str, context: PolicyContext) -> OutdatedActionPolicy:
    """Create the policy `outdated`.

    Raises:
        InputError: There is an argument or an option, or the benchmark lists no admissible actions.
    """
    refuse_settings("outdated", argument, context)
    check_admissible_actions("outdated", context)
    return OutdatedActionPolicy(context.action_format)


OUTDATED = PolicySpec(make)
