"""What the rollouts of `hgpo check env` show: findings that need no further play."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from hgpo_envs.engine import State
from hgpo_envs.plugins import answer_of
from hgpo_envs.responses import Response, admissible, tool_calls
from hgpo_envs.state_keys import STATE_KEYS, sort_lines
from hgpo_envs.unicode_text import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hgpo_envs.environment_spec import EnvironmentSpec
    from hgpo_envs.episode import Settings

Verdict = Literal["pass", "warning", "fail"]

_RARE, _GAIN = 0.05, 0.2  # a share of repeated states that is too small; what a key must add to be recommended
_ASKED: Final = re.compile(r"<(\w+)>[^<>]*</\1>|\\boxed\{[^{}]*\}")  # the forms of answers that prompts ask for


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


class Rollout(NamedTuple):
    """The commands of one rollout, and its states: one more than commands."""

    task: str
    commands: list[str]
    states: list[State]

    @property
    def reward(self) -> float:
        """The return."""
        return math.fsum(state.reward for state in self.states[1:])


def values(rollouts: Sequence[Rollout]) -> Finding:
    """Check the types and ranges of every state's values."""
    for rollout in rollouts:
        for step, state in enumerate(rollout.states):
            if flaw := flaw_of(state):
                return Finding("values", "fail", f"{where(rollout, step)}: {flaw}")
        if rollout.states[0].reward:
            message = (
                f"task {rollout.task}: the first state has the reward {rollout.states[0].reward:g}, which no action"
            )
            return Finding("values", "warning", f"{message} earns and no table holds; give it with the first step")
    return Finding("values", "pass", "texts, flags and numbers of every state have their types")


def flaw_of(state: State) -> str:
    """Return what is wrong with the values of a state; empty if nothing is."""
    expected: dict[str, tuple[type, ...]] = {"text": (str,), "key": (str, type(None)), "won": (bool, type(None))}
    expected |= {"valid": (bool, type(None)), "terminated": (bool,), "truncated": (bool,)}
    expected |= dict.fromkeys(("reward", "score"), (int, float, np.number))
    for name, types in expected.items():
        value = getattr(state, name)
        if not isinstance(value, types):
            return f"{name}: expected {types[0].__name__}, received {type(value).__name__}"
    if not all(isinstance(action, str) for action in state.actions):
        return "actions: expected texts"
    if clean_text(state.text) != state.text:
        return "text: it has lone surrogates, which cannot be stored"
    if not (math.isfinite(state.reward) and math.isfinite(state.score)):
        return f"reward {state.reward}, score {state.score}: expected finite numbers"
    if not 0 <= state.score <= 1:
        return f"score {state.score:g}: expected a number in [0, 1]"
    if state.terminated and state.truncated:
        return "terminated and truncated: expected one of them"
    return ""


def difference_of(first: State, second: State) -> str:
    """Return the first field in which two states differ; empty if they are equal."""
    for name in (field.name for field in fields(State)):
        before, after = getattr(first, name), getattr(second, name)
        if name == "actions":
            before, after = list(before), list(after)
        if before == after or before is after or (before != before and after != after):  # NaN differs from itself
            continue
        if name == "actions" and sorted(before) == sorted(after):
            return "actions have another order (sort them)"
        if name == "text" and sort_lines(before) == sort_lines(after):
            return "text has its lines in another order (sort them, or set state_key='sort-lines')"
        return f"{name} is {before!r:.60} and then {after!r:.60}"
    return ""


def _steps(rollouts: Sequence[Rollout]) -> Iterator[tuple[Rollout, int, State, str, State]]:
    """Yield each step as its rollout, number, state, command and next state."""
    for rollout in rollouts:
        for step, command in enumerate(rollout.commands):
            yield rollout, step, rollout.states[step], command, rollout.states[step + 1]


