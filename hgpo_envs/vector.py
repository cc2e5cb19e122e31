"""Many episodes in one process as a Gymnasium vector environment, made for groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from hgpo_envs import hashing
from hgpo_envs.env import (
    MOST_SEEDS,
    RENDER_MODES,
    check_options,
    check_render_mode,
    check_sampling,
    checked_task,
    observation_space,
    rendered,
)
from hgpo_envs.episode import Episode, check_template, settings_for
from hgpo_envs.errors import InputError
from hgpo_envs.sources import SharedSource, Split, share
from hgpo_envs.spaces import STATE_CHARACTERS, UnicodeText
from hgpo_envs.task_sampling import TaskSampler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hgpo_envs.engine import TaskSource

    Observation = dict[str, Any]
    _Tasks = str | int | Sequence[str | int | None] | None


class TextVectorEnv(VectorEnv[dict[str, Any], "Sequence[str | None]", "NDArray[Any]"]):
    """Groups of episodes over one task source; thousands of environments cost thousands of small objects.

    Observations are a dictionary of ``state`` and ``prompt`` (tuples of n texts) and ``history_hash`` (int64 of shape
    (n, history_depth + 1)). There is no autoreset: a slot whose episode has ended stands still — its action is not
    looked at and may be None, its reward is 0, its flags stay, and it has no entry in ``infos`` — until
    ``reset(options={"reset_mask": …})`` gives it the next task.

    ``infos`` follows Gymnasium's convention: an array of shape (n,) a key, beside ``_key``, a mask of the slots that
    have one. Flags are bool, numbers int64 or float64, everything else (lists and dictionaries too) dtype object.

    Reset options: ``reset_mask`` (bool array of shape (n,): which slots begin anew; all of them when absent) and
    ``task`` (one id for every slot, or n of them, None where a slot is to draw). Without a task a group draws together:
    slot i draws as a single environment with seed ``seed + i // group_size`` does, so that the members of a group
    always play the same task.

    Args:
        source: The tasks and their engines.
        num_envs: n.
        group_size: How many neighbouring slots draw the same task.
        others: As in `hgpo_envs.env.TextEnv`.

    Raises:
        InputError: An argument that cannot be used, or a prompt template that fails at the first task.
    """

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]  # a class constant here
        "render_modes": list(RENDER_MODES),
        "render_fps": 4,
        "autoreset_mode": AutoresetMode.DISABLED,
    }

    def __init__(
        self,
        source: TaskSource | SharedSource,
        num_envs: int = 1,
        *,
        group_size: int = 1,
        split: str = "train",
        history_length: int = 2,
        history_depth: int = hashing.DEFAULT_DEPTH,
        action_format: str = "command",
        max_steps: int = 50,
        sampling: str = "random",
        prompt_template: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        check_render_mode(render_mode)
        if num_envs < 1:
            raise InputError(f"num_envs: expected at least 1, got {num_envs!r}")
        if group_size < 1 or num_envs % group_size:
            raise InputError(f"group_size: expected a divisor of num_envs ({num_envs}), got {group_size!r}")
        self.shared = share(source)
        settings = settings_for(
            self.shared.source.name,
            prompt_template=prompt_template,
            history_length=history_length,
            history_depth=history_depth,
            action_format=action_format,
            max_steps=max_steps,
        )
        check_sampling(sampling)
        self._split = Split(self.shared, split)
        check_template(self.shared, settings, self._split[0])
        self._draws: list[TaskSampler] = []
        self.split, self.sampling, self.render_mode = split, sampling, render_mode
        self.num_envs, self.group_size = num_envs, group_size
        self.episodes = [Episode(self.shared, settings) for _ in range(num_envs)]
        self._hashes = np.full((num_envs, history_depth + 1), hashing.UNDEFINED, dtype=np.int64)
        self._prompts = [""] * num_envs
        self.single_observation_space = observation_space(history_depth)
        self.single_action_space = UnicodeText(STATE_CHARACTERS)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins a task in every slot, or in those of ``options["reset_mask"]``.

        Args:
            seed: An integer (group g draws with ``seed + g``), or one for each group.
            options: ``reset_mask`` and ``task``, see the class.

        Raises:
            InputError: A task is unknown or of another split, or an option cannot be used. Nothing is reset then.
        """
        given = check_options(options, ("task", "reset_mask"))
        mask = self._reset_mask(given.get("reset_mask"))
        tasks = self._tasks(given.get("task"), mask)
        self._seed(seed)
        slots = np.flatnonzero(mask)
        drawing = sorted({int(slot) // self.group_size for slot in slots if tasks[slot] is None})
        drawn: dict[int, str] = {group: self._draws[group].draw() for group in drawing}
        for slot in slots:
            self.episodes[slot].start(tasks[slot] or drawn[int(slot) // self.group_size])
        depth = self._hashes.shape[1] - 1
        self._hashes[slots] = hashing.start(self._state_hashes(slots), depth)
        return self._observe(slots), self._infos(slots)

    def step(
        self, actions: Sequence[str | None]
    ) -> tuple[Observation, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Carries out one action in every slot that is still playing.

        Args:
            actions: n commands or responses; not looked at where a slot stands still.

        Raises:
            gymnasium.error.ResetNeeded: A slot was never reset.
        """
        if len(actions) != self.num_envs:
            raise InputError(f"expected {self.num_envs} actions, one for each slot, got {len(actions)}")
        if not all(episode.started for episode in self.episodes):
            raise gymnasium.error.ResetNeeded("call reset before step: some slots have no task")
        slots = np.array([slot for slot, episode in enumerate(self.episodes) if not episode.done], dtype=np.int64)
        rewards = np.zeros(self.num_envs)
        for slot in slots.tolist():
            action, episode = actions[slot], self.episodes[slot]
            episode.act(action if isinstance(action, str) else str(action))
            rewards[slot] = episode.state.reward
        if len(slots):
            self._hashes[slots] = hashing.advance(self._hashes[slots], self._state_hashes(slots))
        terminated = np.array([episode.terminated for episode in self.episodes])
        truncated = np.array([episode.truncated for episode in self.episodes])
        return self._observe(slots), rewards, terminated, truncated, self._infos(slots)

    def render(self) -> tuple[str, ...] | None:
        """Every slot's last command and state text (``render_mode="ansi"``)."""
        return tuple(map(rendered, self.episodes)) if self.render_mode == "ansi" else None

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_prompts"}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__dict__.update(kept)
        self._prompts = [episode.prompt() if episode.started else "" for episode in self.episodes]

    def _state_hashes(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        return hashing.text_hashes(self.episodes[slot].state.text for slot in slots.tolist())

    def _observe(self, slots: NDArray[np.int64]) -> Observation:
        for slot in slots.tolist():
            self._prompts[slot] = self.episodes[slot].prompt()
        return {
            "state": tuple(episode.state.text if episode.started else "" for episode in self.episodes),
            "prompt": tuple(self._prompts),
            "history_hash": self._hashes.copy(),
        }

    def _infos(self, slots: NDArray[np.int64]) -> dict[str, Any]:
        columns: dict[str, tuple[NDArray[Any], NDArray[np.bool_]]] = {}
        for slot in slots.tolist():
            for key, value in self.episodes[slot].info().items():
                if key not in columns:
                    dtype = _DTYPES.get(type(value), np.object_)
                    values = np.full(self.num_envs, None if dtype is np.object_ else 0, dtype=dtype)
                    columns[key] = values, np.zeros(self.num_envs, dtype=np.bool_)
                values, present = columns[key]
                values[slot], present[slot] = value, True
        infos: dict[str, Any] = {}
        for key, (values, present) in columns.items():
            infos[key], infos[f"_{key}"] = values, present
        return infos

    def _reset_mask(self, given: object) -> NDArray[np.bool_]:
        if given is None:
            return np.ones(self.num_envs, dtype=np.bool_)
        mask = np.asarray(given)
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise InputError(
                f'options["reset_mask"]: expected a bool array of shape ({self.num_envs},), '
                f"got {mask.dtype} of shape {mask.shape}"
            )
        return mask

    def _tasks(self, given: _Tasks, mask: NDArray[np.bool_]) -> list[str | None]:
        """The ids asked for, one a slot, None where a slot draws."""
        if given is None:
            return [None] * self.num_envs
        if isinstance(given, str | int | np.integer):
            given = [given] * self.num_envs
        if len(given) != self.num_envs:
            raise InputError(f'options["task"]: expected one id or {self.num_envs}, got {len(given)}')
        known: dict[Any, str] = {}
        for task, wanted in zip(given, mask, strict=True):
            if wanted and task is not None and task not in known:
                known[task] = checked_task(self.shared, self.split, task)
        return [known[task] if wanted and task is not None else None for task, wanted in zip(given, mask, strict=True)]

    def _seed(self, seed: int | Sequence[int | None] | None) -> None:
        """Sets what each group draws; a group whose seed is None goes on."""
        groups = self.num_envs // self.group_size
        if seed is None or isinstance(seed, int | np.integer):
            super().reset(seed=None if seed is None else int(seed))
            if seed is None and self._draws:
                return
            first = (self.np_random_seed or 0) % MOST_SEEDS if seed is None else int(seed)
            seeds: list[int | None] = [first + group for group in range(groups)]
        else:
            seeds = list(seed)
        if len(seeds) != groups:
            raise InputError(f"seed: expected an integer or {groups} of them, one for each group, got {len(seeds)}")
        self._draws = [
            self._draws[group] if given is None and self._draws else self._drawing(given)
            for group, given in enumerate(seeds)
        ]

    def _drawing(self, seed: int | None) -> TaskSampler:
        return TaskSampler(
            self.sampling, self._split, seeding.np_random()[1] % MOST_SEEDS if seed is None else int(seed)
        )


_DTYPES: dict[type, Any] = {bool: np.bool_, int: np.int64, float: np.float64}
