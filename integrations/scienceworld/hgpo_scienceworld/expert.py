"""The expert: ScienceWorld's own solution."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hgpo_envs.players import engine_to_read
from hgpo_scienceworld.engine import ScienceWorldEngine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_envs.engine import Engine, State, Task


class Expert:
    """Plays what is left of the simulator's solution, whatever others play in between."""

    def __init__(self, rest: Sequence[str] = ()) -> None:
        self._rest = rest

    def reset(self, task: Task, state: State, engine: Engine | None = None) -> None:
        """Start a variation, or continue it in a branch.

        Raises:
            InputError: The engine is in another process, or is not ScienceWorld's.
        """
        del task, state
        reading = "ScienceWorld's expert asks the simulator"
        self._rest = engine_to_read(engine, ScienceWorldEngine, reading).walkthrough()

    def act(self, state: State) -> str:
        """Return the next command; after the solution, wait."""
        del state
        command = (self._rest or ("wait1",))[0]
        self._rest = self._rest[1:]
        return command

    def fork(self, engine: Engine | None) -> Expert:
        """Return an independent copy."""
        del engine
        return Expert(self._rest)
