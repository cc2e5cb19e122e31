"""Any sequence of adding, committing, faults and exceptions: the table holds what was accepted, once."""

import contextlib
import errno
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from groups import group
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from nightly import sample_or_all

from hgpo_datasets import StepWriter, scan_steps, verify
from hgpo_datasets.rows import RowError
from hgpo_envs.errors import InputError

CALLS = ("fsync", "write", "open", "mkdir", "replace", "ftruncate", "unlink", "rmdir")


RAISED = (
    OSError(errno.ENOSPC, "No space left on device"),
    BrokenPipeError(),
    ValueError("a bug"),
    InputError("bad input"),
    KeyboardInterrupt(),
)


def tasks_in(folder: Path) -> Counter[str]:
    """The rows of each task in a run."""
    try:
        return Counter(scan_steps(folder).select("task_id").collect()["task_id"])
    except InputError as error:
        assert "no committed rows" in str(error)  # noqa: PT017
        return Counter()


def throw(error: BaseException | None) -> None:
    if error is not None:
        raise error


class Disk:
    """The operating system's calls: all of them work, the n-th fails once, or all that write fail."""

    def __init__(self) -> None:
        self.fails_at: int | None = None
        self.full = False

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        seen = 0

        def wrap(name: str, call: Any) -> Any:
            def wrapped(*arguments: Any, **options: Any) -> Any:
                nonlocal seen
                seen += 1
                if self.full or seen == self.fails_at:
                    raise OSError(errno.ENOSPC, "No space left on device (injected)")
                return call(*arguments, **options)

            return wrapped

        with pytest.MonkeyPatch.context() as patch:
            for name in CALLS:
                patch.setattr(os, name, wrap(name, getattr(os, name)))
            yield
        self.fails_at = None


class Writing(RuleBasedStateMachine):
    """A writer, a disk, and what should be in the table."""

    @initialize(rows=st.sampled_from([1, 7, 1000]))
    def open(self, rows: int) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.disk = Disk()
        self.count = 0
        self.shard_rows = rows
        self.finished: set[str] = set()
        self.writer = StepWriter(self.folder / "run", shard_rows=rows)

    def teardown(self) -> None:
        if hasattr(self, "writer"):
            self.writer.close()
            shutil.rmtree(self.folder)

    def new_rows(self) -> tuple[str, list[dict[str, Any]]]:
        self.count += 1
        return f"t{self.count}", group(f"t{self.count}", 1 + self.count % 2, 2)

    @rule(at=st.integers(1, 25))
    def one_call_will_fail(self, at: int) -> None:
        self.disk.fails_at = at

    @rule(full=st.booleans())
    def disk_fills_or_has_room(self, full: bool) -> None:
        self.disk.full = full

    @rule(groups=st.integers(1, 3))
    def add_groups(self, groups: int) -> None:
        named = [self.new_rows() for _ in range(groups)]
        with self.disk.used(), contextlib.suppress(OSError):
            self.writer.add_group([row for _, rows in named for row in rows])
        self.finished.update(name for name, _ in named)

    @rule(value=st.sampled_from([float("nan"), "much", None, 2**2000]))
    def add_groups_of_which_one_is_wrong(self, value: object) -> None:
        (_, wrong) = self.new_rows()
        (name, right) = self.new_rows()
        wrong[0]["reward"] = value
        with pytest.raises(RowError) as refused:
            self.writer.add_group(wrong + right)
        assert refused.value.trajectories.keys() == {wrong[0]["trajectory"]}
        with self.disk.used(), contextlib.suppress(OSError):  # as the collector does: again, without it
            self.writer.add_group(right)
        self.finished.add(name)

    @rule()
    def commit(self) -> None:
        failed = None
        with self.disk.used():
            try:
                self.writer.commit()
            except OSError as error:
                failed = error
        committed = {one.task_id for one in self.writer.committed}
        assert failed or committed == self.finished

    @rule(raised=st.sampled_from([None, *RAISED]))
    def leave_and_open_again(self, raised: BaseException | None) -> None:
        out: BaseException | None = None
        with self.disk.used():
            try:
                with self.writer:
                    throw(raised)
            except BaseException as error:  # noqa: BLE001
                out = error
        if raised is not None:
            assert out is raised, "what the user raised is what comes out"
        else:
            assert isinstance(out, OSError | None)
        committed = {one.task_id for one in self.writer.committed}
        refused = isinstance(out, OSError) if raised is None else bool(getattr(raised, "__notes__", []))
        assert refused or self.finished <= committed, "finished groups were lost though the disk accepted them"
        for one in RAISED:
            if hasattr(one, "__notes__"):
                del one.__notes__
        self.disk.full = False
        self.writer = StepWriter(self.folder / "run", shard_rows=self.shard_rows)
        there = {one.task_id for one in self.writer.committed}
        assert committed <= there <= self.finished | committed
        self.finished = there

    @invariant()
    def the_table_is_right(self) -> None:
        if not hasattr(self, "writer"):
            return
        report = verify(self.folder / "run")
        assert {problem.kind for problem in report.problems} == set(), report.problems
        found = tasks_in(self.folder / "run")
        assert found.keys() <= self.finished
        assert {one.task_id for one in self.writer.committed} <= found.keys()
        assert all(count in {1, 2, 3, 4} for count in found.values()), "rows are doubled or lost"


TestWriting = Writing.TestCase
TestWriting.settings = settings(max_examples=sample_or_all(5, 1_000), stateful_step_count=15, deadline=None)
