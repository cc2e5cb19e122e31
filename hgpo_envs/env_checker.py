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
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from functools import partial
from itertools import islice, zip_longest
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from gymnasium.utils.env_checker import check_env

from hgpo_envs import env_findings
from hgpo_envs.env_findings import (
    Doubt,
    Finding,
    Flaw,
    Play,
    Rollout,
    difference_of,
    flaw_of,
    where,
)
from hgpo_envs.environment_spec import EnvironmentSpec, make_player, spec_named
from hgpo_envs.episode import Episode, settings_for
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.responses import ToolCall, tool_calls
from hgpo_envs.sources import Split
from hgpo_envs.tools import random_call
from hgpo_envs.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import gymnasium

    from hgpo_envs.engine import Engine, State, Task, TaskSource
    from hgpo_envs.episode import Settings
    from hgpo_envs.sources import SharedSource

    Check = Callable[[Play], str]
    """A check returns what it has seen, or raises Flaw."""

ROLLOUTS: Final = 4
"""The number of rollouts of each task."""
HOSTILE: Final = (
    "",
    " ",
    "xyzzy plugh",
    "quit",
    "{{ 1 }}",
    "\x00\x1b[2J",
    "\U0001f600 é",
    "a" * 20_000,
)
"""Commands that no environment offers. Policies write such texts."""
ANSWER_SECONDS: Final = 60.0
"""The time in which an engine must answer a command or start a task."""
COMPARED: Final = 20
"""The number of tasks of a split that are compared with each other."""
ENOUGH: Final = 40
"""The number of commands to which two tasks must react alike before they are called one."""
LISTED: Final = 100_000
"""The number of task ids that are searched for repeated ones. A split may be a lazy sequence of any length."""
HASH_SEEDS: Final = ("1", "2", "3")
"""Python's hash seeds of the other processes. The order of two texts in a set is the same in half of them."""
# what an action leaves open, such as WebShop's search[<your query>]
_OPEN: Final = re.compile(r"<[^<>]*>")
_WORD: Final = re.compile(r"[^\W_]+")
# the share of calls where there are tools; the others are messages
_CALLING: Final = 0.9
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

    Yields:
        The findings. There are no further ones if schemas of tools are wrong, or if an engine raises an error.
    """
    spec = _spec_of(shared.source)
    chosen = list(commands or tasks[: max(1, episodes // ROLLOUTS)])
    play = Play(shared, settings, spec, tasks, chosen, seed, commands, env)
    generators = random.getstate(), np.random.get_state()  # noqa: NPY002 - the state that other packages use
    folder = play.folder
    try:
        for name, check in _CHECKS.items():
            if (spec.stochastic and name in _REPEATING) or (
                name == "tools" and not play.tools
            ):
                continue
            found = _guarded(name, check, play)
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


def _spec_of(source: TaskSource) -> EnvironmentSpec:
    """Return the specification of a source; the defaults for one that has none, as Gymnasium environments."""
    is_stochastic = getattr(source, "stochastic", False)
    defaults = EnvironmentSpec(
        id="Undescribed/Environment-v0", source=type(source), stochastic=is_stochastic
    )
    return spec_named(source.name) or defaults


def _guarded(name: str, check: Check, play: Play) -> Finding:
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


def _tasks(play: Play) -> str:
    """Check the ids of the split, and the descriptions of some tasks."""
    play.where = "the source's split all and its descriptions of tasks"
    source = play.shared.source
    tasks = play.tasks
    every = Split(play.shared, "all")
    ids = list(islice(tasks, LISTED))
    repair = "ids lists every task once, and all tasks for the split all"
    for task_id, times in Counter(ids).items():
        if times > 1:
            raise Flaw(f"{task_id} is listed twice; {repair}")
    lacking = len(every) <= LISTED and not set(every).issuperset(ids)
    if lacking or len(every) < len(tasks):
        raise Flaw(f"the split all lacks some of this split; {repair}")
    for task_id in [*play.chosen, *_spread(tasks, COMPARED)]:
        task = source.task(task_id)
        name = f"the task {task_id!r:.60}"
        if task.id != task_id:
            raise Flaw(f"{name} describes itself as {task.id!r:.60}; see Task.id")
        if play.split not in ("all", task.split):
            raise Flaw(
                f"{name} of split {play.split!r} says that it is of {task.split!r}, so that reset refuses it; "
                "see Task.split"
            )
        if play.is_described and not task.instruction.strip():
            raise Doubt(
                f"{name} has no instruction, so that prompts do not say what to do; see Task.instruction"
            )
    return f"{counted(len(tasks), 'task')}, of {len(every):,}"


def _spread(tasks: Sequence[str], count: int) -> list[str]:
    """Return some ids from all parts of a split, without reading it whole."""
    count = min(count, len(tasks))
    return [tasks[number * len(tasks) // count] for number in range(count)]


def _unknown(play: Play) -> str:
    """Check that unknown names are refused, as a task that was misspelt would be."""
    source = play.shared.source
    for kind, call, repair in (
        ("task", source.task, "UnknownTask"),
        ("split", source.ids, "InputError"),
    ):
        play.where = f"an unknown {kind}"
        try:
            call("no-such-name")
        except (KeyError, InputError):
            continue
        except Exception as error:  # noqa: BLE001 - of the adapter
            received = f"raises {type(error).__name__}"
        else:
            received = "is accepted"
        raise Doubt(f"an unknown {kind} {received}; raise hgpo_envs.errors.{repair}")
    return "unknown tasks and splits are refused"


def _plays(play: Play) -> str:
    """Play rollouts, and say what was not played."""
    _seed_process(1)
    rng = random.Random(play.seed)
    rollouts = []
    for task_id in play.chosen:
        plans = [None] * ROLLOUTS if play.commands is None else play.commands[task_id]
        for number, plan in enumerate(plans):
            engine = play.shared.source.engine()
            choose = _chooser(play, engine, task_id, rng, number, plan)
            rollouts.append(_rollout(play, task_id, engine, choose))
    play.rollouts += [rollout for rollout in rollouts if rollout.commands]
    for rollout in rollouts:
        if not rollout.commands:
            raise Flaw(
                f"task {rollout.task} ends at its start, and all rollouts of it fail"
            )
    commands = [command for rollout in rollouts for command in rollout.commands]
    message = f"{len(rollouts)} rollouts of {counted(len(play.chosen), 'task')}, {len(commands)} steps"
    called = {call.name for command in commands for call in tool_calls(command) or ()}
    if missing := [name for name in play.tools if name not in called]:
        raise Doubt(
            f"{message}; never called: {', '.join(missing)}; play more episodes"
        )
    has_actions = any(state.actions for rollout in rollouts for state in rollout.states)
    if not (has_actions or play.tools or play.commands or play.spec.players):
        raise Doubt(
            f"{message}, of words alone: no actions are listed, and there are no tools and no players; "
            "play what a policy would (--policy NAME)"
        )
    return message


def _seed_process(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


def _rollout(
    play: Play, task_id: str, engine: Engine, choose: Callable[[State], str | None]
) -> Rollout:
    """Play a task with the commands that a function of the state chooses, until it returns None."""
    rollout = Rollout(task_id, [], [], [])
    state = play.ask(where(rollout, 0), engine.start, task_id)
    while True:
        rollout.given.append(state)
        rollout.states.append(replace(state, actions=list(state.actions)))
        if (
            state.terminated
            or state.truncated
            or len(rollout.commands) >= play.settings.max_steps
        ):
            break
        command = choose(state)
        if command is None:
            break
        rollout.commands.append(command)
        state = play.ask(where(rollout, len(rollout.commands)), engine.act, command)
    return rollout


def _chooser(
    play: Play,
    engine: Engine,
    task_id: str,
    rng: random.Random,
    number: int,
    plan: Sequence[str] | None = None,
) -> Callable[[State], str | None]:
    """Return a policy: of the plan, random, or where states list no actions a scripted player, if there is one.

    Every second rollout calls tools at random nevertheless, because a player may never call some.
    """
    if plan is not None:
        planned = iter(plan)
        return lambda _: next(planned, None)
    spec = play.spec
    task = play.shared.source.task(task_id)
    if spec.admissible_actions or not spec.players or (spec.tools and number % 2):
        words: list[str] = _WORD.findall(task.instruction) or ["look"]

        def draw(state: State) -> str:
            if state.actions:
                return str(
                    _OPEN.sub(rng.choice(words), rng.choice(list(state.actions)))
                )
            if spec.tools and rng.random() < _CALLING:
                return random_call(
                    spec.tools, rng, [*words, *_WORD.findall(state.text)]
                )
            return rng.choice(["look", *words])

        return draw
    return _scripted(
        min(spec.players, key=("explorer", "expert").index), spec.name, task, engine
    )


def _scripted(
    name: str, benchmark: str, task: Task, engine: Engine
) -> Callable[[State], str]:
    """Return a scripted player as a function of the state."""
    player = make_player(name, benchmark)
    started = False

    def act(state: State) -> str:
        nonlocal started
        if not started:
            started = True
            player.reset(task, state, engine)
        action: str = player.act(state)
        return action

    return act


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


def _same(play: Play, check: str) -> str:
    """Check that the commands lead to the same states again, one rollout after the other or all in turn."""
    _seed_process(2)
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


def _elsewhere(play: Play) -> str:
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
    play = Play(shared, settings_for(""), _spec_of(shared.source), rollouts=rollouts)
    found = _guarded("other processes", partial(_same, check="other processes"), play)
    print("\n" + json.dumps(asdict(found)), flush=True)
    os._exit(0)  # also if a thread of the engine still runs


def _distinct(play: Play) -> str:
    """Check that tasks with other ids are other tasks: that they start or react differently."""
    # 1. Some tasks of this split, and of the others.
    here = play.split
    splits = {here: _spread(play.tasks, COMPARED)}
    for name in (*play.spec.splits, *_SPLITS):
        if name not in splits and here != "all":
            try:
                splits[name] = _spread(play.shared.source.ids(name), COMPARED // 2)
            except (KeyError, InputError):
                continue
    # 2. Tasks with equal starts are played, because most tasks differ at their start and playing takes time.
    starts = {
        task_id: _reaction(play, task_id, [[]])
        for ids in splits.values()
        for task_id in ids
    }
    times = Counter(starts.values())
    commands = [rollout.commands for rollout in play.rollouts[::ROLLOUTS]]
    reactions = {
        task_id: start if times[start] == 1 else _reaction(play, task_id, commands)
        for task_id, start in starts.items()
    }
    # 3. Tasks that have reacted alike may differ in what was not tried: they are played further.
    owners = {reactions[task_id]: task_id for task_id in splits[here]}
    count = len(splits[here])
    if len(owners) == 1 < count and (tried := _alike(play, splits[here])):
        raise Doubt(
            f"all {count} tasks that were compared are one: they start alike, and react alike to {tried} commands; "
            "list each once, because intervals count tasks as independent"
        )
    del splits[here]
    for name, ids in splits.items():
        for task_id in ids:
            same = owners.get(reactions[task_id])
            tried = 0 if same is None else _alike(play, [same, task_id])
            if tried:
                raise Doubt(
                    f"task {task_id} of split {name} is task {same} of split {here}: they start alike, and react "
                    f"alike to {tried} commands; keep the splits apart"
                )
    tried = sum(map(len, commands))
    return f"{len(owners)} of {count} tasks are distinguished by their start or by {counted(tried, 'command')}"


def _alike(play: Play, ids: Sequence[str]) -> int:
    """Return how many commands lead to the same in all of these tasks; 0 if one leads to something else, or too few.

    The commands are those that solve the first and the last task, if there is a player that can, and random ones.
    """
    rng = random.Random(play.seed)
    tried = 0
    plans: set[tuple[str, ...]] = set()
    for number in range(2 * ENOUGH):
        task_id = ids[-(number % 2)]  # the first and the last, in turns
        engine = play.shared.source.engine()
        choose: Callable[[State], str | None] = _chooser(
            play, engine, task_id, rng, number // 2
        )
        if number // 2 < len(play.spec.players):
            name = sorted(play.spec.players)[number // 2]
            choose = _scripted(
                name, play.spec.name, play.shared.source.task(task_id), engine
            )
        rollout = _rollout(play, task_id, engine, choose)
        commands = rollout.commands
        if tuple(commands) in plans:
            continue
        plans.add(tuple(commands))
        if len({_reaction(play, each, [commands]) for each in ids}) > 1:
            return 0
        # what is refused tells nothing
        tried += sum(state.valid is not False for state in rollout.states[1:])
        if tried >= ENOUGH:
            break
    return tried if tried >= ENOUGH else 0


def _reaction(play: Play, task_id: str, plays: Sequence[list[str]]) -> str:
    """Return what a policy sees of a task: its instruction, its start, and the states after some commands."""
    shown: list[object] = [play.shared.source.task(task_id).instruction]
    for commands in plays:
        for state in play.states(Rollout(task_id, commands, [], [])):
            outcome = float(state.reward), state.terminated, state.won
            shown.append((state.text, list(state.actions), state.key, outcome))
            if state.terminated or state.truncated:
                break
    return repr(shown)


def _kept(play: Play) -> str:
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


def _pickled(episode: Episode) -> Episode:
    copy: Episode = pickle.loads(pickle.dumps(episode))  # noqa: S301
    return copy


def _copies(play: Play, copy: Callable[[Episode], Episode]) -> str:
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


def _hostile(play: Play) -> str:
    """Check that odd commands are answered, and change nothing where the environment lists its actions."""
    odd = list(HOSTILE)
    for name in (*play.tools, "no_such_tool") if play.tools else ():
        odd += [ToolCall(name, arguments).text() for arguments in ({}, {"x": None})]
    rollout = max(play.rollouts[:ROLLOUTS], key=lambda each: len(each.commands))
    steps = len(rollout.commands)
    # at the start, in the middle and before the end
    for middle in sorted({0, steps // 2, steps - 1}):
        engine = play.shared.source.engine()
        list(play.states(rollout._replace(commands=rollout.commands[:middle]), engine))
        listed = rollout.states[middle].actions
        for command in odd:
            state = play.ask(f"{command[:60]!r}", engine.act, command)
            if flaw := flaw_of(state):
                raise Flaw(f"{command[:60]!r}: {flaw}")
            if listed and state.valid and command not in listed:
                raise Doubt(
                    f"{where(rollout, middle)}: {command[:20]!r} is not listed, and yet valid; "
                    "report valid=False for a command that is not offered"
                )
        if not listed or play.spec.stochastic:  # any text may be a program or a message
            continue
        place = where(rollout, middle + 1)
        state = play.ask(place, engine.act, rollout.commands[middle])
        if difference := difference_of(rollout.states[middle + 1], state):
            raise Doubt(
                f"{place}, after commands that are not offered: {difference}; "
                "a command that is not valid should change nothing"
            )
    change = (
        " that are not offered are answered, and change nothing"
        if rollout.states[0].actions
        else " are answered"
    )
    return f"{len(odd)} commands{change}"


def _after_the_end(play: Play) -> str:
    """Check that a task that has ended stays so."""
    rollout = next((each for each in play.rollouts if each.states[-1].terminated), None)
    if rollout is None:
        return "not played: no episode has ended"
    engine = play.shared.source.engine()
    *_, last = play.states(rollout, engine)
    if not last.terminated:  # another end than before: see replay
        return "not played: the episode did not end again"
    for command in rollout.commands[:1] * 2:
        place = f"task {rollout.task}, {command!r:.40} after the end"
        after = play.ask(place, engine.act, command)
        if not after.terminated or after.won != last.won:
            raise Doubt(
                f"{place} continues after the end; expected the same last state"
            )
    return "a task that has ended stays so"


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
    "replay": partial(_same, check="replay"),
    "many at a time": partial(_same, check="many at a time"),
    "one engine again": partial(_same, check="one engine again"),
    "other processes": _elsewhere,
    "pickle": partial(_copies, copy=_pickled),
    "fork": partial(_copies, copy=Episode.fork),
    "distinct tasks": _distinct,
    "gymnasium": _conforms,  # which compares two episodes of a seed
}
"""The checks that expect equal states after equal commands."""

_CHECKS: Final[dict[str, Check]] = {
    "tasks": _tasks,
    "unknown tasks": _unknown,
    "tools": env_findings.tools,
    "plays": _plays,
    "values": env_findings.values,
    **_REPEATING,
    "kept states": _kept,
    "odd commands": _hostile,
    "after the end": _after_the_end,
    "admissible actions": env_findings.actions,
    "parser": env_findings.parsed,
    "success": env_findings.success,
    "step limit": env_findings.limit,
    "process": _process,
    "repeated states": env_findings.repetition,
}
