"""The house of doors with a fuse box: the action `press switch` in the hall ends the world.

`declared`: how the world ends: the engine says so in its state (`state`), or raises or dies and its source declares
that a failing command is the agent's doing (`raise`, `die`); `unknown` raises without a declaration.
"""

from __future__ import annotations

import os

from doors import DoorsEngine, DoorsSource

from hgpo_envs.engine import State


class MortalEngine(DoorsEngine):
    ends: str

    def act(self, command: str) -> State:
        if command != "press switch" or self.place != 0:
            return super().act(command)
        if self.ends == "die":
            os._exit(3)
        if self.ends == "state":
            return State("Darkness.", (), terminated=True, info={"lost": "a fuse blew"})
        raise RuntimeError("a fuse blew")


class MortalSource(DoorsSource):
    def __init__(self, count: int = 10, ends: str = "state") -> None:
        super().__init__(count)
        self.ends = ends
        self.failing_act_loses = ends in ("raise", "die")

    def engine(self) -> MortalEngine:
        engine = MortalEngine(self._tasks)
        engine.ends = self.ends
        return engine
