"""Packs: many game files in one file that opens in a few milliseconds and reads games on access.

The layout is little-endian. Games are sorted by task id. Domains and grammars, of which thousands of games have only a
few, are stored once. The planning problems are deflated with one of them as the preset dictionary.

    header   64 bytes: magic, version, games, file length, position and length of texts and index, their CRC-32s
    games    each: deflated JSON {problem, task, domain, grammar, file, trajectory}
    texts    zlib: JSON {domains, grammars, dictionary}
    index    per game 20 bytes: position u64, length u32, CRC-32 u32, end of its id u32; then the ids, UTF-8

Checksums cover every byte. Header, texts and index are checked when a pack is opened, a game when it is read.
docs/design.md compares this format with common ones.
"""

from __future__ import annotations

import mmap
import os
import struct
import zlib
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Annotated, Any, Final

import msgspec
import numpy as np
import orjson

from hgpo_envs.alfworld.engine.game import LONGEST_FILE, TEXTS, checked, compile_game
from hgpo_envs.alfworld.engine.grammar import join_task, split_task
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.atomic import new_path
from hgpo_envs.files.untrusted_files import decompress, open_regular, writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    PackedGame = tuple[str, Mapping[str, Any], Mapping[str, Any] | None]
    """Task id, JSON object of the game file, JSON object of its `traj_data.json` or None."""


MAGIC: Final = b"HGPOALFW"
VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sIIQQIQII8xI")
_CHECKED: Final = _HEADER.size - 4
"""The number of header bytes before the header's CRC-32."""
_ENTRY: Final = np.dtype([("position", "<u8"), ("length", "<u4"), ("check", "<u4"), ("end", "<u4")])
_WINDOW: Final = 1 << 15
"""The maximum useful size of a deflate dictionary in bytes."""
LONGEST_TEXTS: Final = 16 << 20
"""The maximum size in bytes of all domains and grammars in a pack. Those of the official games have 60 kB."""
_KEPT_OF_TRAJECTORY: Final = ("task_id", "task_type", "pddl_params", "scene")
"""The stored fields of `traj_data.json`: those that the original's text environment and expert read, and the scene."""


class _Entry(msgspec.Struct):
    """A game as it is stored, with the numbers of its texts."""

    problem: str
    task: str
    domain: Annotated[int, msgspec.Meta(ge=0)]
    grammar: Annotated[int, msgspec.Meta(ge=0)]
    file: dict[str, Any]
    trajectory: dict[str, Any] | None


class _Texts(msgspec.Struct):
    domains: list[str]
    grammars: list[str]
    dictionary: Annotated[str, msgspec.Meta(max_length=_WINDOW)]


