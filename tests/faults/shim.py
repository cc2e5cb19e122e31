"""Builds shim.c and arms it in a process; says why where that cannot be."""

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
    """What happens at the chosen call."""

    OBSERVE = 0
    ERROR = 1
    """It fails with an error."""
    KILL = 2
    """The process dies before it."""
    TORN = 3
    """A write of half its data, then the process dies."""
    SHORT = 4
    """A write of half its data, and says so."""
    FULL = 5
    """From there on, every call that needs space fails."""
    ALL = 6
    """Every call fails, from the first on."""


def unusable() -> str | None:
    """Why the shim cannot be used here; None where it can."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "the fault shim traps system calls of Linux on x86-64"
    if shutil.which("cc") is None:
        return "the fault shim is compiled with cc, which is not installed"
    return None


@cache
def library() -> Path:
    """The compiled shim."""
    name = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"hgpo-fault-shim-{os.getuid()}-{name}.so"
    if not path.exists():
        part = path.with_suffix(f".{os.getpid()}")
        subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", part, SOURCE], check=True)
        part.replace(path)
    return path


def arm(folder: Path, log: Path, mode: Mode, point: int = 0, error: int = 0) -> None:
    """From now on this thread's calls below the folder are counted and recorded, and its threads' calls."""
    shim = ctypes.CDLL(str(library()), use_errno=True)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    status = shim.arm(os.fsencode(folder.resolve()), file, int(mode), ctypes.c_long(point), error)
    if status:
        raise OSError(ctypes.get_errno(), "cannot install the seccomp filter")
