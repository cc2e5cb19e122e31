"""The tasks of a text environment, with its own reward."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import verifiers.v1 as vf
from pydantic import Field

from hgpo_envs.episode import Episode
from hgpo_train.rollout.env_handle import EnvHandle, open_env

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

STEPS: Final = "hgpo_steps"
"""The key in a trace's `info` of what the environment knows of each step; `hgpo data import` reads it."""


class StepTasksetConfig(vf.TasksetConfig):
    """Which tasks of which environment."""

    environment: str = "HGPO/ALFWorld-v0"
    """A Gymnasium id, or ``module:EnvironmentSpec``."""
    split: str = "train"
    """The split of the tasks."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the environment, such as `history_length`; `action_format` is ``response`` by default."""


class StepData(vf.TaskData):
    """A task: the environment that a harness opens, and the id of the task in it."""

    environment: str
    split: str
    options: dict[str, Any]


class StepTask(vf.Task[StepData, vf.State, vf.TaskConfig]):
    """A task whose reward is the environment's own."""

    @vf.reward
    async def episode_return(self, trace: vf.Trace) -> float:
        """Return the sum of the rewards of the steps."""
        return float(sum(row["reward"] for row in trace.info.get(STEPS, ())))

    @vf.metric
    async def outcome(self, trace: vf.Trace) -> dict[str, float]:
        """Return whether the task was solved, the benchmark's score, and the number of invalid actions."""
        steps = trace.info.get(STEPS, ())
        scores = [row.get("score") or 0.0 for row in steps]
        return {
            "won": float(any(row.get("won") for row in steps)),
            "score": float(scores[-1]) if scores else 0.0,
            "invalid_actions": float(sum(not row["action_valid"] for row in steps)),
        }


class StepTaskset(vf.Taskset[StepTask, StepTasksetConfig]):
    """The tasks of a split, in the environment's order; verifiers' own options select among them."""

    def load(self) -> Iterator[StepTask]:
        """Yield the tasks, each with its first prompt.

        Raises:
            InputError: The environment, the split or an option is unknown.
        """
        config = self.config
        handle = opened(config.environment, config.split, config.options)
        episode = Episode(handle.shared, handle.settings)
        for task_id in handle.tasks:
            episode.start(task_id)
            data = StepData(
                id=task_id,
                prompt=episode.prompt(),
                system_prompt=handle.settings.system_prompt or None,
                environment=config.environment,
                split=config.split,
                options=config.options,
            )
            yield StepTask(data, config.task)
        episode.close()


def opened(environment: str, split: str, options: Mapping[str, Any]) -> EnvHandle:
    """Return an environment, which is opened once in a process."""
    return _opened(environment, split, json.dumps(options, sort_keys=True))


@lru_cache
def _opened(environment: str, split: str, options: str) -> EnvHandle:
    return open_env(
        environment, split=split, **{"action_format": "response", **json.loads(options)}
    )
