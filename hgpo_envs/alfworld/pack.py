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

from hgpo_envs.alfworld.games import LONGEST_FILE, TEXTS, checked, compile_game
from hgpo_envs.alfworld.grammar import join_task, split_task
from hgpo_envs.atomic import new_file
from hgpo_envs.errors import InputError
from hgpo_envs.files import inflate, open_regular, parse_json, writing

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
LONGEST_TEXTS: Final = 16 << 20
"""Bytes of all domains and grammars of a pack; those of the official games have 60 kB."""
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
        with open_regular(path, "pack of ALFWorld games") as file:
            if os.fstat(file.fileno()).st_size < _CHECKED_HEADER.size:
                raise InputError(_foreign(path))
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._count, packed_texts, self._index = self._open()
        try:
            self._domains, self._grammars, self._dictionary = _texts(packed_texts)
            self._ids = _ids(self._index, self._count)
        except InputError as error:
            raise self._malformed(error) from None

    def _malformed(self, error: InputError) -> InputError:
        return InputError(f"{self.path} is not a sound pack: {error}; copy or build it again")

    def _open(self) -> tuple[int, bytes, bytes]:
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
        return count, texts, index

    def __reduce__(self) -> tuple[type[PackStore], tuple[Path]]:
        return PackStore, (self.path,)

    def ids(self) -> Sequence[str]:
        """All task ids, sorted."""
        return self._ids.split("\n")[:-1]

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
        try:
            file["pddl_domain"] = self._domains[entry["domain"]]
            file["grammar"] = join_task(self._grammars[entry["grammar"]], entry["task"])
            file["pddl_problem"] = entry["problem"]
            return checked(file)
        except InputError as error:
            raise self._malformed(InputError(f"{task_id}: {error}")) from None

    def trajectory(self, task_id: str) -> dict[str, Any] | None:
        """What is kept of the game's `traj_data.json`; None where it had none."""
        kept: dict[str, Any] | None = self._read(task_id).get("trajectory")
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
        try:
            entry: dict[str, Any] = parse_json(inflate(packed, LONGEST_FILE, self._dictionary))
            _check_entry(entry, len(self._domains), len(self._grammars))
        except InputError as error:
            raise self._malformed(InputError(f"{task_id}: {error}")) from None
        return entry

    def verify(self) -> None:
        """Reads every game; raises InputError for the first that is damaged."""
        for task_id in self.ids():
            self._read(task_id)


def _foreign(path: Path) -> str:
    return f"{path} is no pack of ALFWorld games: expected a file made by `hgpo data build alfworld`"


def write_pack(path: Path, games: Iterable[tuple[str, Mapping[str, Any], Mapping[str, Any] | None]]) -> int:
    """Writes a pack; it appears complete or not at all.

    Args:
        path: The file to write; what exists there is replaced only if it is a pack.
        games: Task id, JSON object of the game file, JSON object of its `traj_data.json` or None; sorted by id.

    Returns:
        The number of games.

    Raises:
        InputError: A game that the engine does not know, ids out of order or twice, no game at all, something other
            than a pack is at `path`, or the disk is full.
    """
    check_replaceable(path)
    with writing(path), new_file(path) as file:
        return _Writer(file).write(games)


def check_replaceable(path: Path) -> None:
    """Raises InputError if something other than a pack is at a path."""
    if not os.path.lexists(path):
        return
    with open_regular(path, "pack to replace") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise InputError(f"{path} already exists and is not a pack; choose another name, or remove it first")


def _texts(packed: bytes) -> tuple[list[str], list[str], bytes]:
    """The domains, the grammars and the dictionary. The message of an InputError does not say where they are."""
    texts = parse_json(inflate(packed, LONGEST_TEXTS))
    if not isinstance(texts, dict):
        raise InputError("its texts are no JSON object")
    domains, grammars, dictionary = (texts.get(name) for name in ("domains", "grammars", "dictionary"))
    for name, many in (("domains", domains), ("grammars", grammars)):
        if not isinstance(many, list) or not all(isinstance(text, str) for text in many):
            raise InputError(f"its {name} are no list of texts")
    if not isinstance(dictionary, str) or len(dictionary) > _WINDOW:
        raise InputError(f"its dictionary is no text of at most {_WINDOW:,} characters")
    return domains or [], grammars or [], dictionary.encode()


def _ids(index: bytes, count: int) -> str:
    """The ids of an index, each ended by a newline, if it holds so many, sorted."""
    try:
        names = index[_ENTRY.size * count :].decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"its ids are not UTF-8 ({error.reason})") from None
    if len(index) < _ENTRY.size * count or names.count("\n") != count:
        raise InputError(f"its index does not hold {count:,} games")
    ends = [end for *_, end in _ENTRY.iter_unpack(index[: _ENTRY.size * count])]
    names_bytes = index[_ENTRY.size * count :]
    if any(not 0 < end <= len(names_bytes) or names_bytes[end - 1] != 10 for end in ends) or sorted(set(ends)) != ends:
        raise InputError("its index is inconsistent")
    return names


def _check_entry(entry: object, domains: int, grammars: int) -> None:
    """Raises InputError unless a game's JSON is what `write_pack` writes."""
    if not isinstance(entry, dict):
        raise InputError("no JSON object")
    kinds = {"problem": str, "task": str, "domain": int, "grammar": int, "file": dict}
    for name, kind in kinds.items():
        if type(entry.get(name)) is not kind:
            raise InputError(f"{name}: expected {kind.__name__}, got {type(entry.get(name)).__name__}")
    for name, most in (("domain", domains), ("grammar", grammars)):
        if not 0 <= entry[name] < most:
            raise InputError(f"{name}: expected a number below {most}, got {entry[name]}")
    if "trajectory" not in entry or not isinstance(entry["trajectory"], dict | None):
        raise InputError(f"trajectory: expected an object or null, got {type(entry.get('trajectory')).__name__}")


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
