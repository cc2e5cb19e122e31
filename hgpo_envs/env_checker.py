"""Checks of a benchmark's adapter: what would cost a run if it were found during training (`hgpo check env`).

Some tasks are played with random admissible actions, several times each. Then the same commands are played again: in
new engines, with all episodes in turn, with other seeds of the process's random generators, from forks and from
pickles. Every time the states must be equal.
"""

from __future__ import annotations

import math
import pickle
import random
import re
import threading
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import zip_longest
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar

import numpy as np
from gymnasium.utils.env_checker import check_env

from hgpo_envs.engine import State
from hgpo_envs.environment_spec import make_player, spec_named
from hgpo_envs.episode import Episode
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.plugins import answer_of
from hgpo_envs.responses import Response, admissible
from hgpo_envs.state_keys import mask_numbers, sort_lines
from hgpo_envs.unicode_text import clean_text
from hgpo_envs.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import gymnasium

    from hgpo_envs.engine import Engine
    from hgpo_envs.environment_spec import EnvironmentSpec
    from hgpo_envs.episode import Settings
    from hgpo_envs.sources import SharedSource

T = TypeVar("T")
Verdict = Literal["pass", "warning", "fail"]

ROLLOUTS: Final = 4
"""The number of rollouts of each task."""
HOSTILE: Final = ("", " ", "xyzzy plugh", "quit", "{{ 1 }}", "\x00\x1b[2J", "\U0001f600 é", "a" * 20_000)
"""Commands that no environment offers. Policies write such texts."""
ANSWER_SECONDS: Final = 60.0
"""The time in which an engine must answer a command or start a task."""
_OPEN: Final = re.compile(r"<[^<>]*>")  # what an action leaves open, such as WebShop's search[<your query>]
_RARE, _GAIN = 0.05, 0.2  # a share of repeated states that is too small; what a key must add to be recommended


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


