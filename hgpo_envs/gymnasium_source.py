"""Another package's Gymnasium text environment as a task source, so that rollouts can be collected from it.

Its observations must be text, or a dictionary with text under ``state``, ``text``, ``observation`` or ``obs``; its
actions must be text. A task is a seed: ``reset(seed=int(task_id))``. From its info are taken, where they are there:
``admissible_actions`` (or ``admissible_commands``), ``action_valid``, ``won`` (or ``success``) and ``score``.
An episode that the environment itself truncates counts as ended; give a smaller step limit to have it truncated here.
Whatever else the environment gives — a NaN reward, an observation that is no text — is an error that names the field.
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
"""How many tasks a source has: the seeds 0 … SEEDS - 1."""

_TEXT_KEYS: Final = ("state", "text", "observation", "obs")
_WON_KEYS: Final = ("won", "success")
_ACTION_KEYS: Final = ("admissible_actions", "admissible_commands")


class GymnasiumEngine:
    """One environment, by the engine contract.

    Args:
        env: The environment.
        name: What to call it in errors.

    Raises:
        InputError: From `start` and `act`: the environment gave something of another type than the module says. The
            line names the environment and the field.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], name: str) -> None:
        self._env, self._name = env, name
        self._last: State | None = None

    def start(self, task_id: str) -> State:
        """Resets the environment with the task's seed."""
        given = self._env.reset(seed=int(task_id))
        observation, info = self._parts(given, ("observation", "info"), "reset")
        self._last = _StepOutput(self._name, observation, info).state(0.0, ended=False)
        return self._last

    def act(self, command: str) -> State:
        """Steps the environment; after its end nothing changes."""
        if self._last is None:
            raise RuntimeError("start a task first")
        if self._last.terminated:
            return self._last
        names = ("observation", "reward", "terminated", "truncated", "info")
        observation, reward, terminated, truncated, info = self._parts(self._env.step(command), names, "step")
        given = _StepOutput(self._name, observation, info)
        ended = given.flag("terminated", terminated) or given.flag("truncated", truncated)
        self._last = given.state(given.number("reward", reward), ended=ended)
        return self._last

    def _parts(self, given: object, names: tuple[str, ...], method: str) -> tuple[Any, ...]:
        if not isinstance(given, tuple) or len(given) != len(names):
            raise InputError(f"{self._name}: {method}() gave {_preview(given)}; expected a tuple ({', '.join(names)})")
        return given


class _StepOutput:
    """What an environment gave at one step; every field is checked when it is asked for."""

    def __init__(self, name: str, observation: object, info: object) -> None:
        self._name, self._observation = name, observation
        if not isinstance(info, Mapping):
            raise self._wrong("info", "a dictionary", info)
        self._info: Mapping[str, Any] = info

    def state(self, reward: float, *, ended: bool) -> State:
        """The state, of what info has."""
        won = next((self.flag(key, self._info[key]) for key in _WON_KEYS if key in self._info), ended and reward > 0)
        score = self._info.get("score", reward)
        return State(
            text=self._text(),
            actions=self._actions(),
            valid=self.flag("action_valid", self._info.get("action_valid", True)),
            terminated=ended,
            won=won,
            reward=reward,
            score=self.number("score", score),
            info={},
        )

    def number(self, field: str, value: object) -> float:
        """A finite number."""
        if isinstance(value, float | int | np.number | np.bool_) and not isinstance(value, np.complexfloating):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if math.isfinite(number):
                return number
        raise self._wrong(field, "a finite number", value)

    def flag(self, field: str, value: object) -> bool:
        """A bool; 0 and 1 will do."""
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
    """A value of whatever type, short and in one line."""
    try:
        text = one_line(repr(value), 60)
    except Exception:  # noqa: BLE001 - somebody else's __repr__
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
        """The seeds; there is one split, ``train`` or ``all``."""
        if split not in ("train", "all"):
            raise InputError(unknown("split", split, ("train", "all")))
        return [str(seed) for seed in range(SEEDS)]

    def task(self, task_id: str) -> Task:
        """What is known of a seed: little, the environment shows the rest."""
        if not (task_id.isascii() and task_id.isdigit() and len(task_id) < 9 and str(int(task_id)) == task_id) or (
            int(task_id) >= SEEDS
        ):
            raise UnknownTask(f"{self.name}: expected a seed from 0 to {SEEDS - 1} as task id, received {task_id!r}")
        return Task(task_id, "train", "", self.name)

    def engine(self) -> GymnasiumEngine:
        """A new environment."""
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
