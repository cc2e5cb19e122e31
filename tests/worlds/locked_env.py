"""The house of doors with an API key; importing this module registers `HGPO-Test/Locked-v0`."""

import gymnasium

from hgpo_envs.env import TextEnv
from hgpo_envs.sources import open_shared

LOCKED_ID = "HGPO-Test/Locked-v0"


def make_locked(api_key: str, base_url: str, count: int = 10, **arguments: object) -> TextEnv:
    return TextEnv(open_shared("doors:DoorsSource", count=count), **arguments)


if LOCKED_ID not in gymnasium.registry:
    gymnasium.register(LOCKED_ID, entry_point="locked_env:make_locked")