def actions(rollouts: Sequence[Rollout], spec: EnvironmentSpec | None) -> Finding:
    """Check the lists of admissible actions."""
    check = "admissible actions"
    lists = any(state.actions for rollout in rollouts for state in rollout.states)
    if spec is not None and not spec.admissible_actions and not lists:
        return Finding(check, "pass", "the specification says that there is no list")
    if spec is None and not lists:
        repair = 'list them in info["admissible_actions"] for policies that draw from them, such as random'
        return Finding(check, "warning", f"the environment lists none; {repair}")
    for rollout in rollouts:
        for step, state in enumerate(rollout.states):
            place, ended = where(rollout, step), state.terminated or state.truncated
            if not (ended or state.actions) and (spec is None or spec.admissible_actions):
                message = "no admissible actions in a state that is not the end; list them, or set "
                return Finding(check, "fail", f"{place}: {message}admissible_actions=False in the specification")
            twice = [action for action, times in Counter(state.actions).items() if times > 1]
            if twice:
                return Finding(check, "warning", f"{place}: {twice[0]!r:.60} is listed twice; list each action once")
    for rollout, step, state, command, after in _steps(rollouts):
        if command in state.actions and after.valid is False:
            message = f"{command!r:.60} is listed, and not executed (valid=False); list only what can be done"
            return Finding(check, "fail", f"{where(rollout, step)}: {message}")
    return Finding(check, "pass", "every state before the end lists some, each once, and those played are executed")


def parsed(rollouts: Sequence[Rollout], settings: Settings, spec: EnvironmentSpec | None) -> Finding:
    """Check that actions written as responses are parsed as they were, also in the form that the prompt asks for."""
    taken = {command: state.actions for _, _, state, command, after in _steps(rollouts) if after.valid is not False}
    taken |= {action: state.actions for rollout in rollouts for state in rollout.states for action in state.actions}
    texts = {
        action: f"<think></think><action>{action}</action>" if spec is None else spec.respond(action)
        for action in taken
    }
    for action, text in texts.items():
        if flaw := _unread(action, text, taken[action], settings):
            advice = "see parse_response, and format_response, its inverse"
            return Finding("parser", "fail", f"{action!r:.60}, written as {text!r:.80}, {flaw}; {advice}")
    for action in list(taken)[:1]:
        if flaw := _disobeyed(action, taken[action], rollouts[0].states[0], settings, spec):
            return Finding("parser", "fail", flaw)
    return Finding(
        "parser", "pass", f"{len(taken)} actions are parsed as they are written, as the prompt asks for them"
    )


def _unread(action: str, text: str, listed: Sequence[str], settings: Settings) -> str:
    """Return how a response is misread; empty if its action is the given one."""
    response = answer_of("parse_response", settings.parse_response, text, Response)
    received = admissible(response.action, listed)
    if received != action:
        return f"is parsed as {received!r:.60}"
    return "" if response.valid else f"makes a response invalid ({response.flaw})"


def _disobeyed(
    action: str, listed: Sequence[str], start: State, settings: Settings, spec: EnvironmentSpec | None
) -> str:
    """Return what is wrong with an answer that does what the prompt says; empty if nothing is."""
    prompt = settings.template.render("Task.", "State.", [], [], 0, settings.max_steps, "response", start.info)
    forms = [match for match in _ASKED.finditer(prompt) if match[1] not in ("think", "tool_call")]
    calls = spec is not None and spec.takes_calls
    if not forms or (calls and not tool_calls(action)):
        return ""
    asked = forms[-1]
    if calls:
        return f"the prompt asks for {asked[0]!r}, and the environment takes calls of its tools; see template"
    form = f"<{asked[1]}>{action}</{asked[1]}>" if asked[1] else f"\\boxed{{{action}}}"
    flaw = _unread(action, f"<think>So.</think>{form}", listed, settings)
    return (
        f"the prompt asks for {asked[0]!r}, but {form!r:.80} {flaw}; see parse_response and action_tag" if flaw else ""
    )


def success(rollouts: Sequence[Rollout]) -> Finding:
    """Check that solved episodes are known, and told from others."""
    ended = [rollout for rollout in rollouts if rollout.states[-1].terminated]
    unknown = sum(rollout.states[-1].won is None for rollout in ended)
    if unknown:
        message = f"{unknown} of {len(ended)} finished episodes do not say whether they were won"
        return Finding("success", "warning", f"{message}; set State.won, or info['won'] in a Gymnasium environment")
    won = [rollout for rollout in ended if rollout.states[-1].won]
    others = [rollout for rollout in rollouts if not rollout.states[-1].won]
    early = [rollout for rollout in rollouts if any(state.won for state in rollout.states[:-1])]
    full = [rollout for rollout in ended if not rollout.states[-1].won and rollout.states[-1].score >= 1]
    idle = [rollout for rollout in won if not rollout.states[-1].score and not rollout.reward]
    flaws = {
        "won before the end; terminate when the task is solved": early,
        "ended with score 1, but not won; set State.won": full,
        "won with return 0 and score 0; give a solved task a reward": idle,
    }
    if won and others and max(each.reward for each in won) < min(each.reward for each in others):
        flaws["won with a return below those of all episodes that were not won; see State.reward"] = won
    for flaw, found in flaws.items():
        if found:
            return Finding("success", "warning", f"task {found[0].task}: {flaw}")
    return Finding("success", "pass", f"{len(ended)} of {len(rollouts)} episodes ended, {len(won)} won")


