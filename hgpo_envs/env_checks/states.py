"""Checks of the states that rollouts passed through: what needs no further play."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import fields
from itertools import chain
from typing import TYPE_CHECKING, Final

import numpy as np

from hgpo_envs.engine import State
from hgpo_envs.env_checks.play import Doubt, Flaw, Play, Rollout, where
from hgpo_envs.plugins import answer_of
from hgpo_envs.responses import Response, admissible, tool_calls
from hgpo_envs.state_keys import STATE_KEYS, sort_lines
from hgpo_envs.tool_checks import flaws, undescribed
from hgpo_envs.unicode_text import clean_text
from hgpo_envs.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hgpo_envs.episode import Settings

_RARE: Final = 0.05  # a share of repeated states that is too small
_LISTED: Final = 5  # flaws of tools in one line
_LARGEST_REWARD: Final = 1e30
_GAIN: Final = 0.2  # what a key must add to it to be recommended
# the forms of answers that prompts ask for
_ASKED: Final = re.compile(r"<(\w+)>[^<>]*</\1>|\\boxed\{[^{}]*\}")


def tools(play: Play) -> str:
    """Check the schemas of the tools."""
    schemas = play.spec.tools
    if found := flaws(schemas):
        more = f"; and {len(found) - _LISTED} more" if len(found) > _LISTED else ""
        raise Flaw("; ".join(found[:_LISTED]) + more)
    if names := undescribed(schemas):
        raise Doubt(
            f"no description: {', '.join(names)}; say what the tool does, which a model learns from it alone"
        )
    return f"{counted(len(schemas), 'tool')} with sound schemas"


def values(play: Play) -> str:
    """Check the types and ranges of every state's values."""
    for rollout in play.rollouts:
        for step, state in enumerate(rollout.states):
            if flaw := flaw_of(state):
                raise Flaw(f"{where(rollout, step)}: {flaw}")
        if reward := rollout.states[0].reward:
            raise Doubt(
                f"task {rollout.task}: the first state has the reward {reward:g}, which no action earns and no "
                "table holds; give it with the first step"
            )
    if not any(
        state.text.strip() for rollout in play.rollouts for state in rollout.states
    ):
        raise Doubt(
            "no state has a text, so that prompts do not say what happens; see State.text"
        )
    return "texts, flags and numbers of every state have their types"


_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "text": (str,),
    "key": (str, type(None)),
    "won": (bool, type(None)),
    "valid": (bool, type(None)),
    "terminated": (bool,),
    "truncated": (bool,),
    "reward": (int, float, np.number),
    "score": (int, float, np.number),
}
"""The types of a state's values."""


def flaw_of(state: State) -> str:
    """Return what is wrong with the values of a state; empty if nothing is."""
    for name, types in _TYPES.items():
        value = getattr(state, name)
        if not isinstance(value, types):
            return (
                f"{name}: expected {types[0].__name__}, received {type(value).__name__}"
            )
    if not all(isinstance(action, str) for action in state.actions):
        return "actions: expected texts"
    for text in (state.text, state.key or "", *state.actions):
        if clean_text(text) != text:
            return f"{text!r:.40} has lone surrogates, which cannot be stored"
    if not (math.isfinite(state.reward) and math.isfinite(state.score)):
        return f"reward {state.reward}, score {state.score}: expected finite numbers"
    if abs(state.reward) > _LARGEST_REWARD:
        return (
            f"reward {state.reward:g}: expected at most {_LARGEST_REWARD:g}, because estimators round returns to "
            "float32, whose largest number is 3.4e+38"
        )
    if not 0 <= state.score <= 1:
        return f"score {state.score:g}: expected a number in [0, 1]"
    if state.terminated and state.truncated:
        return "terminated and truncated: expected one of them"
    return ""


def difference_of(first: State, second: State) -> str:
    """Return the first field in which two states differ; empty if they are equal."""
    for name in (each.name for each in fields(State)):
        before = getattr(first, name)
        after = getattr(second, name)
        if name == "actions":
            before = list(before)
            after = list(after)
        # NaN differs from itself
        if before == after or before is after or (before != before and after != after):
            continue
        if name == "actions" and sorted(before) == sorted(after):
            return "actions have another order (sort them)"
        if name == "text" and sort_lines(before) == sort_lines(after):
            return "text has its lines in another order (sort them, or set state_key='sort-lines')"
        return f"{name} is {before!r:.60} and then {after!r:.60}"
    return ""


