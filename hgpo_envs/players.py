"""Scripted players: what they must offer, and how to get one by name.

Two kinds are known by the same names for every benchmark:

- ``expert`` looks into the engine and knows the whole state: an upper bound, and the source of walkthroughs.
- ``explorer`` acts only on what it has been shown (instruction, state texts, admissible actions), as a policy must:
  the honest source of demonstrations.

Both are deterministic: the same task gives the same actions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hgpo_envs.environment_spec import environment_ids, imported, name_in, spec_named
from hgpo_envs.errors import InputError, unknown

if TYPE_CHECKING:
    from hgpo_envs.engine import Engine, State, Task


class Player(Protocol):
    """Plays one task at a time: `reset` at its start, then `act` on every state that follows."""

    def reset(self, task: Task, state: State, engine: Engine | None = None) -> None:
        """Begins a task.

        Args:
            task: What is to be done.
            state: The state that the engine's start gave.
            engine: The engine that plays the task, for experts that see the whole state; they only read it. Others
                do without.
        """
        ...

    def act(self, state: State) -> str:
        """The next action. Called once for each state, the first one included; never after a terminated one."""
        ...


def make_player(name: str, benchmark: str) -> Player:
    """A scripted player by its name, for example ``make_player("explorer", "ALFWorld")``.

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
