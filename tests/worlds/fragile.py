"""Failing engines: a house of doors whose engine raises, hangs or dies at a given task and step."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from doors import DoorsEngine, DoorsSource

if TYPE_CHECKING:
    from hgpo_envs.engine import State


class FragileEngine(DoorsEngine):
    """Fails at the step that `plan` sets for its task, {task id: (step, how)}; step 0 is the start."""

    plan: dict[str, tuple[int, str]]
    once: str = ""
    taken: int = 0

    def start(self, task_id: str) -> State:
        self.task_id = task_id
        self.taken = 0
        self._perhaps_fail()
        return super().start(task_id)

    def act(self, command: str) -> State:
        self.taken += 1
        self._perhaps_fail()
        state = super().act(command)
        if self.plan.get(self.task_id) == (self.taken, "unpicklable"):
            return replace(state, info={"why": lambda: None})
        return state

    def _perhaps_fail(self) -> None:
        step, how = self.plan.get(self.task_id, (-1, ""))
        if self.taken != step:
            return
        if how == "raise":
            raise RuntimeError(f"the house burns\n(task {self.task_id})")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "exit":
            os._exit(3)
        if how == "hang":
            time.sleep(3600)


class FragileSource(DoorsSource):
    name = "Doors"

    def __init__(self, count: int, plan: tuple[tuple[str, int, str], ...]) -> None:
        super().__init__(count)
        self.plan = {task: (step, how) for task, step, how in plan}

    def engine(self) -> FragileEngine:
        engine = FragileEngine(self._tasks)
        engine.plan = self.plan
        return engine
