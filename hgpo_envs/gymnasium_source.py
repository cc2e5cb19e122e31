"""Another package's Gymnasium text environment as a task source, so that rollouts can be collected from it.

Its observations must be text, or a dictionary with text under ``state``, ``text``, ``observation`` or ``obs``; its
actions must be text. A task is a seed: ``reset(seed=int(task_id))``. These fields of its info are used if they are
present: ``admissible_actions`` (or ``admissible_commands``), ``action_valid``, ``won`` (or ``success``, ``is_success``;
None if it is not known) and ``score``. Any other value, such as a NaN reward or an observation that is not text, is an
error that names the field.

Without a field for success, a task is solved if its episode terminates with a reward of at least the
``reward_threshold`` of the environment's `EnvSpec`, or of 1 if it has none. An episode that the environment truncates
is not solved.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import gymnasium
import numpy as np

from hgpo_envs.engine import State, Task
from hgpo_envs.errors import InputError, UnknownTask, one_line, unknown
from hgpo_envs.unicode_text import clean_text

SEEDS: Final = 10_000
"""Number of tasks of a source: the seeds 0 … SEEDS - 1."""

_TEXT_KEYS: Final = ("state", "text", "observation", "obs")
_WON_KEYS: Final = ("won", "success", "is_success")
_SOLVED: Final = 1.0  # the least reward of a solved task, for environments without a reward threshold

_ACTION_KEYS: Final = ("admissible_actions", "admissible_commands")


class GymnasiumEngine:
    """A Gymnasium environment as an engine (`hgpo_envs.engine.Engine`).

    Args:
        env: The environment.
        name: Its name in error messages.

    Raises:
        InputError: In `start` and `act`, if the environment returned a value of the wrong type. The message names the
            environment and the field.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], name: str) -> None:
        self._env, self._name = env, name
        threshold = None if env.spec is None else env.spec.reward_threshold
        self._solved = _SOLVED if threshold is None else threshold
        self._last: State | None = None

    def start(self, task_id: str) -> State:
        """Reset the environment with the task's seed."""
        given = self._env.reset(seed=int(task_id))
        observation, info = self._parts(given, ("observation", "info"), "reset")
        self._last = _StepOutput(self._name, observation, info).state(0.0, self._solved)
        return self._last

    def act(self, command: str) -> State:
        """Step the environment. After the end of the episode, the last state is returned."""
        if self._last is None:
            raise RuntimeError("start a task first")
        if self._last.terminated or self._last.truncated:
            return self._last
        names = ("observation", "reward", "terminated", "truncated", "info")
        observation, reward, terminated, truncated, info = self._parts(self._env.step(command), names, "step")
        given = _StepOutput(self._name, observation, info)
        self._last = given.state(
            given.number("reward", reward),
            self._solved,
            terminated=given.flag("terminated", terminated),
            truncated=given.flag("truncated", truncated),
        )
        return self._last

    def _parts(self, given: object, names: tuple[str, ...], method: str) -> tuple[Any, ...]:
        if not isinstance(given, tuple) or len(given) != len(names):
            expected = f"a tuple ({', '.join(names)})"
            raise InputError(f"{self._name}: {method}(): expected {expected}, received {_preview(given)}")
        return given


