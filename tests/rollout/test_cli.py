"""`hgpo rollout` as a process: its exit code, Ctrl-C, SIGKILL."""

import signal
import subprocess
import time

import polars as pl
import pytest
from command import DOORS
from command import hgpo as start
from typer.testing import CliRunner

from hgpo_datasets import scan_steps, verify
from hgpo_envs.errors import InputError
from hgpo_train.cli import app


def test_a_run_and_its_resumption(tmp_path):
    out = tmp_path / "run"
    command = [*DOORS, "--group-size", "4", "--seed", "1", "--out", str(out)]
    first = CliRunner().invoke(app, [*command, "--tasks", "10"])
    assert first.exit_code == 0, first.output
    assert "40, 40 of them new" in first.output
    assert "admissible actions   100.0%" in first.output
    assert f"Next: hgpo stats {out}" in first.output
    assert scan_steps(out).select("trajectory").collect()["trajectory"].n_unique() == 40
    again = CliRunner().invoke(app, [*command, "--tasks", "15", "--slots", "3"])
    assert "60, 20 of them new" in again.output
    assert scan_steps(out).select("trajectory").collect()["trajectory"].n_unique() == 60
    with pytest.raises(InputError, match="was written with seed = 1, not 2"):
        CliRunner().invoke(app, [*command[:-3], "2", *command[-2:]], catch_exceptions=False)


def test_columns_left_out(tmp_path):
    out = tmp_path / "run"
    command = [*DOORS, "--tasks", "2", "--group-size", "1", "--out", str(out), "--without", "prompt,timings"]
    assert CliRunner().invoke(app, command).exit_code == 0
    steps = scan_steps(out).collect()
    assert steps["prompt"].null_count() == steps["environment_s"].null_count() == steps.height
    assert steps["state"].null_count() == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--env", "HGPO/ALFWrld-v0"], "unknown environment 'HGPO/ALFWrld-v0'"),
        (["--env", "CartPole-v1"], "CartPole-v1: "),
        ([*DOORS[1:], "--policy", "randm"], "unknown policy 'randm'; did you mean 'random'?"),
        ([*DOORS[1:], "--env-option", "nonsense"], "--env-option: expected name=value, received 'nonsense'"),
        ([*DOORS[1:], "--split", "valid"], "unknown split 'valid'"),
        ([*DOORS[1:], "--history-length", "-1"], "history_length: expected an integer of at least 0, received -1"),
        ([*DOORS[1:], "--tasks", "0"], "tasks: expected int >= 1, received 0"),
        ([*DOORS[1:], "--order", "sorted"], "unknown task order 'sorted'"),
        ([*DOORS[1:], "--dynamic", "3"], "max_groups: expected at least 16 wanted groups, received 3"),
        ([*DOORS[1:], "--without", "promt"], "unknown column or family 'promt'"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(tmp_path, arguments, line):
    out = tmp_path / "run"
    with pytest.raises(InputError) as caught:
        CliRunner().invoke(app, ["rollout", *arguments, "--out", str(out)], catch_exceptions=False)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_and_resumed(tmp_path, how):
    out, straight = tmp_path / "run", tmp_path / "straight"
    command = [*DOORS, "--tasks", "500", "--group-size", "8", "--seed", "5", "--max-steps", "40"]
    process = start(*command, "--out", str(out))
    until = time.monotonic() + 60
    manifest = out / "manifest.jsonl"  # a line for the run, then one for each committed shard
    while not (manifest.exists() and manifest.read_bytes().count(b"\n") > 1) and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(how)
    _, told = process.communicate(timeout=60)
    assert process.returncode == (130 if how == signal.SIGINT else -9), told
    done = scan_steps(out).select("task_id", "group").unique().collect().height
    assert 0 < done < 500
    if how == signal.SIGINT:
        assert "Finished groups are committed" in told
    second = start(*command, "--out", str(out))
    _, told = second.communicate(timeout=120)
    assert second.returncode == 0, told
    assert f"4,000, {8 * (500 - done):,} of them new" in told
    assert start(*command, "--out", str(straight)).wait(120) == 0
    order = ["trajectory", "step"]
    one, other = (scan_steps(folder).sort(order).drop("run").collect() for folder in (out, straight))
    assert one.equals(other)
    assert one.group_by("task_id", "group").agg(pl.col("trajectory").n_unique())["trajectory"].unique().to_list() == [8]


@pytest.mark.slow
def test_bad_input_as_a_process():
    process = start("rollout", "--env", "HGPO/ALFWrld-v0", "--out", "nowhere")
    out, error = process.communicate(timeout=60)
    assert process.returncode == 2
    assert error.startswith("error: unknown environment 'HGPO/ALFWrld-v0'")
    assert error.count("\n") == 1
    assert out == ""


@pytest.fixture
def small_disk(tmp_path):
    """A disk of 300 kB, which fills up during a run."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("may not mount a small disk here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def run(*command: str) -> tuple[int, str]:
    process = start(*command)
    _, error = process.communicate(timeout=120)
    return process.returncode, error


@pytest.mark.slow
@pytest.mark.parametrize("command", ["rollout", "eval"])
def test_a_full_disk_is_one_line_and_what_was_committed_is_sound(small_disk, command):
    out = small_disk / "run"
    play = [command, *DOORS[1:], "--max-steps", "40", "--out", str(out)]
    play += ["--tasks", "300"] if command == "rollout" else ["--split", "train", "--seeds", "1,2,3,4,5,6"]
    code, error = run(*play)
    assert code == 1
    (line,) = [line for line in error.splitlines() if "error" in line.lower()]
    assert line.startswith("error: ")
    assert "No space left on device; free some space; the same command continues" in line
    assert "Traceback" not in error
    assert not list(out.glob("steps/*.parquet")) or verify(out).ok
    subprocess.run(["mount", "-o", "remount,size=50m", str(small_disk)], check=True)
    code, error = run(*play)
    assert code == 0, error
    assert verify(out).ok


@pytest.mark.slow
def test_a_read_only_disk_is_one_line(small_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for command in ("rollout", "eval", "quickstart"):
        env = DOORS[1:] if command != "quickstart" else []
        split = ["--split", "train"] if command == "eval" else []
        code, error = run(command, *env, *split, "--out", str(small_disk / "run"))
        assert code in (1, 2)
        assert error.startswith("error: ")
        assert "read-only" in error
        assert error.count("\n") == 1


def test_a_file_instead_of_the_folder_is_one_line(tmp_path, hgpo):
    (tmp_path / "file").write_text("a list of goods")
    for command in ("rollout", "eval", "quickstart"):
        for out in (tmp_path / "file", tmp_path / "file" / "run"):
            code, _, error = hgpo(command, "--out", out)
            assert code == 2
            assert error.startswith("error: ")
            assert error.count("\n") == 1
    assert (tmp_path / "file").read_text() == "a list of goods"
