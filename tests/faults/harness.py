"""Run a scenario with a fault at each call that writes, and check the files that are left.

A scenario is a command that writes into a folder, and a check with every reader of that folder. It runs first without a
fault. Then it runs once per recorded call and kind of fault, always from the same initial files:

- `error`: the call fails (no space, or an I/O error for calls that need none),
- `full`: the call and every later one that needs space fail,
- `short`: a write writes half of its data and returns that number of bytes,
- `kill`, `torn`: the process is killed before the call, or during a write.

After each fault: the check finds everything that was acknowledged and nothing damaged. Repeating the command produces
the same files as the run without a fault, byte for byte. Foreign files are unchanged and no scratch folders remain.
For power cuts, the order of the calls without a fault is checked: everything is synced before a rename publishes it,
and every new name before the command ends.

Every run is a fork of one process that has imported everything but has not computed with Polars, whose threads do
not survive a fork.
"""

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
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

# Before the shim is armed: PyArrow's allocator starts a thread that blocks all signals, and a trapped call of a thread
# that blocks SIGSYS kills the process.
import pyarrow as pa  # noqa: F401

from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import remove_abandoned
from tests.faults.shim import Call, Mode, Op, arm, read_calls

Tree = dict[str, bytes | None]
"""The data of files and None for folders, by path."""
Note = Callable[[str], None]

LONGEST_S = 300
"""Time limit of a forked run in seconds; exceeding it is a failure."""
REFUSED = 2
FAILED = 1
HUNG = -signal.SIGALRM
"""Exit statuses of a fork: a one-line error, any other exception, the time limit."""
_SCRATCH = re.compile(r"\.hgpo-[0-9a-f]{16}\.tmp")
_EXCHANGE = 2
"""Linux's RENAME_EXCHANGE."""


@dataclass(frozen=True)
class Scenario:
    """A command that writes.

    Attributes:
        name: The scenario's name in reports.
        run: Runs the command in a folder, and calls `note` for everything that it has acknowledged to its user.
        check: Reads the folder with every reader; raises if something noted is missing or wrong, or if anything else
            is damaged. `whole` is whether the command has succeeded.
        warm: Creates what the forks share and is slow to create.
        prepare: Writes the folder's initial files.
        foreign: Paths of the user's own files, which must never be changed.
        varies: Patterns of paths whose content may differ between two runs without a fault.
    """

    name: str
    run: Callable[[Path, Note], object]
    check: Callable[[Path, Sequence[str], bool], object]
    warm: Callable[[], object] = lambda: None
    prepare: Callable[[Path], object] = lambda _: None
    foreign: tuple[str, ...] = ()
    varies: tuple[str, ...] = ()


class Point(NamedTuple):
    """A fault: the number of the call and the kind of fault."""

    at: int
    mode: Mode
    error: int = 0


@dataclass
class Report:
    """The number of injected faults, and each failure with the faults that caused it."""

    tried: int = 0
    failures: dict[str, list[str]] = field(default_factory=dict)

    def add(self, fault: str, problem: str) -> None:
        """Add a failure."""
        self.failures.setdefault(problem, []).append(fault)


