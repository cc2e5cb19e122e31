"""The Gymnasium environment, one class for all benchmarks."""

from __future__ import annotations

import copy
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import gymnasium
import numpy as np
from gymnasium import spaces

from hgpo_envs import hashing
from hgpo_envs.episode import Episode, check_template, settings_for
from hgpo_envs.errors import InputError, check_known, one_line, unknown
from hgpo_envs.sources import SharedSource, Split
from hgpo_envs.spaces import PROMPT_CHARACTERS, STATE_CHARACTERS, UnicodeText
from hgpo_envs.task_sampling import TASK_SAMPLINGS, TaskSampler

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

    from hgpo_envs.engine import TaskSource
    from hgpo_envs.episode import Settings
    from hgpo_envs.memory import Memory

RENDER_MODES: Final = ("human", "ansi")

MOST_SEEDS: Final = 1 << 32
"""The upper bound of generated seeds. All task samplings accept seeds below it."""

_INT64 = np.iinfo(np.int64)


def observation_space(history_depth: int) -> spaces.Dict:
    """Return the space of one environment's observations. ``history_hash`` has shape (history_depth + 1,)."""
    return spaces.Dict(
        {
            "state": UnicodeText(STATE_CHARACTERS),
            "prompt": UnicodeText(PROMPT_CHARACTERS),
            "history_hash": spaces.Box(
                _INT64.min, _INT64.max, (history_depth + 1,), np.int64
            ),
        }
    )


def checked_task(shared: SharedSource, split: str, task: object) -> str:
    """Return the id of a requested task as text. Raises InputError if it does not exist or is of another split."""
    if isinstance(task, bool) or not isinstance(task, str | int | np.integer):
        raise InputError(
            f'options["task"]: expected a task id (text, or an integer for WebShop), received {task!r}'
        )
    task_id = str(task)
    try:
        description = shared.source.task(task_id)
    except InputError:
        raise
    except KeyError as error:
        raise InputError(
            unknown("task id", task_id, map(str, shared.source.ids(split)), limit=3)
        ) from error
    if split not in ("all", description.split):
        raise InputError(
            f"expected a task of split {split!r}, received {task_id!r} of split {description.split!r}; "
            f'create the environment with split="{description.split}" or "all"'
        )
    return task_id


def open_tasks(
    source: TaskSource | SharedSource,
    split: str,
    sampling: str,
    render_mode: str | None,
    modes: tuple[str, ...],
    **values: Any,
) -> tuple[SharedSource, Split, Settings]:
    """Return what all environments over a task source are made of: source, tasks of the split, settings of episodes.

    The arguments are those of `TextEnv`, and the known render modes. Raises InputError if one is unknown or out of
    range, or the prompt template fails.
    """
    check_known("render_mode", render_mode, (*modes, None))
    shared = source if isinstance(source, SharedSource) else SharedSource(source)
    settings = settings_for(shared.source.name, **values)
    check_known("sampling", sampling, TASK_SAMPLINGS)
    tasks = Split(shared, split)
    check_template(shared, settings, tasks[0])
    return shared, tasks, settings


def check_options(
    options: dict[str, Any] | None, known: tuple[str, ...]
) -> dict[str, Any]:
    """Return a copy of the reset options. Raises InputError for an unknown option, instead of ignoring it."""
    for name in options or {}:
        check_known("reset option", name, known)
    return dict(options or {})


def checked_action(action: object) -> str:
    """Return an action.

    Raises:
        InputError: If it is not text.
    """
    if not isinstance(action, str):
        raise InputError(
            f"action: expected a text, received {type(action).__name__} {one_line(repr(action))}"
        )
    return action


