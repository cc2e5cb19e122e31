"""The house of doors with outages: tasks listed in the file `$HGPO_TEST_OUTAGE` fail as long as it lists them.

Importing this module registers the Gymnasium id `HGPO-Test/Outage-v0`.
"""

from __future__ import annotations

import os
from pathlib import Path

import gymnasium
from doors import DoorsEngine, DoorsSource

from hgpo_envs.env import TextEnv
from hgpo_envs.sources import open_shared

OUTAGE_ID = "HGPO-Test/Outage-v0"


class OutageEngine(DoorsEngine):
    def start(self, task_id: str):
        outage = Path(os.environ["HGPO_TEST_OUTAGE"])
        if outage.exists() and task_id in outage.read_text().split():
            raise RuntimeError("the power is out")
        return super().start(task_id)


class OutageSource(DoorsSource):
    def engine(self) -> OutageEngine:
        return OutageEngine(self._tasks)


def make_outage(count: int = 10, **arguments: object) -> TextEnv:
    return TextEnv(open_shared("outage_env:OutageSource", count=count), **arguments)


if OUTAGE_ID not in gymnasium.registry:
    gymnasium.register(OUTAGE_ID, entry_point="outage_env:make_outage")
