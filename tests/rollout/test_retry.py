"""Failures have an exit status and a way back: what failed is played again, and leaves no hole."""

import signal
import time

import pytest
from asked import Failing
from chat_server import Api, by_seed
from command import DOORS, finished, hgpo

from hgpo_datasets import scan_steps, verify
from hgpo_train.rollout.failures import (
    MAX_FAILED,
    FailureSummary,
    RolloutError,
    failures_of,
    raise_if_too_many,
)
from hgpo_train.rollout.outcomes import rollout_table
from hgpo_train.rollout.plan import ExecutionOptions, RolloutSpec

MACHINE = ExecutionOptions(slots=7, groups_per_shard=3, max_consecutive_failures=64)
ASKED = {"spec": RolloutSpec(tasks=10, group_size=4, seed=3), "execution": MACHINE}


def a_fifth(request):
    return None if request.seed % 5 else f"no answer to request {request.id}"


def content(runs, name):
    assert verify(runs.folder / name).ok
    return runs.steps(name).sort("trajectory", "step")


@pytest.mark.slow
@pytest.mark.parametrize("share", [5, 2, 1])
def test_only_failed_rollouts_are_retried(runs, share):
    runs.collect("sound", Failing(), **ASKED)
    sound = content(runs, "sound")
    first = runs.collect(
        "run",
        Failing(lambda request: request.step == 1 and request.seed % share == 0),
        **ASKED,
    )
    before = content(runs, "run")
    assert first.aborted == before.filter("aborted").height > 3
    # unless it is asked for
    assert runs.collect("run", Failing(), **ASKED).trajectories == 0
    policy = Failing()
    second = runs.collect("run", policy, **ASKED, retry_failed=True)
    assert second.trajectories == first.aborted
    again = sound.join(before.filter("aborted"), on="trajectory", how="semi")
    assert policy.asked == again.height
    assert content(runs, "run").equals(sound)
    assert runs.collect("run", Failing(), **ASKED, retry_failed=True).trajectories == 0


@pytest.mark.slow
def test_a_rollout_that_fails_again_stores_the_new_reason_and_is_retried(runs):
    """The last call also plays more tasks."""
    more = {**ASKED, "spec": RolloutSpec(tasks=14, group_size=4, seed=3)}
    runs.collect("sound", Failing(), **more)
    runs.collect("run", Failing(a_fifth), **ASKED)
    failed = content(runs, "run").filter("aborted")["trajectory"].to_list()
    tally = runs.collect(
        "run", Failing(lambda _: "still down"), **ASKED, retry_failed=True
    )
    assert tally.aborted == len(failed)
    after = content(runs, "run").filter("aborted")
    assert sorted(after["trajectory"]) == sorted(failed)
    assert set(after["error"]) == {"PolicyFailed: still down"}
    tally = runs.collect("run", Failing(), **more, retry_failed=True)
    assert tally.trajectories == 16 + len(failed)
    assert content(runs, "run").equals(content(runs, "sound"))


def test_the_share_of_failures_from_which_a_run_fails():
    for rollouts, failed, most in (
        (0, 0, 0.0),
        (10, 0, 0.0),
        (10, 1, MAX_FAILED),
        (10, 9, 1.0),
    ):
        raise_if_too_many(FailureSummary(rollouts, failed, {"x.": failed}), most)
    # all is always too much
    for rollouts, failed, most in (
        (10, 2, MAX_FAILED),
        (1, 1, MAX_FAILED),
        (10, 10, 1.0),
    ):
        line = rf"^{failed} of {rollouts} rollouts failed \(.*%\): {failed} × x\. A"
        with pytest.raises(RolloutError, match=line):
            raise_if_too_many(
                FailureSummary(rollouts, failed, {"x.": failed}), most, "Advice."
            )


def test_failures_of_a_table_and_of_a_tally(runs):
    tally = runs.collect("run", Failing(a_fifth), **ASKED)
    steps = scan_steps(runs.folder / "run")
    told = failures_of(rollout_table(steps).collect())
    ((reason, times),) = told.reasons
    assert (told.rollouts, told.failed, times) == (40, tally.aborted, tally.aborted)
    assert reason.startswith("PolicyFailed: no answer to request ")
    now = tally.failures
    assert (now.rollouts, now.failed, now.reasons[0][1]) == (
        40,
        tally.aborted,
        tally.aborted,
    )


# As a user has it: processes, a server that is down for a while.


def server_command(api, out, *more):
    options = [f"base_url={api.url}", "retries=0", "concurrency=8", "timeout_s=20"]
    given = [word for option in options for word in ("--policy-option", option)]
    sizes = ["--tasks", "10", "--group-size", "4", "--seed", "1", "--slots", "8"]
    return [*DOORS, "--policy", "openai:tiny", *sizes, "--out", str(out), *given, *more]


def run(command):
    code, out, error = finished(*command)
    return code, out + error


def table(out):
    report = verify(out)
    assert report.ok, report.problems
    return (
        scan_steps(out)
        .drop("run", "policy_s", "environment_s")
        .sort("trajectory", "step")
        .collect()
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    with Api() as api:
        api.answer = by_seed
        code, told = run(server_command(api, out))
    assert code == 0, told
    return table(out)


def down(from_request, to_request, how):
    """A server that fails from one request to another."""
    asked = iter(range(10**9))

    def answer(body, attempt):
        return how if from_request <= next(asked) < to_request else by_seed(body)

    return answer


@pytest.mark.slow
def test_a_short_outage_is_reported_and_does_not_fail_the_run(tmp_path, undisturbed):
    out = tmp_path / "run"
    with Api() as api:
        api.answer = down(60, 62, (500, {"error": {"message": "one moment"}}, {}))
        code, told = run(server_command(api, out))
        assert code == 0, told
        line = "2 of 40 rollouts failed (5%): 2 × PolicyFailed: HTTP 500: one moment. Run the same command again"
        assert line in told
        code, told = run(
            server_command(api, out, "--no-retry-failed", "--max-failed", "0.04")
        )
        assert code == 1  # nothing is played, and still the table has too many failures
        # what there is is shown, with bounds
        assert "if the 2 aborted rollouts are lost" in told
        code, told = run(server_command(api, out, "--retry-failed"))
        assert code == 0, told
    assert table(out).equals(undisturbed)


@pytest.mark.slow
def test_a_killed_retry_is_resumed(tmp_path, undisturbed):
    out = tmp_path / "run"
    with Api() as api:
        api.answer = down(60, 10**9, (500, {"error": {"message": "down"}}, {}))
        assert run(server_command(api, out))[0] == 1
        for requests in (5, 40, 90):
            api.bodies.clear()
            api.answer = by_seed
            process = hgpo(*server_command(api, out))
            until = time.monotonic() + 60
            while (
                len(api.bodies) < requests
                and process.poll() is None
                and time.monotonic() < until
            ):
                time.sleep(0.002)
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=60)
        assert run(server_command(api, out))[0] == 0
    assert table(out).equals(undisturbed)
