"""A model of a disk's content after recorded calls, as the process sees it and as a power cut leaves it.

Every file has its data and the data of its last sync, and every folder its entries and those of its last sync. A
rename is atomic: a sync of either folder persists both sides, as journals do. POSIX does not guarantee anything else
that was not synced, so the worst case is returned.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_SCRATCH = re.compile(r"/\.hgpo-[0-9a-f]{16}\.tmp/")
_EXCHANGE = 2
"""Linux's RENAME_EXCHANGE."""
_HEAD = struct.Struct("<iiqqiiii")


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


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded call; a negative result is an errno."""

    point: int
    op: Op
    result: int
    offset: int
    flags: int
    path: str
    other: str
    data: bytes

    def __str__(self) -> str:
        """Return the call as reports show it."""
        return f"{self.point} {self.op.name.lower()} {self.path}{' -> ' + self.other if self.other else ''}"


def read_calls(log: Path) -> list[Call]:
    """Return the calls of a log in order."""
    return list(_calls(log.read_bytes()))


def _calls(data: bytes) -> Iterator[Call]:
    position = 0
    while position < len(data):
        point, op, result, offset, flags, *lengths = _HEAD.unpack_from(data, position)
        position += _HEAD.size
        parts = []
        for length in lengths:
            parts.append(data[position : position + length])
            position += length
        yield Call(point, Op(op), result, offset, flags, os.fsdecode(parts[0]), os.fsdecode(parts[1]), parts[2])


@dataclass(eq=False, slots=True)
class File:
    """A file's data, and its data on the disk."""

    data: bytearray
    synced: bytes = b""


@dataclass(eq=False, slots=True)
class Folder:
    """A folder's entries, and its entries on the disk."""

    entries: dict[str, File | Folder] = field(default_factory=dict)
    synced: dict[str, File | Folder] = field(default_factory=dict)


@dataclass(eq=False, frozen=True, slots=True)
class _Rename:
    """A rename that no sync has persisted yet; `back` is the other entry of an exchange."""

    old: Folder
    old_name: str
    new: Folder
    new_name: str
    moved: File | Folder
    back: File | Folder | None