class PackStore:
    """A pack open for reading.

    Only header, texts and index are read at first. The games are memory-mapped and shared between processes.

    Args:
        path: The file.

    Raises:
        InputError: If the file is not a pack, is truncated or damaged, or has another format version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_regular(path, "pack of ALFWorld games") as file:
            if os.fstat(file.fileno()).st_size < _HEADER.size:
                raise _foreign(path)
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        count, texts, index = self._open()
        with self._sound():
            self._texts = msgspec.json.decode(decompress(texts, LONGEST_TEXTS), type=_Texts)
            self._dictionary = self._texts.dictionary.encode()
            self._entries, self._numbers = _index(index, count)

    def _open(self) -> tuple[int, bytes, bytes]:
        """Check the header and return the number of games, the packed texts and the index."""
        head = self._map[: _HEADER.size]
        magic, version, count, length, texts_at, texts_size, index_at, index_size, body_check, check = _HEADER.unpack(
            head
        )
        if magic != MAGIC:
            raise _foreign(self.path)
        if version != VERSION:
            raise InputError(
                f"{self.path}: expected pack format {VERSION}, received format {version}; "
                "build it again with `hgpo data build alfworld`"
            )
        if zlib.crc32(head[:_CHECKED]) != check:
            raise InputError(f"{self.path} is damaged (its header fails its checksum); copy or build it again")
        if len(self._map) != length:
            raise InputError(
                f"{self.path}: expected {length:,} bytes, received {len(self._map):,}; copy or build it again"
            )
        texts, index = self._map[texts_at : texts_at + texts_size], self._map[index_at : index_at + index_size]
        if zlib.crc32(index, zlib.crc32(texts)) != body_check:
            raise InputError(f"{self.path} is damaged (its index fails its checksum); copy or build it again")
        return count, texts, index

    @contextmanager
    def _sound(self, what: str = "") -> Iterator[None]:
        """Convert errors of the block, and add the pack's path and the damaged part."""
        try:
            yield
        except (InputError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            reason = error if isinstance(error, InputError) else f"its JSON is not that of a pack ({one_line(error)})"
            raise InputError(f"{self.path} is not a valid pack: {what}{reason}; copy or build it again") from None

    def __reduce__(self) -> tuple[type[PackStore], tuple[Path]]:
        return PackStore, (self.path,)

    def ids(self) -> Sequence[str]:
        """Return all task ids, sorted."""
        return list(self._numbers)

    def read(self, task_id: str) -> dict[str, Any]:
        """Return the JSON object of a game file. Raises KeyError for an unknown id."""
        entry = self._read(task_id)
        with self._sound(f"{task_id}: "):
            if entry.domain >= len(self._texts.domains) or entry.grammar >= len(self._texts.grammars):
                raise InputError("its domain or grammar is not in the pack")
            domain, grammar = self._texts.domains[entry.domain], self._texts.grammars[entry.grammar]
            texts = {"pddl_domain": domain, "grammar": join_task(grammar, entry.task), "pddl_problem": entry.problem}
            return checked(entry.file | texts)

    def trajectory(self, task_id: str) -> dict[str, Any] | None:
        """Return the stored fields of the game's `traj_data.json`, or None if it had none."""
        return self._read(task_id).trajectory

    def _read(self, task_id: str) -> _Entry:
        position, length, check, _ = self._entries[self._numbers[task_id]].item()
        packed = self._map[position : position + length]
        if zlib.crc32(packed) != check:
            raise InputError(f"{self.path}: {task_id} is damaged (it fails its checksum); copy or build the pack again")
        with self._sound(f"{task_id}: "):
            return msgspec.json.decode(decompress(packed, LONGEST_FILE, self._dictionary), type=_Entry)

    def verify(self) -> None:
        """Read every game. Raises InputError for the first that is damaged."""
        for task_id in self._numbers:
            self._read(task_id)


def _foreign(path: Path) -> InputError:
    return InputError(f"{path} is not a pack of ALFWorld games; expected a file from `hgpo data build alfworld`")


def write_pack(path: Path, games: Iterable[PackedGame]) -> int:
    """Write a pack atomically.

    Args:
        path: The file to write. An existing file is replaced only if it is a pack.
        games: The games, sorted by task id.

    Returns:
        The number of games.

    Raises:
        InputError: If the engine does not support a game, the ids are not sorted and distinct, there is no game, `path`
            exists and is not a pack, or the disk is full.
    """
    check_replaceable(path)
    with writing(path), new_path(path) as content, content.open("wb") as file:
        return _write(file, games)


def check_replaceable(path: Path) -> None:
    """Raise InputError if a path exists and is not a pack."""
    if not os.path.lexists(path):
        return
    with open_regular(path, "pack to replace") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise InputError(f"{path} already exists and is not a pack; choose another name, or remove it first")


def _index(index: bytes, count: int) -> tuple[NDArray[np.void], dict[str, int]]:
    """Return the entries of an index and the number of each by its id. Raises InputError if `count` is wrong."""
    names = index[_ENTRY.itemsize * count :]
    if not names:
        raise InputError(f"its index does not contain {count:,} games")
    entries = np.frombuffer(index, _ENTRY, count)
    try:
        ids = names.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise InputError(f"its ids are not UTF-8 ({error.reason})") from None
    numbers = dict(zip(ids[:-1], range(count), strict=False))
    ends = np.flatnonzero(np.frombuffer(names, np.uint8) == ord("\n")) + 1
    if len(numbers) != count or ids[-1] or not np.array_equal(ends, entries["end"]):
        raise InputError(f"its index does not contain {count:,} games with distinct ids")
    return entries, numbers


def _write(file: IO[bytes], games: Iterable[PackedGame]) -> int:
    domains: dict[str, int] = {}
    grammars: dict[str, int] = {}
    dictionary = b""
    rows: list[tuple[int, int, int, int]] = []
    names: list[bytes] = []
    ids_end = 0
    file.write(bytes(_HEADER.size))
    for task_id, data, trajectory in games:
        name = task_id.encode()
        if names and name <= names[-1]:
            raise InputError(f"{task_id} is out of order or a duplicate: expected games sorted by task id")
        compile_game(data, task_id)
        grammar, task = split_task(data["grammar"])
        entry = {
            "problem": data["pddl_problem"],
            "task": task,
            "domain": domains.setdefault(data["pddl_domain"], len(domains)),
            "grammar": grammars.setdefault(grammar, len(grammars)),
            "file": {key: "" if key in TEXTS else value for key, value in data.items()},
            "trajectory": _kept(trajectory),
        }
        dictionary = dictionary or data["pddl_problem"].encode()[:_WINDOW].decode("utf-8", "ignore").encode()
        deflate = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, zdict=dictionary)
        packed = deflate.compress(orjson.dumps(entry)) + deflate.flush()
        ids_end += len(name) + 1
        rows.append((file.tell(), len(packed), zlib.crc32(packed), ids_end))
        names.append(name)
        file.write(packed)
    if not names:
        raise InputError("no game to pack")
    texts = {"domains": list(domains), "grammars": list(grammars), "dictionary": dictionary.decode()}
    packed_texts = zlib.compress(orjson.dumps(texts), 9)
    index = np.array(rows, _ENTRY).tobytes() + b"".join(name + b"\n" for name in names)
    texts_at = file.tell()
    file.write(packed_texts + index)
    places = (texts_at, len(packed_texts), texts_at + len(packed_texts), len(index))
    check = zlib.crc32(index, zlib.crc32(packed_texts))
    head = _HEADER.pack(MAGIC, VERSION, len(names), file.tell(), *places, check, 0)[:_CHECKED]
    file.seek(0)
    file.write(head + struct.pack("<I", zlib.crc32(head)))
    return len(names)


def _kept(trajectory: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if trajectory is None:
        return None
    kept = {key: trajectory[key] for key in _KEPT_OF_TRAJECTORY if key in trajectory}
    if isinstance(kept.get("scene"), dict):
        kept["scene"] = {key: kept["scene"][key] for key in ("floor_plan", "scene_num") if key in kept["scene"]}
    return kept
