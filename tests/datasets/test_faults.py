"""What a killed process, a full disk, a failing call and a second writer leave behind: whole shards, each once."""

import contextlib
import errno
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from faults import Fault, Interrupt
from groups import group
from nightly import sample_or_all

from hgpo_datasets import StepWriter, scan_steps, verify
from hgpo_envs.errors import InputError

EVERY = sample_or_all(4, 1)
"""Writers are killed at every n-th call."""

ROOT = Path(__file__).parents[2]


def python(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(str(ROOT / part) for part in (".", "datasets", "tests/worlds"))
    environment = {**os.environ, "PYTHONPATH": paths, "POLARS_MAX_THREADS": "1", **options.pop("env", {})}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, **options)


def rows(folder: Path) -> int:
    return scan_steps(folder).select(pl.len()).collect().item()


def commit_with_a_failure(folder: Path, patch: pytest.MonkeyPatch, at: int) -> Fault:
    """Lets the n-th call of a commit fail: what was committed stays, and the next commit completes it."""
    with StepWriter(folder) as writer:
        writer.add_group(group("before"))
        writer.commit()
        writer.add_group(group("now"))
        fault = Fault(at, "error")
        with patch.context() as here:
            fault.install(here.setattr)
            failed = None
            try:
                writer.commit()
            except OSError as error:
                failed = error
        assert failed is None or "injected" in str(failed)
        assert rows(folder) == (12 if failed is None else 6)
        assert verify(folder).problems == []
        writer.commit()  # the disk works again
        assert rows(folder) == 12
    StepWriter(folder).close()
    report = verify(folder)
    assert (report.problems, report.notes) == ([], [])
    return fault


def test_any_call_of_a_commit_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = commit_with_a_failure(tmp_path / "none", monkeypatch, -1).calls
    assert {"open", "write", "fsync", "mkdir", "replace"} <= set(calls)
    for at in range(1, len(calls) + 1, EVERY):
        commit_with_a_failure(tmp_path / str(at), monkeypatch, at)


def test_leaving_after_a_failure_keeps_what_was_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        with StepWriter(tmp_path) as writer:
            writer.add_group(group("before"))
            writer.commit()
            writer.add_group(group("now"))
            monkeypatch.setattr(os, "fsync", refuse)
            writer.commit()

    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space") as raised:
        full()
    assert any("while leaving, 1 finished groups could not be committed" in note for note in raised.value.__notes__)
    monkeypatch.undo()
    assert verify(tmp_path).ok
    with StepWriter(tmp_path) as writer:
        assert [one.task_id for one in writer.committed] == ["before"]
        writer.add_group(group("now"))
    assert rows(tmp_path) == 12


INTERRUPTIBLE = tuple(
    f"hgpo_{name}.py" for name in ("datasets/writer", "datasets/shard_folder", "datasets/manifest", "envs/files/atomic")
)


def interrupted(folder: Path, at: int) -> int:
    """Ctrl-C at the n-th line of a commit, then leaving the block as Python does; returns how many lines there are."""
    writer = StepWriter(folder)
    writer.add_group(group("before"))
    writer.commit()
    writer.add_group(group("now"))
    with Interrupt(at, INTERRUPTIBLE) as trace, contextlib.suppress(KeyboardInterrupt):
        writer.commit()
    assert verify(folder).ok, f"line {at}"
    assert rows(folder) == 6 * len(writer.committed), f"line {at}"
    writer.close()
    assert rows(folder) == 12, f"line {at}"
    return trace.count


def test_an_interrupt_at_some_lines_of_a_commit(tmp_path: Path) -> None:
    for at in range(5, interrupted(tmp_path / "none", -1), 25):
        interrupted(tmp_path / str(at), at)


@pytest.mark.slow
def test_an_interrupt_at_any_line_of_a_commit(tmp_path: Path) -> None:
    lines = interrupted(tmp_path / "none", -1)
    assert lines > 40
    for at in range(1, lines + 1):
        interrupted(tmp_path / str(at), at)


FILLS = """
import random, sys
from groups import group
from hgpo_datasets import StepWriter
with StepWriter(sys.argv[1]) as writer:
    for number in range(10_000):
        writer.add_group(group(f"t{number}", prompt=random.Random(number).randbytes(30 * number).hex()))
        writer.commit()
        print(number, flush=True)
"""


