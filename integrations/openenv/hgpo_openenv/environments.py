"""The environments that a server offers, and the documents that describe them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.env import TextEnv, checked_task
from hgpo_envs.environment_spec import environment_ids, name_in, provider
from hgpo_envs.errors import InputError, one_line
from hgpo_train.rollout.env_handle import open_env

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hgpo_train.rollout.env_handle import EnvHandle

MOST_TASKS: Final = 10_000
"""The most task ids in one answer."""


class ServedEnvironment:
    """An environment that sessions are made of. They share its task source; an idle session takes a few kilobytes.

    Args:
        env_id: The Gymnasium id.
        env: An environment that was never reset.
        threads: In how many threads it is called; 0 calls it directly.

    Attributes:
        env_id: The Gymnasium id.
        name: Its name in addresses, such as ``ALFWorld``.
        threads: The threads, or None.
    """

    def __init__(self, env_id: str, env: TextEnv, threads: int = 0) -> None:
        self.env_id = env_id
        self._env = env
        self.name: Final = name_in(env_id)
        self.threads = (
            ThreadPoolExecutor(threads, f"hgpo-{self.name}") if threads else None
        )

    def new_env(self) -> TextEnv:
        """Return a new environment over the shared data."""
        return self._env.fork()

    def has_task(self, task: str) -> bool:
        """Return whether the split has a task, without reading the split, which may be endless."""
        try:
            checked_task(self._env.shared, self._env.split, task)
        except InputError:
            return False
        return True

    def unknown_task(self, task: str) -> str:
        """Return the error line for a task that the split lacks."""
        tasks = self._env.tasks
        return (
            f"task: expected one of the {len(tasks):,} ids of split {tasks.name!r}, such as {tasks[0]!r}, "
            f"received {one_line(task)!r}"
        )

    def task_list(self, start: int, stop: int) -> dict[str, Any]:
        """Return some ids of the split, at most `MOST_TASKS`."""
        tasks = self._env.tasks
        chosen = tasks[max(start, 0) : min(stop, start + MOST_TASKS)]
        return {
            "split": tasks.name,
            "count": len(tasks),
            "start": max(start, 0),
            "tasks": list(chosen),
        }

    def openapi(self) -> dict[str, Any]:
        """Return the description of what is answered over HTTP, in the form of OpenAPI."""
        return {
            "openapi": "3.1.0",
            "info": {"title": self.env_id, "version": HTTP_VERSION},
            "paths": _PATHS,
        }

    def metadata(self) -> dict[str, Any]:
        """Return the description of the environment, as OpenEnv's metadata, with its settings."""
        options = self._env.episode.settings.episode_options()
        del options["prompt_template"]  # may be a path of this machine
        return {
            "name": self.env_id,
            "description": f"{self.name} of HGPO: text observations, text actions, the benchmark's own reward",
            "version": _version(),
            "documentation_url": None,
            "split": self._env.tasks.name,
            "tasks": len(self._env.tasks),
            **options,
        }


HTTP_VERSION: Final = "1.0.0"
"""The version of OpenEnv's HTTP interface that is spoken."""

_PATHS: Final = {
    "/health": {"get": {"summary": "Whether the server answers"}},
    "/metadata": {"get": {"summary": "The environment and its settings"}},
    "/schema": {
        "get": {"summary": "The JSON schemas of actions, observations and states"}
    },
    "/tasks": {"get": {"summary": "Ids of tasks, from `start` to `stop`"}},
    "/mcp": {"post": {"summary": "JSON-RPC; no method is offered"}},
}
"""What is answered over HTTP. Sessions are WebSocket connections, which OpenAPI cannot describe."""

ACTION_SCHEMA: Final[Mapping[str, Any]] = {
    "title": "TextAction",
    "type": "object",
    "properties": {"action": {"type": "string"}, "metadata": {"type": "object"}},
    "required": ["action"],
    "additionalProperties": False,
}
SCHEMA: Final[Mapping[str, Any]] = {
    "action": ACTION_SCHEMA,
    "observation": {
        "title": "TextObservation",
        "type": "object",
        "properties": {
            "state": {"type": "string"},
            "prompt": {"type": "string"},
            "history_hash": {"type": "array", "items": {"type": "integer"}},
            "terminated": {"type": "boolean"},
            "truncated": {"type": "boolean"},
            "info": {"type": "object"},
        },
        "required": [
            "state",
            "prompt",
            "history_hash",
            "terminated",
            "truncated",
            "info",
        ],
    },
    "state": {
        "title": "SessionState",
        "type": "object",
        "properties": {
            "episode_id": {"type": ["string", "null"]},
            "step_count": {"type": "integer"},
            "environment": {"type": "string"},
            "task_id": {"type": ["string", "null"]},
            "done": {"type": "boolean"},
            "won": {"type": "boolean"},
            "score": {"type": "number"},
        },
        "required": ["episode_id", "step_count"],
    },
}
"""The JSON schemas of actions, observations and states, in the form of OpenEnv."""


def open_environments(
    env_ids: Sequence[str], options: Mapping[str, Any], sampling: str = "random"
) -> dict[str, ServedEnvironment]:
    """Open environments to serve.

    Args:
        env_ids: Gymnasium ids, or ``module:EnvironmentSpec``.
        options: Keyword arguments of all of them; ``split`` is required.
        sampling: How tasks are drawn, one of `hgpo_envs.task_sampling.TASK_SAMPLINGS`.

    Returns:
        The environments by their names in addresses.

    Raises:
        InputError: An id or an argument is unknown, or two environments have the same name.
    """
    opened: dict[str, ServedEnvironment] = {}
    for env_id in env_ids:
        handle = open_env(env_id, **options)
        env = TextEnv(
            handle.shared,
            split=options["split"],
            sampling=sampling,
            memory=handle.settings.memory,
            **handle.settings.episode_options(),
        )
        served = ServedEnvironment(handle.env_id, env, _threads(handle))
        if served.name in opened:
            raise InputError(
                f"--env {env_id}: {served.name} is served already; start another server for it"
            )
        opened[served.name] = served
    return opened


def _threads(handle: EnvHandle) -> int:
    """Return in how many threads an environment is called.

    A step of ALFWorld or WebShop takes less time than handing it to a thread (its benchmark). Environments that
    wait for other processes say how many calls they allow; those of other packages are called one at a time, in a
    thread, so that a slow or hanging call does not stop other environments.
    """
    waiting = getattr(handle.shared.source, "concurrent", None)
    if waiting is not None:
        return int(waiting)
    return (
        0
        if handle.env_id in environment_ids() and provider(handle.env_id) == "hgpo"
        else 1
    )


def _version() -> str:
    from importlib.metadata import version

    return version("hgpo")
