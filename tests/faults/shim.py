"""Build shim.c and arm it in a process, or return why that is impossible."""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from enum import IntEnum
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("shim.c")


class Mode(IntEnum):
    """The fault injected at the chosen call."""

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
    ALL = 6
    """All calls fail."""


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
        subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", part, SOURCE], check=True)
        part.replace(path)
    return path


def arm(folder: Path, log: Path, mode: Mode, point: int = 0, error: int = 0) -> None:
    """Count and record the following calls below a folder, by this thread and the threads it starts."""
    shim = ctypes.CDLL(str(library()), use_errno=True)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    status = shim.arm(os.fsencode(folder.resolve()), file, int(mode), ctypes.c_long(point), error)
    if status:
        raise OSError(ctypes.get_errno(), "cannot install the seccomp filter")
