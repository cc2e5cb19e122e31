"""Checks of a source's tasks: their ids and descriptions, unknown names, and that tasks differ from each other."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final

from hgpo_envs.env_checks.play import Doubt, Flaw, Play, Rollout
from hgpo_envs.env_checks.rollouts import ROLLOUTS, chooser, play_task, scripted
from hgpo_envs.errors import InputError
from hgpo_envs.sources import Split
from hgpo_envs.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hgpo_envs.engine import State

COMPARED: Final = 20
"""The number of tasks of a split that are compared with each other."""
ENOUGH: Final = 40
"""The number of commands to which two tasks must react alike before they are called one."""
LISTED: Final = 100_000
"""The number of task ids that are searched for repeated ones. A split may be a lazy sequence of any length."""
_SPLITS: Final = ("train", "valid", "validation", "dev", "test", "eval")


def listed(play: Play) -> str:
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


def unknown(play: Play) -> str:
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


def distinct(play: Play) -> str:
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
    of_reaction = Counter(reactions[task_id] for task_id in splits[here])
    (most, size), *_ = of_reaction.most_common(1)
    twins = [task_id for task_id in splits[here] if reactions[task_id] == most]
    if size > 1 and (tried := _alike(play, twins)):
        which = (
            "all" if size == count else f"{size} (such as {twins[0]}, {twins[1]}) of"
        )
        raise Doubt(
            f"{which} {count} tasks that were compared are one: they start alike, and react alike to {tried} commands; "
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
        choose: Callable[[State], str | None] = chooser(
            play, engine, task_id, rng, number // 2
        )
        if number // 2 < len(play.spec.players):
            name = sorted(play.spec.players)[number // 2]
            choose = scripted(
                name, play.spec.name, play.shared.source.task(task_id), engine
            )
        rollout = play_task(play, task_id, engine, choose)
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
