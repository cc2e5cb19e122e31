"""Checks of a benchmark's adapter: what would cost a run if it were found during training (`hgpo check env`).

Some tasks are played several times each: with the commands of a policy, or with random admissible actions, scripted
players, or random calls of the tools. Then the same commands are played again: in new engines, in one engine, with all
episodes in turn, with other seeds of the process's random generators, in other processes, from forks and from pickles.
Every time the states must be equal, unless the environment declares that it is stochastic.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import random
import re
import subprocess
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import islice, zip_longest
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from gymnasium.utils.env_checker import check_env

from hgpo_envs import env_findings
from hgpo_envs.engine import State
from hgpo_envs.env_findings import Finding, Rollout, difference_of, flaw_of, where
from hgpo_envs.environment_spec import make_player, spec_named
from hgpo_envs.episode import Episode
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.responses import ToolCall, tool_calls
from hgpo_envs.tools import random_call
from hgpo_envs.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import gymnasium

    from hgpo_envs.engine import Engine
    from hgpo_envs.environment_spec import EnvironmentSpec
    from hgpo_envs.episode import Settings
    from hgpo_envs.sources import SharedSource

T = TypeVar("T")

ROLLOUTS: Final = 4
"""The number of rollouts of each task."""
HOSTILE: Final = ("", " ", "xyzzy plugh", "quit", "{{ 1 }}", "\x00\x1b[2J", "\U0001f600 é", "a" * 20_000)
"""Commands that no environment offers. Policies write such texts."""
ANSWER_SECONDS: Final = 60.0
"""The time in which an engine must answer a command or start a task."""
_OPEN: Final = re.compile(r"<[^<>]*>")  # what an action leaves open, such as WebShop's search[<your query>]
COMPARED: Final = 20
"""The number of tasks of a split that are compared with each other."""
LISTED: Final = 100_000
"""The number of task ids that are searched for repeated ones. A split may be a lazy sequence of any length."""
HASH_SEEDS: Final = ("1", "2", "3")
"""Python's hash seeds of the other processes. The order of two texts in a set is the same in half of them."""
_WORD: Final = re.compile(r"[^\W_]+")
_CALLING: Final = 0.9  # the share of calls where there are tools; the others are messages
_SPLITS: Final = ("train", "valid", "validation", "dev", "test", "eval")
_CHILD: Final = "import pickle, sys; {path}; from hgpo_envs.env_checker import replay_here; replay_here()"


