"""`collect`: any kind of policy, what a function receives, errors of own policies, and the run that it returns."""

import asyncio
import re
import signal
import traceback
import warnings
from pathlib import Path

import gymnasium
import polars as pl
import pytest
from chat_server import Api
from command import finished
from refusals import refused

from hgpo_datasets import StepWriter, scan_steps
from hgpo_train.policies.base import AsyncPolicy, BatchPolicy
from hgpo_train.policies.registry import own_policy
from hgpo_train.rollout import (
    ExecutionOptions,
    PolicySpec,
    Reply,
    Request,
    RolloutError,
    RolloutSpec,
    collect,
    collect_groups,
    open_env,
    progress_line,
)
from hgpo_train.rollout.sessions import read_sessions

DOORS = "doors_env:HGPO-Test/Doors-v0"


def first(request):
    return request.admissible_actions[0]


async def soon(request):
    await asyncio.sleep(0)
    return request.admissible_actions[0]


class Responder:
    def respond(self, requests):
        return [request.admissible_actions[0] for request in requests]


class Callable:
    def __call__(self, request):
        return Reply(request.admissible_actions[0], response_token_ids=[1, 2])


class Batched(BatchPolicy):
    def respond(self, requests):
        return [first(request) for request in requests]


class Concurrent(AsyncPolicy):
    async def reply(self, request):
        return first(request)


def play(policy, out, **arguments):
    return collect(
        DOORS,
        policy,
        out,
        **{"tasks": 3, "group_size": 2, "max_steps": 4, "progress": False, **arguments},
    )


KINDS = (
    first,
    lambda request: request.admissible_actions[0],
    soon,
    Responder(),
    Callable(),
    Batched(),
    Concurrent(),
)
KINDS += (
    PolicySpec(lambda argument, context: Batched()),
    "test_collect_policies:first",
)


@pytest.mark.parametrize(
    "policy",
    KINDS,
    ids=lambda policy: getattr(policy, "__qualname__", type(policy).__name__),
)
def test_every_kind_of_policy_plays_the_same(tmp_path, monkeypatch, policy):
    monkeypatch.chdir(tmp_path)
    Path("test_collect_policies.py").write_text(
        "def first(request):\n    return request.admissible_actions[0]\n"
    )
    expected = play(first, tmp_path / "expected").steps.sort("trajectory", "step")
    run = play(policy, tmp_path / "run", action_format="command")
    columns = ["task_id", "step", "state", "action", "action_valid", "reward"]
    assert (
        run.steps.sort("trajectory", "step")
        .select(columns)
        .collect()
        .equals(expected.select(columns).collect())
    )
    assert run.summary["rollouts"] == 6
    assert run.summary["valid"] == 1.0


def test_the_sessions_of_a_run_are_recorded(tmp_path):
    play(first, tmp_path / "run", tasks=2)
    play(first, tmp_path / "run", tasks=3, slots=2)
    one, two = read_sessions(tmp_path / "run")
    assert (one.groups_before, one.rollouts, two.groups_before, two.rollouts) == (
        0,
        4,
        2,
        2,
    )
    assert (one.ended, two.ended, two.slots) == ("complete", "complete", 2)


def test_a_function_receives_the_documented_fields(tmp_path):
    seen: list[Request] = []

    def look(request: Request) -> str:
        seen.append(request)
        assert request.rng is request.rng
        return "look"

    play(look, tmp_path / "run", tasks=1, group_size=1)
    steps = scan_steps(tmp_path / "run").sort("step").collect()
    assert [request.observation for request in seen] == steps["state"].to_list()
    assert [request.prompt for request in seen] == steps["prompt"].to_list()
    assert [request.step for request in seen] == [0, 1, 2, 3]
    assert {request.instruction for request in seen} == set(steps["task"])
    assert {request.task.id for request in seen} == set(steps["task_id"])
    assert seen[0].messages == [{"role": "user", "content": seen[0].prompt}]
    assert all(isinstance(action, str) for action in seen[0].admissible_actions)
    assert len({request.rng.random() for request in seen}) == 4