class Harness:
    """Runs one scenario with all its faults.

    Args:
        scenario: The scenario.
        work: An empty folder for all files; a memory file system is fastest.
        most: Number of points to try, drawn from all of them; 0 tries every point.
    """

    def __init__(self, scenario: Scenario, work: Path, most: int = 0) -> None:
        self.scenario = scenario
        self.most = most
        self.root, self.log, self.notes, self.output, self.stage, self.modules = (
            work / name
            for name in ("root", "log", "notes", "output", "stage", "modules")
        )
        self.report = Report()
        self._known: dict[bytes, list[str]] = {}

    def run(self) -> Report:
        """Run the scenario without a fault, then with each."""
        self.scenario.warm()
        self.before = self._prepared()
        calls = self._whole_run()
        points = list(_points(calls))
        if self.most < len(points) and self.most:
            points = random.Random(len(points)).sample(points, self.most)
        for point in points:
            self._try(point, calls)
        return self.report

    def _prepared(self) -> Tree:
        self.root.mkdir(parents=True)
        status = forked(lambda: self.scenario.prepare(self.root), self.output)
        assert status == 0, (
            f"{self.scenario.name}: cannot be prepared: {self.output.read_text()}"
        )
        for name in self.scenario.foreign:
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"a user's own {name}\n")
        return read_tree(self.root)

    def _whole_run(self) -> list[Call]:
        status, calls = self._faulty(Point(0, Mode.OBSERVE))
        assert status == 0, (
            f"fails without a fault ({status}): {self.output.read_text().strip()}"
        )
        self.after = read_tree(self.root)
        self._share_imports()
        for problem in (
            *unsynced(calls, self.root, self.before),
            *self._problems_after(self._noted(), whole=True),
        ):
            self.report.add("no fault", self._plain(problem))
        self._share_imports()
        return calls

    def _share_imports(self) -> None:
        """Import the modules that the last fork imported, so that later forks start with them."""
        for name in self.modules.read_text().split() if self.modules.exists() else ():
            with contextlib.suppress(ImportError):
                importlib.import_module(name)

    def _list_imports(self) -> None:
        names = [
            name
            for name, module in sys.modules.items()
            if getattr(module, "__spec__", None)
        ]
        self.modules.write_text("\n".join(names))

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

        return forked(command, self.output), read_calls(self.log)

    def _note(self, acknowledged: str) -> None:
        with self.notes.open("a") as file:
            file.write(f"{acknowledged}\n")

    def _noted(self) -> list[str]:
        return self.notes.read_text().splitlines()

    def _try(self, point: Point, calls: Sequence[Call]) -> None:
        status, _ = self._faulty(point)
        call = calls[point.at - 1] if point.at <= len(calls) else "the end"
        fault = self._plain(
            f"{point.mode.name.lower()} {errno.errorcode.get(point.error, '')} at {call}"
        )
        self.report.tried += 1
        tree = read_tree(self.root)
        noted = self._noted()
        if point.mode in (Mode.KILL, Mode.TORN):
            problems = [] if status == -signal.SIGKILL else ["is not reached"]
        else:
            problems = self._problems_of_error(status, tree)
        for problem in (
            *problems,
            *self._problems_of_state(tree, noted, whole=status == 0),
        ):
            self.report.add(fault, self._plain(problem))

    def _problems_of_error(self, status: int, tree: Tree) -> list[str]:
        """Return a problem unless an error is one line and success produces the complete result."""
        if status == 0:
            # scratch folders that could not be removed may remain until the next run
            kept = {path: data for path, data in tree.items() if ".hgpo-" not in path}
            return [
                f"reported success, but {difference}"
                for difference in self._differences(kept)
            ]
        if status == REFUSED:
            return []
        lines = self.output.read_text().strip().splitlines() or [""]
        return ["hangs" if status == HUNG else f"ends with {status}: {lines[-1]}"]

    def _problems_of_state(
        self, tree: Tree, noted: Sequence[str], *, whole: bool
    ) -> list[str]:
        """Return what is wrong with the files that a fault left. Equal states are examined once."""
        contents = sorted(
            (path, b"" if self._varies(path) else data) for path, data in tree.items()
        )
        key = hashlib.sha256(
            _SCRATCH.sub("*", repr((contents, noted, whole))).encode()
        ).digest()
        if key not in self._known:
            self._known[key] = self._problems_after(noted, whole=whole)
        return self._known[key]

    def _problems_after(self, noted: Sequence[str], *, whole: bool) -> list[str]:
        """Return the problems of the folder in its present state, and after the command runs again."""

        def again() -> None:
            self.stage.write_text("the files left by it cannot be read")
            self.scenario.check(self.root, noted, whole)
            self.stage.write_text("running it again fails")
            self.scenario.run(self.root, lambda _: None)
            self.stage.write_text("the files left by the second run cannot be read")
            self.scenario.check(self.root, noted, True)
            # as the next writer in each folder does; what remains would stay forever
            for folder in (
                self.root,
                *(path for path in self.root.rglob("*") if path.is_dir()),
            ):
                if not _SCRATCH.search(str(folder)):
                    remove_abandoned(folder)
            self._list_imports()

        if status := forked(again, self.output):
            lines = self.output.read_text().strip().splitlines() or [str(status)]
            return [
                f"{self.stage.read_text()}: {'it hangs' if status == HUNG else lines[-1]}"
            ]
        return [
            f"after the second run {difference}"
            for difference in self._differences(read_tree(self.root))
        ]

    def _differences(self, tree: Tree) -> list[str]:
        """Return the differences from the folder of the run without a fault, and changed foreign files."""
        foreign = [
            name
            for name in self.scenario.foreign
            if tree.get(name) != self.before[name]
        ]
        changed = [
            path
            for path in sorted(tree.keys() & self.after.keys())
            if tree[path] != self.after[path] and not self._varies(path)
        ]
        return [
            *(f"the foreign file {name} is changed" for name in foreign),
            *(
                f"{name} is left behind"
                for name in sorted(tree.keys() - self.after.keys())
            ),
            *(f"{name} is missing" for name in sorted(self.after.keys() - tree.keys())),
            *(f"{name} differs" for name in changed),
        ]

    def _varies(self, path: str) -> bool:
        return any(
            fnmatch.fnmatch(path, pattern)
            for pattern in ("*.lock", *self.scenario.varies)
        )

    def _plain(self, text: str) -> str:
        return _SCRATCH.sub(
            "*", text.replace(f"{self.root}/", "").replace(str(self.root), ".")
        )

    def _restore(self, tree: Tree) -> None:
        shutil.rmtree(self.root)
        self.root.mkdir()
        for path, data in tree.items():
            if data is None:
                (self.root / path).mkdir()
            else:
                (self.root / path).write_bytes(data)


