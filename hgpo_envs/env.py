"""The Gymnasium environment: one class for every benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

import gymnasium
import numpy as np
from gymnasium import spaces

from hgpo_envs import hashing
from hgpo_envs.episode import Episode, check_template, settings_for
from hgpo_envs.errors import InputError, unknown
from hgpo_envs.sources import SharedSource, Split, share
from hgpo_envs.spaces import PROMPT_CHARACTERS, STATE_CHARACTERS, UnicodeText
from hgpo_envs.task_sampling import TASK_SAMPLINGS, TaskSampler

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hgpo_envs.engine import TaskSource

RENDER_MODES: Final = ("ansi",)

MOST_SEEDS: Final = 1 << 32
"""Where no seed is given, one below this is made up: what every order of tasks takes."""

_INT64 = np.iinfo(np.int64)


def observation_space(history_depth: int) -> spaces.Dict:
    """The space of one environment's observations.

    Args:
        history_depth: K of the deepest history hash; ``history_hash`` has shape (K + 1,), dtype int64.
    """
    return spaces.Dict(
        {
            "state": UnicodeText(STATE_CHARACTERS),
            "prompt": UnicodeText(PROMPT_CHARACTERS),
            "history_hash": spaces.Box(_INT64.min, _INT64.max, (history_depth + 1,), np.int64),
        }
    )


def checked_task(shared: SharedSource, split: str, task: object) -> str:
    """The id that a user gave, when it names a task of this split.

    Raises:
        InputError: It names none, or one of another split.
    """
    if isinstance(task, bool) or not isinstance(task, str | int | np.integer):
        raise InputError(f'options["task"]: expected a task id (text, or an integer for WebShop), got {task!r}')
    task_id = str(task)
    try:
        found = shared.source.task(task_id)
    except InputError:
        raise
    except KeyError as error:
        raise InputError(unknown("task id", task_id, map(str, shared.source.ids(split)), limit=3)) from error
    if split not in ("all", found.split):
        raise InputError(
            f"task {task_id!r} is in split {found.split!r}, not in {split!r}: "
            f'make the environment with split="{found.split}" or "all"'
        )
    return task_id


def check_render_mode(render_mode: str | None) -> None:
    """Refuses a render mode that is not known."""
    if render_mode is not None and render_mode not in RENDER_MODES:
        raise InputError(unknown("render_mode", render_mode, RENDER_MODES))


def check_sampling(name: str) -> None:
    """Refuses a sampling that is not known."""
    if name not in TASK_SAMPLINGS:
        raise InputError(unknown("sampling", name, TASK_SAMPLINGS))


def check_options(options: dict[str, Any] | None, known: tuple[str, ...]) -> dict[str, Any]:
    """The reset options; refuses one that is not known, which would otherwise be ignored in silence."""
    for name in options or {}:
        if name not in known:
            raise InputError(unknown("reset option", name, known))
    return dict(options or {})


class TextEnv(gymnasium.Env[dict[str, Any], str]):
    """A text benchmark as a Gymnasium environment.

    An observation is a dictionary of ``state`` (the state text), ``prompt`` (what a policy reads: state, task and the
    last `history_length` pairs, by the prompt template) and ``history_hash`` (int64 of shape (history_depth + 1,),
    `hgpo_envs.hashing.UNDEFINED` where k > t). An action is text: the bare command or a model's whole response. Any
    text may be given; an inadmissible action changes nothing and is reported in ``info["action_valid"]``.

    The reward is the benchmark's own. ``terminated`` means that the task ended, ``truncated`` that the step limit came
    first. ``info`` holds task (the instruction), task_id, task_type, split, versions, step, action (the command that
    was executed), action_valid, action_admissible, admissible_actions, won, score, and what else the benchmark
    tells (`hgpo_envs.engine.State.info`).

    Without ``options={"task": id}``, each reset draws a task of the split in the order that `sampling` and the last
    ``reset(seed=…)`` name (`hgpo_envs.task_sampling`); it does not depend on the file system.

    Attributes:
        shared: The task source, shared by every environment over the same data.
        tasks: The split's task ids, in their documented order.
        episode: The episode being played.

    Args:
        source: The tasks and their engines.
        split: Which tasks; ``all`` is everything.
        history_length: K, how many past pairs the prompt shows.
        history_depth: The deepest history hash.
        action_format: ``command``, ``response`` or ``number`` (an admissible action's, from 1).
        max_steps: The step limit.
        sampling: ``random``, ``sweep``, ``shuffled`` or ``verl-agent``.
        prompt_template: A Jinja file that replaces the package's own prompt.
        render_mode: ``ansi`` or None.

    Raises:
        InputError: An argument that cannot be used, or a prompt template that fails at the first task.
    """

    metadata: ClassVar[dict[str, Any]] = {  # type: ignore[misc]  # one for the class, as Gymnasium itself does
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
        render_mode: str | None = None,
    ) -> None:
        check_render_mode(render_mode)
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
        self.tasks = Split(self.shared, split)
        check_template(self.shared, settings, self.tasks[0])
        self._draws: TaskSampler | None = None
        self.split, self.sampling, self.render_mode = split, sampling, render_mode
        self.episode = Episode(self.shared, settings)
        self._chain = hashing.Chain(history_depth)
        self.observation_space = observation_space(history_depth)
        self.action_space = UnicodeText(STATE_CHARACTERS)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begins a task: ``options["task"]``, or one that the seeded generator draws.

        Raises:
            InputError: The task is unknown or of another split, or an option is unknown.
        """
        super().reset(seed=seed)
        task = check_options(options, ("task",)).get("task")
        if seed is not None or self._draws is None:
            drawn_seed = self.np_random_seed % MOST_SEEDS if seed is None else seed
            self._draws = TaskSampler(self.sampling, self.tasks, drawn_seed)
        task_id = self._draws.draw() if task is None else checked_task(self.shared, self.split, task)
        self.episode.start(task_id)
        hashes = self._chain.start(hashing.text_hash(self.episode.state.text))
        return self._observation(hashes), self.episode.info()

    def step(self, action: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Carries out a command or a response; never raises for any text.

        Raises:
            gymnasium.error.ResetNeeded: There is no task being played.
        """
        episode = self.episode
        if not episode.started or episode.done:
            raise gymnasium.error.ResetNeeded("the episode has ended (or none was begun): call reset first")
        episode.act(str(action))
        hashes = self._chain.advance(hashing.text_hash(episode.state.text))
        return self._observation(hashes), episode.state.reward, episode.terminated, episode.truncated, episode.info()

    def render(self) -> str | None:
        """The last command and the state text (``render_mode="ansi"``)."""
        return rendered(self.episode) if self.render_mode == "ansi" else None

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__dict__.update(kept)
        if "_chain" not in kept:  # version 0.1 pickled the last hashes
            self._chain = hashing.Chain(self.episode.settings.history_depth)
            self._chain.resume(self.__dict__.pop("_hashes"))

    def _observation(self, history_hash: NDArray[np.int64]) -> dict[str, Any]:
        return {"state": self.episode.state.text, "prompt": self.episode.prompt(), "history_hash": history_hash}


def rendered(episode: Episode) -> str:
    """An episode as text for people."""
    if not episode.started:
        return ""
    command = f"> {episode.action}\n\n" if episode.steps_taken else ""
    return f"{command}{episode.state.text}\n"
