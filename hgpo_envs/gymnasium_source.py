"""Another package's Gymnasium text environment as a task source, so that rollouts can be collected from it.

Its observations must be text, or a dictionary with text under ``state``, ``text``, ``observation`` or ``obs``; its
actions must be text. A task is a seed: ``reset(seed=int(task_id))``. From its info are taken, where they are there:
``admissible_actions`` (or ``admissible_commands``), ``action_valid``, ``won`` (or ``success``) and ``score``.
An episode that the environment itself truncates counts as ended; give a smaller step limit to have it truncated here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import gymnasium

from hgpo_envs.engine import State, Task
from hgpo_envs.errors import InputError, UnknownTask, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SEEDS: Final = 10_000
"""How many tasks a source has: the seeds 0 … SEEDS - 1."""

_TEXT_KEYS: Final = ("state", "text", "observation", "obs")
_ACTION_KEYS: Final = ("admissible_actions", "admissible_commands")


class GymnasiumEngine:
    """One environment, by the engine contract."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env
        self._last: State | None = None

    def start(self, task_id: str) -> State:
        """Resets the environment with the task's seed."""
        observation, info = self._env.reset(seed=int(task_id))
        self._last = _state(observation, 0.0, info, ended=False)
        return self._last

    def act(self, command: str) -> State:
        """Steps the environment; after its end nothing changes."""
        if self._last is None:
            raise RuntimeError("start a task first")
        if not self._last.terminated:
            observation, reward, terminated, truncated, info = self._env.step(command)
            self._last = _state(observation, float(reward), info, ended=bool(terminated or truncated))
        return self._last


class GymnasiumSource:
    """The tasks of a Gymnasium id: its seeds.

    Args:
        env_id: The id.
        options: The environment's keyword arguments, as a JSON object.

    Raises:
        InputError: The id is unknown, or its observations or actions are not text.
    """

    def __init__(self, env_id: str, options: str = "{}") -> None:
        self.name = env_id
        self._options = json.loads(options)
        self._check(self._make())

    def ids(self, split: str) -> Sequence[str]:
        """The seeds; there is one split, ``train`` or ``all``."""
        if split not in ("train", "all"):
            raise InputError(unknown("split", split, ("train", "all")))
        return [str(seed) for seed in range(SEEDS)]

    def task(self, task_id: str) -> Task:
        """What is known of a seed: little, the environment shows the rest."""
        if not task_id.isdecimal() or int(task_id) >= SEEDS:
            raise UnknownTask(f"{self.name}: expected a seed from 0 to {SEEDS - 1} as task id, got {task_id!r}")
        return Task(task_id, "train", "", self.name)

    def engine(self) -> GymnasiumEngine:
        """A new environment."""
        return GymnasiumEngine(self._make())

    def _make(self) -> gymnasium.Env[Any, Any]:
        try:
            return gymnasium.make(self.name, **self._options)
        except gymnasium.error.Error as error:
            raise InputError(f"unknown environment {self.name!r} ({error})") from error
        except TypeError as error:
            raise InputError(f"{self.name}: {error}") from error

    def _check(self, env: gymnasium.Env[Any, Any]) -> None:
        space = env.observation_space
        shown: gymnasium.Space[Any] = space
        if isinstance(space, gymnasium.spaces.Dict):
            shown = next((space[key] for key in _TEXT_KEYS if key in space.spaces), space)
        for kind, given in (("observations", shown), ("actions", env.action_space)):
            if not isinstance(given, gymnasium.spaces.Text):
                raise InputError(f"{self.name}: expected {kind} of text, got {type(given).__name__}")
        env.close()


def _state(observation: object, reward: float, info: Mapping[str, Any], *, ended: bool) -> State:
    text = observation
    if isinstance(observation, dict):
        text = next(observation[key] for key in _TEXT_KEYS if key in observation)
    actions = next((info[key] for key in _ACTION_KEYS if key in info), ())
    won = bool(info.get("won", info.get("success", ended and reward > 0)))
    return State(
        text=str(text),
        actions=[str(action) for action in actions],
        valid=bool(info.get("action_valid", True)),
        terminated=ended,
        won=won,
        reward=reward,
        score=float(info.get("score", reward)),
        info={},
    )