def test_actions_are_commands_for_functions_and_responses_for_names(tmp_path):
    assert (
        "<action>"
        not in play(first, tmp_path / "function").steps.collect()["prompt"][0]
    )
    assert "<action>" in play("random", tmp_path / "name").steps.collect()["prompt"][0]
    assert (
        "<action>"
        in play(first, tmp_path / "asked", action_format="response").steps.collect()[
            "prompt"
        ][0]
    )


@pytest.mark.parametrize(
    "env",
    [
        lambda: open_env(DOORS, max_steps=4),
        lambda: gymnasium.make("HGPO-Test/Doors-v0"),
    ],
)
def test_an_open_environment_is_an_environment(tmp_path, env):
    open_env(DOORS)  # registers it
    run = collect(env(), first, tmp_path / "run", tasks=2, group_size=2, progress=False)
    assert run.summary["rollouts"] == 4


def test_the_run_is_a_path_and_is_resumed(tmp_path):
    run = play(first, tmp_path / "run")
    assert scan_steps(run).collect().equals(run.steps.collect())
    again = play(first, tmp_path / "run", tasks=5)
    assert (
        again.summary["groups"],
        again.summary["rollouts"],
        again.tally.trajectories,
    ) == (
        5,
        10,
        4,
    )
    assert "5 groups, 10 rollouts, 0 failed" in repr(again)


def fails_late(request):
    if request.task.id == LATE[0]:
        raise ZeroDivisionError("a bug of mine")
    return "look"


LATE: list[str] = []


def test_a_bug_is_raised_with_its_traceback_and_committed_groups_stay(tmp_path):
    def looks(request: Request) -> str:
        return "look"

    played = play(looks, tmp_path / "look", tasks=12).steps.select(
        pl.col("task_id").unique(maintain_order=True)
    )
    LATE[:] = [played.collect()["task_id"][9]]
    with pytest.raises(ZeroDivisionError, match="a bug of mine") as caught:
        play(fails_late, tmp_path / "run", tasks=12, slots=2)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "fails_late"
    (note,) = caught.value.__notes__
    assert note.startswith(
        f"Raised by the policy fails_late at step 0 of task {LATE[0]}"
    )
    steps = scan_steps(tmp_path / "run").collect()
    assert not steps["aborted"].any()
    assert 0 < steps["task_id"].n_unique() <= 11
    LATE[:] = [""]  # the bug is fixed: the other groups are played
    assert play(fails_late, tmp_path / "run", tasks=12).summary["groups"] == 12


class RaisingResponder:
    def respond(self, requests):
        raise KeyError("mine")


class Raising(RaisingResponder, BatchPolicy):
    pass


class Direct:
    """The policy protocol without a base class."""

    name = "direct"
    reproducible = False
    version = 0

    def submit(self, requests):
        self.requests = requests

    def collect(self, timeout):
        raise KeyError("mine")

    def close(self):
        pass


class Counting:
    """An object with `respond` that counts how often it is closed."""

    closed = 0

    def respond(self, requests):
        return ["look"] * len(requests)

    def close(self):
        self.closed += 1


class CountingPolicy(Counting, BatchPolicy):
    name = "counting"
    reproducible = True


@pytest.mark.parametrize("kind", [Counting, CountingPolicy])
def test_a_policy_of_the_caller_stays_open(tmp_path, kind):
    policy = kind()
    for number in range(2):
        play(policy, tmp_path / str(number))
    assert policy.closed == 0
    play(PolicySpec(lambda argument, context: policy), tmp_path / "made")
    assert policy.closed == 1


async def raises_soon(request):
    await asyncio.sleep(0)
    raise KeyError("mine")


