"""Values from policies and environments that a step table cannot store: each aborts only its trajectory."""

import dataclasses
import math
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from doors import DoorsEngine, DoorsSource
from hypothesis import given, settings
from hypothesis import strategies as st

from hgpo_datasets import StepWriter, scan_steps, verify
from hgpo_envs.engine import State, Task
from hgpo_envs.episode import settings_for
from hgpo_envs.errors import InputError
from hgpo_envs.sources import Split, share
from hgpo_train.policies.base import BatchPolicy, Failure, Reply
from hgpo_train.policies.scripted import RandomPolicy
from hgpo_train.policies.validation import checked_reply, checked_state, checked_task
from hgpo_train.rollout.env_handle import EnvHandle
from hgpo_train.rollout.run import ExecutionOptions, RolloutSpec, collect_groups

WHAT = RolloutSpec(tasks=6, group_size=2, seed=3)
MACHINE = ExecutionOptions(slots=5, groups_per_shard=4, max_consecutive_failures=64)


class Nasty:
    """An object whose methods all raise."""

    def _fail(self, *_):
        raise RuntimeError("nasty")

    __repr__ = __str__ = __len__ = __iter__ = __eq__ = __hash__ = __float__ = __index__ = __bool__ = _fail


class Shouting(str):
    """A text whose methods return wrong values."""

    __slots__ = ()

    def __str__(self):
        raise RuntimeError("shouting")

    def encode(self, *_):
        raise RuntimeError("shouting")


class Wild(BatchPolicy):
    """Random play that answers `garbage[task, step]` where there is one: a whole reply, or fields of one."""

    name, reproducible = "wild", True

    def __init__(self, garbage) -> None:
        super().__init__()
        self._garbage, self._play = garbage, RandomPolicy("response")

    def respond(self, requests):
        return [self._reply(request) for request in requests]

    def _reply(self, request):
        sound = self._play.respond([request])[0]
        bad = self._garbage.get((request.task.id, request.step), {})
        return bad["whole"] if "whole" in bad else dataclasses.replace(sound, **bad)


class WildEngine(DoorsEngine):
    garbage: dict

    def start(self, task_id):
        self.task_id, self.taken = task_id, 0
        return self._spoilt(super().start(task_id))

    def act(self, command):
        self.taken += 1
        return self._spoilt(super().act(command))

    def _spoilt(self, state):
        bad = self.garbage.get((self.task_id, self.taken), {})
        return bad["whole"] if "whole" in bad else dataclasses.replace(state, **bad)


class WildSource(DoorsSource):
    def __init__(self, garbage=None, tasks=None) -> None:
        super().__init__(20)
        self.garbage, self.spoilt_tasks = garbage or {}, tasks or {}

    def task(self, task_id):
        bad = self.spoilt_tasks.get(task_id, {})
        return bad["whole"] if "whole" in bad else dataclasses.replace(super().task(task_id), **bad)

    def engine(self):
        engine = WildEngine(self._tasks)
        engine.garbage = self.garbage
        return engine


def handle(source) -> EnvHandle:
    shared = share(source)
    return EnvHandle(
        "Wild-v0", shared, settings_for("Doors", action_format="response", max_steps=9), Split(shared, "train")
    )


def play(folder: Path, policy, source=None):
    with StepWriter(folder, run="a run", config={}) as writer:
        tally = collect_groups(handle(source or WildSource()), policy, writer, WHAT, MACHINE)
    report = verify(folder)
    assert report.ok, report.problems
    return tally, scan_steps(folder).sort("trajectory", "step").collect()


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> pl.DataFrame:
    return play(tmp_path_factory.mktemp("sound") / "run", Wild({}))[1]


TEXTS = st.text(st.characters(exclude_categories=[]), max_size=8)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**31, -(2**31) - 1, 2**63, 10**400, -1, 0, 3]),
    st.floats(),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e308, -0.0, np.float32("nan"), np.int64(7), np.bool_(True)]),
    TEXTS,
    st.binary(max_size=4),
    st.builds(Nasty),
    st.builds(Shouting, TEXTS),
    st.builds(object),
)
ARRAYS = st.sampled_from(
    [
        np.arange(3),
        np.array([math.nan]),
        np.array(["a"]),
        np.array(3),
        np.zeros((2, 2)),
        np.array([Nasty()], dtype=object),
    ]
)
GARBAGE = st.one_of(
    LEAVES, ARRAYS, st.lists(LEAVES, max_size=4), st.dictionaries(TEXTS, LEAVES, max_size=2), st.tuples(LEAVES, LEAVES)
)
REPLIES = st.one_of(
    st.fixed_dictionaries({"whole": GARBAGE}),
    st.dictionaries(
        st.sampled_from([field.name for field in dataclasses.fields(Reply)]), GARBAGE, min_size=1, max_size=3
    ),
    st.fixed_dictionaries({"whole": st.builds(Failure, TEXTS, TEXTS)}),
)
STATES = st.one_of(
    st.fixed_dictionaries({"whole": GARBAGE}),
    st.dictionaries(
        st.sampled_from([field.name for field in dataclasses.fields(State)]), GARBAGE, min_size=1, max_size=3
    ),
)
TASKS = st.one_of(
    st.fixed_dictionaries({"whole": GARBAGE}),
    st.dictionaries(
        st.sampled_from([field.name for field in dataclasses.fields(Task)]), GARBAGE, min_size=1, max_size=3
    ),
)
WHERE = st.tuples(st.sampled_from([f"train-{n}" for n in range(20)]), st.integers(0, 4))