def _steps(
    rollouts: Sequence[Rollout],
) -> Iterator[tuple[Rollout, int, State, str, State]]:
    """Yield each step as its rollout, number, state, command and next state."""
    for rollout in rollouts:
        for step, command in enumerate(rollout.commands):
            yield rollout, step, rollout.states[step], command, rollout.states[step + 1]


def actions(play: Play) -> str:
    """Check the lists of admissible actions."""
    listing = play.spec.admissible_actions
    if not any(state.actions for rollout in play.rollouts for state in rollout.states):
        if not listing:
            return "the specification says that there is no list"
        if not play.is_described:
            raise Doubt(
                'the environment lists none; list them in info["admissible_actions"] for policies that draw from '
                "them, such as random"
            )
    for rollout in play.rollouts:
        for step, state in enumerate(rollout.states):
            place = where(rollout, step)
            if listing and not (state.actions or state.terminated or state.truncated):
                raise Flaw(
                    f"{place}: no admissible actions in a state that is not the end; list them, or set "
                    "admissible_actions=False in the specification"
                )
            most_common = Counter(state.actions).most_common(1) or [("", 0)]
            action, times = most_common[0]
            if times > 1:
                raise Doubt(
                    f"{place}: {action!r:.60} is listed twice; list each action once"
                )
    for rollout, step, state, command, after in _steps(play.rollouts):
        if command in state.actions and after.valid is False:
            raise Flaw(
                f"{where(rollout, step)}: {command!r:.60} is listed, and not executed (valid=False); "
                "list only what can be done"
            )
    return "every state before the end lists some, each once, and those played are executed"


def parsed(play: Play) -> str:
    """Check that actions written as responses are parsed as they were, also in the form that the prompt asks for."""
    states = [state for rollout in play.rollouts for state in rollout.states]
    taken = {
        command: state.actions
        for _, _, state, command, after in _steps(play.rollouts)
        if after.valid is not False
    }
    taken |= {action: state.actions for state in states for action in state.actions}
    for action, listed in taken.items():
        written = play.spec.respond(action)
        if flaw := _unread(action, written, listed, play.settings):
            advice = "see parse_response, and format_response, its inverse"
            raise Flaw(f"{action!r:.60}, written as {written!r:.80}, {flaw}; {advice}")
    if taken:
        _obey(play, *next(iter(taken.items())))
    return f"{len(taken)} actions are parsed as they are written, as the prompt asks for them"


def _unread(action: str, text: str, listed: Sequence[str], settings: Settings) -> str:
    """Return how a response is misread; empty if its action is the given one."""
    response = answer_of("parse_response", settings.parse_response, text, Response)
    received = admissible(response.action, listed)
    if received != action:
        return f"is parsed as {received!r:.60}"
    return "" if response.valid else f"makes a response invalid ({response.flaw})"


def _obey(play: Play, action: str, listed: Sequence[str]) -> None:
    """Check an answer that does what the prompt says."""
    prompt = play.settings.template.render(
        task="Task.",
        observation="State.",
        admissible_actions=[],
        pairs=[],
        steps_taken=0,
        max_steps=play.settings.max_steps,
        action_format="response",
        info=play.rollouts[0].states[0].info,
    )
    forms = [
        match
        for match in _ASKED.finditer(prompt)
        if match[1] not in ("think", "tool_call")
    ]
    calls = play.spec.takes_calls
    if not forms or (calls and not tool_calls(action)):
        return
    asked = forms[-1]
    if calls:
        raise Flaw(
            f"the prompt asks for {asked[0]!r}, and the environment takes calls of its tools; see template"
        )
    form = f"<{asked[1]}>{action}</{asked[1]}>" if asked[1] else f"\\boxed{{{action}}}"
    if flaw := _unread(action, f"<think>So.</think>{form}", listed, play.settings):
        raise Flaw(
            f"the prompt asks for {asked[0]!r}, but {form!r:.80} {flaw}; see parse_response and action_tag"
        )


