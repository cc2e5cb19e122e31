"""Policies without a model: ``random``, ``outdated``, and the players ``expert`` and ``explorer`` of a benchmark.

``outdated`` plays an action that was admissible earlier in the episode and no longer is, a usual mistake of small
models. In demonstrations (``mixture:explorer=0.85,outdated=0.15``) it leads to the states that follow a mistake, so a
model that imitates the player's steps learns to recover from them (noise injection, DART, arXiv 1703.09327). Supervised
training excludes rows with invalid actions.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

from hgpo_envs.environment_spec import make_player, spec_named
from hgpo_envs.hashing import text_hash
from hgpo_train.policies.base import BatchPolicy, Failure, Reply, Request
from hgpo_train.policies.registry import PolicySpec, check_admissible_actions, refuse_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hgpo_envs.engine import Player
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
        return _draw(request, "action", request.state.actions)


class OutdatedActionPolicy(RandomPolicy):
    """A policy that draws from the actions that were admissible earlier in the episode and no longer are.

    If there is none, as at the first step, it draws any admissible action.
    """

    name = "outdated"

    def __init__(self, action_format: str) -> None:
        super().__init__(action_format)
        self._seen: dict[int, dict[str, None]] = {}

    def _choose(self, request: Request) -> str:
        if request.step == 0:
            self._seen[request.slot] = {}
        seen, now = self._seen[request.slot], request.state.actions
        outdated = [action for action in seen if action not in now]
        seen.update(dict.fromkeys(now))
        return _draw(request, "stale action", outdated or now)


class ScriptedPolicy(BatchPolicy):
    """A scripted player, one instance per trajectory.

    Args:
        name: The player's name.
        make: Creates the player of a trajectory.
        action_format: The format of the action: ``command``, ``response`` or ``number``.
        tag: The tag of actions in responses (`EnvironmentSpec.action_tag`).
    """

    reproducible = True

    def __init__(self, name: str, make: Callable[[], Player], action_format: str, tag: str = "action") -> None:
        super().__init__()
        self.name, self._make, self._action_format, self._tag = name, make, action_format, tag
        self._players: dict[int, Player] = {}  # by slot

    def respond(self, requests: Sequence[Request]) -> Sequence[Reply | Failure]:
        """See `Policy`."""
        return [self._play(request) for request in requests]

    def _play(self, request: Request) -> Reply | Failure:
        try:
            if request.step == 0:
                self._players.pop(request.slot, None)
                player = self._make()
                player.reset(request.task, request.state, request.engine)
                self._players[request.slot] = player
            if request.slot not in self._players:  # in a mixture, it is asked again at later steps
                return Failure("PolicyFailed", f"{self.name} could not start the task")
            action = self._players[request.slot].act(request.state)
        except Exception as error:  # noqa: BLE001 - a player that raises aborts only its trajectory
            return Failure.of("PolicyFailed", error)
        return Reply(format_action(action, self._action_format, request.state.actions, self._tag))


def format_action(action: str, action_format: str, admissible: Sequence[str], tag: str = "action") -> str:
    """Format an action as a policy would: as a response with empty thoughts, as its number, or unchanged.

    Args:
        action: The action.
        action_format: ``command``, ``response`` or ``number``.
        admissible: The admissible actions, which are numbered from 1. An action that is not among them is unchanged.
        tag: The tag of the action in a response; empty if there is none.

    >>> format_action("look", "response", ["go", "look"])
    '<think></think><action>look</action>'
    >>> format_action("look", "number", ["go", "look"])
    '2'
    >>> format_action("search[shoes]", "number", ["search[<your query>]"])
    'search[shoes]'
    """
    if action_format == "response":
        return f"<think></think><{tag}>{action}</{tag}>" if tag else f"<think></think>{action}"
    if action_format == "number" and action in admissible:
        return str(admissible.index(action) + 1)
    return action


def instruction_words(instruction: str) -> list[str]:
    """Return the words that queries consist of."""
    return _WORD.findall(instruction) or [""]


def _draw(request: Request, purpose: str, actions: Sequence[str]) -> str:
    """Return a random action, with words of the instruction in an open query; empty if there is none."""
    if not actions:
        return ""
    action = actions[_seeded_choice(request.seed, purpose, len(actions))]
    if OPEN_QUERY not in action:
        return action
    words = instruction_words(request.task.instruction)
    count = 1 + _seeded_choice(request.seed, "words", MOST_WORDS)
    query = " ".join(words[_seeded_choice(request.seed, f"word {n}", len(words))] for n in range(count))
    return action.replace(OPEN_QUERY, query)


def _seeded_choice(seed: int, purpose: str, choices: int) -> int:
    """Return an integer in [0, choices) for a seed and a purpose: the text hash of ``"<seed>/<purpose>"``, scaled."""
    return ((text_hash(f"{seed}/{purpose}") % (1 << 64)) * choices) >> 64


def _make_drawing(policy: type[RandomPolicy], argument: str, context: PolicyContext) -> RandomPolicy:
    """Create a policy that draws from admissible actions."""
    refuse_settings(policy.name, argument, context)
    check_admissible_actions(policy.name, context)
    return policy(context.action_format)


def _make_player(name: str, argument: str, context: PolicyContext) -> ScriptedPolicy:
    """Create the policy of a benchmark's player of this name."""
    refuse_settings(name, argument, context)
    make_player(name, context.benchmark)  # raises for an unknown player before the run begins
    spec = spec_named(context.benchmark)
    tag = "action" if spec is None else spec.action_tag
    return ScriptedPolicy(name, lambda: make_player(name, context.benchmark), context.action_format, tag)


RANDOM = PolicySpec(partial(_make_drawing, RandomPolicy))
OUTDATED = PolicySpec(partial(_make_drawing, OutdatedActionPolicy))
EXPERT = PolicySpec(partial(_make_player, "expert"))
EXPLORER = PolicySpec(partial(_make_player, "explorer"))
