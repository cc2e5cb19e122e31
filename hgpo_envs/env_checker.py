"""Checks of a benchmark's adapter: what would cost a run if it were found during training (`hgpo check env`).

Some tasks are played several times each: with the commands of a policy, or with random admissible actions, scripted
players, or random calls of the tools. Then the same commands are played again: in new engines, in one engine, with all
episodes in turn, with other seeds of the process's random generators, in other processes, from forks and from pickles.
Every time the states must be equal, unless the environment declares that it is stochastic.
"""

from __future__ import annotations

import os
import random
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from gymnasium.utils.env_checker import check_env

from hgpo_envs.env_checks import odd_commands, replays, rollouts, states, task_lists
from hgpo_envs.env_checks.play import (
    Check,
    Doubt,
    Finding,
    Flaw,
    Play,
    guarded,
    spec_of,
)
from hgpo_envs.episode import Episode
from hgpo_envs.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import gymnasium

    from hgpo_envs.episode import Settings
    from hgpo_envs.sources import SharedSource


def check_environment(
    shared: SharedSource,
    settings: Settings,
    tasks: Sequence[str],
    *,
    episodes: int = 20,
    seed: int = 0,
    env: gymnasium.Env[Any, Any] | None = None,
    commands: Mapping[str, Sequence[Sequence[str]]] | None = None,
) -> Iterator[Finding]:
    """Check a task source and its engines.

    Args:
        shared: The task source.
        settings: The settings of its episodes.
        tasks: Task ids.
        episodes: The number of rollouts to play, rounded up to four of each task; at most four of every task.
        seed: Seed of the random actions.
        env: The Gymnasium environment, checked by Gymnasium's own `check_env`; None skips this.
        commands: The commands of a policy by task, one list per rollout, which are played instead of random ones.

    Yields:
        The findings. There are no further ones if schemas of tools are wrong, or if an engine raises an error.
    """
    spec = spec_of(shared.source)
    chosen = list(commands or tasks[: rollouts.number_of_tasks(episodes)])
    play = Play(shared, settings, spec, tasks, chosen, seed, commands, env, episodes)
    generators = random.getstate(), np.random.get_state()  # noqa: NPY002 - the state that other packages use
    folder = play.folder
    try:
        for name, check in _CHECKS.items():
            if (spec.stochastic and name in _REPEATING) or (
                name == "tools" and not play.tools
            ):
                continue
            found = guarded(name, check, play)
            if found.verdict != "pass" and name in spec.accepted:
                found = Finding(
                    name, "pass", f"accepted ({spec.accepted[name]}): {found.message}"
                )
            yield found
            # Tools that no call can fit, or an engine that fails, would only lead to further findings of the same.
            if (name == "tools" and found.verdict == "fail") or (
                name == "plays" and not play.rollouts
            ):
                return
        if spec.stochastic:
            yield Finding(
                "replay",
                "pass",
                "not compared: the environment is declared to be stochastic",
            )
    finally:
        os.chdir(folder)
        random.setstate(generators[0])
        np.random.set_state(generators[1])  # noqa: NPY002


def _process(play: Play) -> str:
    """Check that playing left alone what a process has once: its working directory and its standard output."""
    if (folder := os.getcwd()) != play.folder:  # noqa: PTH109 - a text
        raise Flaw(
            f"playing changed the working directory to {folder}, so that paths such as --out mean others; "
            "use absolute paths instead of os.chdir"
        )
    if printed := play.printed.getvalue():
        raise Doubt(
            f"playing prints {printed[:40]!r} to standard output, which spoils what commands print (--json); "
            "use logging, or sys.stderr"
        )
    return "the working directory and standard output are left alone"


def _conforms(play: Play) -> str:
    """Check the Gymnasium environment by Gymnasium's own rules."""
    if play.env is None:
        return "not checked"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(play.env, skip_render_check=True)
        except Exception as error:  # assertions and any error of the adapter
            raise Flaw(
                f"check_env: {type(error).__name__}: {one_line(error, 300)}"
            ) from error
    if caught:
        raise Doubt(f"check_env: {one_line(caught[0].message, 300)}")
    return "check_env finds nothing"


_REPEATING: Final[dict[str, Check]] = {
    "replay": partial(replays.same, check="replay"),
    "many at a time": partial(replays.same, check="many at a time"),
    "one engine again": partial(replays.same, check="one engine again"),
    "other processes": replays.elsewhere,
    "pickle": partial(replays.copies, copy=replays.pickled),
    "fork": partial(replays.copies, copy=Episode.fork),
    "distinct tasks": task_lists.distinct,
    "gymnasium": _conforms,  # which compares two episodes of a seed
}
"""The checks that expect equal states after equal commands."""

_CHECKS: Final[dict[str, Check]] = {
    "tasks": task_lists.listed,
    "unknown tasks": task_lists.unknown,
    "tools": states.tools,
    "plays": rollouts.plays,
    "values": states.values,
    **_REPEATING,
    "kept states": replays.kept,
    "odd commands": odd_commands.answered,
    "after the end": odd_commands.after_the_end,
    "admissible actions": states.actions,
    "parser": states.parsed,
    "success": states.success,
    "step limit": states.limit,
    "process": _process,
    "repeated states": states.repetition,
}