def limit(rollouts: Sequence[Rollout], settings: Settings) -> Finding:
    """Check that an environment's limit of its own is the specification's."""
    lengths = [len(rollout.commands) for rollout in rollouts if rollout.states[-1].truncated]
    own = [length for length in lengths if length < settings.max_steps]
    if own:
        message = f"the environment truncates after {max(own)} steps, the specification's limit is {settings.max_steps}"
        return Finding("step limit", "warning", f"{message}; set max_steps={max(own)} in the specification")
    return Finding("step limit", "pass", f"{settings.max_steps} steps")


def repetition(rollouts: Sequence[Rollout], settings: Settings) -> Finding:
    """Check that states of a task repeat, because a step whose state is unique is in no group."""

    def key(state: State) -> str:
        of = settings.state_key or str
        return answer_of("state key", of, state.text, str) if state.key is None else state.key

    merged = _merged(rollouts, key)
    if merged:
        return Finding("repeated states", "warning", f"{merged}; give them different keys (State.key, state_key)")
    own = _shared(rollouts, key)
    seen = f"{own:.0%} of the steps share their state with another step of their task"
    for name, function in STATE_KEYS.items():
        masked = partial(_of_text, function)
        share = _shared(rollouts, masked)
        if share > own + _GAIN and not _merged(rollouts, masked):
            message = f"{seen}, {share:.0%} with {name}: set state_key={name!r}, or State.key"
            return Finding("repeated states", "warning", message)
    if own < _RARE:
        message = f"{seen}; groups of one step have no advantage: give State.key without what changes at every step"
        return Finding("repeated states", "warning", message)
    return Finding("repeated states", "pass", seen)


def _of_text(function: Callable[[str], str], state: State) -> str:
    return function(state.text) if state.key is None else state.key  # as `EnvironmentSpec.state_key` does


def _shared(rollouts: Sequence[Rollout], key: Callable[[State], str]) -> float:
    """Return the share of steps whose key another step of the task has too."""
    keys = [(rollout.task, key(state)) for rollout, _, state, _, _ in _steps(rollouts)]
    counts = Counter(keys)
    return sum(counts[each] > 1 for each in keys) / max(len(keys), 1)


def _merged(rollouts: Sequence[Rollout], key: Callable[[State], str]) -> str:
    """Return how a key makes states equal that differ in their actions or in what an action leads to, or an empty text.

    Where states of one text already differ so, because they hide something, the key is not to blame.
    """
    texts: dict[tuple[str, str], dict[str, list[tuple[frozenset[str], str, object]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for rollout, _, state, command, after in _steps(rollouts):
        outcome = after.terminated, after.won, after.reward > 0
        texts[rollout.task, key(state)][state.text].append((frozenset(state.actions), command, outcome))
    for (task, name), by_text in texts.items():
        clear = {text: seen for text, seen in by_text.items() if not _differ(seen)}
        flaw = _differ([each for seen in clear.values() for each in seen])
        if flaw:
            return f"task {task}: the key {name!r:.40} makes states equal that differ in {flaw}"
    return ""


def _differ(seen: Sequence[tuple[frozenset[str], str, object]]) -> str:
    """Return in what some states differ: their actions, or the outcome of an action; empty if in neither."""
    if len({listed for listed, _, _ in seen}) > 1:
        return "their admissible actions"
    outcomes = dict[str, object]()
    for _, command, outcome in seen:
        if outcomes.setdefault(command, outcome) != outcome:
            return f"what {command!r:.40} leads to"
    return ""


def where(rollout: Rollout, step: int) -> str:
    """Return the place of a state in a rollout, for messages."""
    last = f" after {rollout.commands[step - 1]!r:.40}" if step else ""
    return f"task {rollout.task}, step {step}{last}"
