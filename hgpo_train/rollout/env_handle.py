"""An environment id, opened for rollouts: this package's, or another package's text environment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import gymnasium

from hgpo_envs.env import TextEnv
from hgpo_envs.episode import Settings, check_template, settings_for
from hgpo_envs.errors import InputError
from hgpo_envs.sources import SharedSource, Split, open_shared

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class EnvHandle:
    """What is played: an environment id, opened.

    Attributes:
        env_id: The Gymnasium id.
        shared: The task source.
        settings: Prompts, parsing, limits.
        tasks: The split's task ids.
    """

    env_id: str
    shared: SharedSource
    settings: Settings
    tasks: Split


def open_env(env_id: str, **options: Any) -> EnvHandle:
    """Opens an environment id for rollouts.

    Args:
        env_id: The id of a `hgpo_envs.env.TextEnv`, or of another package's environment whose observations and actions
            are text (`hgpo_envs.gymnasium_source`).
        options: The environment's keyword arguments.

    Raises:
        InputError: The id or an argument is unknown, the environment is not one of text, or the prompt template fails
            at the first task.
    """
    try:
        env = gymnasium.make(env_id, **options).unwrapped
    except gymnasium.error.Error as error:
        known = sorted(name for name in gymnasium.registry if name.startswith("HGPO/"))
        raise InputError(f"unknown environment {env_id!r} ({error}). Known: {', '.join(known)}") from error
    except TypeError:  # it does not know this package's arguments
        return _open_foreign_env(env_id, options)
    if not isinstance(env, TextEnv):
        return _open_foreign_env(env_id, options)
    return EnvHandle(env_id, env.shared, env.episode.settings, env.tasks)


_EPISODE_OPTIONS: Final = ("history_length", "history_depth", "action_format", "max_steps", "prompt_template")


def _open_foreign_env(env_id: str, options: Mapping[str, Any]) -> EnvHandle:
    """An environment of another package: its own arguments for it, the shell's for the shell."""
    own = {name: value for name, value in options.items() if name not in (*_EPISODE_OPTIONS, "split")}
    shell = {name: options[name] for name in _EPISODE_OPTIONS if name in options}
    shared = open_shared("hgpo_envs.gymnasium_source:GymnasiumSource", env_id=env_id, options=json.dumps(own))
    handle = EnvHandle(env_id, shared, settings_for(env_id, **shell), Split(shared, options.get("split", "train")))
    check_template(shared, handle.settings, handle.tasks[0])
    return handle