class _StepOutput:
    """The output of one step of an environment. Fields are validated when they are read."""

    def __init__(self, name: str, observation: object, info: object) -> None:
        self._name, self._observation = name, observation
        if not isinstance(info, Mapping):
            raise self._wrong("info", "a dictionary", info)
        self._info: Mapping[str, Any] = info

    def state(self, reward: float, solved: float, *, terminated: bool = False, truncated: bool = False) -> State:
        """Return the state, with defaults for the fields that info lacks.

        Args:
            reward: The step's reward.
            solved: The least reward of a solved task, if info does not say whether the task is solved.
            terminated: Whether the task has ended.
            truncated: Whether the environment stopped the episode.
        """
        truncated = truncated and not terminated
        key = next((key for key in _WON_KEYS if key in self._info), None)
        won = terminated and reward >= solved if key is None else self._known(key)
        score = self._info.get("score", reward)
        return State(
            text=self._text(),
            actions=self._actions(),
            valid=self.flag("action_valid", self._info.get("action_valid", True)),
            terminated=terminated,
            won=won and not truncated,
            reward=reward,
            score=self.number("score", score),
            truncated=truncated,
        )

    def number(self, field: str, value: object) -> float:
        """Return a finite number as a float."""
        if isinstance(value, float | int | np.number | np.bool_) and not isinstance(value, np.complexfloating):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if math.isfinite(number):
                return number
        raise self._wrong(field, "a finite number", value)

    def _known(self, key: str) -> bool | None:
        value = self._info[key]
        return None if value is None else self.flag(key, value)

    def flag(self, field: str, value: object) -> bool:
        """Return a boolean; 0 and 1 are accepted."""
        if isinstance(value, bool | np.bool_ | int | np.integer) and value in (0, 1):
            return bool(value)
        raise self._wrong(field, "a bool", value)

    def _text(self) -> str:
        shown = self._observation
        if isinstance(shown, Mapping):
            keys = [key for key in _TEXT_KEYS if key in shown]
            if not keys:
                raise self._wrong("observation", f"text under one of {', '.join(_TEXT_KEYS)}", shown)
            shown = shown[keys[0]]
        if not isinstance(shown, str):
            raise self._wrong("observation", "text", shown)
        return clean_text(str(shown))

    def _actions(self) -> list[str]:
        key = next((key for key in _ACTION_KEYS if key in self._info), None)
        actions: object = () if key is None else self._info[key]
        if isinstance(actions, np.ndarray):
            actions = actions.tolist()
        if not isinstance(actions, Sequence | AbstractSet) or isinstance(actions, str):
            raise self._wrong(str(key), "a list of texts", actions)
        for action in actions:
            if not isinstance(action, str):
                raise self._wrong(str(key), "texts in the list", action)
        return [clean_text(str(action)) for action in actions]

    def _wrong(self, field: str, expected: str, value: object) -> InputError:
        return InputError(f"{self._name}: {field}: expected {expected}, received {_preview(value)}")


def _preview(value: object) -> str:
    """Return the representation of any value, short and in one line."""
    try:
        text = one_line(repr(value), 60)
    except Exception:  # noqa: BLE001 - the environment's own __repr__
        text = "…"
    return f"{type(value).__name__} {text}"


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
        try:
            self._options = json.loads(options)
        except ValueError as error:
            raise InputError(f"{env_id}: its arguments are not JSON ({error})") from None
        if not isinstance(self._options, dict):
            raise InputError(f"{env_id}: expected its arguments as a JSON object, received {options:.60}")
        self._check(self._make())

    def ids(self, split: str) -> Sequence[str]:
        """Return the seeds as texts. There is one split, ``train``; ``all`` is the same."""
        if split not in ("train", "all"):
            raise InputError(unknown("split", split, ("train", "all")))
        return [str(seed) for seed in range(SEEDS)]

    def task(self, task_id: str) -> Task:
        """Return a task's description: the seed, without an instruction, which the environment may show."""
        if not (task_id.isascii() and task_id.isdigit() and len(task_id) < 9 and str(int(task_id)) == task_id) or (
            int(task_id) >= SEEDS
        ):
            raise UnknownTask(f"{self.name}: expected a seed from 0 to {SEEDS - 1} as task id, received {task_id!r}")
        return Task(task_id, "train", "", self.name)

    def engine(self) -> GymnasiumEngine:
        """Return an engine with a new environment."""
        return GymnasiumEngine(self._make(), self.name)

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
                raise InputError(f"{self.name}: expected {kind} of text, received {type(given).__name__}")
        env.close()
