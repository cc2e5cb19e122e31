"""The manifest of a run: an append-only list of its committed shards, one JSON object per line.

The first line describes the run, each further line one shard. A shard is committed when its line is on disk. Each line
has a `check`: the xxh3_64 of the previous line's check and the line's own content. It detects changed, lost and
reordered lines. A last line without a newline was never committed.

File names from the manifest become paths. Each line may only contain the file name that the writer assigns to its
shard, so that a manifest cannot point a reader outside the run's folder.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import orjson
import xxhash

from hgpo_datasets.schema import MAX_DEPTH, known_version
from hgpo_envs.errors import InputError
from hgpo_envs.files.untrusted_files import read_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

NAME: Final = "manifest.jsonl"
MOST_BYTES: Final = 64 << 20
"""Largest manifest that is read or written, in bytes: about 250,000 shards."""

_FORMAT: Final = "hgpo step table"

Count = Annotated[int, msgspec.Meta(ge=0)]


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line of a manifest, which describes the run.

    Attributes:
        run: Name of the run, as in the column `run`.
        depth: Largest k of the stored history and context hashes.
        schema_version: Schema version of the run's files.
        hgpo_version: Version of the package that wrote the run.
        config: Configuration of the run.
    """

    run: str
    depth: Annotated[int, msgspec.Meta(ge=0, le=MAX_DEPTH)]
    schema_version: Count
    hgpo_version: str
    config: dict[str, Any]


class Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    bytes: Count
    rows: Count
    trajectories: Count
    groups: Count
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
    values = {name: value for name, value in msgspec.structs.asdict(content).items() if value is not None}
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
    return decode(read_bytes(folder / NAME, MOST_BYTES, "manifest of a run"))


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
    while (end := data.find(b"\n", size) + 1) and problem is None:
        number = len(shards) + len(replaced)
        values = _values(data[size:end], check)
        try:
            if values is None:
                problem = "is damaged"
            elif header is None:
                header = _header(values)
            else:
                shard = _shard(values, number, shards)
                if shard.replaces is not None:
                    del shards[shard.replaces]
                    replaced.append(shard.replaces)
                shards[shard.file] = shard
        except msgspec.ValidationError as error:
            problem = f"is invalid: {str(error)[:200]}"
        if problem is None and values is not None:
            size, check = end, values["check"]
        else:
            problem = f"line {number + (header is not None) + 1} of {NAME} {problem}"
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


def _header(values: dict[str, Any]) -> Header:
    if values.get("format") != _FORMAT:
        raise InputError(f"{NAME} is not the manifest of a step table")
    version = values.get("schema_version")
    if isinstance(version, int):
        known_version(version, NAME)
    return msgspec.convert({name: values[name] for name in values.keys() - {"check", "format"}}, Header)


def _shard(values: dict[str, Any], number: int, earlier: Mapping[str, Shard]) -> Shard:
    shard = msgspec.convert({name: values[name] for name in values.keys() - {"check"}}, Shard)
    if shard.file != file_name(number):
        raise msgspec.ValidationError(f"expected {file_name(number)!r} as file, received {shard.file!r}")
    if shard.replaces is not None and shard.replaces not in earlier:
        raise msgspec.ValidationError(f"expected an earlier file in `replaces`, received {shard.replaces!r}")
    return shard
