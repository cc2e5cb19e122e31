"""A Gymnasium vector environment that runs groups of episodes in one process."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeGuard

import gymnasium
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from hgpo_envs import hashing
from hgpo_envs.env import (
    MOST_SEEDS,
    check_options,
    checked_task,
    observation_space,
    open_tasks,
    render_step,
)
from hgpo_envs.episode import Episode
from hgpo_envs.errors import InputError, one_line, unknown
from hgpo_envs.spaces import STATE_CHARACTERS, UnicodeText
from hgpo_envs.task_sampling import TaskSampler

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from hgpo_envs.engine import TaskSource
    from hgpo_envs.sources import SharedSource

    Observation = dict[str, Any]
    _Tasks = str | int | Sequence[str | int | None] | None


class TextVectorEnv(VectorEnv[dict[str, Any], "Sequence[str]", "NDArray[Any]"]):
    """Groups of episodes over one shared task source, with one small object per environment.

    Observations are a dictionary of ``state`` and ``prompt`` (tuples of n texts) and ``history_hash`` (int64 array of
    shape (n, history_depth + 1)). ``infos`` follows Gymnasium's convention: each key is an array of shape (n,), and
    ``_key`` is the mask of the slots that have a value. Flags have dtype bool, numbers int64 or float64, NumPy's arrays
    are stacked, dictionaries are nested in the same form, and all other values, also those of several types, have dtype
    object.

    A slot whose episode has ended goes on as Gymnasium's autoreset modes say, with the next task that it draws:

    - ``NextStep`` (the default, as in Gymnasium): the next `step` resets it. The action is ignored, the reward is 0.
    - ``SameStep``: the step that ends the episode also resets it. The last observation and info are in
      ``infos["final_obs"]`` and ``infos["final_info"]``.
    - ``Disabled``: a step is an error until ``reset(options={"reset_mask": …})`` has reset the slot.

    Reset options: ``reset_mask`` (bool array of shape (n,): the slots to reset; default all) and ``task`` (one id for
    every slot, or n ids with None where a slot draws its task). Without a task, slot i draws like a single environment
    with seed ``seed + i // group_size``: the k-th episodes of a group's members are of the same task.

    Args:
        source: The tasks and their engines.
        num_envs: n, the number of slots.
        group_size: How many consecutive slots draw the same tasks.
        autoreset_mode: ``NextStep``, ``SameStep`` or ``Disabled``, or the member of `gymnasium.vector.AutoresetMode`.
        split: See `hgpo_envs.env.TextEnv`, also for sampling and render mode.
        sampling: See `split`.
        render_mode: ``ansi`` or None.
        values: The other arguments of `hgpo_envs.env.TextEnv`.

    Raises:
        InputError: If an argument is invalid, or if the prompt template fails at the first task.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - as in Gymnasium
        "render_modes": ["ansi"],
        "render_fps": 4,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        source: TaskSource | SharedSource,
        num_envs: int = 1,
        *,
        group_size: int = 1,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP.value,
        split: str = "train",
        sampling: str = "random",
        render_mode: str | None = None,
        **values: Any,
    ) -> None:
        # Gymnasium 1.2 closes what is deleted, also after an error here
        self.episodes: list[Episode] = []
        for name, value in (("num_envs", num_envs), ("group_size", group_size)):
            if not is_integer(value) or value < 1:
                raise InputError(
                    f"{name}: expected an integer of at least 1, received {value!r}"
                )
        if num_envs % group_size:
            raise InputError(
                f"group_size: expected a divisor of num_envs ({num_envs}), received {group_size!r}"
            )
        try:
            self.autoreset_mode = AutoresetMode(autoreset_mode)
        except ValueError:
            names = [mode.value for mode in AutoresetMode]
            raise InputError(unknown("autoreset_mode", autoreset_mode, names)) from None
        self.metadata = {**self.metadata, "autoreset_mode": self.autoreset_mode}
        self.shared, self._split, settings = open_tasks(
            source, split, sampling, render_mode, ("ansi",), **values
        )
        # Members of a group may be reset at different times, so the group keeps what it has drawn for the others.
        self._samplers: list[TaskSampler] = []
        self._drawn: list[list[str]] = []  # of each group
        self._taken = [0] * num_envs  # how many of them each slot has taken
        self.split = split
        self.sampling = sampling
        self.render_mode = render_mode
        self.num_envs = num_envs
        self.group_size = group_size
        self.episodes = [Episode(self.shared, settings) for _ in range(num_envs)]
        self._hashes = np.full(
            (num_envs, settings.history_depth + 1), hashing.UNDEFINED, dtype=np.int64
        )
        self._make_spaces()

    def _make_spaces(self) -> None:
        self.single_observation_space = observation_space(self._hashes.shape[1] - 1)
        self.single_action_space = UnicodeText(STATE_CHARACTERS)
        self.observation_space = batch_space(
            self.single_observation_space, self.num_envs
        )
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Observation, dict[str, Any]]:
        """Start a task in every slot, or in those of ``options["reset_mask"]``.

        Args:
            seed: An integer (group g draws with ``seed + g``), or one integer per group. None continues the groups'
                draws, as those of groups of which no slot is reset.
            options: ``reset_mask`` and ``task``; see the class.

        Returns:
            The observations and infos of all slots.

        Raises:
            InputError: If a task is unknown or belongs to another split, or if an option is invalid. No slot is reset
                then.
        """
        # 1. Check everything, so that an error resets nothing.
        requested = check_options(options, ("task", "reset_mask"))
        mask = self._reset_mask(requested.get("reset_mask"))
        tasks = self._tasks(requested.get("task"), mask)
        seeds = self._seeds(seed)
        # 2. Seed the groups and start the slots.
        for group, group_seed in enumerate(seeds):
            # As in Gymnasium, a seed is for the slots that are reset.
            is_reset = mask[self._members(group)].any()
            if is_reset or not self._samplers[group:]:
                self._seed_group(group, group_seed)
        slots: list[int] = np.flatnonzero(mask).tolist()
        self._start(slots, tasks)
        return self._observe(), self._infos(slots)

    def step(
        self, actions: Sequence[str]
    ) -> tuple[
        Observation,
        NDArray[np.float64],
        NDArray[np.bool_],
        NDArray[np.bool_],
        dict[str, Any],
    ]:
        """Execute one action in every slot, or reset it if its episode has ended (see the class).

        Args:
            actions: n commands or responses.

        Returns:
            The observations, rewards (float64), terminated and truncated flags (bool), each of shape (n,), and infos.

        Raises:
            gymnasium.error.ResetNeeded: If a slot was never reset, or autoreset is disabled and an episode has ended.
            InputError: If `actions` is anything but n texts.
        """
        # 1. Check everything, so that an error changes nothing.
        texts = self._texts(actions)
        if not all(episode.started for episode in self.episodes):
            raise gymnasium.error.ResetNeeded(
                "call reset before step: some slots have no task"
            )
        done = [slot for slot, episode in enumerate(self.episodes) if episode.done]
        if done and self.autoreset_mode is AutoresetMode.DISABLED:
            raise gymnasium.error.ResetNeeded(
                f'the episodes of slots {one_line(done)} have ended: call reset(options={{"reset_mask": …}}) first'
            )
        # 2. Episodes that have not ended take their action; the others start the next task (next-step autoreset).
        rewards = np.zeros(self.num_envs)
        playing = [
            slot for slot, episode in enumerate(self.episodes) if not episode.done
        ]
        for slot in playing:
            self.episodes[slot].act(texts[slot])
            rewards[slot] = self.episodes[slot].state.reward
        if playing:
            self._hashes[playing] = hashing.advance(
                self._hashes[playing], self._state_hashes(playing)
            )
        self._start(done)
        # 3. In same-step autoreset, episodes that have just ended start the next task at once.
        terminated = np.array([episode.terminated for episode in self.episodes])
        truncated = np.array([episode.truncated for episode in self.episodes])
        final = (
            self._reset_ended()
            if self.autoreset_mode is AutoresetMode.SAME_STEP
            else {}
        )
        infos = self._infos(range(self.num_envs)) | final
        return self._observe(), rewards, terminated, truncated, infos

    def _reset_ended(self) -> dict[str, Any]:
        """Reset the slots whose episodes have ended. Return their last observations and infos, as Gymnasium does."""
        ended = [slot for slot, episode in enumerate(self.episodes) if episode.done]
        if not ended:
            return {}
        observations = np.full(self.num_envs, None, dtype=np.object_)
        for slot in ended:
            episode = self.episodes[slot]
            observations[slot] = {
                "state": episode.state.text,
                "prompt": episode.prompt(),
                "history_hash": self._hashes[slot].copy(),
            }
        mask = _mask(ended, self.num_envs)
        infos = self._infos(ended)
        self._start(ended)
        return {
            "final_obs": observations,
            "_final_obs": mask,
            "final_info": infos,
            "_final_info": mask.copy(),
        }

    def _start(
        self, slots: Sequence[int], tasks: Sequence[str | None] | None = None
    ) -> None:
        """Start tasks in slots: the given ones, or where there is none, the next of the slot's group."""
        for slot in slots:
            task = tasks[slot] if tasks else None
            if task is None:
                group = slot // self.group_size
                drawn = self._drawn[group]
                if self._taken[slot] == len(drawn):
                    drawn.append(self._samplers[group].draw())
                task = drawn[self._taken[slot]]
                self._taken[slot] += 1
            self.episodes[slot].start(task)
        if slots:
            self._hashes[slots] = hashing.start(
                self._state_hashes(slots), self._hashes.shape[1] - 1
            )

    def _texts(self, actions: object) -> Sequence[str]:
        if (
            isinstance(actions, Sequence | np.ndarray)
            and not isinstance(actions, str | bytes)
            and len(actions) == self.num_envs
            and all(isinstance(action, str) for action in actions)
        ):
            return actions  # type: ignore[return-value]  # an array of texts is as good as a list
        raise InputError(
            f"actions: expected {self.num_envs} texts, one for each slot, received {one_line(actions)}"
        )

    def close_extras(self) -> None:
        """End what the engines have outside this process, and close a task source without users."""
        for episode in self.episodes:
            episode.close()

    def fork(self) -> TextVectorEnv:
        """Return an independent environment in the same state, which draws the same tasks from now on.

        Gymnasium's random generators (`np_random` and those of the spaces) are not copied, as in
        `hgpo_envs.env.TextEnv.fork`.
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._np_random = other._np_random_seed = None
        other._make_spaces()
        other.episodes = [episode.fork() for episode in self.episodes]
        other._samplers = list(map(copy.copy, self._samplers))
        other._drawn = list(map(list.copy, self._drawn))
        other._taken = self._taken.copy()
        other._hashes = self._hashes.copy()
        return other

    __copy__ = fork  # a shallow copy would share the episodes

    def render(self) -> tuple[str, ...] | None:
        """Return every slot's last step (`hgpo_envs.env.render_step`) with ``render_mode="ansi"``, otherwise None."""
        return (
            tuple(map(render_step, self.episodes))
            if self.render_mode == "ansi"
            else None
        )

    def _state_hashes(self, slots: Iterable[int]) -> NDArray[np.int64]:
        return np.array(
            [self.episodes[slot].state_hash for slot in slots], dtype=np.int64
        )

    def _observe(self) -> Observation:
        """Return the observations of all slots; empty texts for those that were never reset."""
        episodes = self.episodes
        return {
            "state": tuple([one.state.text if one.started else "" for one in episodes]),
            "prompt": tuple([one.prompt() if one.started else "" for one in episodes]),
            "history_hash": self._hashes.copy(),
        }

    def _infos(self, slots: Sequence[int]) -> dict[str, Any]:
        """Return the infos of some slots as arrays with masks."""
        return _batched(
            {slot: self.episodes[slot].info() for slot in slots}, self.num_envs
        )

    def _reset_mask(self, requested: object) -> NDArray[np.bool_]:
        if requested is None:
            return np.ones(self.num_envs, dtype=np.bool_)
        mask = np.asarray(requested)
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_:
            raise InputError(
                f'options["reset_mask"]: expected a bool array of shape ({self.num_envs},), '
                f"received {mask.dtype} of shape {mask.shape}"
            )
        return mask

    def _tasks(self, requested: _Tasks, mask: NDArray[np.bool_]) -> list[str | None]:
        """Return the requested task id of each slot, None where a slot draws its task."""
        if requested is None:
            return [None] * self.num_envs
        if isinstance(requested, str | int | np.integer):
            requested = [requested] * self.num_envs
        if len(requested) != self.num_envs:
            raise InputError(
                f'options["task"]: expected an id or {self.num_envs} ids, received a sequence of {len(requested)}'
            )
        check = cache(partial(checked_task, self.shared, self.split))
        asked = zip(requested, mask, strict=True)
        return [
            check(task) if selected and task is not None else None
            for task, selected in asked
        ]

    def _seeds(self, seed: object) -> list[int | None]:
        """Return the seed of each group; None keeps its sampler."""
        groups = self.num_envs // self.group_size
        if seed is None and self._samplers:
            return [None] * groups
        if seed is None or is_integer(seed):
            super().reset(seed=None if seed is None else int(seed))
            first = (
                int(self.np_random_seed or 0) % MOST_SEEDS
                if seed is None
                else int(seed)
            )
            return [first + group for group in range(groups)]
        seeds = list(seed) if isinstance(seed, Sequence | np.ndarray) else []
        if len(seeds) != groups or not all(
            one is None or is_integer(one) for one in seeds
        ):
            raise InputError(
                f"seed: expected an integer or {groups}, one for each group, received {one_line(repr(seed))}"
            )
        return seeds

    def _seed_group(self, group: int, seed: int | None) -> None:
        """Restart the draws of a group, if it has a seed or did not draw yet."""
        if seed is None and self._samplers[group:]:
            return
        start = seeding.np_random()[1] % MOST_SEEDS if seed is None else int(seed)
        self._samplers[group : group + 1] = [
            TaskSampler(self.sampling, self._split, start)
        ]
        self._drawn[group : group + 1] = [[]]
        self._taken[self._members(group)] = [0] * self.group_size

    def _members(self, group: int) -> slice:
        return slice(group * self.group_size, (group + 1) * self.group_size)


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether a value is an integer, of Python or NumPy, and not a bool."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _mask(slots: Iterable[int], number: int) -> NDArray[np.bool_]:
    """Return a mask of shape (number,) that is True for some slots."""
    mask = np.zeros(number, dtype=np.bool_)
    mask[list(slots)] = True
    return mask