@pytest.mark.parametrize(
    "policy",
    [
        Raising(),
        Direct(),
        raises_soon,
        RaisingResponder(),
        PolicySpec(lambda argument, context: Raising()),
    ],
)
def test_bugs_of_every_kind_of_own_policy_are_raised_at_once(tmp_path, policy):
    with pytest.raises(KeyError, match="mine"):
        play(policy, tmp_path / "new" / "run")
    assert not (tmp_path / "new").exists()  # nothing was committed


def test_a_policy_that_exits_is_reported(tmp_path):
    """The command ended with the policy's own exit code and without a word."""

    def leave(request: Request) -> str:
        raise SystemExit(7)

    with pytest.raises(RuntimeError, match="the policy raised SystemExit: 7"):
        play(leave, tmp_path / "run")


def caused():
    error = RuntimeError("the client gave up")
    error.__cause__ = ConnectionResetError("no route")
    return error


@pytest.mark.parametrize(
    "error", [ConnectionError("no route"), TimeoutError("slow"), caused()], ids=repr
)
def test_transient_errors_fail_their_rollout_only(tmp_path, error):
    def sometimes(request: Request) -> str:
        if request.rng.random() < 0.02:
            raise error
        return "look"

    run = play(sometimes, tmp_path / "run", tasks=20, max_failed=1)
    assert 0 < run.summary["failed"] < run.summary["rollouts"]
    errors = (
        run.steps.select(pl.col("error").drop_nulls().unique())
        .collect()["error"]
        .to_list()
    )
    assert errors == [f"PolicyFailed: {type(error).__name__}: {error}"]


def test_a_policy_may_keep_failing_rollouts(tmp_path):
    class Lenient(Raising):
        raise_errors = False

    class Plain(Responder):
        raise_errors = False

        def respond(self, requests):
            raise KeyError(len(requests))

    for policy in (Lenient(), Plain()):
        with pytest.raises(RolloutError, match="PolicyFailed: KeyError"):
            play(policy, tmp_path / type(policy).__name__)


def test_slow_groups_are_committed_as_they_finish(tmp_path):
    """A killed process loses little, and a viewer sees them."""
    env = open_env(DOORS, action_format="command", max_steps=4)
    for shard_s, shards in ((1e-9, 3), (None, 1), (60.0, 1)):
        with StepWriter(tmp_path / f"{shard_s}") as writer:
            execution = ExecutionOptions(slots=1, shard_s=shard_s)
            collect_groups(
                env,
                own_policy(first),
                writer,
                RolloutSpec(tasks=3, group_size=2),
                execution,
            )
        assert len(list((tmp_path / f"{shard_s}" / "steps").iterdir())) == shards


def test_changed_code_of_a_function_is_reported(tmp_path):
    def last(request: Request) -> str:
        return request.admissible_actions[-1]

    last.name = "first"  # type: ignore[attr-defined]
    play(first, tmp_path / "run")
    play(first, tmp_path / "run")
    with pytest.warns(
        UserWarning,
        match="was played with other code of the policy first; its groups are not played",
    ):
        assert play(last, tmp_path / "run", tasks=4).summary["groups"] == 4


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (1, "^Nothing was kept, because no group had ended"),
        (5, "^1 finished group is kept in .*run;"),
    ],
)
def test_an_interruption_says_what_is_kept(tmp_path, number, line):
    """Ctrl-C at a request, with groups of two rollouts of two steps, one after the other."""
    asked = []

    def interrupting(request):
        asked.append(request)
        if len(asked) == number:
            signal.raise_signal(signal.SIGINT)
        return "stand still"

    size = {"tasks": 3, "group_size": 2, "max_steps": 2, "slots": 1}
    with pytest.raises(KeyboardInterrupt, match=line):
        collect(DOORS, interrupting, tmp_path / "run", progress=False, **size)
    assert (tmp_path / "run").exists() == (number > 1)


