"""The harness detects faults: each of these writers has one planted fault, or none."""

import contextlib
import os

import pytest

from tests.faults import shim
from tests.faults.harness import Harness, Scenario

if reason := shim.unusable():
    pytest.skip(reason, allow_module_level=True)

OLD = b"old" * 20
NEW = b"new" * 20


def sync(path):
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def right(root, note):
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


def in_place(root, note):
    (root / "file").write_bytes(NEW)
    sync(root / "file")


def not_synced(root, note):
    (root / "mine.part").write_bytes(NEW)
    (root / "mine.part").replace(root / "file")
    sync(root)
    note("written")


def folder_not_synced(root, note):
    with (root / "mine.part").open("wb") as file:
        file.write(NEW)
        file.flush()
        os.fsync(file.fileno())
    (root / "mine.part").replace(root / "file")
    note("written")


def removes_what_is_not_its_own(root, note):
    (root / "foreign").unlink(missing_ok=True)
    right(root, note)


def swallows_errors(root, note):
    with contextlib.suppress(OSError):
        right(root, note)


def short_writes(root, note):
    handle = os.open(root / "mine.part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(handle, NEW)
    os.fsync(handle)
    os.close(handle)
    (root / "mine.part").replace(root / "file")
    sync(root)


def old_or_new(root, noted, whole):
    data = (root / "file").read_bytes()
    assert data == NEW if whole or noted else data in (OLD, NEW), "half a file"


def report(work, run):
    scenario = Scenario(
        run.__name__,
        run,
        old_or_new,
        prepare=lambda root: (root / "file").write_bytes(OLD),
        foreign=("foreign",),
    )
    return Harness(scenario, work).run()


PLANTED = {
    right: (),
    in_place: ("half a file",),
    not_synced: ("mine.part is renamed before it is synced",),
    folder_not_synced: ("file is not synced at the end",),
    removes_what_is_not_its_own: ("the foreign file foreign is changed",),
    swallows_errors: ("reported success, but file differs",),
    short_writes: ("reported success, but file differs",),
}


@pytest.mark.slow
def test_planted_faults_are_found(tmp_path):
    for run, lines in PLANTED.items():
        found = report(tmp_path / run.__name__, run)
        assert found.tried >= 10, "each of six calls fails, and is the last"
        assert bool(found.failures) == bool(lines), (run, found.failures)
        for line in lines:
            assert any(line in problem for problem in found.failures), (
                run,
                found.failures,
            )
