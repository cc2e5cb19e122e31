"""`hgpo record` with programs of its own processes: three agents, a kill, Ctrl-C, exit statuses and rewards."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hgpo_datasets import scan_steps, verify
from hgpo_record.recording.rollouts import read_branches

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
HGPO = [
    sys.executable,
    "-c",
    "import sys; from hgpo_train.cli import main; sys.argv[0] = 'hgpo'; main()",
]
KEY = "sk-the-key-of-the-user"
ASK = "from model import ask, reward; ask([{'role': 'user', 'content': 'x'}]); "


@pytest.fixture(scope="module")
def upstream():
    command = [sys.executable, HERE / "stub_server.py", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().strip()
        process.terminate()


def start(upstream, run, *words):
    """Start `hgpo record` with options, and a program: a script of `programs`, or Python code."""
    *options, program = words
    python = [sys.executable] + (
        [HERE / "programs" / program] if program.endswith(".py") else ["-c", program]
    )
    environment = {
        **os.environ,
        "OPENAI_API_KEY": KEY,
        "PYTHONPATH": str(HERE / "programs"),
    }
    command = [
        *HGPO,
        "record",
        "--upstream",
        upstream,
        "--out",
        run,
        *options,
        "--",
        *python,
    ]
    return subprocess.Popen(
        command,
        env=environment,
        cwd=run.parent,
        text=True,
        stdin=subprocess.PIPE,  # programs wait for it
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def ended(process):
    """Return exit status, standard output and standard error of a recording that ends by itself."""
    out, errors = process.communicate(timeout=100)
    return process.returncode, out, errors


@pytest.mark.parametrize(
    ("program", "branches", "states"),
    [
        (
            "appending.py",
            [(None, [0, 1, 2])],
            ["You wake up in room 0.", "You are in room 1.", "You are in room 2."],
        ),
        # The summary is asked for in the first conversation; the second one begins with it.
        ("compacting.py", [(None, [0, 1, 2]), (2, [3, 4])], None),
        # Each search is a conversation of its own; both begin with the same messages.
        ("sub_agent.py", [(None, [0, 3]), (None, [1, 2]), (2, [4, 5])], None),
    ],
)
def test_three_agents(tmp_path, upstream, program, branches, states):
    run = tmp_path / "run"
    status, _, errors = ended(start(upstream, run, "--repeat", "2", program))
    assert status == 0, errors
    assert verify(run).ok
    rows = scan_steps(run).collect()
    found = read_branches(run)
    assert (
        sorted(found)
        == rows["trajectory"].unique().sort().to_list()
        == [f"{program}/0", f"{program}/1"]
    )
    for trajectory in found.values():
        assert [(branch.parent, branch.steps) for branch in trajectory] == branches
    for path in run.rglob("*.*"):
        assert KEY.encode() not in path.read_bytes()
    if states:
        assert rows["state"].to_list() == 2 * states
        for command in (["stats"], ["advantages"], ["view", "-o", "page.html"]):
            assert f"hgpo {command[0]} {run}" in errors
            subprocess.run(
                [*HGPO, command[0], run, *command[1:]],
                cwd=tmp_path,
                check=True,
                stdout=subprocess.DEVNULL,
            )


def test_a_server_that_is_away_is_named_at_the_end(tmp_path):
    status, _, errors = ended(start("http://127.0.0.1:9/v1", tmp_path / "run", ASK))
    assert status != 0
    assert "Calls without an answer, which are no steps: no answer" in errors
    assert "No rollouts: the server answered no call with a reply." in errors
    assert "OPENAI_BASE_URL" not in errors


def test_a_kill_loses_open_rollouts_alone(tmp_path, upstream):
    run = tmp_path / "run"
    code = f"{ASK} reward(1); ask([{{'role': 'user', 'content': 'y'}}]); print('open', flush=True); input()"
    process = start(upstream, run, code)
    assert process.stdout.readline() == "open\n"
    process.kill()
    process.communicate()
    assert scan_steps(run).collect()["state"].to_list() == ["x"]
    assert verify(run).ok
    assert ended(start(upstream, run, f"{ASK} reward(1)"))[0] == 0
    names = scan_steps(run).collect()["trajectory"].to_list()
    assert names == [f"{Path(sys.executable).name}/0", f"{Path(sys.executable).name}/1"]
    assert len(read_branches(run)) == 2


def test_ctrl_c_ends_the_program_and_keeps_what_has_ended(tmp_path, upstream):
    code = f"{ASK} reward(1); ask([{{'role': 'user', 'content': 'y'}}]); print('open', flush=True); input()"
    process = start(upstream, tmp_path / "run", "--task", "t", code)
    assert process.stdout.readline() == "open\n"
    process.send_signal(signal.SIGINT)
    status, _, errors = ended(process)
    assert status == 130
    assert "Left out: 1 open rollout (t/1)" in errors
    assert scan_steps(tmp_path / "run").collect()["trajectory"].to_list() == ["t/0"]


def test_exit_statuses_and_rewards_in_a_file(tmp_path, upstream):
    run = tmp_path / "run"
    status, _, errors = ended(
        start(upstream, run, "--task", "failed", f"{ASK} raise SystemExit(3)")
    )
    assert status == 3
    assert "Aborted: 1 rollout" in errors
    file = tmp_path / "reward.txt"
    code = f"{ASK} open({str(file)!r}, 'w').write('0.5')"
    assert (
        ended(start(upstream, run, "--task", "paid", "--reward-file", str(file), code))[
            0
        ]
        == 0
    )
    status, _, errors = ended(start(upstream, run, "--task", "unpaid", ASK))
    assert "Without a reward, which is 0: 1 rollout." in errors
    columns = ("task_id", "reward", "terminated", "aborted")
    assert scan_steps(run).select(columns).sort("task_id").collect().rows() == [
        ("failed", 0.0, False, True),
        ("paid", 0.5, True, False),
        ("unpaid", 0.0, False, False),
    ]
    # Rewards can follow: those of a function, which leaves aborted rollouts as they are.
    (tmp_path / "judge.py").write_text("def judge(rows):\n    return 2 * len(rows)\n")
    for target in (["--out", str(tmp_path / "new")], ["--overwrite"]):
        subprocess.run(
            [*HGPO, "record", "reward", run, "--from", "judge:judge", *target],
            cwd=tmp_path,
            check=True,
        )
    for folder in (run, tmp_path / "new"):
        assert verify(folder).ok
        assert scan_steps(folder).sort("task_id").collect()["reward"].to_list() == [
            0.0,
            2.0,
            2.0,
        ]
        assert len(read_branches(folder)) == 3
