"""Encode and decode the shards of a run: Parquet files that contain their own digest.

The key-value metadata in the footer contain the schema version, the run's name and configuration, and the SHA-256 of
the complete file, computed with the digest's own 64 characters set to zeros. A shard can therefore be verified without
its run, and any Parquet reader can read it. The content does not depend on time or machine: the same rows give the same
bytes.
"""

from __future__ import annotations

import hashlib
import io
import re
from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_datasets import footer, reading, schema, table_file
from hgpo_datasets.manifest import Header, Shard, canonical
from hgpo_envs.errors import InputError
from hgpo_envs.files.untrusted_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PATTERN: Final = "steps-*.parquet"
VERSION_KEY: Final = "hgpo.schema_version"
DIGEST_KEY: Final = "hgpo.sha256"
RUN_KEY: Final = "hgpo.run"
CONFIG_KEY: Final = "hgpo.config"
REPLACES_KEY: Final = "hgpo.replaces"
KEYS: Final = frozenset({VERSION_KEY, DIGEST_KEY, RUN_KEY, CONFIG_KEY, REPLACES_KEY})

_BLANK: Final = b"0" * 64


def encode(frame: pl.DataFrame, metadata: Mapping[str, str]) -> bytes:
    """Encode a shard.

    Args:
        frame: Sorted rows with every column of the schema.
        metadata: Key-value metadata, without version and digest.
    """
    blank = table_file.encode(frame, {**metadata, VERSION_KEY: str(schema.VERSION), DIGEST_KEY: _BLANK.decode()})
    position = _digest_position(blank)
    digest = hashlib.sha256(blank).hexdigest().encode()
    return blank[:position] + digest + blank[position + len(digest) :]


def digest_problem(data: bytes) -> str | None:
    """Return what is wrong with the digest in a file, or None if it matches the bytes."""
    try:
        position = _digest_position(data)
    except ValueError as error:
        return str(error)
    stored = data[position : position + len(_BLANK)]
    content = hashlib.sha256(data[:position])
    content.update(_BLANK)
    content.update(memoryview(data)[position + len(_BLANK) :])
    return None if content.hexdigest().encode() == stored else "its bytes do not match its digest"


def check_version(metadata: Mapping[str, str], name: str) -> int:
    """Return the schema version from a file's key-value metadata.

    Raises:
        InputError: The version is missing, or newer than this reader.
    """
    text = metadata.get(VERSION_KEY)
    if text is None or not re.fullmatch("[0-9]{1,9}", text):
        raise InputError(f"{name}: expected a step table, received a file without the metadata {VERSION_KEY}")
    return schema.known_version(int(text), name)


def describe(name: str, data: bytes, frame: pl.DataFrame, replaces: str | None = None) -> Shard:
    """Return a file's entry in the manifest.

    Args:
        name: File name.
        data: Bytes of the file.
        frame: Rows of the file, with the columns of `schema.SORT_KEY` at least.
        replaces: Name of the file that this one replaces.
    """
    return Shard(
        file=name,
        sha256=hashlib.sha256(data).hexdigest(),
        bytes=len(data),
        rows=len(frame),
        trajectories=frame.select((pl.col("step") == 0).sum()).item(),
        groups=frame.select(schema.GROUP_KEY).n_unique(),
        replaces=replaces,
    )


def read(path: Path) -> pl.DataFrame:
    """Read the rows of a file and check its digest.

    Raises:
        InputError: The file cannot be read, or is damaged.
    """
    data = reading.read(path, footer.MOST_BYTES)
    if problem := digest_problem(data):
        raise InputError(f"{path} is damaged ({problem}); run `hgpo verify {path}` for details")
    with reading.errors(path):
        footer.check_file_in_memory(data)
        return table_file.read(io.BytesIO(data))


def read_columns(path: Path, columns: Sequence[str]) -> pl.DataFrame:
    """Read some columns of a file. Only the pages of these columns are read, and their checksums are verified.

    Raises:
        InputError: The file cannot be read, or one of these pages is damaged.
    """
    footer.check_file(path)
    with reading.errors(path), open_regular(path, "file of a step table") as file:
        return table_file.read(file, columns)


def adopt(path: Path, header: Header) -> Shard:
    """Return the manifest entry of a complete file whose writer was killed before it listed the file.

    Raises:
        InputError: The file is damaged, or belongs to another run.
    """
    data = reading.read(path, footer.MOST_BYTES)
    if problem := digest_problem(data):
        raise InputError(f"{path} is not in the manifest and damaged ({problem}); remove it to resume the run")
    with reading.errors(path):
        footer.check_file_in_memory(data)
        metadata = pl.read_parquet_metadata(io.BytesIO(data))
    if metadata.get(RUN_KEY) != header.run or metadata.get(CONFIG_KEY) != canonical(header.config).decode():
        raise InputError(f"{path} belongs to another run ({metadata.get(RUN_KEY)!r:.80}); move it elsewhere")
    with reading.errors(path):
        frame = table_file.read(io.BytesIO(data), schema.SORT_KEY)
    return describe(path.name, data, frame, metadata.get(REPLACES_KEY))


def _digest_position(data: bytes) -> int:
    length = int.from_bytes(data[-8:-4], "little")
    key = data.rfind(DIGEST_KEY.encode(), max(0, len(data) - 8 - length))
    # in Thrift's compact protocol, the key is followed by the value's field header (0x18) and length (0x40)
    position = key + len(DIGEST_KEY) + 2
    if key < 0 or data[position - 2 : position] != b"\x18\x40":
        raise ValueError("it has no digest, or its footer is damaged")
    return position
