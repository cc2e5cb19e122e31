"""Opening of environments for rollouts: those of this package, and text environments of other packages."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final

import gymnasium

from hgpo_envs.env import TextEnv
from hgpo_envs.environment_spec import (
    environment_ids,
    environment_spec,
    unknown_environment,
)
from hgpo_envs.episode import Settings, check_template, settings_for
from hgpo_envs.episode_options import EpisodeOptions
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.hashing import text_hash
from hgpo_envs.plugins import name_of
from hgpo_envs.registration import open_source, resolve_id
from hgpo_envs.sources import SharedSource, Split, open_shared

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, eq=False)
class EnvHandle:
    """An environment that is open for rollouts. Close it after the last one.

    Attributes:
        env_id: The Gymnasium id.
        shared: The task source.
        settings: Prompt template, action format and step limit of episodes.
        tasks: The task ids of the split.
    """

    env_id: str
    shared: SharedSource
    settings: Settings
    tasks: Split

    def __post_init__(self) -> None:
        self.shared.add_user(self)

    def close(self) -> None:
        """Close the task source if nobody else uses it (`hgpo_envs.sources.SharedSource`)."""
        self.shared.close(self)

    def identity(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a run stores of its environment, and compares when it is resumed.

        Args:
            options: The environment's keyword arguments.
        """
        functions = {
            "state_key": self.settings.state_key,
            "memory": self.settings.memory,
        }
        named = {
            name: name_of(function)
            for name, function in functions.items()
            if function is not None
        }
        plain = {
            name: name_of(value) if callable(value) else value
            for name, value in options.items()
        }
        # A list of ids may be long: their hash tells one list from another.
        chosen = (
            {}
            if self.tasks.chosen is None
            else {"chosen": text_hash(json.dumps(self.tasks.chosen))}
        )
        # Prompts contain the tools, and a later command may not know the environment: `module:object` is of a process.
        tools = {"tools": list(self.settings.tools)} if self.settings.tools else {}
        return {
            "env": {"id": self.env_id, **plain},
            "tasks": {
                "count": len(self.tasks),
                **chosen,
                **self.shared.source.task(self.tasks[0]).versions,
            },
            "prompt_template": self.settings.template.fingerprint,
            **named,
            **tools,
        }


def open_env(env_id: str, **options: Any) -> EnvHandle:
    """Open an environment for rollouts.

    Args:
        env_id: The Gymnasium id of a `hgpo_envs.env.TextEnv`, its `hgpo_envs.environment_spec.EnvironmentSpec` as
            ``module:object``, or the id of another package's environment whose observations and actions are text
            (`hgpo_envs.gymnasium_source`).
        options: Keyword arguments of the environment.

    Raises:
        InputError: The id or an argument is unknown, observations or actions are not text, or the prompt template
            fails for the first task.
    """
    if not isinstance(env_id, str):
        raise InputError(
            f"env: expected a Gymnasium id such as 'HGPO/ALFWorld-v0', received {env_id!r}"
        )
    env_id = resolve_id(env_id)
    env: object = None
    shared: SharedSource | None = None
    try:
        # the environment itself is not needed: its episodes are played here
        if env_id in environment_ids():
            common = (*_EPISODE_OPTIONS, "split")
            shared, shell = open_source(env_id, options, common)
        else:
            env = gymnasium.make(env_id, **options).unwrapped
    except gymnasium.error.Error as error:
        is_unknown = isinstance(
            error, gymnasium.error.NameNotFound | gymnasium.error.NamespaceNotFound
        )
        # the names that Gymnasium proposes are mostly no text environments
        if is_unknown and ":" not in env_id:
            raise InputError(unknown_environment(env_id)) from error
        raise InputError(
            f"unknown environment {env_id!r} ({error}). Known: {', '.join(environment_ids())}"
        ) from error
    except ImportError as error:
        raise InputError(f"{env_id}: {one_line(error, 300)}") from error
    except TypeError:
        # another package's environment, which lacks this package's arguments
        pass
    if isinstance(env, TextEnv):
        return EnvHandle(env_id, env.shared, env.episode.settings, env.tasks)
    if shared is None:
        # options of episodes are applied here, all others are passed to the other package's environment
        own = dict(options)
        shell = {
            name: own.pop(name) for name in (*_EPISODE_OPTIONS, "split") if name in own
        }
        shared = open_shared(
            "hgpo_envs.gymnasium_source:GymnasiumSource",
            env_id=env_id,
            options=json.dumps(own),
        )
    split = shell.pop("split", "train")
    settings = settings_for(shared.source.name, **shell)
    handle = EnvHandle(env_id, shared, settings, Split(shared, split))
    check_template(shared, settings, handle.tasks[0])
    return handle


def evaluation_split(env_id: str) -> str:
    """Return the default split for evaluations of an environment.

    Raises:
        InputError: The environment declares none, or belongs to another package and has no `EnvironmentSpec`.
    """
    env_id = resolve_id(env_id)
    if env_id not in gymnasium.registry and ":" not in env_id:
        raise InputError(unknown_environment(env_id))
    spec = environment_spec(env_id) if env_id in environment_ids() else None
    split = None if spec is None else spec.evaluation_split
    if split is None:
        splits = () if spec is None else spec.splits
        names = f": {', '.join((*splits, 'all'))}" if splits else ""
        raise InputError(
            f"{env_id} has no default split for evaluation; give one with --split{names}"
        )
    return split


_EPISODE_OPTIONS: Final = (*(field.name for field in fields(EpisodeOptions)), "memory")
