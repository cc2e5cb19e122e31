"""A custom policy that explores: it prefers actions that it has not taken in the current state.

    hgpo rollout --policy examples.own_policy:CURIOUS --out runs/curious
    hgpo rollout --policy examples.own_policy:CURIOUS:0.1 --out runs/curious   # a tenth of the actions is random

docs/rollouts.md explains it, and how to install it under a name.
"""

from __future__ import annotations

import random
from collections import Counter

from hgpo_envs.errors import InputError
from hgpo_train.policies.scripted import ActionPolicy
from hgpo_train.rollout import PolicyContext, PolicySpec, Request


class CuriousPolicy(ActionPolicy):
    """Chooses the action that it has taken least often in this state of the episode, or a random action.

    Its random numbers depend only on the requests' seeds, so that runs can be repeated.
    """

    name = "curious"

    def __init__(self, chance: float, context: PolicyContext) -> None:
        super().__init__(context.action_format, context.benchmark)
        self._chance = chance
        # by slot; a slot plays one episode at a time
        self._taken: dict[int, Counter[tuple[str, str]]] = {}

    def choose(self, request: Request) -> str:
        """Return an admissible action; `ActionPolicy` writes it in the form that the run expects."""
        if request.is_first:  # a new episode starts in this slot
            self._taken[request.slot] = Counter()
        taken = self._taken[request.slot]
        state = request.state
        draw = random.Random(request.seed)
        actions = draw.sample(state.actions, len(state.actions)) or [""]
        if draw.random() >= self._chance:
            actions.sort(key=lambda action: taken[state.text, action])
        taken[state.text, actions[0]] += 1
        return actions[0]


def make(argument: str, context: PolicyContext) -> CuriousPolicy:
    """Create the policy; the argument is the fraction of random actions, 0 by default."""
    try:
        chance = float(argument or 0)
    except ValueError:
        raise InputError(
            f"curious: expected a fraction of random actions such as 0.1, received {argument!r}"
        ) from None
    return CuriousPolicy(chance, context)


CURIOUS = PolicySpec(make)