def success(play: Play) -> str:
    """Check that solved episodes are known, and told from others."""
    ended = [rollout for rollout in play.rollouts if rollout.states[-1].terminated]
    unknown = sum(rollout.states[-1].won is None for rollout in ended)
    if unknown:
        raise Doubt(
            f"{unknown} of {len(ended)} finished episodes do not say whether they were won; "
            "set State.won, or info['won'] in a Gymnasium environment"
        )
    won = [rollout for rollout in ended if rollout.states[-1].won]
    others = [rollout.reward for rollout in play.rollouts if not rollout.states[-1].won]
    for rollout in play.rollouts:
        last = rollout.states[-1]
        task = f"task {rollout.task}"
        if any(state.won for state in rollout.states[:-1]):
            raise Doubt(
                f"{task}: won before the end; terminate when the task is solved"
            )
        if last.terminated and not last.won and last.score >= 1:
            raise Doubt(f"{task}: ended with score 1, but not won; set State.won")
        if last.terminated and last.won and not last.score and not rollout.reward:
            raise Doubt(
                f"{task}: won with return 0 and score 0; give a solved task a reward"
            )
    if won and others and max(rollout.reward for rollout in won) < min(others):
        raise Doubt(
            f"task {won[0].task}: won with a return below those of all episodes that were not won; see State.reward"
        )
    return f"{len(ended)} of {len(play.rollouts)} episodes ended, {len(won)} won"


def limit(play: Play) -> str:
    """Check that an environment's limit of its own is the specification's."""
    most = play.settings.max_steps
    lengths = [
        len(rollout.commands)
        for rollout in play.rollouts
        if rollout.states[-1].truncated
    ]
    longest = max([length for length in lengths if length < most], default=0)
    if longest:
        raise Doubt(
            f"the environment truncates after {longest} steps, the specification's limit is {most}; "
            f"set max_steps={longest} in the specification"
        )
    return f"{most} steps"


def repetition(play: Play) -> str:
    """Check that states of a task repeat, because a step whose state is unique is in no group."""
    rollouts = play.rollouts

    def keyed(function: Callable[[str], str]) -> Callable[[State], str]:
        return lambda state: (
            answer_of("state key", function, state.text, str)
            if state.key is None
            else state.key
        )

    key = keyed(play.settings.state_key or str)
    if merged := _merged(rollouts, key):
        raise Doubt(f"{merged}; give them different keys (State.key, state_key)")
    share = _shared(rollouts, key)
    seen = f"{share:.0%} of the steps share their state with another step of their task"
    for name, function in STATE_KEYS.items():
        more = _shared(rollouts, keyed(function))
        if more > share + _GAIN and not _merged(rollouts, keyed(function)):
            raise Doubt(
                f"{seen}, {more:.0%} with {name}: set state_key={name!r}, or State.key"
            )
    if share < _RARE:
        raise Doubt(
            f"{seen}; groups of one step have no advantage: give State.key without what changes at every step"
        )
    return seen


def _shared(rollouts: Sequence[Rollout], key: Callable[[State], str]) -> float:
    """Return the share of steps whose key another step of the task has too."""
    counts = Counter(
        (rollout.task, key(state)) for rollout, _, state, _, _ in _steps(rollouts)
    )
    return sum(count for count in counts.values() if count > 1) / max(counts.total(), 1)


_Seen = tuple[frozenset[str], str, object]
"""A step: the admissible actions of its state, its command, and the command's outcome; None if it is not compared."""


def _merged(rollouts: Sequence[Rollout], key: Callable[[State], str]) -> str:
    """Return how a key makes states equal that differ in their actions or in what an action leads to, or an empty text.

    Where states of one text already differ so, because they hide something, the key is not to blame.
    """
    longest: dict[str, int] = {}
    for rollout in rollouts:
        longest[rollout.task] = max(longest.get(rollout.task, 0), len(rollout.commands))

    texts = defaultdict[tuple[str, str], dict[str, list[_Seen]]](dict)
    for rollout, step, state, command, after in _steps(rollouts):
        outcome: object = (after.terminated, after.won, after.reward > 0)
        # No rollout of the task is longer: the turns may have run out, which is no outcome of this command.
        if step + 1 == longest[rollout.task] and not after.won:
            outcome = None
        steps = texts[rollout.task, key(state)].setdefault(state.text, [])
        steps.append((frozenset(state.actions), command, outcome))
    for (task, name), by_text in texts.items():
        clear = [steps for steps in by_text.values() if not _difference(steps)]
        if flaw := _difference(list(chain.from_iterable(clear))):
            return f"task {task}: the key {name!r:.40} makes states equal that differ in {flaw}"
    return ""


def _difference(steps: Sequence[_Seen]) -> str:
    """Return in what the states of some steps differ: their actions, or the outcome of one; empty if in neither."""
    if len({listed for listed, _, _ in steps}) > 1:
        return "their admissible actions"
    outcomes: dict[str, object] = {}
    for _, command, outcome in steps:
        if outcome is not None and outcomes.setdefault(command, outcome) != outcome:
            return f"what {command!r:.40} leads to"
    return ""
