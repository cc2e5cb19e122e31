"""Plays ScienceWorld's tasks, one at a time."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.engine import State
from hgpo_envs.players import left_of
from hgpo_scienceworld.simulator import new_simulator, restore

if TYPE_CHECKING:
    from collections.abc import Sequence

# the reply lists numbers; the next command is one of them
_AMBIGUOUS: Final = "Ambiguous request"
_REFUSED: Final = ("No known action matches that input.", "Unknown action", _AMBIGUOUS)
_NOT_OFFERED: Final = "reset task"  # forgets the progress that the score counts


class ScienceWorldEngine:
    """A variation of a task (`hgpo_envs.engine.Engine`).

    The state's text is the reply to the command, with what can be seen and what is carried, which the simulator tells
    at no cost. States are compared without the reply.

    Args:
        simplifications: The simulator's simplifications, separated by commas.
    """

    def __init__(self, simplifications: str) -> None:
        self._simplifications = simplifications
        self._simulator = new_simulator()

    def start(self, task_id: str) -> State:
        """Start a variation."""
        self._task_id = task_id
        self._executed: list[str] = []
        _load(self._simulator, task_id, self._simplifications, solved=False)
        self._simplified = self._simulator.getSimplificationsUsed()
        # some starts are worth something
        self._state = State("", (), score=max(self._simulator.getScore(), 0.0))
        self._state = self._observed("")
        return self._state

    def act(self, command: str) -> State:
        """Execute a command. After the task's end, the last state is returned."""
        if not self._state.terminated:
            self._executed.append(command)
            restore(len(self._executed), self._simplified)
            reply = (
                _REFUSED[0]
                if command == _NOT_OFFERED
                else self._simulator.step(command)
            )
            self._state = self._observed(reply.strip())
        return self._state

    def walkthrough(self) -> Sequence[str]:
        """Return the commands of the simulator's own solution that were not executed yet."""
        solution = _solution(self._task_id, self._simplifications)
        return left_of(solution, self._executed)

    def _observed(self, reply: str) -> State:
        seen = f"{self._simulator.freeActionLook().strip()}\n{self._simulator.freeActionInventory().strip()}"
        text = seen if reply in seen else f"{reply}\n\n{seen}"
        score = self._simulator.getScore()
        # a wrong answer fails the task
        ended = self._simulator.getCompleted() or score < 0
        score = max(score, 0.0)
        return State(
            text=text,
            actions=()
            if ended
            else sorted(
                {*self._simulator.getValidActionObjectCombinations()} - {_NOT_OFFERED}
            ),
            valid=not reply.startswith(_REFUSED),
            terminated=ended,
            won=ended and score == 1.0,
            reward=score - self._state.score,
            score=score,
            key=text if reply.startswith(_AMBIGUOUS) else f"{seen}\n{ended}",
        )


@cache
def description(task_id: str, simplifications: str) -> str:
    """Return the instruction of a variation."""
    simulator = new_simulator()
    _load(simulator, task_id, simplifications, solved=False)
    return str(simulator.getTaskDescription()).strip()


def _load(simulator: Any, task_id: str, simplifications: str, *, solved: bool) -> None:  # noqa: ANN401 (a Java object)
    task, _, variation = task_id.rpartition("-")
    restore(0)
    simulator.load(task, int(variation), simplifications, solved)
    simulator.reset()
    # until the first step, the score is that of the last episode
    simulator.step("look around")


@cache
def _solution(task_id: str, simplifications: str) -> tuple[str, ...]:
    simulator = new_simulator()
    _load(simulator, task_id, simplifications, solved=True)
    return tuple(simulator.getGoldActionSequence())
