"""``expert`` and ``explorer``: the scripted players of a benchmark as policies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hgpo_envs.environment_spec import make_player, spec_named
from hgpo_train.policies.base import BatchPolicy, Failure, Reply, Request
from hgpo_train.policies.registry import PolicySpec, refuse_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hgpo_envs.engine import Player
    from hgpo_train.policies.registry import PolicyContext


class ScriptedPolicy(BatchPolicy):
    """A scripted player, one instance per slot.

    Args:
        name: The player's name.
        make: Creates the player of a slot.
        action_format: The format of the action: ``command``, ``response`` or ``number``.
        tag: The tag of actions in responses (`EnvironmentSpec.action_tag`).
    """

    reproducible = True

    def __init__(self, name: str, make: Callable[[], Player], action_format: str, tag: str = "action") -> None:
        super().__init__()
        self.name, self._make, self._action_format, self._tag = name, make, action_format, tag
        self._players: dict[int, Player] = {}
        self._unable: dict[int, Failure] = {}  # why the player of a slot could not be reset

    def respond(self, requests: Sequence[Request]) -> Sequence[Reply | Failure]:
        """See `Policy`."""
        return [self._play(request) for request in requests]

    def _act(self, player: Player, request: Request) -> str:
        return format_action(player.act(request.state), self._action_format, request.state.actions, self._tag)

    def _play(self, request: Request) -> Reply | Failure:
        try:
            if request.step == 0:
                self._start(request)
            if failure := self._unable.get(request.slot):
                return failure
            return Reply(self._act(self._players[request.slot], request))
        except Exception as error:  # noqa: BLE001 - a player that raises aborts only its trajectory
            return Failure.of("PolicyFailed", error)

    def _start(self, request: Request) -> None:
        """Reset the slot's player. In a mixture, one that cannot play a task is asked again, at a later step."""
        self._unable.pop(request.slot, None)
        player = self._players.setdefault(request.slot, self._make())
        try:
            player.reset(request.task, request.state, request.engine)
        except Exception as error:  # noqa: BLE001 - as above
            self._unable[request.slot] = Failure.of("PolicyFailed", error)


def format_action(action: str, action_format: str, admissible: Sequence[str], tag: str = "action") -> str:
    """Format an action as a policy would: as a response with empty thoughts, as its number, or unchanged.

    Args:
        action: The action.
        action_format: ``command``, ``response`` or ``number``.
        admissible: The admissible actions, which are numbered from 1. An action that is not among them is unchanged.
        tag: The tag of the action in a response.

    >>> format_action("look", "response", ["go", "look"])
    '<think></think><action>look</action>'
    >>> format_action("look", "number", ["go", "look"])
    '2'
    >>> format_action("search[shoes]", "number", ["search[<your query>]"])
    'search[shoes]'
    """
    if action_format == "response":
        return f"<think></think><{tag}>{action}</{tag}>"
    if action_format == "number" and action in admissible:
        return str(admissible.index(action) + 1)
    return action


def make_expert(argument: str, context: PolicyContext) -> ScriptedPolicy:
    """Create the policy `expert`.

    Raises:
        InputError: There is an argument or an option, or the benchmark has no such player.
    """
    return _make("expert", argument, context)


def make_explorer(argument: str, context: PolicyContext) -> ScriptedPolicy:
    """Create the policy `explorer`.

    Raises:
        InputError: There is an argument or an option, or the benchmark has no such player.
    """
    return _make("explorer", argument, context)


def _make(name: str, argument: str, context: PolicyContext) -> ScriptedPolicy:
    refuse_settings(name, argument, context)
    make_player(name, context.benchmark)  # raises for an unknown player before the run begins
    spec = spec_named(context.benchmark)
    tag = "action" if spec is None else spec.action_tag
    return ScriptedPolicy(name, lambda: make_player(name, context.benchmark), context.action_format, tag)


EXPERT, EXPLORER = PolicySpec(make_expert), PolicySpec(make_explorer)
