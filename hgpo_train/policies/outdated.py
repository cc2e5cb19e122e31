"""``outdated``: an action that was admissible earlier in the episode and no longer is, a usual mistake of small models.

In demonstrations (``mixture:explorer=0.85,outdated=0.15``) it leads to the states that follow a mistake, so a model
that imitates the player's steps learns to recover from them (noise injection, DART, arXiv 1703.09327). Supervised
training excludes rows with invalid actions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hgpo_train.policies.random_choice import RandomPolicy, fill_query, seeded_choice
from hgpo_train.policies.registry import PolicySpec, refuse_settings

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
    """Create the policy `outdated`, named `stale` in version 0.1.

    Raises:
        InputError: There is an argument or an option.
    """
    refuse_settings("outdated", argument, context)
    return OutdatedActionPolicy(context.action_format)


OUTDATED = PolicySpec(make)
