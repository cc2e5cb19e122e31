"""`hgpo rollout`: the effect of each of its flags, its exit code, Ctrl-C, SIGKILL and full disks."""

import inspect
import signal
import subprocess
import time

import polars as pl
import pytest
from command import DOORS, arguments_of, every_command, finished
from command import hgpo as start

from hgpo_datasets import manifest, scan_steps, verify
from hgpo_envs.alfworld.data.pack import write_pack
from hgpo_envs.alfworld.data.source import ALFWorldSource


def test_a_run_and_its_resumption(tmp_path, hgpo, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    out = tmp_path / "run"
    command = [*DOORS, "--group-size", "4", "--seed", "1", "--out", str(out)]
    code, _, told = hgpo(*command, "--tasks", "10")
    assert (code, "warning" in told) == (0, False), told
    for part in (
        "40, 40 of them new",
        "admissible actions   100.0%",
        f"Next: hgpo stats {out}",
    ):
        assert part in told
    assert scan_steps(out).select("trajectory").collect()["trajectory"].n_unique() == 40
    assert "60, 20 of them new" in hgpo(*command, "--tasks", "15", "--slots", "3")[2]
    assert scan_steps(out).select("trajectory").collect()["trajectory"].n_unique() == 60
    assert (
        "was written with seed = 1, not 2" in hgpo(*command[:-3], "2", *command[-2:])[2]
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_and_resumed(tmp_path, how):
    out = tmp_path / "run"
    straight = tmp_path / "straight"
    command = [
        *DOORS,
        "--tasks",
        "500",
        "--group-size",
        "8",
        "--seed",
        "5",
        "--max-steps",
        "40",
    ]
    process = start(*command, "--out", str(out))
    until = time.monotonic() + 60
    # a line for the run, then one for each committed shard
    manifest = out / "manifest.jsonl"
    while (
        not (manifest.exists() and manifest.read_bytes().count(b"\n") > 1)
        and time.monotonic() < until
    ):
        time.sleep(0.01)
    process.send_signal(how)
    _, told = process.communicate(timeout=60)
    assert process.returncode == (130 if how == signal.SIGINT else -9), told
    done = scan_steps(out).select("task_id", "group").unique().collect().height
    assert 0 < done < 500
    if how == signal.SIGINT:
        assert f"{done} finished group" in told
    code, _, told = finished(*command, "--out", str(out))
    assert code == 0, told
    assert f"4,000, {8 * (500 - done):,} of them new" in told
    assert finished(*command, "--out", str(straight))[0] == 0
    order = ["trajectory", "step"]
    one, other = (
        scan_steps(folder).sort(order).drop("run").collect()
        for folder in (out, straight)
    )
    assert one.equals(other)
    assert one.group_by("task_id", "group").agg(pl.col("trajectory").n_unique())[
        "trajectory"
    ].unique().to_list() == [8]


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


@pytest.mark.slow
@pytest.mark.parametrize("command", ["rollout", "eval"])
def test_a_full_disk_is_one_line_and_what_was_committed_is_sound(small_disk, command):
    out = small_disk / "run"
    play = [command, *DOORS[1:], "--max-steps", "40", "--out", str(out)]
    play += (
        ["--tasks", "300"]
        if command == "rollout"
        else ["--split", "train", "--seeds", "1,2,3,4,5,6"]
    )
    code, _, error = finished(*play)
    assert code == 1
    (line,) = [line for line in error.splitlines() if "error" in line.lower()]
    assert line.startswith("error: ")
    assert (
        "No space left on device; free some space; the same command continues" in line
    )
    assert "Traceback" not in error
    assert not list(out.glob("steps/*.parquet")) or verify(out).ok
    subprocess.run(["mount", "-o", "remount,size=50m", str(small_disk)], check=True)
    code, _, error = finished(*play)
    assert code == 0, error
    assert verify(out).ok


@pytest.mark.slow
def test_a_read_only_disk_is_one_line(small_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for command in ("rollout", "eval", "quickstart"):
        env = DOORS[1:] if command != "quickstart" else []
        split = ["--split", "train"] if command == "eval" else []
        code, _, error = finished(
            command, *env, *split, "--out", str(small_disk / "run")
        )
        assert code in (1, 2)
        assert (
            error.startswith("error: "),
            "read-only" in error,
            error.count("\n"),
        ) == (
            True,
            True,
            1,
        ), error


SMALL = {"--tasks": 2, "--group-size": 2, "--max-steps": 3, "--seed": 1}


@pytest.fixture
def play(hgpo, tmp_path):
    """Return a function that runs the command with flags and returns its rows and the stored configuration."""
    runs = iter(range(99))

    def run(*flags: object) -> tuple[pl.DataFrame, dict]:
        out = tmp_path / f"run {next(runs)}"
        small = [
            part
            for name, value in SMALL.items()
            if name not in flags
            for part in (name, value)
        ]
        hgpo.output("rollout", *small, *flags, "--out", out)
        assert verify(out).ok
        header = manifest.read(out).header
        return scan_steps(out).drop("run").sort("trajectory", "step").collect(), dict(
            header.config
        )

    return run


def size(steps):
    return steps["task_id"].n_unique(), steps["trajectory"].n_unique()


@pytest.mark.slow
def test_every_flag_has_its_effect(play, tmp_path, hgpo):
    data = tmp_path / "games.pack"
    source = ALFWorldSource(None)
    task = source.ids("valid_seen")[5]
    write_pack(data, [(task, source.read(task), source.trajectory(task))])
    base, config = play()
    assert size(base) == (2, 4)
    assert not base["aborted"].any()
    assert config["policy"] == {"name": "random"}
    assert play()[0].equals(base)
    assert size(play("--tasks", 3)[0]) == (3, 6)
    assert size(play("--group-size", 3)[0]) == (2, 6)
    assert not play("--seed", 2)[0].equals(base)
    assert play("--env", "HGPO/WebShop-v0")[0]["env_id"].unique().to_list() == [
        "HGPO/WebShop-v0"
    ]
    assert play("--split", "valid_unseen")[0]["split"].unique().to_list() == [
        "valid_unseen"
    ]
    assert play("--order", "sweep")[1]["order"] == "sweep"
    assert play("--data", data, "--split", "valid_seen")[0][
        "task_id"
    ].unique().to_list() == [task]
    assert not play("--history-length", 0)[0]["prompt"].equals(base["prompt"])
    assert play("--max-steps", 5)[0]["step"].max() == 4
    assert (
        not play("--action-format", "command")[0]["response"]
        .str.contains("<action>")
        .any()
    )
    assert play("--env-option", "history_depth=3")[1]["env"]["history_depth"] == 3
    assert play("--policy", "expert")[1]["policy"] == {"name": "expert"}
    assert play("--dynamic", 4, "--tasks", 2)[1]["dynamic"]
    tree = play("--group-size", 4, "--branch", "uniform", "--width", 3)[0]
    assert tree.filter(pl.col("parent").is_null()).equals(base)
    assert tree.drop_nulls("parent")["trajectory"].n_unique() % 3 == 0
    assert play("--slots", 1)[0].equals(base)
    assert play("--workers", 2)[0].equals(base)
    assert play("--no-retry-failed", "--max-failed", 0)[0].equals(base)
    assert play("--without", "prompt")[0]["prompt"].null_count() == len(base)
    code, _, error = hgpo(
        "rollout", "--policy-option", "temperature=1", "--out", tmp_path / "refused"
    )
    assert code == 2
    assert "policy random has no options, received temperature" in error


def test_every_flag_is_in_the_test():
    text = inspect.getsource(test_every_flag_has_its_effect) + " ".join(SMALL)
    for argument in arguments_of(every_command()["rollout",]):
        assert argument.name in text or argument.name in ("--out", "--retry-failed"), (
            argument.name
        )