@pytest.mark.slow
def test_another_server_is_reported_at_the_line_that_calls_collect(tmp_path):
    pytest.importorskip("aiohttp")
    for again in (False, True):
        with Api() as api, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            options = {"base_url": api.url}
            collect(
                DOORS,
                "openai:tiny",
                tmp_path / "run",
                tasks=1,
                max_steps=3,
                policy_options=options,
            )
        reported = [
            warning
            for warning in caught
            if "is now resumed with" in str(warning.message)
        ]
        assert [warning.filename for warning in reported] == [__file__] * again


def responder(respond):
    return type("Mine", (), {"respond": staticmethod(respond)})()


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        (
            lambda request: None,
            r"policy .*: expected a text \(str\) or a Reply, received None",
        ),
        (
            lambda request: 3,
            r"policy .*: expected a text \(str\) or a Reply, received int 3",
        ),
        (
            lambda request: Reply("x", cut_pairs=-1),
            r"policy .*: cut_pairs: expected an integer",
        ),
        (
            3,
            "policy: expected a PolicySpec, a function of one request, .* received int 3",
        ),
        (
            None,
            "policy: expected a PolicySpec, a function of one request, .* received None",
        ),
        (int, "policy: expected a PolicySpec, .* received type <class 'int'>"),
        ("randm", "unknown policy 'randm'; did you mean 'random'"),
        (
            responder(lambda _: "look"),
            "policy Mine: expected `respond` to return a list of 6 .* received str 'look'",
        ),
        (
            responder(lambda _: None),
            "policy Mine: expected `respond` to return a list of 6 .* received NoneType None",
        ),
        (
            responder(lambda _: ["look"]),
            "policy Mine: expected `respond` to return .*, one per request, received 1",
        ),
        (
            responder(lambda _: [3] * 6),
            r"policy Mine: expected a text \(str\) or a Reply, received int 3",
        ),
    ],
)
def test_wrong_policies_are_one_line(tmp_path, policy, line):
    with refused(line):
        play(policy, tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_wrong_arguments_are_one_line(tmp_path):
    for arguments, line in (
        (
            {"env": 3},
            "env: expected a Gymnasium id such as 'HGPO/ALFWorld-v0', received 3",
        ),
        ({"env": DOORS, "task": 1}, "unknown argument 'task'; did you mean 'tasks'?"),
    ):
        with refused(f"^.*{re.escape(line)}.*$"):
            collect(policy=first, out=tmp_path / "run", **arguments)
        assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_line_shows_the_traceback_of_the_users_file(tmp_path, monkeypatch):
    estimator = (
        "def late(steps):\n    return steps.with_columns(advantage={}['scale'])\n"
    )
    (tmp_path / "mine.py").write_text(
        f"def bug(request):\n    return request.observation[10**6]\n{estimator}"
    )
    monkeypatch.chdir(tmp_path)
    code, _, error = finished(
        "rollout", "--env", DOORS, "--policy", "mine:bug", "--out", "run"
    )
    assert code == 1
    lines = error.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith('mine.py", line 2, in bug')
    assert "IndexError: string index out of range" in error
    assert lines[-1].startswith("Raised by the policy bug at step 0 of task")
    play(first, tmp_path / "steps")
    code, _, error = finished(
        "advantages", "steps", "--estimator", "mine:late", "--out", "x.parquet"
    )
    lines = error.splitlines()
    assert (code, lines[1].endswith('mine.py", line 4, in late'), lines[-1]) == (
        1,
        True,
        '''KeyError: "'scale'"''',
    )


def test_progress_in_a_file_is_a_line_now_and_then(tmp_path, capsys, monkeypatch):
    play(first, tmp_path / "quick", progress=True)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress_line, "INTERVAL_S", 0.0)
    play(first, tmp_path / "slow", progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(
        r"6 of 6 rollouts, \S+ steps/s · \d of 6 finished solved", lines[-1]
    ), lines
