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

EXPERTS: Final[dict[str, dict[str, str]]] = {
    "ALFWorld": {
        "expert": "hgpo_envs.alfworld.expert:Expert",
        "explorer": "hgpo_envs.alfworld.explorer:Explorer",
    },
    "WebShop": {
        "expert": "hgpo_envs.webshop.expert:Expert",
        "explorer": "hgpo_envs.webshop.explorer:Explorer",
    },
}
"""Benchmark → expert → `module:class`, imported when asked for."""


class Expert(Protocol):
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


def make(name: str, benchmark: str) -> Expert:
    """An expert by its name, for example ``make("explorer", "ALFWorld")``.

    Raises:
        InputError: for a benchmark or an expert that is not known.
    """
    if benchmark not in EXPERTS:
        raise InputError(unknown("benchmark", benchmark, EXPERTS))
    if name not in EXPERTS[benchmark]:
        raise InputError(unknown(f"{benchmark} expert", name, EXPERTS[benchmark]))
    module, _, attribute = EXPERTS[benchmark][name].partition(":")
    expert: Expert = getattr(import_module(module), attribute)()
    return expert
