"""Links, pipes and devices in the place of files and folders, beside files that must stay as they are."""

import contextlib
import os
import shutil
import socket
from pathlib import Path

KINDS = (
    "link to a file",
    "link to a folder",
    "dangling link",
    "link to a device",
    "pipe",
    "socket",
    "hard link",
    "folder",
)


def plant(path: Path, kind: str, outside: Path) -> None:
    """Replace a path by something else. Links lead to `outside`, a folder with files."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        # their names are short
        with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    elif kind == "hard link":
        path.hardlink_to(outside / "precious.txt")
    elif kind == "folder":
        path.mkdir()
    else:
        targets = {
            "link to a file": outside / "precious.txt",
            "link to a folder": outside,
            "dangling link": outside / "new",
        }
        path.symlink_to(targets.get(kind, Path("/dev/zero")))


def content(folder: Path) -> dict[str, bytes | None]:
    """Return every path below a folder, with the bytes of files."""
    paths = sorted(folder.rglob("*"))
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        if path.is_file()
        else None
        for path in paths
    }
