"""Another package's Gymnasium text environment as a task source, so that rollouts can be collected from it.

Its observations must be text, or a dictionary with text under ``state``, ``text``, ``observation`` or ``obs``; its
actions must be text. A task is a seed: ``reset(seed=int(task_id))``. These fields of its info are used if they are
present: ``admissible_actions`` (or ``admissible_commands``), ``action_valid``, ``won`` (``success``, ``is_success``,
``solved``, ``is_solved``; None if it is not known) and ``score``. Without ``action_valid``, an action is admissible if
it is listed, and where nothing is listed, it is not known; one that is outside of the action space, and that the
environment refuses (by an assertion or `InvalidAction`), changes nothing. The collector validates all values. The
instruction is ``instruction`` (or ``task``, ``mission``) of the info or the observation after the reset, if it is a
text.

Without a field for success, a task is solved if its episode ends with a return of at least the ``reward_threshold`` of
the environment's `EnvSpec`. Without a threshold, it is solved if it terminates with a reward of at least 1; a warning
says if an episode terminates with another reward, which this rule cannot judge.

An environment that its `EnvSpec` calls nondeterministic is stochastic (`hgpo_envs.engine.TaskSource`).
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, Final, SupportsFloat

import gymnasium
import numpy as np

from hgpo_envs.engine import State, Task
from hgpo_envs.errors import InputError, check_known
from hgpo_envs.task_sampling import task_number

SEEDS: Final = 10_000
"""Number of tasks of a source: the seeds 0 … SEEDS - 1."""

_TEXT_KEYS: Final = ("state", "text", "observation", "obs")
_WON_KEYS: Final = ("won", "success", "is_success", "solved", "is_solved")
_INSTRUCTION_KEYS: Final = ("instruction", "task", "mission")
_ACTION_KEYS: Final = ("admissible_actions", "admissible_commands")
# the least last reward of a solved task, for environments without a reward threshold
_SOLVED: Final = 1.0
_UNKNOWN: Final = object()


class GymnasiumEngine:
    """A Gymnasium environment as an engine (`hgpo_envs.engine.Engine`)."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        self._env = env
        self._threshold = None if env.spec is None else env.spec.reward_threshold
        self._return = 0.0
        self._is_often_paid = False
        self._last: State | None = None

    def start(self, task_id: str) -> State:
        """Reset the environment with the task's seed."""
        observation, info = self._env.reset(seed=int(task_id))
        self._return = 0.0
        self._last = self._state(observation, 0.0, False, False, info, admissible=True)
        return self._last

    def act(self, command: str) -> State:
        """Step the environment. After the end of the episode, the last state is returned."""
        if self._last is None:
            raise RuntimeError("start a task first")
        if not (self._last.terminated or self._last.truncated):
            listed = self._last.actions
            try:
                stepped = self._env.step(command)
            except (AssertionError, gymnasium.error.InvalidAction):
                # What is no action of the environment is a mistake of the policy, which changes nothing.
                if command in self._env.action_space:
                    raise
                self._last = replace(self._last, valid=False, reward=0.0)
                return self._last
            self._last = self._state(
                *stepped, admissible=command in listed if len(listed) else None
            )
        return self._last

    def _state(
        self,
        observation: object,
        reward: SupportsFloat,
        terminated: object,
        truncated: object,
        info: Mapping[str, Any],
        *,
        admissible: bool | None,
    ) -> State:
        ended = _flag(terminated)
        stopped = not ended and _flag(truncated)
        gain = float(reward)
        self._return += gain
        # Where steps that end nothing have as much, the last reward does not say that the task is solved.
        self._is_often_paid |= gain >= _SOLVED and not ended
        final = info.get("final_info")
        known = {**final, **info} if isinstance(final, Mapping) else info
        won = _flag(_first(known, _WON_KEYS, _UNKNOWN))
        if won is _UNKNOWN:
            won = self._solved(ended=ended, stopped=stopped, last=gain)
        # Points of many games are no score; then it is the return, cut to [0, 1].
        score = known.get("score")
        earned = min(max(self._return, 0.0), 1.0)
        actions: Any = _first(info, _ACTION_KEYS, ())
        text: Any = (
            _first(observation, _TEXT_KEYS)
            if isinstance(observation, Mapping)
            else observation
        )
        return State(
            text=text,
            actions=actions.tolist() if isinstance(actions, np.ndarray) else actions,
            valid=_flag(info.get("action_valid", admissible)),
            terminated=ended,
            won=won,
            reward=gain,
            score=earned if score is None or _exceeds(score) else score,
            truncated=stopped,
        )

    def _solved(self, *, ended: object, stopped: object, last: float) -> bool:
        """Return whether the episode is solved, by its return, or without a threshold by its last reward."""
        if self._threshold is not None:
            reached = self._return >= self._threshold or math.isclose(
                self._return, self._threshold, rel_tol=1e-6
            )
            # sums of rewards such as 0.1 are not exact
            return bool(ended or stopped) and reached
        is_solved = bool(ended) and last >= _SOLVED
        doubt = ""
        if is_solved and self._is_often_paid:
            doubt = "with a reward of 1, as others have before their end, and counts as solved"
        elif ended and not is_solved and (last or self._return):
            doubt = "with rewards but without a reward of 1, and counts as not solved"
        if doubt:
            name = self._env.spec.id if self._env.spec else "the environment"
            warnings.warn(
                f"{name}: an episode terminated {doubt}; register the environment with reward_threshold, or set "
                "info['success']",
                stacklevel=2,
            )
        return is_solved


