"""The manifest of a run: an append-only list of its committed shards, one JSON object per line.

The first line describes the run, each further line one shard. A shard is committed when its line is on disk. Each line
has a `check`: the xxh3_64 of the previous line's check and the line's own content. It detects changed, lost and
reordered lines. A last line without a newline was never committed.

File names from the manifest become paths. Each line may only contain the file name that the writer assigns to its
shard, so that a manifest cannot point a reader outside the run's folder.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import orjson
import xxhash

from hgpo_datasets import reading
from hgpo_datasets.schema import MAX_DEPTH, known_version
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

NAME: Final = "manifest.jsonl"
MOST_BYTES: Final = 64 << 20
"""Largest manifest that is read or written, in bytes: about 250,000 shards."""

_FORMAT: Final = "hgpo step table"
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a manifest, which describes the run.

    Attributes:
        run: Name of the run, as in the column `run`.
        depth: Largest k of the stored history and context hashes.
        schema_version: Schema version of the run's files.
        hgpo_version: Version of the package that wrote the run.
        config: Configuration of the run.
    """

    run: str
    depth: int
    schema_version: int
    hgpo_version: str
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Shard:
    """One committed file.

    Attributes:
        file: File name in the folder of the run's shards.
        sha256: SHA-256 of the file, as printed by `sha256sum`.
        bytes: File size.
        rows: Number of steps.
        trajectories: Number of trajectories.
        groups: Number of groups of rollouts. A group is never split across files.
        replaces: Earlier file that this one replaces; that file no longer belongs to the run.
    """

    file: str
    sha256: str
    bytes: int
    rows: int
    trajectories: int
    groups: int
    replaces: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A decoded manifest.

    Attributes:
        header: Description of the run; None if the first line is missing or incomplete.
        shards: Committed shards in commit order.
        size: Size of the complete lines in bytes. Bytes after them were never committed.
        check: Check of the last line; the next line's check depends on it.
        problem: Description of the first invalid line; None if the manifest is valid.
        replaced: Files that were committed and later replaced.
    """

    header: Header | None
    shards: tuple[Shard, ...]
    size: int
    check: str
    problem: str | None = None
    replaced: tuple[str, ...] = ()

    @property
    def committed(self) -> int:
        """Number of files ever committed, which is also the number of the next file."""
        return len(self.shards) + len(self.replaced)

    def with_shard(self, shard: Shard) -> Manifest:
        """Return the manifest with one more committed file, which may replace an earlier one."""
        if shard.replaces is None:
            return replace(self, shards=(*self.shards, shard))
        kept = tuple(other for other in self.shards if other.file != shard.replaces)
        return replace(self, shards=(*kept, shard), replaced=(*self.replaced, shard.replaces))


def canonical(value: object) -> bytes:
    """Return the canonical JSON of a value: sorted keys, no spaces."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY)


def plain(value: Any) -> Any:  # noqa: ANN401 (any value of JSON)
    """Return the value after a round trip through JSON (tuples become lists, NumPy scalars become numbers)."""
    return orjson.loads(canonical(value))


def encode_line(content: Header | Shard, previous_check: str) -> tuple[bytes, str]:
    """Return a line and its check."""
    values = {name: value for name, value in asdict(content).items() if value is not None}
    if isinstance(content, Header):
        values["format"] = _FORMAT
    check = _check(values, previous_check)
    return canonical({**values, "check": check}) + b"\n", check


def extend(manifest: Manifest, content: Header | Shard) -> Manifest:
    """Return the manifest with one more line."""
    line, check = encode_line(content, manifest.check)
    size = manifest.size + len(line)
    if isinstance(content, Header):
        return Manifest(content, (), size, check)
    return replace(manifest.with_shard(content), size=size, check=check)


def file_name(number: int) -> str:
    """Return the file name of a run's shard.

    >>> file_name(3)
    'steps-000003.parquet'
    """
    return f"steps-{number:06d}.parquet"


def read(folder: Path) -> Manifest:
    """Read a run's manifest up to the first invalid line, which is described in `problem`.

    Raises:
        InputError: The manifest is missing, not a regular file, too large, or written by a newer version.
    """
    return decode(reading.read(folder / NAME, MOST_BYTES))


