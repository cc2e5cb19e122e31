"""Run a scenario with a fault at each call that writes, and check the files that are left.

A scenario is a command that writes into a folder, and a check with every reader of that folder. It runs first without a
fault. Then it runs once per recorded call and kind of fault, always from the same initial files:

- `error`: the call fails (no space, or an I/O error for calls that need none),
- `full`: the call and every later one that needs space fail,
- `short`: a write writes half of its data and returns that number of bytes,
- `kill`, `torn`: the process is killed before the call, or during a write,
- `data lost`, `names lost`: as `kill`, followed by a power cut: unsynced data, or also unsynced names, are lost.

After each fault: the check finds everything that was acknowledged and nothing damaged. Repeating the command produces
the same files as the run without a fault, byte for byte. Foreign files are unchanged and no scratch folders remain.

Every run is a fork of one process that has imported everything but has not computed with Polars, whose threads do
not survive a fork.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import hashlib
import importlib
import os
import random
import re
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

# Before the shim is armed: PyArrow's allocator starts a thread that blocks all signals, and a trapped call of a thread
# that blocks SIGSYS kills the process.
import pyarrow as pa  # noqa: F401

from tests.faults.disk import Call, Disk, Op, read_calls, read_tree, write_tree
from tests.faults.shim import Mode, arm

if TYPE_CHECKING:
    from pathlib import Path

Tree = Mapping[str, bytes | None]
LONGEST_S = 300
"""Time limit of a forked run in seconds; exceeding it is a failure."""
_SCRATCH = re.compile(r"(?<=\.hgpo-)[0-9a-f]{16}(?=\.tmp)")
"""The random part of a scratch folder's name; states that differ only in it are equal."""
SAID, BAD, HUNG = 2, 1, -signal.SIGALRM
"""Exit statuses of a fork: a one-line error, any other exception, the time limit."""


@dataclass(frozen=True)
class Scenario:
    """A command that writes.

    Attributes:
        name: The scenario's name in reports.
        run: Runs the command in a folder, and calls `note` for everything that it has acknowledged to its user.
        check: Reads the folder with every reader; raises if something noted is missing or wrong, or if anything else
            is damaged. `whole` is whether the command has succeeded.
        warm: Imports and creates everything that the forks share.
        prepare: Writes the folder's initial files.
        foreign: Paths of the user's own files, which must never be changed.
        varies: Patterns of paths whose content may differ between two runs without a fault.
        unpromised: Patterns of paths that need not survive a power cut.
    """

    name: str
    run: Callable[[Path, Callable[[str], None]], None]
    check: Callable[[Path, Sequence[str], bool], None]
    warm: Callable[[], None] = lambda: None
    prepare: Callable[[Path], None] = lambda _: None
    foreign: tuple[str, ...] = ()
    varies: tuple[str, ...] = ()
    unpromised: tuple[str, ...] = ()


class Point(NamedTuple):
    """A fault: the number of the call and the kind of fault."""

    at: int
    mode: Mode
    error: int = 0

    def __str__(self) -> str:
        """Return the fault as reports show it."""
        return f"{self.mode.name.lower()}{' ' + errno.errorcode[self.error] if self.error else ''}"


@dataclass
class Report:
    """The outcome of a scenario's faults.

    Attributes:
        calls: Number of calls of the run without a fault, by name.
        points: Number of all points, including those that were not tried.
        covered: Number of injected faults, by kind.
        missed: Number of points that a run did not reach.
        failures: Pairs of a point and the problem found there.
        seconds: Wall time in seconds.
    """

    calls: Counter[str] = field(default_factory=Counter)
    points: int = 0
    covered: Counter[str] = field(default_factory=Counter)
    missed: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0


