"""The manifest of a run: an append-only list of its committed shards, one JSON object per line.

The first line describes the run, each further line one shard. A shard is committed when its line is on disk. Each line
has a `check`: the xxh3_64 of the previous line's check and the line's own content. It detects changed, lost and
reordered lines. A last line without a newline was never committed.

File names from the manifest become paths. Each line may only contain the file name that the writer assigns to its
shard, so that a manifest cannot point a reader outside the run's folder.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import orjson
import xxhash

from hgpo_datasets.schema import MAX_DEPTH, check_version
from hgpo_envs.errors import InputError
from hgpo_envs.files.untrusted_files import read_bytes

if TYPE_CHECKING:
    from pathlib import Path

NAME: Final = "manifest.jsonl"
MOST_BYTES: Final = 256 << 20
"""Largest manifest that is read, in bytes: about a million shards."""

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

    def section(self, name: str) -> dict[str, Any]:
        """Return an object of the configuration; an empty one if it has none, or another value, under the name."""
        value = self.config.get(name)
        return value if isinstance(value, dict) else {}


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


@dataclass(slots=True)
class Manifest:
    """A decoded manifest.

    Attributes:
        header: Description of the run; None if the first line is missing or damaged.
        shards: Committed shards by file name, in commit order.
        replaced: Files that were committed and later replaced.
        size: Size of the complete lines in bytes. Bytes after them were never committed.
        check: Check of the last line; the next line's check depends on it.
        problem: Description of the first invalid line; None if the manifest is valid.
    """

    header: Header | None = None
    shards: dict[str, Shard] = field(default_factory=dict)
    replaced: list[str] = field(default_factory=list)
    size: int = 0
    check: str = ""
    problem: str | None = None

    @property
    def next_file(self) -> str:
        """The file name of the next shard, which follows from the number of files ever committed."""
        return f"steps-{len(self.shards) + len(self.replaced):06d}.parquet"

    def add(self, content: Header | Shard) -> None:
        """Add a line that is on disk."""
        line, self.check = encode_line(content, self.check)
        self.size += len(line)
        if isinstance(content, Header):
            self.header = content
            return
        if content.replaces is not None:
            del self.shards[content.replaces]
            self.replaced.append(content.replaces)
        self.shards[content.file] = content


def canonical(value: object) -> bytes:
    """Return the canonical JSON of a value: sorted keys, no spaces."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY)


def encode_line(content: Header | Shard, previous_check: str) -> tuple[bytes, str]:
    """Return a line and its check."""
    values = {
        name: value
        for name, value in msgspec.structs.asdict(content).items()
        if value is not None
    }
    if isinstance(content, Header):
        values["format"] = _FORMAT
    check = xxhash.xxh3_64_hexdigest(previous_check.encode() + canonical(values))
    return canonical({**values, "check": check}) + b"\n", check


def read(folder: Path) -> Manifest:
    """Read a run's manifest up to the first invalid line, which is described in `problem`.

    Raises:
        InputError: It is missing, not a regular file, too large, of another format, or of another schema version.
    """
    return decode(read_bytes(folder / NAME, MOST_BYTES, "manifest of a run"))


def current(folder: Path, shards: Path) -> Manifest:
    """Read a run's manifest, and read it again if a writer replaced files in the folder of the shards meanwhile."""
    listed = read(folder)
    while not all((shards / name).exists() for name in listed.shards):
        again = read(folder)
        if again.check == listed.check:  # no writer replaced the file: it is missing
            break
        listed = again
    return listed


def decode(data: bytes) -> Manifest:
    """Decode a manifest up to the first invalid line. The errors are those of `read`."""
    manifest = Manifest()
    for number, line in enumerate(data.split(b"\n")[:-1], 1):
        try:
            manifest.add(_content(line, manifest))
        except (msgspec.ValidationError, TypeError) as error:
            # TypeError: hundreds of levels
            manifest.problem = f"line {number} of {NAME} is damaged: {str(error)[:200]}"
            return manifest
    if manifest.header is None:
        manifest.problem = f"{NAME} has no complete first line"
    return manifest


def _content(line: bytes, manifest: Manifest) -> Header | Shard:
    """Return the content of the line that follows a manifest.

    Raises ValidationError unless `encode_line` would produce exactly this line at this position.
    """
    try:
        values = orjson.loads(line)
        del values["check"]
    except (orjson.JSONDecodeError, TypeError, KeyError):
        raise msgspec.ValidationError("expected JSON with a check") from None
    content: Header | Shard
    if manifest.header is None:
        if values.pop("format", None) != _FORMAT:
            raise InputError(f"{NAME} is not the manifest of a step table")
        if isinstance(version := values.get("schema_version"), int):
            check_version(version, NAME)
        content = msgspec.convert(values, Header)
    else:
        content = msgspec.convert(values, Shard)
        if content.file != manifest.next_file:
            raise msgspec.ValidationError(
                f"expected the file {manifest.next_file!r}, received {content.file!r}"
            )
        if content.replaces is not None and content.replaces not in manifest.shards:
            raise msgspec.ValidationError(
                f"expected an earlier file in `replaces`, received {content.replaces!r}"
            )
    if encode_line(content, manifest.check)[0] != line + b"\n":
        raise msgspec.ValidationError("its check differs")
    return content
