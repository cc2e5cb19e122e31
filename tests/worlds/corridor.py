"""A corridor of three rooms for `hgpo check env`: a sound engine, engines with one fault each, and their findings."""

import os
import random
import time
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from hgpo_envs import environment_spec
from hgpo_envs.engine import State, Task
from hgpo_envs.env_checker import check_environment
from hgpo_envs.environment_spec import EnvironmentSpec
from hgpo_envs.episode import settings_for
from hgpo_envs.errors import InputError, UnknownTask
from hgpo_envs.responses import tool_calls
from hgpo_envs.sources import SharedSource, Split


class Corridor:
    """A walk of three rooms to a goal: an engine without faults."""

    task_id = ""

    def start(self, task_id):
        self.place = 0
        self.task_id = task_id
        return self.state()

    def act(self, command):
        if command not in ("go on", "go back", "Look") or self.place == 3:
            return self.state(valid=False)
        self.place = max(0, self.place + {"go on": 1, "go back": -1}.get(command, 0))
        return self.state()

    def state(self, *, valid=True):
        ended = self.place == 3
        actions = [] if ended else ["Look", "go back", "go on"]
        reward = float(ended)
        return State(
            f"Room {'abcdefghijklm'[self.place]}.\nLamp {self.task_id}.",
            actions,
            valid,
            ended,
            ended,
            reward,
            reward,
        )


class Shuffled(Corridor):
    """Lists the lines of a text in an order that depends on nothing that is played."""

    order = random.Random(0)

    def state(self, **flags):
        state = super().state(**flags)
        lines = state.text.split("\n")
        return replace(state, text="\n".join(lines[:: self.order.choice((1, -1))]))


class Shared(Corridor):
    """All engines are in the same room."""

    def start(self, task_id):
        Shared.place = 0
        return self.state()

    def __setattr__(self, name, value):
        setattr(Shared, name, value)


class Drawing(Corridor):
    """Draws from the process's generator."""

    def act(self, command):
        state = super().act(command)
        return (
            replace(state, text=f"A voice says {random.choice('abcdefghijk')}.")
            if state.valid
            else state
        )


class Mute(Corridor):
    def state(self, **flags):
        return replace(super().state(**flags), actions=[])


class Counting(Corridor):
    """Shows the number of moves."""

    def start(self, task_id):
        self.moves = 0
        return super().start(task_id)

    def act(self, command):
        self.moves += command in ("go on", "go back", "Look")
        return super().act(command)

    def state(self, **flags):
        state = super().state(**flags)
        return replace(state, text=f"{state.text} Moves: {self.moves}")


class Limited(Counting):
    def state(self, **flags):
        state = Corridor.state(self, **flags)
        return replace(state, truncated=self.moves >= 4 and not state.terminated)


class Entangled(Corridor):
    def fork(self):
        return self


ERRORS = {"exits": SystemExit(3), "breaks": OSError("no such room")}


class Faulty(Corridor):
    """The corridor with one mistake, chosen by name."""

    def __init__(self, fault):
        self.fault = fault
        self.left = False
        self.listed = []

    def start(self, task_id):
        if self.fault == "one game":
            task_id = "0"
        state = super().start(task_id)
        if self.fault == "ends at its start" or (self.fault == "keeps" and self.left):
            self.place = 1 if self.left else 3
            state = self.state()
        return replace(state, reward=5.0) if self.fault == "reward at start" else state

    def act(self, command):
        self.left = True
        if self.fault == "prints":
            print("moved")
        if self.fault == "changes folder":
            os.chdir("/")
        if self.fault == "hangs":
            time.sleep(5)
        if self.fault in ERRORS:
            raise ERRORS[self.fault]
        if self.place == 3 and self.fault == "goes on after the end":
            self.place = 0
        if command == "dance":
            return self.state(valid=False)
        if (
            self.fault == "moves by any text"
            and command not in ("go on", "go back", "Look")
            and self.place < 3
        ):
            self.place = 0
        if self.fault == "long" and len(command) > 1000:
            raise ValueError("too long")
        return super().act(command)

    def state(self, *, valid=True):
        state = super().state(valid=valid)
        ended = state.terminated
        actions = list(state.actions)
        self.listed[:] = actions
        changes = {
            "lists what it does not do": {
                "actions": [] if ended else [*actions, "dance"]
            },
            "lists twice": {"actions": actions + actions[:1]},
            "lists nothing later": {"actions": [] if self.left else ["go on"]},
            "lists an array": {"actions": np.array(actions)},
            "changes a list": {"actions": self.listed},
            "percent": {"score": state.score * 100},
            "negative score": {"score": state.score - 1},
            "terminated and truncated": {"truncated": ended},
            "won without reward": {"reward": 0.0, "score": 0.0},
            "never won": {"won": False},
            "one key": {"key": "same"},
            "surrogates": {"actions": [*state.actions, "\ud800"]},
            "silent": {"text": " "},
            "always valid": {"valid": True},
            "huge": {"reward": 1e39 * ended},
            "nan": {"reward": float("nan") if ended else 0.0},
            "won early": {"won": self.place > 1},
            "tags in actions": {
                "actions": [*actions, "say </action>"] if actions else []
            },
            "won unknown": {"won": None},
            "won as a number": {"won": int(ended)},
            "no text": {"text": None},
        }
        return replace(state, **changes.get(self.fault, {}))


class Source:
    name = "Corridor"

    def __init__(self, engine):
        self.engine = engine

    def ids(self, split):
        if split not in ("train", "all"):
            raise InputError(f"unknown split {split}")
        return [str(number) for number in range(20)]

    def task(self, task_id):
        if task_id not in self.ids("all"):
            raise UnknownTask(f"unknown task {task_id}")
        return Task(task_id, "train", "Walk on.", "walk")


def findings(engine, tasks=None, **functions):
    settings = settings_for("Corridor", max_steps=12, **functions)
    source = SharedSource(Source(engine))
    found = check_environment(source, settings, tasks or source.source.ids("train"))
    return {each.check: each for each in found}


CORRIDOR = EnvironmentSpec(id="Test/Corridor-v0", source=Source, max_steps=12)


def checked(engine, source=Source, **changes):
    """The findings of a corridor with a specification."""
    spec = replace(CORRIDOR, **changes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(environment_spec._added, spec.id, spec)
        shared = SharedSource(source(engine))
        settings = settings_for("Corridor", max_steps=12)
        found = check_environment(shared, settings, Split(shared, "train"))
        return {each.check: each for each in found}


UNLISTED = {"admissible_actions": False}


class Unlisted(Mute):
    """Reads its commands from calls where there are any."""

    def act(self, command):
        calls = tool_calls(command)
        return super().act(calls[0].arguments.get("where", "") if calls else command)


def walk(where: Literal["go on", "go back", "Look"]) -> str:
    """Walk, or look.

    Args:
        where: What to do.
    """