def _first(
    values: Mapping[str, Any], keys: Iterable[str], default: object = None
) -> Any:  # noqa: ANN401 - any value
    """Return the value of the first key that is there."""
    return next((values[key] for key in keys if key in values), default)


def _exceeds(score: object) -> bool:
    """Return whether a score is a number of points, as of many games, rather than one from 0 to 1."""
    return isinstance(score, int | float | np.number) and bool(score < 0 or score > 1)


def _flag(value: object) -> Any:  # noqa: ANN401 - validated later
    """Return 0 and 1 as booleans, and any other value unchanged."""
    return (
        bool(value)
        if isinstance(value, int | float | np.number | np.bool_) and value in (0, 1)
        else value
    )


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
        self._instructions = Lock()
        env = self._make()
        self.stochastic = env.spec is not None and env.spec.nondeterministic
        shown: gymnasium.Space[Any] = env.observation_space
        if isinstance(shown, gymnasium.spaces.Dict):
            shown = _first(shown.spaces, _TEXT_KEYS, shown)
        for values, space in (("observations", shown), ("actions", env.action_space)):
            if not isinstance(space, gymnasium.spaces.Text):
                raise InputError(
                    f"{env_id}: expected {values} of text, received {type(space).__name__}"
                )
        env.close()
        self._instructing: gymnasium.Env[Any, Any] | None = None
        self._instructs = True

    def ids(self, split: str) -> Sequence[str]:
        """Return the seeds as texts. There is one split, ``train``; ``all`` is the same."""
        check_known("split", split, ("train", "all"))
        return [str(seed) for seed in range(SEEDS)]

    def task(self, task_id: str) -> Task:
        """Return a task's description: the seed, with the instruction that the environment gives, if any."""
        seed = task_number(task_id, SEEDS, f"{self.name}: expected a seed")
        return Task(task_id, "train", self._instruction(seed), self.name)

    def _instruction(self, seed: int) -> str:
        """Return the instruction that the environment gives at its start; empty if it does not."""
        with self._instructions:
            if not self._instructs:
                return ""
            if self._instructing is None:
                self._instructing = self._make()
            try:
                shown, info = self._instructing.reset(seed=seed)
            except Exception:  # noqa: BLE001 - the engine's start reports it
                return ""
            given: dict[str, Any] = {}
            for part in (shown, info):
                if isinstance(part, dict):
                    given |= part
            text = _first(given, _INSTRUCTION_KEYS)
            if isinstance(text, str):
                return text
            self._instructs = False
            return ""

    def close(self) -> None:
        """Close the environment that gives the instructions."""
        if self._instructing is not None:
            self._instructing.close()
        self._instructing = None

    def engine(self) -> GymnasiumEngine:
        """Return an engine with a new environment."""
        return GymnasiumEngine(self._make())

    def _make(self) -> gymnasium.Env[Any, Any]:
        try:
            return gymnasium.make(self.name, **self._options)
        except gymnasium.error.Error as error:
            raise InputError(f"unknown environment {self.name!r} ({error})") from error
        except TypeError as error:
            raise InputError(f"{self.name}: {error}") from error