def check_environment(
    shared: SharedSource,
    settings: Settings,
    tasks: Sequence[str],
    *,
    episodes: int = 20,
    seed: int = 0,
    env: gymnasium.Env[Any, Any] | None = None,
    commands: Mapping[str, Sequence[Sequence[str]]] | None = None,
    processes: bool = True,
) -> Iterator[Finding]:
    """Check a task source and its engines.

    Args:
        shared: The task source.
        settings: The settings of its episodes.
        tasks: Task ids.
        episodes: The number of rollouts to play.
        seed: Seed of the random actions.
        env: The Gymnasium environment, checked by Gymnasium's own `check_env`; None skips this.
        commands: The commands of a policy by task, one list per rollout, which are played instead of random ones.
        processes: Whether to play the commands in other processes too, which takes some seconds.

    Yields:
        The findings. If an engine raises an error while it plays, there are no further ones.
    """
    spec = spec_named(shared.source.name)
    chosen = list(commands) if commands else list(tasks[: max(1, episodes // ROLLOUTS)])
    stochastic = getattr(shared.source, "stochastic", False) if spec is None else spec.stochastic
    with _process_randomness():
        yield _guarded("tasks", lambda asked: _tasks(shared, tasks, chosen, spec, asked))
        yield _guarded("unknown tasks", lambda asked: _unknown(shared, asked))
        played = _guarded("plays", lambda asked: _play(shared, settings, spec, chosen, seed, asked, commands))
        if isinstance(played, Finding):
            yield played
            return
        every, given, drawn = played
        rollouts = [rollout for rollout in every if rollout.commands]
        yield _started(every, rollouts, spec, played_policy=bool(commands))
        if not rollouts:
            return
        again: dict[str, Callable[[_Asked], Finding]] = {
            "replay": lambda asked: _same(shared, rollouts, "replay", asked),
            "many at a time": lambda asked: _same(shared, rollouts, "many at a time", asked),
            "one engine again": lambda asked: _same(shared, rollouts, "one engine again", asked),
            "other processes": lambda _: _elsewhere(shared, rollouts, processes=processes),
            "random state": lambda _: _randomness(drawn),
            "pickle": lambda asked: _copies(shared, settings, rollouts, "pickle", asked, _pickled),
            "fork": lambda asked: _copies(shared, settings, rollouts, "fork", asked, Episode.fork),
            "distinct tasks": lambda asked: _distinct(shared, rollouts, tasks, spec, asked),
        }
        checks: dict[str, Callable[[_Asked], Finding]] = {
            "values": lambda _: env_findings.values(rollouts),
            **({} if stochastic else again),
            "kept states": lambda _: _kept(rollouts, given),
            "odd commands": lambda asked: _hostile(shared, rollouts, spec, asked, compared=not stochastic),
            "after the end": lambda asked: _after_the_end(shared, rollouts, asked),
            "admissible actions": lambda _: env_findings.actions(rollouts, spec),
            "parser": lambda _: env_findings.parsed(rollouts, settings, spec),
            "success": lambda _: env_findings.success(rollouts),
            "step limit": lambda _: env_findings.limit(rollouts, settings),
            "repeated states": lambda _: env_findings.repetition(rollouts, settings),
        }
        if env is not None and not stochastic:  # Gymnasium compares two episodes of a seed
            checks["gymnasium"] = lambda _: _conforms(env)
        for name, check in checks.items():
            found = _guarded(name, check)
            reason = None if spec is None or found.verdict == "pass" else spec.accepted.get(name)
            yield found if reason is None else Finding(name, "pass", f"accepted ({reason}): {found.message}")
        if stochastic:
            yield Finding("replay", "pass", "not compared: the environment is declared to be stochastic")


class _Asked:
    """What a check asks an engine at the moment, and since when."""

    where, since = "", math.inf

    def ask(self, where: str, call: Callable[[str], object], text: str) -> State:
        """Return an engine's state. Raises InputError if it is not one that can be played on."""
        self.where, self.since = where, perf_counter()
        state = call(text)
        self.since = math.inf
        if not isinstance(state, State):
            raise InputError(f"expected a State, received {type(state).__name__}")
        if isinstance(state.actions, str) or not isinstance(state.actions, Sequence):
            raise InputError(f"actions: expected a list of texts, received {type(state.actions).__name__}")
        self.where = ""
        return state


def _guarded(name: str, check: Callable[[_Asked], T]) -> T | Finding:
    """Return a check's result, or a finding if it raises an error or an engine does not answer."""
    asked, results = _Asked(), list[T | Finding]()

    def run() -> None:
        try:
            results.append(check(asked))
        except BaseException as error:  # noqa: BLE001 - of the adapter, SystemExit too
            kind = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
            where = f"{asked.where}: " if asked.where else ""
            advice = "" if asked.since == math.inf else "; every task and text must be answered"
            results.append(Finding(name, "fail", f"{where}{kind}{one_line(error, 300)}{advice}"))

    thread = threading.Thread(target=run, daemon=True)  # which does not keep the process alive if it never returns
    thread.start()
    while thread.is_alive() and perf_counter() - asked.since < ANSWER_SECONDS:
        thread.join(0.1)
    return results[0] if results else Finding(name, "fail", f"{asked.where}: no answer in {ANSWER_SECONDS:g} s")


def _tasks(
    shared: SharedSource, tasks: Sequence[str], chosen: Sequence[str], spec: EnvironmentSpec | None, asked: _Asked
) -> Finding:
    """Check the ids of the split, and the descriptions of some tasks."""
    asked.where = "the source's split all and its descriptions of tasks"
    every, split = shared.source.ids("all"), getattr(tasks, "name", "all")
    ids = list(islice(tasks, LISTED))
    flaws = [f"{task_id} is listed twice" for task_id, times in Counter(ids).items() if times > 1]
    if len(every) < len(tasks) or (len(every) <= LISTED and not set(every).issuperset(ids)):
        flaws.append("the split all lacks some of this split")
    if flaws:
        return Finding("tasks", "fail", f"{flaws[0]}; ids lists every task once, and all tasks for the split all")
    for task_id in [*chosen, *_spread(tasks, COMPARED)]:
        task = shared.source.task(task_id)
        if task.id != task_id:
            return Finding(
                "tasks", "fail", f"the task {task_id!r:.60} describes itself as {task.id!r:.60}; see Task.id"
            )
        if split not in ("all", task.split):
            message = f"the task {task_id!r:.60} of split {split!r} says that it is of {task.split!r}"
            return Finding("tasks", "fail", f"{message}, so that reset refuses it; see Task.split")
        if spec is not None and not task.instruction.strip():
            message = f"the task {task_id!r:.60} has no instruction, so that prompts do not say what to do"
            return Finding("tasks", "warning", f"{message}; see Task.instruction")
    return Finding("tasks", "pass", f"{counted(len(tasks), 'task')}, of {len(every):,}")


def _spread(tasks: Sequence[str], count: int) -> list[str]:
    """Return some ids from all parts of a split, without reading it whole."""
    count = min(count, len(tasks))
    return [tasks[number * len(tasks) // count] for number in range(count)]


def _unknown(shared: SharedSource, asked: _Asked) -> Finding:
    """Check that unknown names are refused, as a task that was misspelt would be."""
    for kind, call in (("task", shared.source.task), ("split", shared.source.ids)):
        asked.where = f"an unknown {kind}"
        try:
            call("no-such-name")
        except (KeyError, InputError):
            continue
        except Exception as error:  # noqa: BLE001 - of the adapter
            message = f"an unknown {kind} raises {type(error).__name__}"
        else:
            message = f"an unknown {kind} is accepted"
        repair = "UnknownTask" if kind == "task" else "InputError"
        return Finding("unknown tasks", "warning", f"{message}; raise hgpo_envs.errors.{repair}")
    return Finding("unknown tasks", "pass", "unknown tasks and splits are refused")


def _started(
    rollouts: Sequence[Rollout], played: Sequence[Rollout], spec: EnvironmentSpec | None, *, played_policy: bool
) -> Finding:
    """Say what was played, and what was not."""
    tasks, steps = len({rollout.task for rollout in rollouts}), sum(len(rollout.commands) for rollout in played)
    for rollout in rollouts:
        if not rollout.commands:
            return Finding("plays", "fail", f"task {rollout.task} ends at its start, and all rollouts of it fail")
    message = f"{len(rollouts)} rollouts of {counted(tasks, 'task')}, {steps} steps"
    tools = [] if spec is None else [tool["function"]["name"] for tool in spec.tools]
    called = {call.name for rollout in played for command in rollout.commands for call in tool_calls(command) or ()}
    if missing := [name for name in tools if name not in called]:
        return Finding("plays", "warning", f"{message}; never called: {', '.join(missing)}; play more episodes")
    has_actions = any(state.actions for rollout in played for state in rollout.states)
    if not (has_actions or tools or played_policy or (spec is not None and spec.players)):
        message = f"{message}, of words alone: no actions are listed, and there are no tools and no players"
        return Finding("plays", "warning", f"{message}; play what a policy would (--policy NAME)")
    return Finding("plays", "pass", message)


@contextmanager
def _process_randomness() -> Iterator[None]:
    """Restore the random generators of the process afterwards."""
    before = random.getstate(), np.random.get_state()  # noqa: NPY002 - the state that other packages use
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002


def _seed_process(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


def _numpy_position() -> object:
    """Return what changes when NumPy's global generator is drawn from."""
    return np.random.get_state(legacy=False)["state"]["pos"]  # noqa: NPY002


def _play(
    shared: SharedSource,
    settings: Settings,
    spec: EnvironmentSpec | None,
    tasks: Sequence[str],
    seed: int,
    asked: _Asked,
    commands: Mapping[str, Sequence[Sequence[str]]] | None = None,
) -> tuple[list[Rollout], list[list[State]], set[str]]:
    """Return rollouts with copies of their states, the states themselves, and the generators of the process in use."""
    _seed_process(1)
    drawn: set[str] = set()
    rng, rollouts, given = random.Random(seed), list[Rollout](), list[list[State]]()
    plans = [
        (task_id, number) for task_id in tasks for number in range(len(commands[task_id]) if commands else ROLLOUTS)
    ]
    for task_id, number in plans:
        before = random.getstate(), _numpy_position()
        engine = shared.source.engine()
        choose = _chooser(engine, shared, spec, task_id, rng, number)
        if commands:
            choose = _following(commands[task_id][number])
        rollout, states = Rollout(task_id, [], []), list[State]()
        state = asked.ask(where(rollout, 0), engine.start, task_id)
        while True:
            states.append(state)
            rollout.states.append(replace(state, actions=list(state.actions)))
            if state.terminated or state.truncated or len(rollout.commands) >= settings.max_steps:
                break
            command = choose(state)
            if command is None:
                break
            rollout.commands.append(command)
            state = asked.ask(where(rollout, len(rollout.commands)), engine.act, command)
        drawn |= {"random"} if random.getstate() != before[0] else set()
        drawn |= {"numpy.random"} if _numpy_position() != before[1] else set()
        rollouts.append(rollout)
        given.append(states)
    return rollouts, given, drawn


def _following(commands: Sequence[str]) -> Callable[[State], str | None]:
    """Return a policy that takes given commands, and then none."""
    left = iter(commands)
    return lambda _: next(left, None)


def _chooser(
    engine: Engine, shared: SharedSource, spec: EnvironmentSpec | None, task_id: str, rng: random.Random, number: int
) -> Callable[[State], str | None]:
    """Return a random policy, or where states list no actions a scripted player, if there is one.

    Every second rollout calls tools at random nevertheless, because a player may never call some.
    """
    if spec is None or spec.admissible_actions or not spec.players or (spec.tools and number % 2):
        tools: Sequence[Any] = () if spec is None else spec.tools
        words: list[str] = _WORD.findall(shared.source.task(task_id).instruction) or ["look"]

        def draw(state: State) -> str:
            if state.actions:
                return str(_OPEN.sub(rng.choice(words), rng.choice(list(state.actions))))
            if tools and rng.random() < _CALLING:
                return random_call(tools, rng, [*words, *_WORD.findall(state.text)])
            return rng.choice(["look", *words])

        return draw
    player = make_player(min(spec.players, key=("explorer", "expert").index), spec.name)
    started = False

    def act(state: State) -> str:
        nonlocal started
        if not started:
            started = True
            player.reset(shared.source.task(task_id), state, engine)
        action: str = player.act(state)
        return action

    return act


_REPAIRS: Final = {
    "replay": "states must depend on the commands alone",
    "many at a time": "engines share what must be their own alone",
    "one engine again": "start must reset everything that an earlier episode of the engine has left",
    "other processes": "sets have another order, and hash another value, in every process: sort them",
}
_WAYS: Final = {
    "replay": "the same commands in new engines",
    "many at a time": "engines in turn",
    "one engine again": "the same commands in one engine, one episode after the other,",
    "other processes": "other processes, with other hash seeds,",
}


def _same(shared: SharedSource, rollouts: Sequence[Rollout], check: str, asked: _Asked) -> Finding:
    """Check that the commands lead to the same states again, one rollout after the other or all in turn."""
    _seed_process(2)
    engine = shared.source.engine() if check == "one engine again" else None
    plays = [_replayed(shared, rollout, asked, engine) for rollout in rollouts]
    rounds = zip_longest(*plays) if check == "many at a time" else ([state] for play in plays for state in play)
    for states in rounds:
        for difference in states:
            if difference:
                return Finding(check, "fail", f"{difference}; {_REPAIRS[check]}")
    return Finding(check, "pass", f"{_WAYS[check]} give equal states")


def _replayed(shared: SharedSource, rollout: Rollout, asked: _Asked, engine: Engine | None = None) -> Iterator[str]:
    """Play a rollout again; yield for every state how it differs, or an empty text."""
    engine = shared.source.engine() if engine is None else engine
    for step, expected in enumerate(rollout.states):
        call, text = (engine.act, rollout.commands[step - 1]) if step else (engine.start, rollout.task)
        state = asked.ask(where(rollout, step), call, text)
        difference = difference_of(expected, state)
        yield f"{where(rollout, step)}: {difference}" if difference else ""


def _elsewhere(shared: SharedSource, rollouts: Sequence[Rollout], *, processes: bool) -> Finding:
    """Check that the commands lead to the same states in other processes, in which texts have other hashes."""
    check = "other processes"
    if not processes:
        return Finding(check, "pass", "not compared")
    try:
        asked = pickle.dumps((shared, list(rollouts)))
    except Exception as error:  # noqa: BLE001 - of the adapter's own objects
        message = f"the task source or its states cannot be pickled ({one_line(error)}), as --workers must"
        return Finding(check, "warning", f"{message}; give the source as a class at the top of a module")
    program = [sys.executable, "-c", _CHILD.format(path=f"sys.path[:] = {sys.path!r}")]
    pipe = subprocess.PIPE
    children = [
        subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=pipe, env={**os.environ, "PYTHONHASHSEED": seed})  # noqa: S603 - its own program
        for seed in HASH_SEEDS
    ]
    answers = [child.communicate(asked) for child in children]
    for child, (printed, complaint) in zip(children, answers, strict=True):
        lines = printed.decode(errors="replace").splitlines()
        if child.returncode or not lines:
            reason = (complaint.decode(errors="replace").splitlines() or ["no answer"])[-1]
            message = f"not compared: another process cannot open the task source ({one_line(reason, 200)})"
            return Finding(check, "warning", f"{message}, so that --workers cannot either")
        found = Finding(**json.loads(lines[-1]))
        if found.verdict != "pass":
            return found
    return found


def replay_here() -> None:
    """Play the rollouts of standard input again, and print the finding; the program of another process."""
    shared, rollouts = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the process that started this one
    found = _guarded("other processes", lambda asked: _same(shared, rollouts, "other processes", asked))
    print("\n" + json.dumps(asdict(found)), flush=True)
    os._exit(0)  # also if a thread of the engine still runs


def _distinct(
    shared: SharedSource, rollouts: Sequence[Rollout], tasks: Sequence[str], spec: EnvironmentSpec | None, asked: _Asked
) -> Finding:
    """Check that tasks with other ids are other tasks: that they start or react differently."""
    check = "distinct tasks"
    commands = [rollout.commands for rollout in rollouts[::ROLLOUTS]]
    here = getattr(tasks, "name", "all")
    splits = {here: _spread(tasks, COMPARED)}
    for name in dict.fromkeys([*(spec.splits if spec is not None else ()), *_SPLITS]):
        if name != here and here != "all":
            try:
                splits[name] = _spread(shared.source.ids(name), COMPARED // 2)
            except (KeyError, InputError):
                continue
    starts = {task_id: _reaction(shared, task_id, [], asked) for ids in splits.values() for task_id in ids}
    times = Counter(starts.values())
    known = {
        task_id: start if times[start] == 1 else _reaction(shared, task_id, commands, asked)
        for task_id, start in starts.items()
    }
    count, games = len(splits[here]), len({known[task_id] for task_id in splits[here]})
    if games == 1 < count:
        message = f"all {count} tasks that were compared are one: they start and react alike"
        return Finding(check, "warning", f"{message}; list each once, because intervals count tasks as independent")
    for name, ids in splits.items():
        for task_id in ids if name != here else ():
            same = next((other for other in splits[here] if known[other] == known[task_id]), None)
            if same is not None:
                message = f"task {task_id} of split {name} is task {same} of split {here}: they start and react alike"
                return Finding(check, "warning", f"{message}; keep the splits apart")
    return Finding(check, "pass", f"{games} of {count} tasks differ in their start or in what follows")


def _reaction(shared: SharedSource, task_id: str, plays: Sequence[Sequence[str]], asked: _Asked) -> str:
    """Return what a policy sees of a task: its instruction, its start, and the states after some commands."""
    shown: list[object] = [shared.source.task(task_id).instruction]
    for commands in plays or [()]:
        engine = shared.source.engine()
        state = asked.ask(f"task {task_id}", engine.start, task_id)
        shown.append((state.text, list(state.actions), state.key))
        for command in commands:
            state = asked.ask(f"task {task_id} after {command!r:.40}", engine.act, command)
            shown.append((state.text, list(state.actions), state.key, float(state.reward), state.terminated, state.won))
            if state.terminated or state.truncated:
                break
    return repr(shown)


def _kept(rollouts: Sequence[Rollout], given: Sequence[Sequence[State]]) -> Finding:
    """Check that the states that an engine returned were not changed later."""
    played = [states for states in given if len(states) > 1]
    for rollout, states in zip(rollouts, played, strict=True):
        for step, (before, after) in enumerate(zip(rollout.states, states, strict=True)):
            if difference := difference_of(before, after):
                message = f"{where(rollout, step)}: {difference}, when the episode went on"
                return Finding("kept states", "fail", f"{message}; return a new State and a new list each time")
    return Finding("kept states", "pass", "states that were returned are not changed")


def _randomness(drawn: set[str]) -> Finding:
    if not drawn:
        return Finding("random state", "pass", "the random generators of the process are not used")
    names = " and ".join(sorted(drawn))
    return Finding(
        "random state",
        "warning",
        f"engines draw from {names} of the whole process, so that episodes at the same time change each other; give "
        "each engine a random.Random of its own",
    )


def _pickled(episode: Episode) -> Episode:
    copy: Episode = pickle.loads(pickle.dumps(episode))  # noqa: S301
    return copy


def _copies(
    shared: SharedSource,
    settings: Settings,
    rollouts: Sequence[Rollout],
    check: str,
    asked: _Asked,
    copy: Callable[[Episode], Episode],
) -> Finding:
    """Check that a copy in the middle of an episode is in the same state and goes on independently."""
    for rollout in rollouts[::ROLLOUTS]:
        middle = len(rollout.commands) // 2
        episode = Episode(shared, settings)
        asked.where = f"task {rollout.task}"
        episode.start(rollout.task)
        for command in rollout.commands[:middle]:
            episode.observe(command, None, episode.engine.act(command))
        other = copy(episode)
        for each, when in ((other, "in the copy"), (episode, "after a copy played on")):
            for step, command in enumerate(rollout.commands[middle:], middle + 1):
                state = asked.ask(f"{where(rollout, step)} {when}", each.engine.act, command)
                if difference := difference_of(rollout.states[step], state):
                    return Finding(check, "fail", f"{where(rollout, step)} {when}: {difference}")
    return Finding(check, "pass", "a copy in the middle of an episode goes on equally and independently")


def _hostile(
    shared: SharedSource, rollouts: Sequence[Rollout], spec: EnvironmentSpec | None, asked: _Asked, *, compared: bool
) -> Finding:
    """Check that odd commands are answered, and change nothing where the environment lists its actions."""
    check = "odd commands"
    tools = [] if spec is None else [tool["function"]["name"] for tool in spec.tools]
    calls = [ToolCall(name, arguments).text() for name in (*tools, "no_such_tool") for arguments in ({}, {"x": None})]
    odd = [*HOSTILE, *(calls if tools else ())]
    rollout = max(rollouts[:ROLLOUTS], key=lambda each: len(each.commands))
    for middle in sorted({0, len(rollout.commands) // 2, len(rollout.commands) - 1}):
        engine = shared.source.engine()
        asked.ask(where(rollout, 0), engine.start, rollout.task)
        for command in rollout.commands[:middle]:
            asked.ask(where(rollout, middle), engine.act, command)
        listed = rollout.states[middle].actions
        for command in odd:
            state = asked.ask(f"{command[:60]!r}", engine.act, command)
            if flaw := flaw_of(state):
                return Finding(check, "fail", f"{command[:60]!r}: {flaw}")
            if listed and state.valid and command not in listed:
                message = f"{where(rollout, middle)}: {command[:20]!r} is not listed, and yet valid"
                return Finding(check, "warning", f"{message}; report valid=False for a command that is not offered")
        if not listed or not compared:  # any text may be a program or a message
            continue
        state = asked.ask(where(rollout, middle + 1), engine.act, rollout.commands[middle])
        if difference := difference_of(rollout.states[middle + 1], state):
            message = f"{where(rollout, middle + 1)}, after commands that are not offered: {difference}"
            return Finding(check, "warning", f"{message}; a command that is not valid should change nothing")
    change = " that are not offered are answered, and change nothing" if rollout.states[0].actions else " are answered"
    return Finding(check, "pass", f"{len(odd)} commands{change}")


def _after_the_end(shared: SharedSource, rollouts: Sequence[Rollout], asked: _Asked) -> Finding:
    """Check that a task that has ended stays so."""
    rollout = next((each for each in rollouts if each.states[-1].terminated), None)
    if rollout is None:
        return Finding("after the end", "pass", "not played: no episode has ended")
    engine = shared.source.engine()
    state = asked.ask(where(rollout, 0), engine.start, rollout.task)
    for step, command in enumerate(rollout.commands, 1):
        state = asked.ask(where(rollout, step), engine.act, command)
    if not state.terminated:  # another end than before: see replay
        return Finding("after the end", "pass", "not played: the episode did not end again")
    for command in rollout.commands[:1] * 2:
        after = asked.ask(f"task {rollout.task}, {command!r:.40} after the end", engine.act, command)
        if not after.terminated or after.won != state.won:
            message = f"task {rollout.task}: {command!r:.40} after the end goes on with the task"
            return Finding("after the end", "warning", f"{message}; a task that has ended stays so")
    return Finding("after the end", "pass", "a task that has ended stays so")


def _conforms(env: gymnasium.Env[Any, Any]) -> Finding:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(env, skip_render_check=True)
        except Exception as error:  # noqa: BLE001 - assertions and any error of the adapter
            return Finding("gymnasium", "fail", f"check_env: {type(error).__name__}: {one_line(error, 300)}")
    if caught:
        return Finding("gymnasium", "warning", f"check_env: {one_line(caught[0].message, 300)}")
    return Finding("gymnasium", "pass", "check_env finds nothing")