class Harness:
    """Runs one scenario with all its faults.

    Args:
        scenario: The scenario.
        work: An empty folder for all files; a memory file system is fastest.
        most: Number of points to try, drawn from all of them; 0 tries every point.
        thorough: Whether to try every error at every call instead of only the likely one.
    """

    def __init__(self, scenario: Scenario, work: Path, *, most: int = 0, thorough: bool = False) -> None:
        self.scenario, self.most, self.thorough = scenario, most, thorough
        self.root, self.log, self.notes, self.said, self.stage, self.modules = (
            work / name for name in ("root", "log", "notes", "said", "stage", "modules")
        )
        self.report = Report()
        self._known: dict[str, list[str]] = {}

    def run(self, only: Sequence[int] = ()) -> Report:
        """Run all points, or only those of some calls."""
        began = time.monotonic()
        self.scenario.warm()
        self.before = self._prepared()
        try:
            calls = self._whole_run()
        except AssertionError as error:
            self._failed("whole run", [str(error)])
            calls = []
        points = [point for point in (self._points(calls) if calls else ()) if not only or point.at in only]
        self.report.points = len(points)
        for point in _spread(points, self.most):
            self._try(point, calls)
        self.report.seconds = time.monotonic() - began
        return self.report

    def _prepared(self) -> Tree:
        self.root.mkdir(parents=True)
        status = forked(lambda: self.scenario.prepare(self.root), self.said)
        assert status == 0, f"{self.scenario.name}: cannot be prepared: {self.said.read_text()}"
        for name in self.scenario.foreign:
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            assert not path.exists(), f"{name} is no foreign file here"
            path.write_text(f"a user's own {name}\n")
        return read_tree(self.root)

    def _whole_run(self) -> list[Call]:
        status, calls = self._faulty(Point(0, Mode.OBSERVE))
        self.after = read_tree(self.root)
        assert status == 0, f"fails without a fault ({status}): {self.said.read_text().strip()}"
        self._share_imports()
        self.report.calls.update(call.op.name.lower() for call in calls)
        disk = self._replayed(calls)
        unseen = sorted(path for path, data in self.after.items() if disk.now().get(path, 0) != data)
        assert disk.now() == self.after, f"the record misses calls that write {unseen}"
        for name in self.scenario.foreign:
            if self.after.get(name) != self.before[name]:
                self.report.failures.append(("whole run", f"the foreign file {name} is changed"))
        self.report.failures += [("whole run", line.replace(f"{self.root}/", "")) for line in disk.early]
        self.report.failures += [
            ("whole run", f"{path} is not synced at the end")
            for path in disk.unsynced()
            if not any(fnmatch.fnmatch(path, pattern) for pattern in self.scenario.unpromised)
        ]
        self.report.failures += [("whole run", problem) for problem in self._problems_after(self._noted(), whole=True)]
        self._share_imports()
        return calls

    def _share_imports(self) -> None:
        """Import the modules that the last fork imported, so that later forks start with them."""
        named = self.modules.read_text().split() if self.modules.exists() else []
        for name in named:
            if name not in sys.modules:
                with contextlib.suppress(ImportError):
                    importlib.import_module(name)

    def _points(self, calls: Sequence[Call]) -> Iterator[Point]:
        for call in calls:
            grows = call.op in (Op.WRITE, Op.MKDIR, Op.LINK, Op.RENAME) or (
                call.op is Op.OPEN and bool(call.flags & os.O_CREAT)
            )
            likely = errno.ENOSPC if grows or call.op is Op.SYNC else errno.EIO
            for error in (errno.ENOSPC, errno.EIO) if self.thorough else (likely,):
                yield Point(call.point, Mode.ERROR, error)
            if grows:
                yield Point(call.point, Mode.FULL, errno.ENOSPC)
            yield Point(call.point, Mode.KILL)
            if call.op is Op.WRITE and call.result > 1:
                yield Point(call.point, Mode.TORN)
                yield Point(call.point, Mode.SHORT)
        yield Point(len(calls) + 1, Mode.KILL)
        yield Point(1, Mode.ALL, errno.EROFS)

    def _faulty(self, point: Point) -> tuple[int, list[Call]]:
        """Run the command with a fault; return its exit status and its calls."""
        self._restore(self.before)
        for path in (self.log, self.notes):
            path.write_bytes(b"")

        def command() -> None:
            arm(self.root, self.log, point.mode, point.at, point.error)
            self.scenario.run(self.root, self._note)
            if point.mode is Mode.OBSERVE:
                self._list_imports()
            if point.mode is Mode.KILL and point.at > len(read_calls(self.log)):
                os.kill(os.getpid(), signal.SIGKILL)

        return forked(command, self.said), read_calls(self.log)

    def _list_imports(self) -> None:
        named = [name for name, module in sys.modules.items() if getattr(module, "__spec__", None)]
        self.modules.write_text("\n".join(named))

    def _note(self, what: str) -> None:
        with self.notes.open("a") as file:
            file.write(f"{what}\n")

    def _noted(self) -> list[str]:
        return self.notes.read_text().splitlines()

    def _try(self, point: Point, calls: Sequence[Call]) -> None:
        status, made = self._faulty(point)
        what = str(calls[point.at - 1]).replace(str(self.root) + "/", "") if point.at <= len(calls) else "the end"
        tree, noted, said = read_tree(self.root), self._noted(), self.said.read_text()
        dies = point.mode in (Mode.KILL, Mode.TORN)
        if dies and status != -signal.SIGKILL:
            self.report.missed += 1
            return
        self.report.covered[str(point)] += 1
        if not dies:
            self._judge_error(f"{point} at {what}", status, tree, said)
            self._judge_state(f"{point} at {what}", tree, noted, whole=status == 0)
            return
        self._judge_state(f"{point} at {what}", tree, noted)
        disk = self._replayed(made)
        for kind, names in (("data lost", True), ("names lost", False)):
            self.report.covered[f"{point}, {kind}"] += 1
            self._judge_state(f"{point}, {kind} at {what}", disk.after_a_power_cut(names=names), noted, cut=True)

    def _judge_error(self, where: str, status: int, tree: Tree, said: str) -> None:
        """Record a failure unless an error is one line and success produces the complete result."""
        if status == 0:
            # Scratch folders that could not be removed may remain until the next run.
            kept = {path: data for path, data in tree.items() if ".hgpo-" not in path}
            self._failed(where, [f"reported success, but {odd}" for odd in self._differences(kept)])
        elif status != SAID:
            last = said.strip().splitlines()[-1] if said.strip() else ""
            self._failed(where, ["hangs" if status == HUNG else f"ends with {status}: {last}"])

    def _judge_state(
        self, where: str, tree: Tree, noted: Sequence[str], *, whole: bool = False, cut: bool = False
    ) -> None:
        if cut:
            tree = {**tree, **{path: self.before[path] for path in self._unpromised(self.before) if path not in tree}}
        key = _digest({path: b"" if self._varies(path) else data for path, data in tree.items()}, noted, whole)
        if key not in self._known:
            self._restore(tree)
            self._known[key] = self._problems_after(noted, whole=whole)
        self._failed(where, self._known[key])

    def _failed(self, where: str, problems: Sequence[str]) -> None:
        plain = [_SCRATCH.sub("*", one.replace(f"{self.root}/", "").replace(str(self.root), ".")) for one in problems]
        self.report.failures += [(where, problem) for problem in plain]

    def _problems_after(self, noted: Sequence[str], *, whole: bool) -> list[str]:
        """Return the problems of the folder in its present state, and after the command runs again."""

        def again() -> None:
            self.stage.write_text("the files left by it cannot be read")
            self.scenario.check(self.root, noted, whole)
            self.stage.write_text("running it again fails")
            self.scenario.run(self.root, lambda _: None)
            self.stage.write_text("the files left by the second run cannot be read")
            self.scenario.check(self.root, noted, True)
            sweep_all(self.root)
            self._list_imports()

        status = forked(again, self.said)
        if status:
            lines = self.said.read_text().strip().splitlines()
            return [f"{self.stage.read_text()}: {'it hangs' if status == HUNG else lines[-1] if lines else status}"]
        return [f"after the second run {odd}" for odd in self._differences(read_tree(self.root))]

    def _differences(self, tree: Tree) -> list[str]:
        """Return the differences from the folder of the run without a fault."""
        odd = [
            f"the foreign file {name} is changed, which does not happen without a fault"
            for name in self.scenario.foreign
            if tree.get(name) != self.before[name] == self.after.get(name)
        ]
        odd += [f"{name} is left behind" for name in sorted(tree.keys() - self.after.keys())]
        odd += [f"{name} is missing" for name in sorted(self.after.keys() - tree.keys())]
        for path in sorted(tree.keys() & self.after.keys()):
            if tree[path] != self.after[path] and not self._varies(path):
                odd.append(f"{path} differs")
        return odd

    def _varies(self, path: str) -> bool:
        return any(fnmatch.fnmatch(path, pattern) for pattern in self.scenario.varies)

    def _unpromised(self, tree: Tree) -> list[str]:
        return [path for path in tree if any(fnmatch.fnmatch(path, each) for each in self.scenario.unpromised)]

    def _replayed(self, calls: Sequence[Call]) -> Disk:
        self._kept = self.root.with_name("before")
        if not self._kept.exists():
            write_tree(self._kept, self.before)
        disk = Disk(self._kept, as_root=self.root)
        for call in calls:
            disk.do(call)
        return disk

    def _restore(self, tree: Tree) -> None:
        shutil.rmtree(self.root)
        write_tree(self.root, tree)


