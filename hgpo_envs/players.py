"""Scripted players: their interface, and how to create one by name.

Two of them have the same names in every benchmark:

- ``expert`` reads the engine's hidden state. It is an upper bound, and the source of walkthroughs.
- ``explorer`` uses only what a policy observes: instruction, state texts and admissible actions. Use it for
  demonstrations.

Both are deterministic: the same task gives the same actions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hgpo_envs.environment_spec import environment_ids, imported, name_in, spec_named
from hgpo_envs.errors import InputError, unknown

if TYPE_CHECKING:
    from hgpo_envs.engine import Engine, State, Task


class Player(Protocol):
    """Plays one task at a time: `reset` at its start, then `act` for every state.

    A player may also have `fork(engine)`, which returns an independent copy of it in the same state. The copy inspects
    the given engine (or None) instead of its own. Players must be deterministic.
    """

    def reset(self, task: Task, state: State, engine: Engine | None = None) -> None:
        """Start a task.

        Args:
            task: The task.
            state: The first state.
            engine: The engine that plays the task, for players that read its hidden state. They must not change it.
        """
        ...

    def act(self, state: State) -> str:
        """Return the next action. Called once for every state, including the first, except terminal ones."""
        ...


def fork_player(player: Player, engine: Engine | None) -> Player:
    """Return an independent copy of a player in the same state.

    Args:
        player: The player.
        engine: The engine that the copy inspects; None if there is none.

    Raises:
        InputError: The player cannot be copied.
    """
    fork = getattr(player, "fork", None)
    if fork is None:
        raise InputError(f"expected a player with the method `fork(engine)`, received {type(player).__qualname__}")
    copy: Player = fork(engine)
    return copy


def make_player(name: str, benchmark: str) -> Player:
    """Create a scripted player, for example ``make_player("explorer", "ALFWorld")``.

    Raises:
        InputError: The benchmark is unknown, or has no such player.
    """
    spec = spec_named(benchmark)
    if spec is None:
        raise InputError(unknown("benchmark", benchmark, map(name_in, environment_ids())))
    if name not in spec.players:
        raise InputError(unknown(f"{benchmark} player", name, spec.players))
    made = spec.players[name]
    player: Player = (imported(made) if isinstance(made, str) else made)()
    return player
