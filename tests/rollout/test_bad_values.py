"""Values from policies and environments that a step table cannot store: each aborts only its trajectory."""

import dataclasses
import math
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from doors import DoorsEngine, DoorsSource
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from hgpo_datasets import StepWriter, scan_steps, verify
from hgpo_envs.engine import State, Task
from hgpo_envs.episode import settings_for
from hgpo_envs.errors import InputError
from hgpo_envs.files import secrets
from hgpo_envs.sources import SharedSource, Split
from hgpo_train.policies.base import BatchPolicy, Failure, Reply
from hgpo_train.policies.scripted import RandomPolicy
from hgpo_train.policies.validation import checked
from hgpo_train.rollout.env_handle import EnvHandle
from hgpo_train.rollout.plan import ExecutionOptions, RolloutSpec
from hgpo_train.rollout.run import collect_groups

SPEC = RolloutSpec(tasks=6, group_size=2, seed=3)
EXECUTION = ExecutionOptions(slots=5, groups_per_shard=4, max_consecutive_failures=64)


class Nasty:
    """An object whose methods all raise."""

    def _fail(self, *_):
        raise RuntimeError("nasty")

    __repr__ = __str__ = __len__ = __iter__ = __eq__ = __hash__ = __float__ = (
        __index__
    ) = __bool__ = _fail


class Shouting(str):
    """A text whose methods return wrong values."""

    __slots__ = ()

    def __str__(self):
        raise RuntimeError("shouting")

    def encode(self, *_):
        raise RuntimeError("shouting")


def spoilt(value, garbage):
    """Return a value with fields replaced by garbage; the field "whole" replaces the value."""
    return (
        garbage["whole"]
        if "whole" in garbage
        else dataclasses.replace(value, **garbage)
    )


class Wild(BatchPolicy):
    """Random play whose replies are spoilt by `garbage[task, step]`."""

    name = "wild"
    reproducible = True

    def __init__(self, garbage) -> None:
        super().__init__()
        self._garbage = garbage
        self._play = RandomPolicy("response")

    def respond(self, requests):
        replies = self._play.respond(requests)
        pairs = zip(requests, replies, strict=True)
        return [
            spoilt(reply, self._garbage.get((request.task.id, request.step), {}))
            for request, reply in pairs
        ]


class WildEngine(DoorsEngine):
    garbage: dict

    def start(self, task_id):
        self.task_id = task_id
        self.taken = 0
        return spoilt(super().start(task_id), self.garbage.get((task_id, 0), {}))

    def act(self, command):
        self.taken += 1
        return spoilt(
            super().act(command), self.garbage.get((self.task_id, self.taken), {})
        )


class WildSource(DoorsSource):
    def __init__(self, garbage=None, tasks=None) -> None:
        super().__init__(20)
        self.garbage = garbage or {}
        self.spoilt_tasks = tasks or {}

    def task(self, task_id):
        return spoilt(super().task(task_id), self.spoilt_tasks.get(task_id, {}))

    def engine(self):
        engine = WildEngine(self._tasks)
        engine.garbage = self.garbage
        return engine


def handle(source):
    shared = SharedSource(source)
    episodes = settings_for("Doors", action_format="response", max_steps=9)
    return EnvHandle("Wild-v0", shared, episodes, Split(shared, "train"))


def play(policy, source=None, execution=EXECUTION):
    with tempfile.TemporaryDirectory() as folder:
        with StepWriter(Path(folder) / "run", run="a run", config={}) as writer:
            tally = collect_groups(
                handle(source or WildSource()), policy, writer, SPEC, execution
            )
        report = verify(Path(folder) / "run")
        assert report.ok, report.problems
        return tally, scan_steps(Path(folder) / "run").sort(
            "trajectory", "step"
        ).collect()


@pytest.fixture(scope="module")
def sound():
    return play(Wild({}))[1]


