"""Checks that play the same commands again: in new engines, in other processes, from copies in an episode's middle."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from hgpo_envs.env_checks.play import (
    Doubt,
    Finding,
    Flaw,
    Play,
    Rollout,
    guarded,
    spec_of,
    where,
)
from hgpo_envs.env_checks.rollouts import ROLLOUTS, seed_process
from hgpo_envs.env_checks.states import difference_of
from hgpo_envs.episode import Episode, settings_for
from hgpo_envs.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hgpo_envs.engine import Engine

HASH_SEEDS: Final = ("1", "2", "3")
"""Python's hash seeds of the other processes. The order of two texts in a set is the same in half of them."""
_CHILD: Final = "import pickle, sys; {path}; from hgpo_envs.env_checks.replays import replay_here; replay_here()"

_SAME: Final = {
    "replay": (
        "the same commands in new engines",
        "states must depend on the commands alone",
    ),
    "many at a time": ("engines in turn", "engines share what must be their own alone"),
    "one engine again": (
        "the same commands in one engine, one episode after the other,",
        "start must reset everything that an earlier episode of the engine has left",
    ),
    "other processes": (
        "other processes, with other hash seeds,",
        "sets have another order, and hash another value, in every process: sort them",
    ),
}
"""The ways in which commands are played again, and the repairs."""


def same(play: Play, check: str) -> str:
    """Check that the commands lead to the same states again, one rollout after the other or all in turn."""
    seed_process(2)
    way, repair = _SAME[check]
    engine = play.shared.source.engine() if check == "one engine again" else None
    plays = [_differences(play, rollout, engine) for rollout in play.rollouts]
    rounds = zip_longest(*plays) if check == "many at a time" else plays
    for differences in rounds:
        for difference in filter(None, differences):
            raise Flaw(f"{difference}; {repair}")
    return f"{way} give equal states"


def _differences(
    play: Play, rollout: Rollout, engine: Engine | None = None
) -> Iterator[str]:
    """Play a rollout again; yield for every state how it differs, or an empty text."""
    for step, state in enumerate(play.states(rollout, engine)):
        difference = difference_of(rollout.states[step], state)
        yield f"{where(rollout, step)}: {difference}" if difference else ""


def elsewhere(play: Play) -> str:
    """Check that the commands lead to the same states in other processes, in which texts have other hashes."""
    try:
        asked = pickle.dumps((play.shared, play.rollouts))
    except Exception as error:
        raise Doubt(
            f"the task source or its states cannot be pickled ({one_line(error)}), as --workers must; "
            "give the source as a class at the top of a module"
        ) from error
    program = [sys.executable, "-c", _CHILD.format(path=f"sys.path[:] = {sys.path!r}")]
    message = "not compared"
    for seed in HASH_SEEDS:
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        child = subprocess.run(  # noqa: S603 - its own program
            program, input=asked, capture_output=True, env=environment, check=False
        )
        lines = child.stdout.decode(errors="replace").splitlines()
        if child.returncode or not lines:
            reason = (
                child.stderr.decode(errors="replace").splitlines() or ["no answer"]
            )[-1]
            raise Doubt(
                f"not compared: another process cannot open the task source ({one_line(reason, 200)}), "
                "so that --workers cannot either"
            )
        found = Finding(**json.loads(lines[-1]))
        if found.verdict != "pass":
            raise Flaw(found.message)
        message = found.message
    return message


def replay_here() -> None:
    """Play the rollouts of standard input again, and print the finding; the program of another process."""
    shared, rollouts = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the process that started this one
    play = Play(shared, settings_for(""), spec_of(shared.source), rollouts=rollouts)
    found = guarded("other processes", partial(same, check="other processes"), play)
    print("\n" + json.dumps(asdict(found)), flush=True)
    os._exit(0)  # also if a thread of the engine still runs


def kept(play: Play) -> str:
    """Check that the states that an engine returned were not changed later."""
    for rollout in play.rollouts:
        for step, (before, after) in enumerate(
            zip(rollout.states, rollout.given, strict=True)
        ):
            if difference := difference_of(before, after):
                raise Flaw(
                    f"{where(rollout, step)}: {difference}, when the episode went on; "
                    "return a new State and a new list each time"
                )
    return "states that were returned are not changed"


def pickled(episode: Episode) -> Episode:
    """Return an episode's copy, as --workers makes it."""
    copy: Episode = pickle.loads(pickle.dumps(episode))  # noqa: S301
    return copy


def copies(play: Play, copy: Callable[[Episode], Episode]) -> str:
    """Check that a copy in the middle of an episode is in the same state and continues independently."""
    for rollout in play.rollouts[::ROLLOUTS]:
        middle = len(rollout.commands) // 2
        episode = Episode(play.shared, play.settings)
        play.where = f"task {rollout.task}"
        episode.start(rollout.task)
        for command in rollout.commands[:middle]:
            episode.observe(command, None, episode.engine.act(command))
        other = copy(episode)
        for each, when in ((other, "in the copy"), (episode, "after a copy played on")):
            for step, command in enumerate(rollout.commands[middle:], middle + 1):
                place = f"{where(rollout, step)} {when}"
                if difference := difference_of(
                    rollout.states[step], play.ask(place, each.engine.act, command)
                ):
                    raise Flaw(f"{place}: {difference}")
    return "a copy in the middle of an episode goes on equally and independently"