def check_environment(
    shared: SharedSource,
    settings: Settings,
    tasks: Sequence[str],
    *,
    episodes: int = 20,
    seed: int = 0,
    env: gymnasium.Env[Any, Any] | None = None,
) -> Iterator[Finding]:
    """Check a task source and its engines.

    Args:
        shared: The task source.
        settings: The settings of its episodes.
        tasks: Task ids.
        episodes: The number of rollouts to play.
        seed: Seed of the random actions.
        env: The Gymnasium environment, checked by Gymnasium's own `check_env`; None skips this.

    Yields:
        The findings. If an engine raises an error while it plays, there are no further ones.
    """
    spec = spec_named(shared.source.name)
    chosen = list(tasks[: max(1, episodes // ROLLOUTS)])
    with _process_randomness():
        yield _guarded("tasks", lambda asked: _tasks(shared, tasks, chosen, asked))
        played = _guarded("plays", lambda asked: _play(shared, settings, spec, chosen, seed, asked))
        if isinstance(played, Finding):
            yield played
            return
        rollouts = [rollout for rollout in played[0] if rollout.commands]
        yield _started(played[0], rollouts)
        if not rollouts:
            return
        checks: dict[str, Callable[[_Asked], Finding]] = {
            "values": lambda _: _values(rollouts),
            "replay": lambda asked: _same(shared, rollouts, "replay", asked, interleaved=False),
            "many at a time": lambda asked: _same(shared, rollouts, "many at a time", asked, interleaved=True),
            "random state": lambda _: _randomness(played[1]),
            "pickle": lambda asked: _copies(shared, settings, rollouts, "pickle", asked, _pickled),
            "fork": lambda asked: _copies(shared, settings, rollouts, "fork", asked, Episode.fork),
            "odd commands": lambda asked: _hostile(shared, rollouts[0], asked),
            "admissible actions": lambda _: _actions(rollouts, spec),
            "parser": lambda _: _parsed(rollouts, settings, spec),
            "success": lambda _: _success(rollouts),
            "step limit": lambda _: _limit(rollouts, settings),
            "repeated states": lambda _: _repetition(rollouts, settings),
        }
        if env is not None:
            checks["gymnasium"] = lambda _: _conforms(env)
        for name, check in checks.items():
            yield _guarded(name, check)


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


def _tasks(shared: SharedSource, tasks: Sequence[str], chosen: Sequence[str], asked: _Asked) -> Finding:
    asked.where = "the source's split all and its descriptions of tasks"
    every = set(shared.source.ids("all"))
    for task_id in chosen:
        shared.source.task(task_id)
    repeated = [task_id for task_id, times in Counter(tasks).items() if times > 1]
    if repeated or not every.issuperset(tasks):
        flaw = f"{repeated[0]} is listed twice" if repeated else "the split all lacks some of this split"
        return Finding("tasks", "fail", f"{flaw}; ids lists every task once, and all tasks for the split all")
    return Finding("tasks", "pass", f"{counted(len(tasks), 'task')}, of {len(every):,}")


def _started(rollouts: Sequence[Rollout], played: Sequence[Rollout]) -> Finding:
    tasks, steps = len({rollout.task for rollout in rollouts}), sum(len(rollout.commands) for rollout in played)
    for rollout in rollouts:
        if not rollout.commands:
            return Finding("plays", "fail", f"task {rollout.task} ends at its start, and all rollouts of it fail")
    return Finding("plays", "pass", f"{len(rollouts)} rollouts of {counted(tasks, 'task')}, {steps} steps")


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
) -> tuple[list[Rollout], set[str]]:
    """Return the rollouts, and the names of the process's random generators that the engines drew from."""
    _seed_process(1)
    drawn: set[str] = set()
    rng, rollouts = random.Random(seed), []
    for task_id in [task_id for task_id in tasks for _ in range(ROLLOUTS)]:
        before = random.getstate(), _numpy_position()
        engine = shared.source.engine()
        choose = _chooser(engine, shared, spec, task_id, rng)
        rollout = Rollout(task_id, [], [])
        rollout.states.append(state := asked.ask(_where(rollout, 0), engine.start, task_id))
        while not (state.terminated or state.truncated) and len(rollout.commands) < settings.max_steps:
            rollout.commands.append(choose(state))
            state = asked.ask(_where(rollout, len(rollout.commands)), engine.act, rollout.commands[-1])
            rollout.states.append(state)
        drawn |= {"random"} if random.getstate() != before[0] else set()
        drawn |= {"numpy.random"} if _numpy_position() != before[1] else set()
        rollouts.append(rollout)
    return rollouts, drawn


def _chooser(
    engine: Engine, shared: SharedSource, spec: EnvironmentSpec | None, task_id: str, rng: random.Random
) -> Callable[[State], str]:
    """Return a random policy, or where states list no actions a scripted player, if there is one."""
    if spec is None or spec.admissible_actions or not spec.players:
        words = shared.source.task(task_id).instruction.split() or ["look"]

        def draw(state: State) -> str:
            action = rng.choice(list(state.actions)) if state.actions else "look"
            return _OPEN.sub(rng.choice(words), action)

        return draw
    player = make_player(min(spec.players, key=("explorer", "expert").index), spec.name)
    started = False

    def act(state: State) -> str:
        nonlocal started
        if not started:
            started = True
            player.reset(shared.source.task(task_id), state, engine)
        return player.act(state)

    return act


def _values(rollouts: Sequence[Rollout]) -> Finding:
    for rollout in rollouts:
        for step, state in enumerate(rollout.states):
            if flaw := _flaw(state):
                return Finding("values", "fail", f"{_where(rollout, step)}: {flaw}")
    return Finding("values", "pass", "texts, flags and numbers of every state have their types")


def _flaw(state: State) -> str:
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
    return ""


def _same(
    shared: SharedSource, rollouts: Sequence[Rollout], check: str, asked: _Asked, *, interleaved: bool
) -> Finding:
    """Check that the commands lead to the same states again, one rollout after the other or all in turn."""
    _seed_process(2)
    plays = [_replayed(shared, rollout, asked) for rollout in rollouts]
    rounds = zip_longest(*plays) if interleaved else ([state] for play in plays for state in play)
    for states in rounds:
        for difference in states:
            if difference:
                advice = "engines share what must be their own" if interleaved else "states must depend on the commands"
                return Finding(check, "fail", f"{difference}; {advice} alone")
    what = f"{len(rollouts)} engines in turn" if interleaved else "the same commands in new engines"
    return Finding(check, "pass", f"{what} give equal states")


def _replayed(shared: SharedSource, rollout: Rollout, asked: _Asked) -> Iterator[str]:
    """Play a rollout again; yield for every state how it differs, or an empty text."""
    engine = shared.source.engine()
    for step, expected in enumerate(rollout.states):
        call, text = (engine.act, rollout.commands[step - 1]) if step else (engine.start, rollout.task)
        state = asked.ask(_where(rollout, step), call, text)
        difference = _difference(expected, state)
        yield f"{_where(rollout, step)}: {difference}" if difference else ""


def _difference(first: State, second: State) -> str:
    """Return the first field in which two states differ; empty if they are equal."""
    for name in (field.name for field in fields(State)):
        before, after = getattr(first, name), getattr(second, name)
        if name == "actions":
            before, after = list(before), list(after)
        if before == after or before is after:
            continue
        if name == "actions" and sorted(before) == sorted(after):
            return "actions have another order (sort them)"
        if name == "text" and sort_lines(before) == sort_lines(after):
            return "text has its lines in another order (sort them, or set state_key='sort-lines')"
        return f"{name} is {before!r:.60} and then {after!r:.60}"
    return ""


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
                state = asked.ask(f"{_where(rollout, step)} {when}", each.engine.act, command)
                if difference := _difference(rollout.states[step], state):
                    return Finding(check, "fail", f"{_where(rollout, step)} {when}: {difference}")
    return Finding(check, "pass", "a copy in the middle of an episode goes on equally and independently")


def _hostile(shared: SharedSource, rollout: Rollout, asked: _Asked) -> Finding:
    """Check that odd commands are answered, and change nothing where the environment lists its actions."""
    engine = shared.source.engine()
    asked.ask(_where(rollout, 0), engine.start, rollout.task)
    for command in HOSTILE:
        if flaw := _flaw(asked.ask(f"{command[:20]!r}", engine.act, command)):
            return Finding("odd commands", "fail", f"{command[:20]!r}: {flaw}")
    if not rollout.states[0].actions:  # any text may be a program or a message
        return Finding("odd commands", "pass", f"{len(HOSTILE)} odd commands are answered")
    if rollout.commands:
        state = asked.ask(_where(rollout, 1), engine.act, rollout.commands[0])
        if difference := _difference(rollout.states[1], state):
            message = f"after commands that are not offered, {rollout.commands[0]!r:.40}: {difference}"
            return Finding("odd commands", "warning", f"{message}; a command that is not valid should change nothing")
    return Finding(
        "odd commands", "pass", f"{len(HOSTILE)} commands that are not offered are answered, and change nothing"
    )


def _actions(rollouts: Sequence[Rollout], spec: EnvironmentSpec | None) -> Finding:
    if spec is not None and not spec.admissible_actions:
        return Finding("admissible actions", "pass", "the specification says that there is no list")
    if spec is None and not any(state.actions for rollout in rollouts for state in rollout.states):
        repair = 'list them in info["admissible_actions"] for policies that draw from them, such as random'
        return Finding("admissible actions", "warning", f"the environment lists none; {repair}")
    for rollout in rollouts:
        for step, state in enumerate(rollout.states):
            if not (state.terminated or state.truncated or state.actions):
                return Finding(
                    "admissible actions",
                    "fail",
                    f"{_where(rollout, step)}: no admissible actions in a state that is not the end; list them, or set "
                    "admissible_actions=False in the specification",
                )
    return Finding("admissible actions", "pass", "every state before the end lists some")


def _parsed(rollouts: Sequence[Rollout], settings: Settings, spec: EnvironmentSpec | None) -> Finding:
    """Check that the parser of responses returns every admissible action as it is listed."""
    tag = "action" if spec is None else spec.action_tag
    listed = {action: state.actions for rollout in rollouts for state in rollout.states for action in state.actions}
    for action, actions in listed.items():
        text = f"<think>So.</think><{tag}>{action}</{tag}>" if tag else action
        response = answer_of("parse_response", settings.parse_response, text, Response)
        received = admissible(response.action, actions)
        if received != action:
            return Finding(
                "parser",
                "fail",
                f"the admissible action {action!r:.60} is parsed as {received!r:.60}; see parse_response",
            )
        if not response.valid:
            return Finding("parser", "fail", f"{action!r:.60} makes a response invalid ({response.flaw})")
    return Finding("parser", "pass", f"{len(listed)} admissible actions are parsed as they are listed")


def _success(rollouts: Sequence[Rollout]) -> Finding:
    ends = [rollout.states[-1] for rollout in rollouts if rollout.states[-1].terminated]
    unknown = sum(state.won is None for state in ends)
    if unknown:
        message = f"{unknown} of {len(ends)} finished episodes do not say whether they were won"
        return Finding("success", "warning", f"{message}; set State.won, or info['won'] in a Gymnasium environment")
    won = sum(bool(state.won) for state in ends)
    early = [rollout for rollout in rollouts if any(state.won for state in rollout.states[:-1])]
    if early:
        return Finding(
            "success", "warning", f"task {early[0].task}: won before the end; terminate when the task is solved"
        )
    return Finding("success", "pass", f"{len(ends)} of {len(rollouts)} episodes ended, {won} won")


def _limit(rollouts: Sequence[Rollout], settings: Settings) -> Finding:
    lengths = [len(rollout.commands) for rollout in rollouts if rollout.states[-1].truncated]
    own = [length for length in lengths if length < settings.max_steps]
    if own:
        message = f"the environment truncates after {max(own)} steps, the specification's limit is {settings.max_steps}"
        return Finding("step limit", "warning", f"{message}; set max_steps={max(own)} in the specification")
    return Finding("step limit", "pass", f"{settings.max_steps} steps")


def _repetition(rollouts: Sequence[Rollout], settings: Settings) -> Finding:
    """Check that states of a task repeat: steps whose state is unique are in no group."""

    def own(state: State) -> str:
        of = settings.state_key or str
        return answer_of("state key", of, state.text, str) if state.key is None else state.key

    shares = {
        "": _shared(rollouts, own),
        "mask-numbers": _shared(rollouts, lambda state: mask_numbers(state.text)),
        "sort-lines": _shared(rollouts, lambda state: sort_lines(state.text)),
    }
    best = max(shares, key=lambda name: shares[name])
    seen = f"{shares['']:.0%} of the steps share their state with another step of their task"
    if shares[best] > shares[""] + _GAIN:
        message = f"{seen}, {shares[best]:.0%} with {best}: set state_key={best!r}, or State.key"
        return Finding("repeated states", "warning", message)
    if shares[""] < _RARE:
        message = f"{seen}; groups of one step have no advantage: give State.key without what changes at every step"
        return Finding("repeated states", "warning", message)
    return Finding("repeated states", "pass", seen)


def _shared(rollouts: Sequence[Rollout], key: Callable[[State], str]) -> float:
    keys = [(rollout.task, key(state)) for rollout in rollouts for state in rollout.states[: len(rollout.commands)]]
    counts: dict[tuple[str, str], int] = {}
    for each in keys:
        counts[each] = counts.get(each, 0) + 1
    return sum(counts[each] > 1 for each in keys) / max(len(keys), 1)


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


def _where(rollout: Rollout, step: int) -> str:
    last = f" after {rollout.commands[step - 1]!r:.40}" if step else ""
    return f"task {rollout.task}, step {step}{last}"