TEXTS = st.text(st.characters(exclude_categories=[]), max_size=8)
ODD = [
    2**31,
    -(2**31) - 1,
    2**63,
    10**400,
    -1,
    0,
    3,
    math.nan,
    math.inf,
    1e308,
    np.float32("nan"),
    np.int64(7),
]
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from(
        [
            *ODD,
            np.bool_(True),
            np.array([math.nan]),
            np.array(["a"]),
            np.array(3),
            np.zeros((2, 2)),
        ]
    ),
    TEXTS,
    st.binary(max_size=4),
    st.builds(Nasty),
    st.builds(Shouting, TEXTS),
)
GARBAGE = (
    LEAVES | st.lists(LEAVES, max_size=4) | st.dictionaries(TEXTS, LEAVES, max_size=2)
)
WHERE = st.tuples(st.sampled_from([f"train-{n}" for n in range(20)]), st.integers(0, 4))


def parts_of(kind):
    fields = st.sampled_from([field.name for field in dataclasses.fields(kind)])
    return st.fixed_dictionaries({"whole": GARBAGE}) | st.dictionaries(
        fields, GARBAGE, min_size=1, max_size=3
    )


def check_spared(tally, steps, sound, tasks):
    """Check that trajectories of other tasks equal those of a run without invalid values."""
    other = ~pl.col("task_id").is_in(sorted(tasks))
    assert steps.filter(other).equals(sound.filter(other))
    assert steps["trajectory"].n_unique() == sound["trajectory"].n_unique()
    aborted = steps.filter("aborted")
    assert aborted["error"].str.len_chars().min() != 0
    assert aborted["error"].null_count() == 0
    assert tally.aborted == len(aborted)


