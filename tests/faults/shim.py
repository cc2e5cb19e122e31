"""Build shim.c, arm it in a process, and read the calls that it records."""

import ctypes
import hashlib
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).with_name("shim.c")
HEAD = struct.Struct("<6iq")


class Mode(IntEnum):
    """The fault injected at the chosen call, numbered as in shim.c."""

    OBSERVE = 0
    ERROR = 1
    """The call fails with an error."""
    KILL = 2
    """The process is killed before the call."""
    TORN = 3
    """A write writes half of its data, then the process is killed."""
    SHORT = 4
    """A write writes half of its data and returns that number of bytes."""
    FULL = 5
    """The call and all later calls that need space fail."""


class Op(IntEnum):
    """The recorded calls, numbered as in shim.c."""

    OPEN = 1
    WRITE = 2
    TRUNCATE = 3
    SYNC = 4
    RENAME = 5
    LINK = 6
    UNLINK = 7
    MKDIR = 8
    RMDIR = 9
    SYMLINK = 10


class Call(NamedTuple):
    """One recorded call; a negative result is an errno."""

    point: int
    op: Op
    flags: int
    result: int
    path: str
    other: str

    def __str__(self) -> str:
        """Return the call as reports show it."""
        return f"{self.point} {self.op.name.lower()} {self.path}{' -> ' + self.other if self.other else ''}"


def unusable() -> str | None:
    """Return why the shim cannot be used on this system, or None if it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "the fault shim traps system calls of Linux on x86-64"
    if shutil.which("cc") is None:
        return "the fault shim is compiled with cc, which is not installed"
    return None


@cache
def library() -> Path:
    """Compile the shim if necessary and return its path."""
    name = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"hgpo-fault-shim-{os.getuid()}-{name}.so"
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}")
        subprocess.run(
            [
                "cc",
                "-O1",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-shared",
                "-fPIC",
                "-o",
                part,
                SOURCE,
            ],
            check=True,
        )
        part.replace(path)
    return path


def arm(folder: Path, log: Path, mode: Mode, point: int = 0, error: int = 0) -> None:
    """Count and record the following calls below a folder, by this thread and the threads it starts."""
    shim = ctypes.CDLL(str(library()), use_errno=True)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if shim.arm(
        os.fsencode(folder.resolve()), file, int(mode), ctypes.c_long(point), error
    ):
        raise OSError(ctypes.get_errno(), "cannot install the seccomp filter")


def read_calls(log: Path) -> list[Call]:
    """Return the calls of a log in order."""
    data = log.read_bytes()
    position = 0
    calls = []
    while position < len(data):
        point, op, flags, path_size, other_size, _, result = HEAD.unpack_from(
            data, position
        )
        position += HEAD.size
        names = data[position : position + path_size + other_size]
        calls.append(
            Call(
                point,
                Op(op),
                flags,
                result,
                os.fsdecode(names[:path_size]),
                os.fsdecode(names[path_size:]),
            )
        )
        position += path_size + other_size
    return calls
