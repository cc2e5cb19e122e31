"""The expert: executes the task's solution program, step by step.

Solutions of generated tasks have several steps. An official solution is one program, and so one step.
"""

from __future__ import annotations

import ast
from textwrap import dedent
from typing import TYPE_CHECKING, Final

from hgpo_appworld.engine.engine import AppWorldEngine
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.players import engine_to_read, left_of

if TYPE_CHECKING:
    from hgpo_envs.engine import Engine, State, Task

STEP_MARKER: Final = "# %%"
"""The line before each step of a solution, as before the cells of a Python file."""

_GIVE_UP: Final = "apis.supervisor.complete_task(status='fail')"


class ExpertPlayer:
    """A player that executes the solution's steps in order. `reset` needs AppWorld's engine.

    Its next action is the first step that the world has not executed yet, so it also plays when another policy takes
    some of the turns.
    """

    def __init__(self) -> None:
        self._steps: list[str] = []
        self._engine: AppWorldEngine | None = None

    def reset(self, task: Task, state: State, engine: Engine | None = None) -> None:
        """Read the solution of the engine's current task.

        Raises:
            InputError: If the engine is not AppWorld's, or the data has no solution.
        """
        del state
        reading = "AppWorld's expert reads the world"
        self._engine = engine_to_read(engine, AppWorldEngine, reading)
        solution = self._engine.ground_truth_solution()
        self._steps = split_solution(solution, task.id)

    def fork(self, engine: Engine | None) -> ExpertPlayer:
        """Return an independent copy for another engine in the same state."""
        player = ExpertPlayer()
        player._steps = self._steps
        player._engine = engine if isinstance(engine, AppWorldEngine) else self._engine
        return player

    def act(self, state: State) -> str:
        """Return the first step that has not been executed."""
        del state
        assert self._engine is not None
        left = left_of(self._steps, self._engine.programs)
        return left[0] if left else _GIVE_UP


def split_solution(text: str, name: str) -> list[str]:
    r"""Return the steps of a solution: the body of its function `solution`, divided at `STEP_MARKER`.

    Args:
        text: The Python file.
        name: The task, for the error.

    Raises:
        InputError: If the file is no Python or has no such function.

    >>> split_solution("def solution(apis, requester):\n    # %%\n    x = 1\n    # %%\n    print(x)\n", "one")
    ['x = 1', 'print(x)']
    """
    try:
        parts = ast.parse(text).body
    except SyntaxError as error:
        raise InputError(
            f"the solution of {name} is no Python: {one_line(error)}"
        ) from None
    function = next(
        (
            part
            for part in parts
            if isinstance(part, ast.FunctionDef) and part.name == "solution"
        ),
        None,
    )
    if function is None:
        raise InputError(
            f"the solution of {name}: expected a function `solution`, received none"
        )
    lines = text.splitlines()
    before = "\n".join(lines[: function.lineno - 1])
    # a signature of one line; comments before the first statement belong to the body
    first = function.lineno
    while first < function.body[0].lineno - 1 and not lines[first].strip().startswith(
        "#"
    ):
        first += 1
    body = dedent("\n".join(lines[first : function.end_lineno]))
    steps = [step.strip() for step in body.split(f"{STEP_MARKER}\n") if step.strip()]
    imports = "\n".join(
        line for line in before.splitlines() if not line.startswith("#")
    ).strip()
    return [f"{imports}\n\n{steps[0]}", *steps[1:]] if imports else steps
