"""What is checked, what a check finds, and how one is run whose engine may fail or never answer."""

from __future__ import annotations

import io
import math
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from hgpo_envs.engine import State
from hgpo_envs.environment_spec import EnvironmentSpec, spec_named
from hgpo_envs.errors import InputError, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import gymnasium

    from hgpo_envs.engine import Engine, TaskSource
    from hgpo_envs.episode import Settings
    from hgpo_envs.sources import SharedSource

Verdict = Literal["pass", "warning", "fail"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        check: What was checked.
        verdict: ``pass``, ``warning`` or ``fail``.
        message: What was seen and, unless it passed, how to repair it.
    """

    check: str
    verdict: Verdict
    message: str


class Flaw(Exception):  # noqa: N818 - what a check finds is no error of the check
    """What a check has found, so that it fails."""

    verdict: Verdict = "fail"


class Doubt(Flaw):
    """What a check has found that can be meant so: a warning."""

    verdict = "warning"


class Rollout(NamedTuple):
    """The commands of one rollout, and its states: one more than commands.

    Attributes:
        task: The task's id.
        commands: The commands.
        states: Copies of the states, made when the engine returned them.
        given: The states that the engine returned.
    """

    task: str
    commands: list[str]
    states: list[State]
    given: list[State]

    @property
    def reward(self) -> float:
        """The return."""
        return math.fsum(state.reward for state in self.states[1:])


@dataclass
class Play:
    """What is checked: a task source, and the rollouts that were played.

    Attributes:
        shared: The task source.
        settings: The settings of its episodes.
        spec: Its specification, or one of defaults where there is none.
        tasks: The task ids of the split.
        chosen: The tasks that are played.
        seed: Seed of the random actions.
        commands: The commands of a policy by task; None plays random ones.
        env: The Gymnasium environment.
        asked: The number of rollouts that were asked for; None if it was not said.
        rollouts: The rollouts that have commands.
        where: What a check asks an engine at the moment.
        since: Since when it asks, in seconds; infinite while it does not.
        folder: The working directory before.
        printed: What was written to standard output.
    """

    shared: SharedSource
    settings: Settings
    spec: EnvironmentSpec
    tasks: Sequence[str] = ()
    chosen: Sequence[str] = ()
    seed: int = 0
    commands: Mapping[str, Sequence[Sequence[str]]] | None = None
    env: gymnasium.Env[Any, Any] | None = None
    asked: int | None = None
    rollouts: list[Rollout] = field(default_factory=list)
    where: str = ""
    since: float = math.inf
    folder: str = field(default_factory=os.getcwd)
    printed: io.StringIO = field(default_factory=io.StringIO)

    @property
    def is_described(self) -> bool:
        """Whether the source has a specification."""
        return self.spec.name == self.shared.source.name

    @property
    def split(self) -> str:
        """The name of the split, or ``all`` for a list of tasks."""
        return getattr(self.tasks, "name", "all")

    @property
    def tools(self) -> list[str]:
        """The names of the tools."""
        return [tool["function"]["name"] for tool in self.spec.tools]

    def ask(self, where: str, call: Callable[[str], object], text: str) -> State:
        """Return an engine's state. Raises InputError if it is not one that can be played on."""
        self.where = where
        self.since = perf_counter()
        state = call(text)
        self.since = math.inf
        if not isinstance(state, State):
            raise InputError(f"expected a State, received {type(state).__name__}")
        if isinstance(state.actions, str) or not isinstance(state.actions, Sequence):
            raise InputError(
                f"actions: expected a list of texts, received {type(state.actions).__name__}"
            )
        self.where = ""
        return state

    def states(self, rollout: Rollout, engine: Engine | None = None) -> Iterator[State]:
        """Play the commands of a rollout again, in a new engine or the given one; yield all states."""
        engine = engine or self.shared.source.engine()
        yield self.ask(where(rollout, 0), engine.start, rollout.task)
        for step, command in enumerate(rollout.commands, 1):
            yield self.ask(where(rollout, step), engine.act, command)


def where(rollout: Rollout, step: int) -> str:
    """Return the place of a state in a rollout, for messages."""
    last = f" after {rollout.commands[step - 1]!r:.40}" if step else ""
    return f"task {rollout.task}, step {step}{last}"


Check = Callable[[Play], str]
"""A check returns what it has seen, or raises Flaw."""

ANSWER_SECONDS: Final = 60.0
"""The time in which an engine must answer a command or start a task."""


def spec_of(source: TaskSource) -> EnvironmentSpec:
    """Return the specification of a source; the defaults for one that has none, as Gymnasium environments."""
    is_stochastic = getattr(source, "stochastic", False)
    defaults = EnvironmentSpec(
        id="Undescribed/Environment-v0", source=type(source), stochastic=is_stochastic
    )
    return spec_named(source.name) or defaults


def guarded(name: str, check: Check, play: Play) -> Finding:
    """Return a check's finding, also if it raises an error or an engine does not answer."""
    # with its own place, which a check that never returns may still change
    play = replace(play)
    results: list[Finding] = []

    def run() -> None:
        try:
            found = Finding(name, "pass", check(play))
        except Flaw as flaw:
            found = Finding(name, flaw.verdict, str(flaw))
        except BaseException as error:  # noqa: BLE001 - of the adapter, SystemExit too
            kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
            place = f"{play.where}: " if play.where else ""
            advice = (
                ""
                if play.since == math.inf
                else "; every task and text must be answered"
            )
            found = Finding(
                name, "fail", f"{place}{kind}{one_line(error, 300)}{advice}"
            )
        results.append(found)

    # which does not keep the process alive if it never returns
    thread = threading.Thread(target=run, daemon=True)
    with redirect_stdout(play.printed):  # a command's output is the findings alone
        thread.start()
        while thread.is_alive() and perf_counter() - play.since < ANSWER_SECONDS:
            thread.join(0.1)
    return (
        results[0]
        if results
        else Finding(name, "fail", f"{play.where}: no answer in {ANSWER_SECONDS:g} s")
    )