def _batched(infos: Mapping[int, Mapping[str, Any]], number: int) -> dict[str, Any]:
    """Return the infos of some of `number` slots as arrays with masks, nested like the infos."""
    batched: dict[str, Any] = {}
    for key in dict.fromkeys(chain.from_iterable(infos.values())):
        values = {slot: info[key] for slot, info in infos.items() if key in info}
        batched[key] = _column(values, number)
        batched[f"_{key}"] = _mask(values, number)
    return batched


def _column(values: Mapping[int, Any], number: int) -> dict[str, Any] | NDArray[Any]:
    """Return one entry of the infos of some of `number` slots, of which at least one has a value."""
    some = list(values.values())
    types = set(map(type, some))
    # several: a `won` that is not known everywhere
    kind = types.pop() if len(types) == 1 else object
    slots = list(values)
    if issubclass(kind, dict):
        return _batched(values, number)
    if kind is np.ndarray and len({(value.shape, value.dtype) for value in some}) == 1:
        column = np.zeros((number, *some[0].shape), some[0].dtype)
        column[slots] = some
        return column
    numeric = kind in (bool, int, float) or issubclass(kind, np.number)
    column = (
        np.zeros(number, kind) if numeric else np.full(number, None, dtype=np.object_)
    )
    # an assignment of lists would take them apart
    column[slots] = np.fromiter(some, column.dtype, len(some))
    return column