def current(folder: Path, shards: Path) -> Manifest:
    """Read a run's manifest, and read it again if a writer replaced files in the meantime.

    Args:
        folder: The run's folder.
        shards: The folder of its shards.

    Raises:
        InputError: See `read`.
    """
    listed = read(folder)
    while not all((shards / shard.file).exists() for shard in listed.shards):
        again = read(folder)
        if again.check == listed.check:  # no writer replaced the file: it is missing
            break
        listed = again
    return listed


def decode(data: bytes) -> Manifest:
    """Decode a manifest up to the first invalid line, which is described in `problem`.

    Raises:
        InputError: The data is not a manifest, or was written by a newer version.
    """
    header: Header | None = None
    shards: dict[str, Shard] = {}
    replaced: list[str] = []
    size, check, problem = 0, "", None
    while size < len(data):
        end = data.find(b"\n", size) + 1
        if not end:
            break
        line = f"line {len(shards) + len(replaced) + (header is not None) + 1} of {NAME}"
        values = _values(data[size:end], check)
        if values is None:
            problem = f"{line} is damaged"
            break
        following = values.pop("check")
        rules = _shard_rules(len(shards) + len(replaced), shards)
        problem = _wrong_header(values) if header is None else _wrong(values, rules)
        if problem:
            problem = f"{line} {problem}"
            break
        if header is None:
            header = Header(**values)
        else:
            shard = Shard(**values)
            if shard.replaces is not None:
                del shards[shard.replaces]
                replaced.append(shard.replaces)
            shards[shard.file] = shard
        size, check = end, following
    if header is None and problem is None:
        problem = f"{NAME} has no complete first line"
    return Manifest(header, tuple(shards.values()), size, check, problem, tuple(replaced))


def _check(values: Mapping[str, object], previous_check: str) -> str:
    return xxhash.xxh3_64_hexdigest(previous_check.encode() + canonical(values))


def _values(line: bytes, previous_check: str) -> dict[str, Any] | None:
    """Return a line's values, or None unless `encode_line` would produce exactly this line at this position."""
    try:
        values = orjson.loads(line)
        content = {name: value for name, value in values.items() if name != "check"}
        whole = canonical(values) + b"\n" == line and values["check"] == _check(content, previous_check)
    except (orjson.JSONDecodeError, AttributeError, KeyError):
        return None
    return values if whole else None


Rule = tuple["Callable[[Any], bool]", str]
"""A check of a value, and the description of valid values."""


def _count(value: object) -> bool:
    return type(value) is int and value >= 0


_OPTIONAL: Final = frozenset({"replaces"})
_COUNT: Final[Rule] = (_count, "a count")
_TEXT: Final[Rule] = (lambda value: isinstance(value, str), "a text")
_HEADER_RULES: Final[Mapping[str, Rule]] = {
    "run": _TEXT,
    "depth": (lambda value: _count(value) and value <= MAX_DEPTH, f"a depth up to {MAX_DEPTH}"),
    "schema_version": _COUNT,
    "hgpo_version": _TEXT,
    "config": (lambda value: isinstance(value, dict), "an object"),
}


def _shard_rules(number: int, earlier: Collection[str]) -> dict[str, Rule]:
    name = file_name(number)
    return {
        "file": (lambda value: value == name, repr(name)),
        "sha256": (lambda value: isinstance(value, str) and bool(_SHA256.fullmatch(value)), "64 hexadecimal digits"),
        **dict.fromkeys(("bytes", "rows", "trajectories", "groups"), _COUNT),
        "replaces": (lambda value: isinstance(value, str) and value in earlier, "an earlier file"),
    }


def _wrong(values: Mapping[str, object], rules: Mapping[str, Rule]) -> str | None:
    """Return a description of the first invalid value of a line, or None."""
    for name in sorted(values.keys() - rules.keys()):
        return f"has the unknown key {name!r:.80}; was it written by a newer hgpo?"
    for name, (is_right, expected) in rules.items():
        if name not in values:
            if name in _OPTIONAL:
                continue
            return f"lacks {name!r}"
        if not is_right(values[name]):
            return f"has {name} = {values[name]!r:.80}; expected {expected}"
    return None


def _wrong_header(values: dict[str, Any]) -> str | None:
    if values.pop("format", None) != _FORMAT:
        raise InputError(f"{NAME} is not the manifest of a step table")
    if _count(values.get("schema_version")):
        known_version(values["schema_version"], NAME)
    return _wrong(values, _HEADER_RULES)