def spared(steps: pl.DataFrame, sound: pl.DataFrame, spoilt: set[str]) -> None:
    """Check that trajectories of other tasks equal those of a run without invalid values."""
    other = ~pl.col("task_id").is_in(sorted(spoilt))
    assert steps.filter(other).equals(sound.filter(other))
    assert steps["trajectory"].n_unique() == sound["trajectory"].n_unique()
    aborted = steps.filter("aborted")
    assert aborted["error"].str.contains(r"^\w+: .").all() or aborted["error"].str.len_chars().min() > 0
    assert aborted["error"].null_count() == 0


@settings(max_examples=settings.default.max_examples // 10)
@given(st.dictionaries(WHERE, REPLIES, max_size=6))
def test_any_reply(sound, garbage):
    with tempfile.TemporaryDirectory() as folder:
        tally, steps = play(Path(folder) / "run", Wild(garbage))
    spared(steps, sound, {task for task, _ in garbage})
    assert tally.aborted == steps.filter("aborted").height


@settings(max_examples=settings.default.max_examples // 10)
@given(st.dictionaries(WHERE, STATES, max_size=6), st.dictionaries(WHERE.map(lambda at: at[0]), TASKS, max_size=2))
def test_any_state_and_any_task(sound, garbage, tasks):
    with tempfile.TemporaryDirectory() as folder:
        tally, steps = play(Path(folder) / "run", Wild({}), WildSource(garbage, tasks))
    spared(steps, sound, {task for task, _ in garbage} | set(tasks))
    assert tally.aborted == steps.filter("aborted").height


class Odd(BatchPolicy):
    """Returns a given value as what it has collected."""

    name, reproducible = "odd", True

    def __init__(self, collected) -> None:
        super().__init__()
        self.collected = collected

    def respond(self, requests):
        raise NotImplementedError

    def collect(self, timeout):
        return self.collected


@settings(max_examples=settings.default.max_examples // 10)
@given(
    st.one_of(LEAVES, st.lists(LEAVES, min_size=1, max_size=3)).filter(
        lambda value: not hasattr(value, "__len__") or isinstance(value, Nasty) or len(value)
    )
)
def test_a_policy_that_collects_nonsense_fails_its_requests(garbage):
    with tempfile.TemporaryDirectory() as folder:
        tally, _ = play(Path(folder) / "run", Odd(garbage))
    assert tally.aborted == tally.trajectories == 12


def test_a_policy_that_never_answers_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(
        sys.modules[__name__], "MACHINE", ExecutionOptions(slots=5, policy_timeout_s=0.05, max_consecutive_failures=64)
    )
    tally, steps = play(tmp_path / "run", Odd([]))
    assert tally.aborted == 12
    assert set(steps["error"]) == {"PolicyTimedOut: no answer within 0.05 s"}


@pytest.mark.parametrize("pair", [(1,), "ab", ([], Reply("x")), ("x", Reply("x")), None, (1, 2, 3)])
def test_a_policy_that_collects_no_pairs_fails_its_requests(tmp_path, pair):
    tally, steps = play(tmp_path / "run", Odd([pair]))
    assert tally.aborted == tally.trajectories == 12
    assert steps["error"].str.starts_with("PolicyFailed: ").all()


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"response": 3}, "response: expected text, received int 3"),
        ({"response": None}, "response: expected text, received None"),
        ({"finish_reason": 3}, "finish_reason: expected text, received int 3"),
        ({"prompt": b"x"}, "prompt: expected text, received bytes b'x'"),
        ({"response_logprobs": [math.nan]}, "response_logprobs: expected numbers below infinity, received nan"),
        ({"response_logprobs": [0.0, math.inf]}, "response_logprobs: expected numbers below infinity, received inf"),
        ({"response_logprobs": ["-0.5"]}, "response_logprobs: expected numbers, received str '-0.5'"),
        ({"response_logprobs": [None]}, "response_logprobs: expected numbers, received None"),
        ({"response_logprobs": "-0.5"}, "response_logprobs: expected a list of numbers, received str '-0.5'"),
        (
            {"response_token_ids": [1.5]},
            "response_token_ids: expected integers from 0 to 2147483647, received float 1.5",
        ),
        ({"response_token_ids": ["1"]}, "response_token_ids: expected integers from 0 to 2147483647, received str '1'"),
        (
            {"prompt_token_ids": [2**31]},
            "prompt_token_ids: expected integers from 0 to 2147483647, received 2147483648",
        ),
        ({"prompt_token_ids": [-1]}, "prompt_token_ids: expected integers from 0 to 2147483647, received -1"),
        ({"prompt_token_ids": {1: 2}}, "prompt_token_ids: expected a list of token ids, received dict {1: 2}"),
        (
            {"response_token_ids": [1, 2], "response_logprobs": [-0.5]},
            "expected one log-probability for each of 2 tokens, received 1",
        ),
        ({"cut_pairs": -1}, "cut_pairs: expected an integer from 0 to 2147483647, received int -1"),
        ({"cut_tokens": 2.0}, "cut_tokens: expected an integer from 0 to 2147483647, received float 2.0"),
        ({"cut_tokens": True}, "cut_tokens: expected an integer from 0 to 2147483647, received bool True"),
    ],
)
def test_invalid_replies_name_the_value(fields, line):
    assert checked_reply(Reply(**{"response": "look", **fields})) == Failure("PolicyFailed", line)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"text": None}, "state text: expected text, received None"),
        ({"actions": "look"}, "admissible actions: expected a list of texts, received str 'look'"),
        ({"actions": ["look", 3]}, "admissible actions: expected text, received int 3"),
        ({"reward": math.nan}, "reward: expected a finite number, received float nan"),
        ({"reward": math.inf}, "reward: expected a finite number, received float inf"),
        ({"reward": 1e308}, "reward: expected a finite number, received float 1e+308"),
        ({"reward": "1"}, "reward: expected a finite number, received str '1'"),
        ({"score": None}, "score: expected a finite number, received None"),
        ({"won": 1}, "won: expected true or false, received int 1"),
        ({"terminated": "no"}, "terminated: expected true or false, received str 'no'"),
    ],
)
def test_invalid_states_name_the_value(fields, line):
    state = dataclasses.replace(State("here", ["look"], True, False, False, 0.0, 0.0, {}), **fields)
    assert checked_state(state) == Failure("EnvironmentFailed", line)


