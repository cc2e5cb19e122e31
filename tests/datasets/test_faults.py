"""What an interrupted or killed process and a second writer leave behind: whole shards, each once."""

import contextlib
import errno
import itertools
import os
import sys
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest
from command import python
from groups import group, write_run
from refusals import refused

from hgpo_datasets import StepWriter, scan_steps, verify

INTERRUPTIBLE = tuple(
    f"hgpo_{name}.py"
    for name in (
        "datasets/writer",
        "datasets/shard_folder",
        "datasets/manifest",
        "envs/files/atomic",
    )
)


def rows(folder):
    return scan_steps(folder).select(pl.len()).collect().item()


def interrupted(folder, at):
    """Ctrl-C at the n-th line of a commit, then leaving the block as Python does; returns how many lines there are."""
    lines = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        if event == "line" and lines == at:
            raise KeyboardInterrupt
        return trace if frame.f_code.co_filename.endswith(INTERRUPTIBLE) else None

    writer = StepWriter(folder)
    writer.add_group(group("before"))
    writer.commit()
    writer.add_group(group("now"))
    sys.settrace(trace)
    with contextlib.suppress(KeyboardInterrupt):
        writer.commit()
    sys.settrace(None)
    assert verify(folder).ok, f"line {at}"
    assert rows(folder) == 6 * len(writer.committed), f"line {at}"
    writer.close()
    assert rows(folder) == 12, f"line {at}"
    return lines


@pytest.mark.slow
def test_an_interrupt_at_any_line_of_a_commit(tmp_path):
    lines = interrupted(tmp_path / "none", -1)
    assert lines > 40
    for at in range(1, lines + 1):
        interrupted(tmp_path / str(at), at)


CALLS = ("fsync", "write", "open", "mkdir", "replace", "ftruncate", "unlink", "rmdir")


@contextlib.contextmanager
def failing(at: int, *, full: bool) -> Iterator[list[str]]:
    """Let the n-th of the system calls that write fail, and all later ones if the disk is full. Yield their names."""
    seen: list[str] = []

    def wrap(name: str) -> Any:
        call = getattr(os, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            seen.append(name)
            if len(seen) == at or (full and len(seen) > at):
                raise OSError(errno.ENOSPC, "No space left on device (injected)")
            return call(*arguments, **options)

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, wrap(name))
        yield seen


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hgpo_datasets.StepTableWarning")
@pytest.mark.parametrize("full", [False, True])
def test_a_commit_that_failed_at_any_call_is_repeated(tmp_path, full):
    """In the same process, whose groups stay in memory; tests/faults kills the process."""
    for at in itertools.count(1):
        folder = tmp_path / str(at)
        with StepWriter(folder) as writer:
            writer.add_group(group("before"))
            writer.commit()
            writer.add_group(group("now"))
            with failing(at, full=full) as calls, contextlib.suppress(OSError):
                writer.commit()
            assert verify(folder).ok, calls
            # an `fsync` may fail after the last write
            assert rows(folder) in (6 * len(writer.committed), 12), calls
            writer.add_group(group("later"))
        assert rows(folder) == 18, calls
        assert verify(folder).ok
        if len(calls) < at:
            break
    assert at > 8


@pytest.mark.parametrize(
    "raised",
    [None, ValueError("a bug"), BrokenPipeError(), KeyboardInterrupt()],
    ids=repr,
)
def test_leaving_with_a_full_disk_raises_the_first_error_with_a_note(tmp_path, raised):
    writer = StepWriter(tmp_path)
    writer.add_group(group("a"))
    expected = OSError if raised is None else type(raised)
    with pytest.raises(expected) as caught, failing(1, full=True), writer:  # noqa: PT012
        if raised is not None:
            raise raised
    assert caught.value is raised or raised is None
    assert "1 finished groups could not be committed" in " ".join(
        caught.value.__notes__
    )
    with StepWriter(tmp_path) as writer:
        assert not writer.committed
        writer.add_group(group("a"))


@pytest.mark.slow
def test_two_writers_are_refused(tmp_path):
    with StepWriter(tmp_path) as writer:
        with refused(rf"in use: process {os.getpid()} on \S+ is writing a run there"):
            StepWriter(tmp_path)
        other = python(
            "import sys, hgpo_datasets; hgpo_datasets.StepWriter(sys.argv[1])", tmp_path
        )
        assert f"is in use: process {os.getpid()} on " in other.stderr.splitlines()[-1]
        writer.add_group(group("a"))
    with refused("is closed"):
        writer.add_group(group("b"))
    assert rows(tmp_path) == 6
    StepWriter(tmp_path).close()


def test_opening_removes_a_shard_that_was_not_committed(tmp_path):
    with StepWriter(tmp_path) as writer:
        for task in "ab":
            writer.add_group(group(task))
            writer.commit()
    manifest = tmp_path / "manifest.jsonl"
    lines = manifest.read_bytes().splitlines(keepends=True)
    # killed while it wrote the last line
    manifest.write_bytes(b"".join(lines[:2]) + lines[2][:30])
    (tmp_path / "steps/steps-000002.parquet.part").write_bytes(b"half a file")
    with pytest.warns(match="not committed"):
        assert rows(tmp_path) == 6
    with StepWriter(tmp_path) as writer:
        assert [one.task_id for one in writer.committed] == ["a"]
    assert manifest.read_bytes() == b"".join(lines[:2])
    assert sorted(path.name for path in tmp_path.glob("*")) == [
        ".lock",
        "manifest.jsonl",
        "steps",
    ]
    names = sorted(path.name for path in tmp_path.glob("steps/*"))
    # which may be somebody's
    assert names == ["steps-000000.parquet", "steps-000002.parquet.part"]


def test_opening_never_removes_what_it_did_not_write(tmp_path):
    write_run(tmp_path / "other", group("x"))
    foreign = (tmp_path / "other/steps/steps-000000.parquet").read_bytes()
    write_run(tmp_path / "run", group("a"))
    file = tmp_path / "run/steps/steps-000001.parquet"
    for data in (foreign, foreign[:-9], b"a list of goods"):
        file.write_bytes(data)
        with refused("is damaged or belongs to another run; move it elsewhere"):
            StepWriter(tmp_path / "run")
        assert file.read_bytes() == data
    file.unlink()
    StepWriter(tmp_path / "run").close()


def test_somebody_elses_manifest_is_left_alone(tmp_path):
    for text in ("a list of goods\n", "x", '{"check":"1"}\n'):
        (tmp_path / "manifest.jsonl").write_text(text)
        with refused("manifest"):
            StepWriter(tmp_path)
        assert (tmp_path / "manifest.jsonl").read_text() == text


def test_a_damaged_run_is_not_resumed(rich_run):
    file = rich_run / "steps/steps-000001.parquet"
    data = file.read_bytes()
    for damage in (lambda: file.write_bytes(data[:-1]), file.unlink):
        damage()
        with refused("is missing or damaged; run `hgpo verify"):
            StepWriter(rich_run)
    file.write_bytes(data)
    manifest = rich_run / "manifest.jsonl"
    manifest.write_bytes(manifest.read_bytes().replace(b'"seed":7', b'"seed":8'))
    with refused(r"line 1 of manifest\.jsonl is damaged"):
        StepWriter(rich_run)
