"""The house of doors as a Gymnasium environment; importing this module registers `HGPO-Test/Doors-v0`."""

import gymnasium

from hgpo_envs.env import TextEnv
from hgpo_envs.sources import open_shared
from hgpo_envs.vector import TextVectorEnv

DOORS_ID = "HGPO-Test/Doors-v0"


def make_doors(count: int = 10, **arguments: object) -> TextEnv:
    return TextEnv(open_shared("doors:DoorsSource", count=count), **arguments)


def make_doors_vector(num_envs: int = 1, count: int = 10, **arguments: object) -> TextVectorEnv:
    return TextVectorEnv(open_shared("doors:DoorsSource", count=count), num_envs, **arguments)


if DOORS_ID not in gymnasium.registry:
    gymnasium.register(DOORS_ID, entry_point="doors_env:make_doors", vector_entry_point="doors_env:make_doors_vector")