def sweep_all(root: Path) -> None:
    """Remove abandoned scratch folders as the next writer in each folder does; what remains would stay forever."""
    from hgpo_envs.files.atomic import remove_abandoned

    for folder in (root, *[path for path in root.rglob("*") if path.is_dir() and not _SCRATCH.search(str(path))]):
        remove_abandoned(folder)


def _spread(points: list[Point], most: int) -> list[Point]:
    """Return some of the points, drawn with a fixed seed."""
    if not most or len(points) <= most:
        return points
    chosen = set(random.Random(len(points)).sample(range(len(points)), most))
    return [point for number, point in enumerate(points) if number in chosen]


def _digest(tree: Tree, noted: Sequence[str], whole: bool) -> str:
    digest = hashlib.sha256(repr((noted, whole)).encode())
    plain = [(_SCRATCH.sub("*", path), data) for path, data in tree.items()]
    for path, data in sorted(plain, key=lambda one: (one[0], one[1] or b"")):
        digest.update(f"{path}\0{-1 if data is None else len(data)}\0".encode())
        digest.update(data or b"")
    return digest.hexdigest()


def forked(action: Callable[[], None], said: Path) -> int:
    """Run an action in a fork and write its output and errors to the file `said`.

    Returns:
        0; SAID for an OSError, InputError or an exit of a command that has printed no traceback; BAD for anything else
        that was raised; minus a signal's number.
    """
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = BAD
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LONGEST_S)
        file = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(file, stream)
        status = _ended(action)
    finally:
        os._exit(status)


def _line(error: BaseException) -> bytes:
    return f"{type(error).__name__}: {' '.join(str(error).split())}".encode(errors="replace")


def _ended(action: Callable[[], None]) -> int:
    from hgpo_envs.errors import InputError

    try:
        action()
    except SystemExit as error:
        sys.stdout.flush()
        sys.stderr.flush()
        return SAID if error.code else 0
    except (OSError, InputError) as error:
        os.write(2, _line(error))
        return SAID if "\n" not in str(error) else BAD
    except BaseException as error:  # noqa: BLE001 (the fork must end here, whatever was raised)
        os.write(2, traceback.format_exc().encode() + _line(error))
        return BAD
    return 0
