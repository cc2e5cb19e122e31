"""Playing the rollouts that are checked, with the commands of a policy, random ones, or those of scripted players."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from hgpo_envs.env_checks.play import Doubt, Flaw, Play, Rollout, where
from hgpo_envs.environment_spec import make_player
from hgpo_envs.responses import tool_calls
from hgpo_envs.tools import random_call
from hgpo_envs.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hgpo_envs.engine import Engine, State, Task

ROLLOUTS: Final = 4
"""The number of rollouts of each task."""
# what an action leaves open, such as WebShop's search[<your query>]
_OPEN: Final = re.compile(r"<[^<>]*>")
_WORD: Final = re.compile(r"[^\W_]+")
# the share of calls where there are tools; the others are messages
_CALLING: Final = 0.9


def number_of_tasks(episodes: int) -> int:
    """Return how many tasks are played so that there are so many rollouts, or up to three more."""
    return math.ceil(episodes / ROLLOUTS)


def plays(play: Play) -> str:
    """Play rollouts, and say what was not played."""
    seed_process(1)
    rng = random.Random(play.seed)
    rollouts = []
    for task_id in play.chosen:
        plans = [None] * ROLLOUTS if play.commands is None else play.commands[task_id]
        for number, plan in enumerate(plans):
            engine = play.shared.source.engine()
            choose = chooser(play, engine, task_id, rng, number, plan)
            rollouts.append(play_task(play, task_id, engine, choose))
    play.rollouts += [rollout for rollout in rollouts if rollout.commands]
    for rollout in rollouts:
        if not rollout.commands:
            raise Flaw(
                f"task {rollout.task} ends at its start, and all rollouts of it fail"
            )
    commands = [command for rollout in rollouts for command in rollout.commands]
    message = f"{len(rollouts)} rollouts of {counted(len(play.chosen), 'task')}, {len(commands)} steps"
    if play.asked not in (None, len(rollouts)):
        message += f" ({play.asked} asked for; each task is played {ROLLOUTS} times)"
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


def seed_process(seed: int) -> None:
    """Seed the generators that engines share with the process."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


def play_task(
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


def chooser(
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
                # WebShop reads queries in lower case
                word = rng.choice(words).lower()
                return str(_OPEN.sub(word, rng.choice(list(state.actions))))
            if spec.tools and rng.random() < _CALLING:
                return random_call(
                    spec.tools, rng, [*words, *_WORD.findall(state.text)]
                )
            return rng.choice(["look", *words])

        return draw
    return scripted(
        min(spec.players, key=("explorer", "expert").index), spec.name, task, engine
    )


def scripted(
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
