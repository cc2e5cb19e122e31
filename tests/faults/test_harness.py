"""The harness detects faults: each of these writers has one planted fault, or none."""

import contextlib
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nightly import sample_or_all

from tests.faults import shim
from tests.faults.disk import Disk, read_calls, read_tree
from tests.faults.harness import Harness, Report, Scenario, forked
from tests.faults.shim import Mode, arm

if reason := shim.unusable():
    pytest.skip(reason, allow_module_level=True)

Note = Callable[[str], None]
OLD, NEW = b"old" * 20, b"new" * 20


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def right(root: Path, note: Note) -> None:
    part = root / "mine.part"
    try:
        with part.open("wb") as file:
            file.write(NEW)
            file.flush()
            os.fsync(file.fileno())
        part.replace(root / "file")
    finally:
        part.unlink(missing_ok=True)
    sync(root)
    note("written")


def in_place(root: Path, note: Note) -> None:
    (root / "file").write_bytes(NEW)
    sync(root / "file")


def not_synced(root: Path, note: Note) -> None:
    (root / "mine.part").write_bytes(NEW)
    (root / "mine.part").replace(root / "file")
    sync(root)
    note("written")


def folder_not_synced(root: Path, note: Note) -> None:
    with (root / "mine.part").open("wb") as file:
        file.write(NEW)
        file.flush()
        os.fsync(file.fileno())
    (root / "mine.part").replace(root / "file")
    note("written")


def leaves_scratch(root: Path, note: Note) -> None:
    part = root / f"{os.getpid()}.part"
    part.write_bytes(NEW)
    sync(part)
    part.replace(root / "file")
    sync(root)


def removes_what_is_not_its_own(root: Path, note: Note) -> None:
    (root / "foreign").unlink(missing_ok=True)
    right(root, note)


def swallows_errors(root: Path, note: Note) -> None:
    with contextlib.suppress(OSError):
        right(root, note)


def short_writes(root: Path, note: Note) -> None:
    handle = os.open(root / "mine.part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(handle, NEW)
    os.fsync(handle)
    os.close(handle)
    (root / "mine.part").replace(root / "file")
    sync(root)


def raises_oddly(root: Path, note: Note) -> None:
    try:
        right(root, note)
    except OSError:
        raise ValueError("two\nlines") from None


def old_or_new(root: Path, noted: Sequence[str], whole: bool) -> None:
    data = (root / "file").read_bytes()
    assert data == NEW if whole or noted else data in (OLD, NEW), "half a file"


def report(work: Path, run: Callable[[Path, Note], None]) -> Report:
    scenario = Scenario(
        run.__name__,
        run,
        old_or_new,
        prepare=lambda root: (root / "file").write_bytes(OLD) and None,
        foreign=("foreign",),
    )
    return Harness(scenario, work).run()


@pytest.mark.slow
def test_a_writer_without_fault_passes_everywhere(tmp_path: Path) -> None:
    found = report(tmp_path, right)
    assert found.failures == []
    assert found.missed == 0
    assert dict(found.calls) == {"open": 1, "write": 1, "sync": 2, "rename": 1, "unlink": 1}
    assert found.covered["kill"] == 7
    assert found.covered["torn, data lost"] == 1


PLANTED = {
    in_place: ("half a file",),
    not_synced: ("was not synced before the rename", "half a file"),
    folder_not_synced: (". is not synced at the end", "half a file"),
    leaves_scratch: ("is left behind",),
    removes_what_is_not_its_own: ("the foreign file foreign is changed",),
    swallows_errors: ("reported success, but file differs",),
    short_writes: ("reported success, but file differs",),
    raises_oddly: ("ends with 1: ValueError",),
}


@pytest.mark.slow
def test_planted_faults_are_found(tmp_path: Path) -> None:
    for run, lines in PLANTED.items():
        problems = [problem for _, problem in report(tmp_path / run.__name__, run).failures]
        for line in lines:
            assert any(line in problem for problem in problems), (run, problems)


def test_the_c_librarys_own_writes_are_seen(tmp_path: Path) -> None:
    """NumPy writes arrays with fwrite, which a preloaded library cannot intercept."""
    import numpy as np

    def save() -> None:
        arm(tmp_path / "root", tmp_path / "log", Mode.OBSERVE)
        np.save(tmp_path / "root" / "a.npy", np.arange(5000))

    (tmp_path / "root").mkdir()
    disk = Disk(tmp_path / "root")
    assert forked(save, tmp_path / "said") == 0, (tmp_path / "said").read_text()
    for call in read_calls(tmp_path / "log"):
        disk.do(call)
    assert disk.now() == read_tree(tmp_path / "root")
    assert len(disk.now()["a.npy"]) > 40_000


NAMES = st.sampled_from(["a", "b", "d/a", "d/b", "e/a", "d", "e"])
ACTS = st.one_of(
    st.tuples(st.just("write"), NAMES, st.integers(0, 9), st.binary(min_size=1, max_size=9)),
    st.tuples(st.just("append"), NAMES, st.binary(min_size=1, max_size=9)),
    st.tuples(st.just("truncate"), NAMES, st.integers(0, 9)),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("link"), NAMES, NAMES),
    st.tuples(st.sampled_from(["unlink", "mkdir", "rmdir", "create"]), NAMES),
)


def act(root: Path, what: tuple) -> None:
    name, path, *more = what
    match name:
        case "write":
            handle = os.open(root / path, os.O_WRONLY | os.O_CREAT)
            os.pwrite(handle, more[1], more[0])
            os.close(handle)
        case "append":
            with (root / path).open("ab") as file:
                file.write(more[0])
        case "truncate":
            os.truncate(root / path, more[0])
        case "rename" | "link":
            getattr(os, name)(root / path, root / more[0])
        case "create":
            (root / path).write_bytes(b"")
        case _:
            getattr(os, name)(root / path)


@given(st.lists(ACTS, max_size=30))
@settings(max_examples=sample_or_all(15, 500))
def test_the_model_of_a_disk_is_as_the_disk(tmp_path_factory, acts: list[tuple]) -> None:
    work = tmp_path_factory.mktemp("disk")
    (work / "root" / "d").mkdir(parents=True)
    disk = Disk(work / "root")

    def perform() -> None:
        arm(work / "root", work / "log", Mode.OBSERVE)
        for one in acts:
            with contextlib.suppress(OSError):
                act(work / "root", one)

    assert forked(perform, work / "said") == 0, (work / "said").read_text()
    for call in read_calls(work / "log"):
        disk.do(call)
    assert disk.now() == read_tree(work / "root")
    shutil.rmtree(work)
