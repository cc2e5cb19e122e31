"""The expert: TextWorld's own solution."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hgpo_envs.players import engine_to_read
from hgpo_textworld.engine import TextWorldEngine

if TYPE_CHECKING:
    from hgpo_envs.engine import Engine, State, Task


class Expert:
    """Plays the commands that TextWorld's planner finds from the present state.

    Where it finds none (recipes for which something must be dropped), it follows the walkthrough from the start.
    """

    def reset(self, task: Task, state: State, engine: Engine | None = None) -> None:
        """Start a game.

        Raises:
            InputError: The engine is in another process, or is not TextWorld's.
        """
        del task, state
        reading = "TextWorld's expert reads the game"
        self._engine = engine_to_read(engine, TextWorldEngine, reading)
        self._rest = self._engine.walkthrough()

    def act(self, state: State) -> str:
        """Return the next command of the solution."""
        solution = self._engine.solution() or self._rest or list(state.actions)
        if self._rest and self._rest[0] == solution[0]:
            del self._rest[0]
        return solution[0]

    def fork(self, engine: Engine | None) -> Expert:
        """Return a copy for another engine in the same state."""
        copy = Expert()
        copy._engine = engine if isinstance(engine, TextWorldEngine) else self._engine
        copy._rest = list(self._rest)
        return copy