@pytest.mark.slow
@settings(max_examples=settings.default.max_examples // 10)
@given(st.dictionaries(WHERE, parts_of(Reply), max_size=6))
def test_any_reply(sound, garbage):
    check_spared(*play(Wild(garbage)), sound, {task for task, _ in garbage})


@pytest.mark.slow
@settings(max_examples=settings.default.max_examples // 10)
@given(
    st.dictionaries(WHERE, parts_of(State), max_size=6),
    st.dictionaries(WHERE.map(lambda at: at[0]), parts_of(Task), max_size=2),
)
def test_any_state_and_any_task(sound, garbage, tasks):
    check_spared(
        *play(Wild({}), WildSource(garbage, tasks)),
        sound,
        {task for task, _ in garbage} | set(tasks),
    )


class Odd(BatchPolicy):
    """Returns a given value as what it has collected."""

    name = "odd"
    reproducible = True

    def __init__(self, collected) -> None:
        super().__init__()
        self.collected = collected

    def respond(self, requests):
        raise NotImplementedError

    def collect(self, timeout):
        return self.collected


@pytest.mark.parametrize(
    "collected",
    [
        Nasty(),
        3,
        [None],
        ["ab"],
        [(1,)],
        [([], Reply("x"))],
        [("x", Reply("x"))],
    ],
)
def test_a_policy_that_collects_no_pairs_fails_its_requests(collected):
    tally, steps = play(Odd(collected))
    assert tally.aborted == tally.trajectories == 12
    assert steps["error"].str.starts_with("PolicyFailed: ").all()


def test_a_policy_that_never_answers_is_not_waited_for():
    tally, steps = play(
        Odd([]), execution=dataclasses.replace(EXECUTION, policy_timeout_s=0.05)
    )
    assert tally.aborted == 12
    assert set(steps["error"]) == {"PolicyTimedOut: no answer within 0.05 s"}


def test_invalid_replies_name_the_value():
    for fields, line in (
        ({"response": 3}, "response: expected text, received int 3"),
        ({"prompt": b"x"}, "prompt: expected text, received bytes b'x'"),
        (
            {"response_logprobs": [math.nan]},
            "response_logprobs: expected numbers from -inf to 0.001, received list",
        ),
        (
            {"response_logprobs": [0, math.inf]},
            "response_logprobs: expected numbers from -inf to 0.001, received",
        ),
        (
            {"response_logprobs": "-0.5"},
            "response_logprobs: expected numbers from -inf to 0.001, received str",
        ),
        (
            {"response_token_ids": [1.5]},
            "response_token_ids: expected integers from 0 to 2147483647, received list",
        ),
        (
            {"response_token_ids": [True]},
            "response_token_ids: expected integers from 0 to 2147483647, received list",
        ),
        (
            {"prompt_token_ids": [2**31]},
            "prompt_token_ids: expected integers from 0 to 2147483647, received list",
        ),
        (
            {"prompt_token_ids": {1: 2}},
            "prompt_token_ids: expected integers from 0 to 2147483647, received dict",
        ),
        (
            {"response_token_ids": [1, 2], "response_logprobs": [-0.5]},
            "expected one log-probability for each of 2 tok",
        ),
        (
            {"cut_tokens": 2.0},
            "cut_tokens: expected an integer from 0 to 2147483647, received float 2.0",
        ),
    ):
        failure = checked(Reply, Reply(**{"response": "look", **fields}))
        assert isinstance(failure, Failure)
        assert str(failure).startswith(f"PolicyFailed: {line}")


def test_invalid_states_name_the_value():
    for fields, line in (
        ({"text": None}, "state text: expected text, received None"),
        (
            {"actions": "look"},
            "admissible actions: expected a list of texts, received str 'look'",
        ),
        ({"actions": ["look", 3]}, "admissible actions: expected text, received int 3"),
        ({"actions": ("look", 3)}, "admissible actions: expected text, received int 3"),
        ({"reward": 1e308}, "reward: expected a finite number, received float 1e+308"),
        ({"score": math.nan}, "score: expected a number in [0, 1], received float nan"),
        ({"score": 100}, "score: expected a number in [0, 1], received int 100"),
        ({"won": 1}, "won: expected true or false, received int 1"),
    ):
        for actions in ([], ("look",)):
            assert checked(
                State, State(**{"text": "here", "actions": actions, **fields})
            ) == Failure("EnvironmentFailed", line)


def test_a_set_of_actions_has_one_order_in_every_process():
    numbers = [f"open {number:02}" for number in range(30)]
    for kind in (set, frozenset):
        assert checked(State, State("here", kind(numbers))).actions == tuple(numbers)


def test_valid_values_are_unchanged_and_lone_surrogates_become_replacement_characters():
    reply = Reply("look", "p", [0, 2**31 - 1], [5], [-math.inf], None, 0, 3)
    assert checked(Reply, reply) == reply
    logprobs = np.array([-0.5], dtype=np.float32)
    numbers = Reply("look", None, np.arange(2), (np.int32(5),), logprobs)
    assert checked(Reply, numbers) == Reply("look", None, [0, 1], [5], [-0.5])
    state = State(
        "here",
        ("look",),
        np.bool_(True),
        False,
        False,
        1,
        np.float64(0.5),
        {"any": object()},
    )
    assert checked(State, state) == dataclasses.replace(state, reward=1.0)
    task = Task("t", "train", "do it", "kind", {"a": "1"})
    assert checked(Task, task) == task
    assert (
        checked(Reply, Reply("a\ud800b\udfff \ud83d\ude00")).response
        == "a\ufffdb\ufffd \U0001f600"
    )
    state = checked(State, State("\udc80", ["go \udfff"]))
    assert (state.text, state.actions) == ("\ufffd", ("go \ufffd",))


def test_actions_are_checked_again_for_a_secret_that_is_registered_later(monkeypatch):
    monkeypatch.setattr(secrets, "registered", ())
    actions = ("open door", "say swordfish")
    for _ in range(2):
        assert checked(State, State("", actions)).actions is actions
    secrets.register("swordfish")
    assert checked(State, State("", actions)).actions == ("open door", "say ***")


def test_errors_not_caused_by_a_trajectory_are_raised(tmp_path):
    class Full(StepWriter):
        def add_group(self, steps, *, checked):
            raise InputError("this run is finished")

    with (
        Full(tmp_path / "run") as writer,
        refused("this run is finished"),
    ):
        collect_groups(handle(WildSource()), Wild({}), writer, SPEC, EXECUTION)


@pytest.mark.parametrize("ids", [[3], ["\ud800"], [None]])
def test_task_ids_that_are_not_text_are_refused(tmp_path, ids):
    source = WildSource()
    source.ids = lambda split: ids
    with (
        StepWriter(tmp_path / "run") as writer,
        refused("as a task id, received"),
    ):
        collect_groups(handle(source), Wild({}), writer, SPEC, EXECUTION)
