"""A folder that appears whole or not at all, and leaves nothing behind when its making fails or is killed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LOCK = ".building"


@contextmanager
def whole_folder(out: Path, *, replace: bool = False) -> Iterator[Path]:
    """Gives a temporary folder beside `out` to fill; it becomes `out` when the block ends without an error.

    What a killed process left is removed first: each maker holds a lock in its folder for as long as it lives.

    Raises:
        InputError: `out` is there already and `replace` is false, cannot be written, or the disk is full.
    """
    out = out.absolute()
    if out.exists() and not replace:
        raise InputError(f"{out} is there already; name another folder, or allow it to be replaced (--force)")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        _sweep(out)
        making = tempfile.mkdtemp(prefix=f".{out.name}.building-", dir=out.parent)
    except OSError as error:
        raise InputError(f"cannot write in {out.parent}: {error.strerror}") from None
    temporary = out.parent / os.path.basename(making)  # noqa: PTH119 - mkdtemp gives a str
    try:
        with (temporary / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield temporary
            (temporary / _LOCK).unlink()
            _settle(temporary)
            _exchange(temporary, out)
    except OSError as error:
        # NumPy's short writes carry no number, only a sentence
        full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG} or "requested and" in str(error)
        why = "no space left for it on the disk" if full else error.strerror or str(error)
        raise InputError(f"cannot make {out}: {why}; nothing was left behind") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sweep(out: Path) -> None:
    """Removes the folders of makers that no longer live."""
    for left in out.parent.glob(f".{out.name}.building-*"):
        with suppress(OSError):
            if not (left / _LOCK).exists():
                shutil.rmtree(left)
                continue
            with (left / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left)


def _settle(folder: Path) -> None:
    """Has every file and folder on the disk before the folder gets its name."""
    for path in sorted(folder.rglob("*"), reverse=True):
        sync(path)
    folder.chmod(0o755)
    sync(folder)


def sync(path: Path) -> None:
    """Waits until a file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _exchange(temporary: Path, out: Path) -> None:
    if out.exists():
        old = temporary.with_name(temporary.name + "-old")
        out.rename(old)
        temporary.rename(out)
        shutil.rmtree(old)
    else:
        temporary.rename(out)
    sync(out.parent)
