"""AppWorld as an engine: an action is a Python program, the state is what it printed.

The first state is empty. The task ends when a program calls ``apis.supervisor.complete_task``; then, and at the step
limit, AppWorld's tests decide on success, score and reward.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from hgpo_appworld.engine.answers import Executed
from hgpo_appworld.engine.process import WorldLost
from hgpo_envs.engine import State
from hgpo_envs.unicode_text import clean_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hgpo_appworld.engine.process import World
    from hgpo_appworld.engine.source import AppWorldSource

REFUSED: Final = ("...", "except")
"""What programs must not contain with ``refuse=True``."""


class AppWorldEngine:
    """Plays tasks of a source (`hgpo_envs.engine.Engine`), each in a process of its own.

    It has no `fork`: copies of an episode replay its programs.

    Args:
        source: The tasks, rules and limits.

    Attributes:
        programs: The programs of the current task that were executed, for the expert.
    """

    def __init__(self, source: AppWorldSource) -> None:
        self._source = source
        self._world: World | None = None
        self._task_id = ""
        self._steps = 0
        self._calls: Counter[str] = Counter()
        self.programs: list[str] = []
        self._last = State("", ())

    def start(self, task_id: str) -> State:
        """Start a task in a new process; that of the task before ends.

        Raises:
            UnknownTask: If there is no such task.
            WorldFailed: If its process does not start.
        """
        self._source.task(task_id)
        self.close()
        self._world = self._source.server(task_id).world(task_id, self._source.limits)
        self._task_id = task_id
        self._steps = 0
        self._last = State("", ())
        self._calls.clear()
        self.programs.clear()
        return self._last

    def act(self, command: str) -> State:
        """Execute a program. After the end of the task, the last state is returned.

        A program that raises an error is executed; its error is the output. One that is empty or refused changes
        nothing and is invalid.

        Raises:
            WorldFailed: If the server of all worlds has ended. A program that ends its own world loses the episode:
                the state is terminated, and `info["lost"]` says why.
        """
        if self._last.terminated:
            return self._last
        if self._world is None:
            raise RuntimeError(
                "no world is open: call start first (the last one may have failed)"
            )
        self._steps += 1
        refused = self._refusal(command)
        try:
            if refused:
                answer = Executed(
                    refused, failed=True, completed=False, calls={}, api_calls=0
                )
            else:
                answer = self._world.execute(command)
                self.programs.append(command)
            self._last = self._state(answer, valid=not refused)
        except WorldLost as error:
            # the agent's doing: an end of the task, not a failure of the environment
            info = {"lost": str(error), "execution_failed": True, "api_calls": 0}
            self._last = State(
                f"Execution failed. The world has ended: {error}",
                (),
                terminated=True,
                info=info,
            )
        except BaseException:
            self.close()
            raise
        if self._last.terminated:
            self.close()
        return self._last

    def close(self) -> None:
        """End the world's process. The next start opens another."""
        if self._world is not None:
            self._world.close()
            self._world = None

    def ground_truth_solution(self) -> str:
        """Return the current task's solution program, for the expert. Raises InputError if the data has none."""
        return self._source.solution(self._task_id)

    def _refusal(self, command: str) -> str:
        """Return why a program is not executed; empty if it is."""
        if not command.strip():
            return "Execution failed. Traceback:\nThe program is empty."
        found = (
            [part for part in REFUSED if part in command]
            if self._source.rules.refuse
            else []
        )
        return (
            f"Execution failed. Traceback:\nA program must not contain {' or '.join(found)}."
            if found
            else ""
        )

    def _state(self, answer: Executed, *, valid: bool) -> State:
        rules = self._source.rules
        info: dict[str, Any] = {
            "execution_failed": answer.failed,
            "api_calls": answer.api_calls,
        }
        text = clean_text(answer.output)
        if rules.observation == "calls":
            self._calls.update(answer.calls)
            text = (
                f"{text.rstrip()}\n\n{called(self._calls, self._source.limits.longest)}"
            )
        if not answer.completed and self._steps < rules.max_steps:
            return State(text, (), valid, info=info)
        assert self._world is not None
        result = self._world.evaluate()
        score = result.passed / max(result.tests, 1)
        info |= {
            "tests_passed": result.passed,
            "tests": result.tests,
            "failed_tests": result.failed_tests,
        }
        reward = score if rules.reward_scale == "score" else float(result.success)
        return State(
            text, (), valid, answer.completed, result.success, reward, score, info
        )


def called(calls: Mapping[str, int], longest: int) -> str:
    """Return calls of APIs as text: each once, in the order of its first call, with how often it was made.

    Args:
        calls: How often each was made.
        longest: The maximum length. Later calls are left out.

    >>> print(called({"GET /venmo/account": 2, "POST /venmo/transactions": 1}, 100))
    API calls so far:
    GET /venmo/account (2 times)
    POST /venmo/transactions
    """
    lines = ["API calls so far:" if calls else "No API calls so far."]
    left = longest
    for call, times in calls.items():
        line = call if times == 1 else f"{call} ({times} times)"
        left -= len(line) + 1
        if left < 0:
            lines.append("and more")
            break
        lines.append(line)
    return "\n".join(lines)
