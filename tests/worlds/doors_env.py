"""The house of doors as Gymnasium environments, which importing this module registers.

`Doors` is the plain house, `Locked` takes an API key, and `Outage` fails at the tasks that the file `$HGPO_TEST_OUTAGE`
lists, as long as it lists them.
"""

import os
from pathlib import Path

import gymnasium
from doors import DoorsEngine, DoorsSource

from hgpo_envs.env import TextEnv
from hgpo_envs.sources import open_shared
from hgpo_envs.vector import TextVectorEnv

DOORS_ID = "HGPO-Test/Doors-v0"
LOCKED_ID = "HGPO-Test/Locked-v0"
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


def make_doors(
    source: str = "doors:DoorsSource", count: int = 10, **arguments: object
) -> TextEnv:
    return TextEnv(open_shared(source, count=count), **arguments)


def make_locked(api_key: str, base_url: str, **arguments: object) -> TextEnv:
    return make_doors(**arguments)


def make_doors_vector(
    num_envs: int = 1, count: int = 10, **arguments: object
) -> TextVectorEnv:
    return TextVectorEnv(
        open_shared("doors:DoorsSource", count=count), num_envs, **arguments
    )


if DOORS_ID not in gymnasium.registry:
    gymnasium.register(
        DOORS_ID,
        entry_point="doors_env:make_doors",
        vector_entry_point="doors_env:make_doors_vector",
    )
    gymnasium.register(LOCKED_ID, entry_point="doors_env:make_locked")
    gymnasium.register(
        OUTAGE_ID, "doors_env:make_doors", kwargs={"source": "doors_env:OutageSource"}
    )
