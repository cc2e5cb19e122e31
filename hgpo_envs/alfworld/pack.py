"""A pack: any number of game files in one, opened in a few milliseconds, each game read when it is asked for.

Layout, little-endian. Games are sorted by task id; domains and grammars, a handful among thousands of games, are kept
once, and the planning problems are deflated with one of them as the dictionary.

    header   64 bytes: magic, version, games, file length, position and length of texts and index, their CRC-32s
    games    each: deflated JSON {problem, task, domain, grammar, file, trajectory}
    texts    zlib: JSON {domains, grammars, dictionary}
    index    per game 20 bytes: position u64, length u32, CRC-32 u32, end of its id u32; then the ids, UTF-8

Every byte is under a checksum: header, texts and index are checked when a pack is opened, a game when it is read.
"""

from __future__ import annotations

import bisect
import mmap
import os
import struct
import zlib
from typing import IO, TYPE_CHECKING, Any, Final

import orjson

from hgpo_envs.alfworld.games import TEXTS, compile_game
from hgpo_envs.alfworld.grammar import join_task, split_task
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

MAGIC: Final = b"HGPOALFW"
VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sIIQQIQII")
_CHECKED_HEADER: Final = struct.Struct("<60sI")
_ENTRY: Final = struct.Struct("<QIII")
_WINDOW: Final = 1 << 15
"""The most that deflate can use of a dictionary."""
_KEPT_OF_TRAJECTORY: Final = ("task_id", "task_type", "pddl_params", "scene")
"""What the original's text environment and its expert read in `traj_data.json`, and the scene."""


class PackStore:
    """Opens a pack. Only header, texts and index are read; several processes share the rest as mapped memory.

    Args:
        path: The file.

    Raises:
        InputError: The file is no pack, cut off, damaged, or of another version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < _CHECKED_HEADER.size:
                raise InputError(_foreign(path))
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._count, texts, index = self._open()
        self._domains: list[str] = texts["domains"]
        self._grammars: list[str] = texts["grammars"]
        self._dictionary = texts["dictionary"].encode()
        self._index = index

    def _open(self) -> tuple[int, dict[str, Any], bytes]:
        head = self._map[: _CHECKED_HEADER.size]
        fields, check = _CHECKED_HEADER.unpack(head)
        magic, version, count, length, texts_at, texts_size, index_at, index_size, body_check = _HEADER.unpack(
            fields[: _HEADER.size]
        )
        if magic != MAGIC:
            raise InputError(_foreign(self.path))
        if version != VERSION:
            raise InputError(
                f"{self.path} is a pack of format {version}, this hgpo reads format {VERSION}: "
                "build it again with `hgpo data build alfworld`"
            )
        if zlib.crc32(fields) != check:
            raise InputError(f"{self.path} is damaged (its header fails its checksum); copy or build it again")
        if len(self._map) != length:
            raise InputError(f"{self.path} is {len(self._map):,} bytes long, not {length:,}; copy or build it again")
        texts, index = self._map[texts_at : texts_at + texts_size], self._map[index_at : index_at + index_size]
        if zlib.crc32(index, zlib.crc32(texts)) != body_check:
            raise InputError(f"{self.path} is damaged (its index fails its checksum); copy or build it again")
        return count, orjson.loads(zlib.decompress(texts)), index

    def __reduce__(self) -> tuple[type[PackStore], tuple[Path]]:
        return PackStore, (self.path,)

    def ids(self) -> Sequence[str]:
        """All task ids, sorted."""
        names = self._index[_ENTRY.size * self._count :].decode()
        return names.split("\n")[:-1]

    def _name(self, number: int) -> bytes:
        """The id of the n-th game, as in the index."""
        start = self._entry(number - 1)[3] if number else 0
        names = _ENTRY.size * self._count
        return self._index[names + start : names + self._entry(number)[3] - 1]

    def _entry(self, number: int) -> tuple[int, int, int, int]:
        position, length, check, end = _ENTRY.unpack_from(self._index, _ENTRY.size * number)
        return position, length, check, end

    def read(self, task_id: str) -> dict[str, Any]:
        """The JSON object of a game file, as it was packed. Raises KeyError for an unknown id."""
        entry = self._read(task_id)
        file = dict(entry["file"])
        file["pddl_domain"] = self._domains[entry["domain"]]
        file["grammar"] = join_task(self._grammars[entry["grammar"]], entry["task"])
        file["pddl_problem"] = entry["problem"]
        return file

    def trajectory(self, task_id: str) -> dict[str, Any] | None:
        """What is kept of the game's `traj_data.json`; None where it had none."""
        kept: dict[str, Any] | None = self._read(task_id)["trajectory"]
        return kept

    def _read(self, task_id: str) -> dict[str, Any]:
        name = task_id.encode("utf-8", "surrogatepass")
        number = bisect.bisect_left(range(self._count), name, key=self._name)
        if number == self._count or self._name(number) != name:
            raise KeyError(task_id)
        position, length, check, _ = self._entry(number)
        packed = self._map[position : position + length]
        if zlib.crc32(packed) != check:
            raise InputError(f"{self.path}: {task_id} is damaged (it fails its checksum); copy or build the pack again")
        entry: dict[str, Any] = orjson.loads(zlib.decompressobj(zdict=self._dictionary).decompress(packed))
        return entry

    def verify(self) -> None:
        """Reads every game; raises InputError for the first that is damaged."""
        for task_id in self.ids():
            self._read(task_id)