class TextEnv(gymnasium.Env[dict[str, Any], str]):
    """A text benchmark as a Gymnasium environment.

    An observation is a dictionary of ``state`` (the state text), ``prompt`` (the policy's input: state, task and the
    last `history_length` pairs, rendered by the prompt template) and ``history_hash`` (int64 array of shape
    (history_depth + 1,), `hgpo_envs.hashing.UNDEFINED` where k > t). An action is text: a command or a model's response
    (see `action_format`). Every text is accepted. An inadmissible action changes nothing and is reported in
    ``info["action_valid"]``.

    The reward is the benchmark's reward. ``terminated`` means that the task ended, ``truncated`` that the step limit
    was reached first. ``info`` contains task (the instruction), task_id, task_type, split, versions, step, action (the
    executed command), action_valid, action_admissible, admissible_actions, won, score, and the benchmark's own fields
    (`hgpo_envs.engine.State.info`).

    Without ``options={"task": id}``, each reset draws a task of the split. The order is determined by `sampling` and
    the seed of the last ``reset(seed=…)`` (`hgpo_envs.task_sampling`), and does not depend on the file system.

    Attributes:
        shared: The task source, shared by every environment over the same data.
        tasks: The split's task ids, in their documented order.
        episode: The current episode.

    Args:
        source: The tasks and their engines.
        split: The split to draw tasks from. ``all`` contains every task.
        history_length: K, the number of past pairs in the prompt.
        history_depth: The maximum depth of the history hashes.
        action_format: What an action is: a ``command``, a ``response`` (of a model, with the command in tags), or a
            ``number`` (of an admissible action, from 1).
        max_steps: The step limit.
        sampling: The order of tasks: ``random`` draws with replacement, ``sweep`` takes each once in the split's order,
            ``shuffled`` is a new permutation for each pass, ``verl-agent`` the order of its ALFWorld workers
            (`hgpo_envs.task_sampling`).
        prompt_template: What replaces the benchmark's prompt template: the path of a Jinja file, the name of a bundled
            template (``compact``, ``compact-webshop``), or ``verl-agent:PATH`` for the prompts of a checkout of
            verl-agent.
        prompt_style: ``memory`` or ``chat``: whether ``prompt`` is complete and shows the last pairs, or is the next
            message of a conversation, whose earlier messages and responses the caller keeps.
        system_prompt: The system message for policies of this package; the observation does not contain it.
        memory: What stands for the past in the prompt instead of the last K pairs: a function (`hgpo_envs.memory`), or
            ``module:function``.
        render_mode: ``human`` prints every step (`render_step`) to standard output; with ``ansi``, `render` returns the
            last one; None renders nothing.

    Raises:
        InputError: If an argument is invalid, or if the prompt template fails at the first task.
    """

    _spec: EnvSpec | None = None

    @property
    def spec(self) -> EnvSpec | None:
        """The specification that the environment was made of, with its step limit, which wrappers read."""
        return self._spec

    @spec.setter
    def spec(self, spec: EnvSpec | None) -> None:
        self._spec = copy.deepcopy(spec)
        if self._spec is not None:
            self._spec.max_episode_steps = self.episode.settings.max_steps

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]  # a class constant, as in Gymnasium
        "render_modes": list(RENDER_MODES),
        "render_fps": 4,
    }

    def __init__(
        self,
        source: TaskSource | SharedSource,
        *,
        split: str = "train",
        history_length: int = 2,
        history_depth: int = hashing.DEFAULT_DEPTH,
        action_format: str = "command",
        max_steps: int = 50,
        sampling: str = "random",
        prompt_template: str | None = None,
        prompt_style: str = "memory",
        system_prompt: str = "",
        memory: Memory | str | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.shared, self.tasks, settings = open_tasks(
            source,
            split,
            sampling,
            render_mode,
            RENDER_MODES,
            prompt_template=prompt_template,
            history_length=history_length,
            history_depth=history_depth,
            action_format=action_format,
            max_steps=max_steps,
            prompt_style=prompt_style,
            system_prompt=system_prompt,
            memory=memory,
        )
        self._sampler: TaskSampler | None = None
        self.split = split
        self.sampling = sampling
        self.render_mode = render_mode
        self.episode = Episode(self.shared, settings)
        self._chain = hashing.Chain(history_depth)

    @cached_property
    def observation_space(self) -> spaces.Dict:  # type: ignore[override]  # cached: forks rarely need it
        """The space of observations."""
        return observation_space(self.episode.settings.history_depth)

    @cached_property
    def action_space(self) -> UnicodeText:  # type: ignore[override]
        """The space of actions: all text."""
        return UnicodeText(STATE_CHARACTERS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start a task: ``options["task"]``, or the next one that the task sampler draws.

        Args:
            seed: Restarts the task sampler with this seed. None continues its draws.
            options: ``task``, a task id.

        Returns:
            The observation and info.

        Raises:
            InputError: If the task is unknown or belongs to another split, or if an option is unknown.
        """
        super().reset(seed=seed)
        task = check_options(options, ("task",)).get("task")
        if seed is not None or self._sampler is None:
            drawn_seed = self.np_random_seed % MOST_SEEDS if seed is None else seed
            self._sampler = TaskSampler(self.sampling, self.tasks, drawn_seed)
        episode = self.episode
        episode.start(
            self._sampler.draw()
            if task is None
            else checked_task(self.shared, self.split, task)
        )
        hashes = self._chain.start(episode.state_hash)
        if self.render_mode == "human":
            self._print()
        return {
            "state": episode.state.text,
            "prompt": episode.prompt(),
            "history_hash": hashes,
        }, episode.info()

    def step(
        self, action: str
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Execute a command or a response. No text raises an error.

        Returns:
            The observation, reward, terminated, truncated and info.

        Raises:
            InputError: If the action is not text.
            gymnasium.error.ResetNeeded: If the episode has ended or `reset` was never called.
        """
        episode = self.episode
        if episode.done or not episode.started:
            raise gymnasium.error.ResetNeeded(
                "the episode has ended or was not started: call reset first"
            )
        episode.act(checked_action(action))
        state = episode.state
        hashes = self._chain.advance(episode.state_hash)
        if self.render_mode == "human":
            self._print()
        observation = {
            "state": state.text,
            "prompt": episode.prompt(),
            "history_hash": hashes,
        }
        return (
            observation,
            state.reward,
            episode.terminated,
            episode.truncated,
            episode.info(),
        )

    def close(self) -> None:
        """End what the engine has outside this process, such as AppWorld's worlds, and close a source without users."""
        self.episode.close()

    def fork(self) -> TextEnv:
        """Return an independent environment in the same state, which draws the same tasks from now on.

        It takes microseconds if the benchmark's engine supports it; otherwise the commands so far are replayed
        (`hgpo_envs.episode.Episode.fork`). Gymnasium's random generators (`np_random` and those of the spaces) are not
        copied: the environment does not use them after a reset, and those of the fork are new and unseeded. Call it on
        `env.unwrapped`.
        """
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        for name in (
            "observation_space",
            "action_space",
            "_np_random",
            "_np_random_seed",
        ):
            other.__dict__.pop(name, None)
        other.episode = self.episode.fork()
        other._chain = copy.copy(self._chain)
        other._sampler = copy.copy(self._sampler)
        return other

    __copy__ = fork  # a shallow copy would share the episode

    def render(self) -> str | None:
        """Return the last step as text (`render_step`) with ``render_mode="ansi"``, otherwise None.

        With ``render_mode="human"``, `reset` and `step` have already printed it.
        """
        return render_step(self.episode) if self.render_mode == "ansi" else None

    def _print(self) -> None:
        # characters that it does not have become question marks
        encoding = sys.stdout.encoding or "utf-8"
        print(
            render_step(self.episode).encode(encoding, "replace").decode(encoding),
            flush=True,
        )


def render_step(episode: Episode) -> str:
    """Return the last step of an episode: its command, the state that followed, its reward and how the episode ended.

    Before the first step, this is the task and the first state; before the first episode, it is empty. Control
    characters are replaced, because terminals interpret them.
    """
    if not episode.started:
        return ""
    state = episode.state
    if not episode.steps_taken:
        kind = f" ({episode.task.task_type})" if episode.task.task_type else ""
        lines = [
            f"# {episode.task.id}{kind}",
            f"# task: {episode.task.instruction}",
            "",
            state.text,
            "",
        ]
    else:
        endings = {True: "won", False: "ended without success", None: "ended"}
        ending = (
            endings[state.won] if episode.terminated else "stopped by the step limit"
        )
        lines = [
            f"[{episode.steps_taken}] > {episode.action}{'' if episode.action_valid else '   (invalid)'}",
            state.text,
            f"reward {state.reward:g}"
            + (f", {ending} after {episode.steps_taken} steps" if episode.done else ""),
            "",
        ]
    text = "\n".join(lines)
    return "".join(
        [
            letter if letter.isprintable() or letter == "\n" else "\ufffd"
            for letter in text
        ]
    )