class Disk:
    """A folder that is completely on the disk at first, and is changed by `do` for every call.

    Args:
        root: The folder.
        as_root: The folder in the calls' paths, if it differs from `root`.

    Attributes:
        early: Descriptions of renames whose content had not been synced before.
    """

    def __init__(self, root: Path, as_root: Path | None = None) -> None:
        self._root_path = os.fspath((as_root or root).resolve())
        self._root = _load(root)
        self._renamed: list[_Rename] = []
        self.early: list[str] = []

    def do(self, call: Call) -> None:
        """Apply a call; failed calls have no effect."""
        if call.result < 0:
            return
        match call.op:
            case Op.OPEN:
                self._open(call)
            case Op.WRITE | Op.TRUNCATE:
                file = self._find(call.path)
                if isinstance(file, File):
                    _change(file, call)
            case Op.SYNC:
                self._sync(self._find(call.path))
            case Op.RENAME:
                self._rename(call)
            case Op.SYMLINK:
                raise NotImplementedError("symbolic links are not modelled")
            case _:
                self._name(call)

    def _name(self, call: Call) -> None:
        """Add or remove a name."""
        folder, name = self._place(call.other if call.op is Op.LINK else call.path)
        if call.op is Op.LINK:
            folder.entries[name] = self._must(call.path)
        elif call.op is Op.MKDIR:
            folder.entries[name] = Folder()
        else:
            folder.entries.pop(name, None)

    def _open(self, call: Call) -> None:
        folder, name = self._place(call.path)
        file = folder.entries.get(name)
        if file is None and call.flags & os.O_CREAT:
            file = folder.entries[name] = File(bytearray())
        if isinstance(file, File) and call.flags & os.O_TRUNC:
            del file.data[:]

    def _sync(self, what: File | Folder | None) -> None:
        if isinstance(what, File):
            what.synced = bytes(what.data)
        elif isinstance(what, Folder):
            what.synced = dict(what.entries)
            for one in [each for each in self._renamed if what in (each.old, each.new)]:
                if one.back is not None:
                    one.old.synced[one.old_name] = one.back
                elif one.old.synced.get(one.old_name) is one.moved:
                    del one.old.synced[one.old_name]
                one.new.synced[one.new_name] = one.moved
                self._renamed.remove(one)

    def _rename(self, call: Call) -> None:
        old, old_name = self._place(call.path)
        new, new_name = self._place(call.other)
        moved = old.entries.pop(old_name)
        back = new.entries[new_name] if call.flags & _EXCHANGE else None
        if back is not None:
            old.entries[old_name] = back
        new.entries[new_name] = moved
        self._renamed.append(_Rename(old, old_name, new, new_name, moved, back))
        # The content of a scratch folder may be synced later, before the folder is published.
        for path in () if _SCRATCH.search(call.other) else _unsynced(moved, ""):
            self.early.append(f"{call}: {path or 'it'} was not synced before the rename")

    def _find(self, path: str) -> File | Folder | None:
        found: File | Folder | None = self._root
        for part in self._parts(path):
            found = found.entries.get(part) if isinstance(found, Folder) else None
        return found

    def _must(self, path: str) -> File | Folder:
        found = self._find(path)
        assert found is not None, path
        return found

    def _place(self, path: str) -> tuple[Folder, str]:
        parent, _, name = os.path.normpath(path).rpartition("/")
        folder = self._must(parent)
        assert isinstance(folder, Folder), parent
        return folder, name

    def _parts(self, path: str) -> list[str]:
        inner = os.path.relpath(os.path.normpath(path), self._root_path)
        return [] if inner == "." else inner.split("/")

    def now(self) -> dict[str, bytes | None]:
        """Return every file's data by path, and None for folders."""
        return dict(_tree(self._root, ""))

    def after_a_power_cut(self, *, names: bool) -> dict[str, bytes | None]:
        """Return the worst-case content after a power cut.

        Args:
            names: Whether names survive and only data is lost, as on file systems that write names early.
        """
        return dict(_tree(self._root, "", data=False, names=names))

    def unsynced(self) -> list[str]:
        """Return the paths whose content a power cut would remove."""
        return sorted({path or "." for path in _unsynced(self._root, "")})


def _load(path: Path) -> Folder:
    folder = Folder()
    for child in sorted(path.iterdir()):
        if child.is_dir():
            folder.entries[child.name] = _load(child)
        else:
            data = child.read_bytes()
            folder.entries[child.name] = File(bytearray(data), data)
    folder.synced = dict(folder.entries)
    return folder


def _change(file: File, call: Call) -> None:
    if call.op is Op.TRUNCATE:
        del file.data[call.offset :]
        file.data.extend(bytes(call.offset - len(file.data)))
        return
    end = call.offset + call.result
    file.data.extend(bytes(max(0, end - len(file.data))))
    file.data[call.offset : end] = call.data


def _tree(folder: Folder, prefix: str, *, data: bool = True, names: bool = True) -> Iterator[tuple[str, bytes | None]]:
    for name, child in (folder.entries if names else folder.synced).items():
        if isinstance(child, Folder):
            yield prefix + name, None
            yield from _tree(child, f"{prefix}{name}/", data=data, names=names)
        else:
            yield prefix + name, bytes(child.data) if data else child.synced


def _unsynced(what: File | Folder, path: str) -> Iterator[str]:
    """Yield files whose data, and folders whose entries, are not on the disk. Removed entries do not count."""
    if isinstance(what, File):
        if bytes(what.data) != what.synced:
            yield path
        return
    if any(what.synced.get(name) is not child for name, child in what.entries.items()):
        yield path
    for name, child in what.entries.items():
        yield from _unsynced(child, f"{path}/{name}" if path else name)


def write_tree(folder: Path, tree: Mapping[str, bytes | None]) -> None:
    """Write a tree into an empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, data in tree.items():
        if data is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(data)


def read_tree(folder: Path) -> dict[str, bytes | None]:
    """Return a folder's content in the form of `Disk.now`."""
    return Disk(folder).now()