def test_valid_values_are_unchanged():
    reply = Reply("look", "p", [0, 2**31 - 1], [5], [-math.inf], None, 0, 3)
    assert checked_reply(reply) == reply
    numbers = Reply("look", None, np.arange(2), (np.int32(5),), np.array([-0.5], dtype=np.float32))
    assert checked_reply(numbers) == Reply("look", None, [0, 1], [5], [-0.5])
    state = State("here", ("look",), np.bool_(True), False, False, 1, np.float64(0.5), {"any": object()})
    assert checked_state(state) == dataclasses.replace(state, reward=1.0)
    task = Task("t", "train", "do it", "kind", {"a": "1"})
    assert checked_task(task) == task


def test_lone_surrogates_become_replacement_characters():
    reply = checked_reply(Reply("a\ud800b\udfff \ud83d\ude00"))
    assert reply.response == "a\ufffdb\ufffd \U0001f600"
    state = checked_state(State("\udc80", ["go \udfff"], True, False, False, 0.0, 0.0, {}))
    assert (state.text, state.actions) == ("\ufffd", ("go \ufffd",))


def test_errors_not_caused_by_a_trajectory_are_raised(tmp_path):
    class Full(StepWriter):
        def add_group(self, steps):
            raise InputError("this run is finished")

    with Full(tmp_path / "run") as writer, pytest.raises(InputError, match="this run is finished"):
        collect_groups(handle(WildSource()), Wild({}), writer, WHAT, MACHINE)


@pytest.mark.parametrize("ids", [[3], ["\ud800"], [None]])
def test_task_ids_that_are_not_text_are_refused(tmp_path, ids):
    source = WildSource()
    source.ids = lambda split: ids
    with StepWriter(tmp_path / "run") as writer, pytest.raises(InputError, match="as a task id, received"):
        collect_groups(handle(source), Wild({}), writer, WHAT, MACHINE)
