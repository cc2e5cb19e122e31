"""The original program (`alfworld` and `textworld` from PyPI) as an engine, for comparison.

It is slow (seconds per start, a quarter of a second per step) and needs Python 3.11 or 3.12 and the extra `alfworld`.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.alfworld.engine.grammar import recognise, split_task
from hgpo_envs.engine import State, Task
from hgpo_envs.errors import InputError
from hgpo_envs.plugins import install_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hgpo_envs.alfworld.data.game_folder import GameStore


class OriginalSource(ALFWorldSource):
    """The tasks of an ALFWorld data set, played by the original (`hgpo_envs.engine.TaskSource`).

    Args:
        data: See `ALFWorldSource`.
        grammar: The grammar to which every game is converted, or None.
    """

    def task(self, task_id: str) -> Task:
        """Return a task's description. Unlike in the native engine, the grammar may be unknown."""
        file = self.read(task_id)
        wording, task = split_task(file["grammar"])
        try:
            grammar = recognise(file["pddl_domain"], wording).name
        except InputError:
            grammar = "unknown"
        split, folder, _ = task_id.split("/")
        return Task(
            task_id,
            split,
            task,
            folder.split("-")[0],
            {"grammar": grammar, "backend": "original"},
        )

    def engine(self) -> OriginalEngine:  # type: ignore[override]  # both are engines
        """Return a new engine over these games. It uses about 100 MB and takes seconds to start a task."""
        return OriginalEngine(self)


class OriginalEngine:
    """Plays ALFWorld games with the original program (`hgpo_envs.engine.Engine`).

    Args:
        files: The source of game files.

    Raises:
        InputError: If the extra `alfworld` is not installed or does not support this Python version.
    """

    def __init__(self, files: GameStore | ALFWorldSource | None = None) -> None:
        self._files = files
        self._env = _environment()
        self._state: State | None = None

    def start(self, task_id: str) -> State:
        """Start a task of the source."""
        if self._files is None:
            raise RuntimeError("this engine has no source of games; use play(file)")
        return self.play(self._files.read(task_id))

    def play(self, file: Mapping[str, Any]) -> State:
        """Start a game, given as the JSON object of its file."""
        arguments = sys.argv
        try:  # the original's translator of planning problems overwrites sys.argv
            self._env.load(dict(file))
            return self._show(self._env.reset(), valid=True)
        finally:
            sys.argv = arguments

    def act(self, command: str) -> State:
        """Execute a command. After the end of the game it returns the last state, as in the original's environments."""
        state = self._state
        if state is None:
            raise RuntimeError("act before start")
        if state.terminated:
            return replace(state, valid=False, reward=0.0)
        valid = command.strip() in state.actions
        shown, _, _ = self._env.step(command)
        return self._show(shown, valid=valid)

    def _show(self, shown: Any, *, valid: bool) -> State:  # noqa: ANN401 (textworld has no types)
        won = bool(shown["won"])
        actions = shown["admissible_commands"]
        self._state = State(
            shown.feedback, actions, valid, won, won, float(won), float(won), {}
        )
        return self._state


def _environment() -> Any:  # noqa: ANN401 (textworld has no types)
    if sys.version_info >= (3, 13):
        raise InputError(
            'backend="original" needs Python 3.11 or 3.12: textworld 1.7.0 fails on 3.13 and later; '
            "use the native backend, or create an environment with `uv venv --python 3.12`"
        )
    try:
        from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
        from textworld import EnvInfos
        from textworld.envs import PddlEnv
    except ImportError as error:
        raise InputError(
            f'backend="original" needs the original program ({error}): {install_command("alfworld")} '
            "(it builds from source; a C++ compiler is needed)"
        ) from None
    return AlfredDemangler()(PddlEnv(EnvInfos(won=True, admissible_commands=True)))