def _points(calls: Sequence[Call]) -> Iterator[Point]:
    for call in calls:
        creates = call.op is Op.OPEN and call.flags & os.O_CREAT
        grows = creates or call.op in (Op.WRITE, Op.MKDIR, Op.LINK, Op.RENAME)
        yield Point(
            call.point,
            Mode.ERROR,
            errno.ENOSPC if grows or call.op is Op.SYNC else errno.EIO,
        )
        if grows:
            yield Point(call.point, Mode.FULL, errno.ENOSPC)
        yield Point(call.point, Mode.KILL)
        if call.op is Op.WRITE and call.result > 1:
            yield Point(call.point, Mode.TORN)
            yield Point(call.point, Mode.SHORT)
    yield Point(len(calls) + 1, Mode.KILL)


def unsynced(calls: Sequence[Call], root: Path, before: Tree) -> list[str]:
    """Return what a power cut could take: content that a rename published, and names at the end, without a sync."""
    there = {str(root), *(str(root / path) for path in before)}
    data: set[str] = set()
    """Files whose data is not on the disk."""
    names: set[str] = set()
    """Files and folders that a folder on the disk lacks."""
    problems = []
    for call in (call for call in calls if call.result >= 0):
        path = call.path
        target = call.other or call.path
        below = {
            name for name in data | names if name == path or name.startswith(f"{path}/")
        }
        if call.op is Op.SYNC:
            data.discard(path)
            names = {name for name in names if name.rpartition("/")[0] != path}
        elif call.op in (Op.UNLINK, Op.RMDIR):
            data = data - below
            names = names - below
            there.discard(path)
        elif call.op is Op.RENAME:
            # the content of a scratch folder may be synced later, before the folder is published
            lost = () if _SCRATCH.search(target) else (data | names - {path}) & below
            problems += [f"{name} is renamed before it is synced" for name in lost]
            moved = {name: target + name.removeprefix(path) for name in below}
            data = {moved.get(name, name) for name in data}
            names = {moved.get(name, name) for name in names}
            names |= {path, target} if call.flags & _EXCHANGE else {target}
            there.add(target)
        elif call.op in (Op.MKDIR, Op.LINK) or path not in there:
            names.add(target)
            there.add(target)
        if call.op in (Op.WRITE, Op.TRUNCATE) or (
            call.op is Op.OPEN and call.flags & os.O_TRUNC
        ):
            data.add(path)
    lost = sorted(name for name in data | names if not name.endswith(".lock"))
    return problems + [f"{name} is not synced at the end" for name in lost]


def read_tree(folder: Path) -> Tree:
    """Return a folder's content."""
    paths = sorted(folder.rglob("*"))
    return {
        path.relative_to(folder).as_posix(): None
        if path.is_dir()
        else path.read_bytes()
        for path in paths
    }


def forked(action: Callable[[], object], output: Path) -> int:
    """Run an action in a fork and write its output and errors to a file.

    Returns:
        0; REFUSED for an OSError, InputError or an exit of a command that has printed no traceback; FAILED for anything
        else that was raised; minus a signal's number.
    """
    sys.stdout.flush()
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = FAILED
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LONGEST_S)
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(file, stream)
        status = _ended(action)
    finally:
        os._exit(status)


def _ended(action: Callable[[], object]) -> int:
    try:
        action()
    except SystemExit as error:
        sys.stdout.flush()
        sys.stderr.flush()
        return REFUSED if error.code else 0
    except BaseException as error:  # noqa: BLE001 (the fork must end here, whatever was raised)
        refused = isinstance(error, OSError | InputError) and "\n" not in str(error)
        os.write(2, b"" if refused else traceback.format_exc().encode())
        os.write(
            2,
            f"{type(error).__name__}: {' '.join(str(error).split())}".encode(
                errors="replace"
            ),
        )
        return REFUSED if refused else FAILED
    return 0