@pytest.mark.slow
def test_a_disk_that_fills(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("may not mount a small disk here")
    try:
        done = python("-c", FILLS, folder / "run")
        assert done.returncode == 1
        assert "No space left on device" in done.stderr.splitlines()[-1]
        assert check_filled(folder / "run", done.stdout) > 5
    finally:
        subprocess.run(["umount", folder], check=True)


def check_filled(folder: Path, noted: str) -> int:
    """How many commits had returned; all of them are there and nothing else is."""
    report = verify(folder)
    assert (report.problems, report.notes) == ([], [])
    count = len(noted.split())
    assert rows(folder) == 6 * count
    return count


def test_two_writers_are_refused(tmp_path: Path) -> None:
    with StepWriter(tmp_path) as writer:
        with pytest.raises(InputError, match=rf"in use: process {os.getpid()} on \S+ is writing a run there"):
            StepWriter(tmp_path)
        other = python("-c", "import sys, hgpo_datasets; hgpo_datasets.StepWriter(sys.argv[1])", tmp_path)
        assert f"is in use: process {os.getpid()} on " in other.stderr.splitlines()[-1]
        writer.add_group(group("a"))
    assert rows(tmp_path) == 6
    StepWriter(tmp_path).close()


def test_opening_removes_a_shard_that_was_not_committed(tmp_path: Path) -> None:
    with StepWriter(tmp_path) as writer:
        for task in "ab":
            writer.add_group(group(task))
            writer.commit()
    manifest = tmp_path / "manifest.jsonl"
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.write_bytes(b"".join(lines[:2]) + lines[2][:30])  # killed while it wrote the last line
    (tmp_path / "steps/steps-000002.parquet.part").write_bytes(b"half a file")
    with pytest.warns(match="not committed"):
        assert rows(tmp_path) == 6
    with StepWriter(tmp_path) as writer:
        assert [one.task_id for one in writer.committed] == ["a"]
    assert manifest.read_bytes() == b"".join(lines[:2])
    assert sorted(path.name for path in tmp_path.glob("*")) == [".lock", "manifest.jsonl", "steps"]
    assert sorted(path.name for path in tmp_path.glob("steps/*")) == [
        "steps-000000.parquet",
        "steps-000002.parquet.part",  # it may be somebody's
    ]


def test_opening_never_removes_what_it_did_not_write(tmp_path: Path) -> None:
    with StepWriter(tmp_path / "other") as writer:
        writer.add_group(group("x"))
    foreign = (tmp_path / "other/steps/steps-000000.parquet").read_bytes()
    with StepWriter(tmp_path / "run") as writer:
        writer.add_group(group("a"))
    file = tmp_path / "run/steps/steps-000001.parquet"
    for data in (foreign, foreign[:-9], b"a list of goods"):
        file.write_bytes(data)
        with pytest.raises(InputError, match="is damaged or belongs to another run; move it elsewhere"):
            StepWriter(tmp_path / "run")
        assert file.read_bytes() == data
    file.unlink()
    StepWriter(tmp_path / "run").close()


def test_somebody_elses_manifest_is_left_alone(tmp_path: Path) -> None:
    for text in ("a list of goods\n", "x", '{"check":"1"}\n'):
        (tmp_path / "manifest.jsonl").write_text(text)
        with pytest.raises(InputError, match="manifest"):
            StepWriter(tmp_path)
        assert (tmp_path / "manifest.jsonl").read_text() == text


def test_a_closed_writer_takes_nothing(tmp_path: Path) -> None:
    writer = StepWriter(tmp_path)
    writer.close()
    with pytest.raises(InputError, match="is closed"):
        writer.add_group(group("a"))

    StepWriter(tmp_path).close()  # nobody holds it


def test_a_damaged_run_is_not_resumed(rich_run: Path) -> None:
    file = rich_run / "steps/steps-000001.parquet"
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    with pytest.raises(InputError, match="is missing or damaged; run `hgpo verify"):
        StepWriter(rich_run)
    file.unlink()
    with pytest.raises(InputError, match="is missing or damaged; run `hgpo verify"):
        StepWriter(rich_run)
    file.write_bytes(data)
    manifest = rich_run / "manifest.jsonl"
    manifest.write_bytes(manifest.read_bytes().replace(b'"seed":7', b'"seed":8'))
    with pytest.raises(InputError, match=r"line 1 of manifest\.jsonl is damaged"):
        StepWriter(rich_run)
