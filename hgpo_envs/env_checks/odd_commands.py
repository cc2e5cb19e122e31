"""Checks of what engines answer to commands that no environment offers, and to any command after the end."""

from __future__ import annotations

import random
from typing import Final

from hgpo_envs.env_checks.play import Doubt, Flaw, Play, where
from hgpo_envs.env_checks.rollouts import ROLLOUTS
from hgpo_envs.env_checks.states import difference_of, flaw_of
from hgpo_envs.responses import ToolCall, tool_calls
from hgpo_envs.tools import random_call

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


def answered(play: Play) -> str:
    """Check that odd commands are answered, and change nothing where the environment lists its actions.

    Of tools it is checked as well that true is no number.
    """
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
    _true_is_no_number(play, rollout.task)
    change = (
        " that are not offered are answered, and change nothing"
        if rollout.states[0].actions
        else " are answered"
    )
    return f"{len(odd)} commands{change}"


def _true_is_no_number(play: Play, task: str) -> None:
    """Raise Doubt if a tool that refuses a text as an integer takes true for one: Python's booleans are integers."""
    rng = random.Random(play.seed)
    for tool in play.spec.tools:
        calls = tool_calls(random_call([tool], rng))
        assert calls
        call = calls[0]
        properties = (tool["function"].get("parameters") or {}).get("properties", {})
        for name, schema in properties.items():
            if schema.get("type") != "integer":
                continue
            is_valid = {}
            for value in ("one", True):
                engine = play.shared.source.engine()
                place = f"task {task}, {call.name} with {name} = {value!r}"
                play.ask(place, engine.start, task)
                command = call._replace(arguments={**call.arguments, name: value})
                is_valid[value] = play.ask(place, engine.act, command.text()).valid
            if is_valid[True] and not is_valid["one"]:
                raise Doubt(
                    f"{call.name} takes true as {name}, which is an integer; "
                    "test type(value) is int, because isinstance and int(value) take booleans"
                )


def after_the_end(play: Play) -> str:
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