def _foreign(path: Path) -> str:
    return f"{path} is no pack of ALFWorld games: expected a file made by `hgpo data build alfworld`"


def write_pack(path: Path, games: Iterable[tuple[str, Mapping[str, Any], Mapping[str, Any] | None]]) -> int:
    """Writes a pack; it appears whole or not at all.

    Args:
        path: The file to write.
        games: Task id, JSON object of the game file, JSON object of its `traj_data.json` or None; sorted by id.

    Returns:
        The number of games.

    Raises:
        InputError: A game that the engine does not know, ids out of order or twice, or no game at all.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            count = _Writer(file).write(games)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return count


class _Writer:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._domains: dict[str, int] = {}
        self._grammars: dict[str, int] = {}
        self._dictionary = b""
        self._entries: list[tuple[int, int, int]] = []
        self._ids: list[bytes] = []

    def write(self, games: Iterable[tuple[str, Mapping[str, Any], Mapping[str, Any] | None]]) -> int:
        self._file.write(bytes(_CHECKED_HEADER.size))
        for task_id, data, trajectory in games:
            self._add(task_id, data, trajectory)
        if not self._ids:
            raise InputError("no game to pack")
        self._finish()
        return len(self._ids)

    def _add(self, task_id: str, data: Mapping[str, Any], trajectory: Mapping[str, Any] | None) -> None:
        name = task_id.encode()
        if self._ids and name <= self._ids[-1]:
            raise InputError(f"{task_id} comes twice or out of order: expected games sorted by task id")
        compile_game(data, task_id)
        grammar, task = split_task(data["grammar"])
        entry = {
            "problem": data["pddl_problem"],
            "task": task,
            "domain": self._domains.setdefault(data["pddl_domain"], len(self._domains)),
            "grammar": self._grammars.setdefault(grammar, len(self._grammars)),
            "file": {key: "" if key in TEXTS else value for key, value in data.items()},
            "trajectory": _kept(trajectory),
        }
        self._dictionary = self._dictionary or _dictionary(data["pddl_problem"])
        deflate = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, zdict=self._dictionary)
        packed = deflate.compress(orjson.dumps(entry)) + deflate.flush()
        self._entries.append((self._file.tell(), len(packed), zlib.crc32(packed)))
        self._ids.append(name)
        self._file.write(packed)

    def _finish(self) -> None:
        texts = {
            "domains": list(self._domains),
            "grammars": list(self._grammars),
            "dictionary": self._dictionary.decode(),
        }
        packed_texts = zlib.compress(orjson.dumps(texts), 9)
        rows, end = [], 0
        for (position, length, check), name in zip(self._entries, self._ids, strict=True):
            end += len(name) + 1
            rows.append(_ENTRY.pack(position, length, check, end))
        index = b"".join(rows) + b"".join(name + b"\n" for name in self._ids)
        texts_at = self._file.tell()
        index_at = texts_at + len(packed_texts)
        self._file.write(packed_texts + index)
        check = zlib.crc32(index, zlib.crc32(packed_texts))
        length = self._file.tell()
        fields = _HEADER.pack(
            MAGIC, VERSION, len(self._ids), length, texts_at, len(packed_texts), index_at, len(index), check
        ).ljust(60, b"\0")
        self._file.seek(0)
        self._file.write(_CHECKED_HEADER.pack(fields, zlib.crc32(fields)))


def _dictionary(problem: str) -> bytes:
    return problem.encode()[:_WINDOW].decode("utf-8", "ignore").encode()


def _kept(trajectory: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if trajectory is None:
        return None
    kept = {key: trajectory[key] for key in _KEPT_OF_TRAJECTORY if key in trajectory}
    if isinstance(kept.get("scene"), dict):
        kept["scene"] = {key: kept["scene"][key] for key in ("floor_plan", "scene_num") if key in kept["scene"]}
    return kept
