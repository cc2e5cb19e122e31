"""The original program as an engine: the same tasks played by `alfworld` and `textworld` from PyPI, for comparison.

Slow (seconds a start, a quarter of a second a step) and Python 3.11 or 3.12 only; extra `alfworld`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.alfworld.engine.grammar import recognise, split_task
from hgpo_envs.engine import State, Task
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


class Files(Protocol):
    """Where the original gets its game files from."""

    def read(self, task_id: str) -> Mapping[str, Any]:
        """The JSON object of a game file."""
        ...


class OriginalSource:
    """The tasks of one ALFWorld data set, played by the original (`hgpo_envs.engine.TaskSource`).

    Args:
        data: As `ALFWorldSource` takes it.
        grammar: None, or the wording to convert every game to.
    """

    name = "ALFWorld"

    def __init__(self, data: str | Path | None = None, *, grammar: str | None = None) -> None:
        self._source = ALFWorldSource(data, grammar=grammar)

    def ids(self, split: str) -> Sequence[str]:
        """The split's task ids, sorted; `all` is every task."""
        return self._source.ids(split)

    def task(self, task_id: str) -> Task:
        """What is known of a task; unlike the native engine's, its grammar may be one that nobody knows."""
        file = self._source.read(task_id)
        wording, task = split_task(file["grammar"])
        try:
            grammar = recognise(file["pddl_domain"], wording).name
        except InputError:
            grammar = "unknown"
        split, folder, _ = task_id.split("/")
        return Task(task_id, split, task, folder.split("-")[0], {"grammar": grammar, "backend": "original"})

    def engine(self) -> OriginalEngine:
        """A new engine over these games. Heavy: about 100 MB, and seconds to begin a task."""
        return OriginalEngine(self._source)


class OriginalEngine:
    """Plays ALFWorld games with the original program (`hgpo_envs.engine.Engine`).

    Args:
        files: Where the game files come from.

    Raises:
        InputError: The extra `alfworld` is not installed, or this Python is too new for it.
    """

    def __init__(self, files: Files | None = None) -> None:
        self._files = files
        self._env = _environment()
        self._state: State | None = None

    def start(self, task_id: str) -> State:
        """Begins a task of the source."""
        if self._files is None:
            raise RuntimeError("this engine has no source of games; use play(file)")
        return self.play(self._files.read(task_id))

    def play(self, file: Mapping[str, Any]) -> State:
        """Begins a game, given as the JSON object of its file."""
        arguments = sys.argv
        try:  # the translator of planning problems writes its own arguments there
            self._env.load(dict(file))
            return self._show(self._env.reset(), valid=True)
        finally:
            sys.argv = arguments

    def act(self, command: str) -> State:
        """Carries out a command; after the end it repeats the last state, as the original's environments do."""
        state = self._state
        if state is None:
            raise RuntimeError("act before start")
        if state.terminated:
            return State(state.text, state.actions, False, True, state.won, 0.0, state.score, state.info)
        valid = command.strip() in state.actions
        shown, _, _ = self._env.step(command)
        return self._show(shown, valid=valid)

    def _show(self, shown: Any, *, valid: bool) -> State:  # noqa: ANN401 (textworld has no types)
        won = bool(shown["won"])
        actions = shown["admissible_commands"]
        self._state = State(shown.feedback, actions, valid, won, won, float(won), float(won), {})
        return self._state


def _environment() -> Any:  # noqa: ANN401 (textworld has no types)
    if sys.version_info >= (3, 13):
        raise InputError(
            'backend="original" needs Python 3.11 or 3.12: textworld 1.7.0 fails on 3.13 and later; '
            "use the native backend, or make an environment with `uv venv --python 3.12`"
        )
    try:
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld import EnvInfos
        from textworld.envs import PddlEnv
    except ImportError as error:
        raise InputError(
            f'backend="original" needs the original program ({error}): pip install "hgpo[alfworld]" '
            "(it builds from source; a C++ compiler is needed)"
        ) from None
    return AlfredDemangler()(PddlEnv(EnvInfos(won=True, admissible_commands=True)))
