"""Scripted players: what they must offer, and how to get one by name.

Two kinds are known by the same names for every benchmark:

- ``expert`` looks into the engine and knows the whole state: an upper bound, and the source of walkthroughs.
- ``explorer`` acts only on what it has been shown (instruction, state texts, admissible actions), as a policy must:
  the honest source of demonstrations.

Both are deterministic: the same task gives the same actions.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, Protocol

from hgpo_envs.errors import InputError, unknown

if TYPE_CHECKING:
    from hgpo_envs.engine import Engine, State, Task

PLAYERS: Final[dict[str, dict[str, str]]] = {
    "ALFWorld": {
        "expert": "hgpo_envs.alfworld.players.expert:ExpertPlayer",
        "explorer": "hgpo_envs.alfworld.players.explorer:ExplorerPlayer",
    },
    "WebShop": {
        "expert": "hgpo_envs.webshop.players.expert:ExpertPlayer",
        "explorer": "hgpo_envs.webshop.players.explorer:ExplorerPlayer",
    },
}
"""Benchmark → expert → `module:class`, imported when asked for."""


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
    """An expert by its name, for example ``make_player("explorer", "ALFWorld")``.

    Raises:
        InputError: for a benchmark or an expert that is not known.
    """
    if benchmark not in PLAYERS:
        raise InputError(unknown("benchmark", benchmark, PLAYERS))
    if name not in PLAYERS[benchmark]:
        raise InputError(unknown(f"{benchmark} expert", name, PLAYERS[benchmark]))
    module, _, attribute = PLAYERS[benchmark][name].partition(":")
    expert: Player = getattr(import_module(module), attribute)()
    return expert
