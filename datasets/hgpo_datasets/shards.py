"""A frame ⇄ the bytes of one Parquet file that carries its own digest.

The footer's key-value metadata hold the schema version, the run's name and configuration, and the SHA-256 of the whole
file with the digest's own 64 characters read as zeros. A file that was copied out of its run can still be verified to
the last byte, and stays ordinary Parquet. Nothing in it depends on time or place: the same rows give the same bytes.
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
from hgpo_envs.untrusted_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

PATTERN: Final = "steps-*.parquet"
VERSION_KEY: Final = "hgpo.schema_version"
DIGEST_KEY: Final = "hgpo.sha256"
RUN_KEY: Final = "hgpo.run"
CONFIG_KEY: Final = "hgpo.config"
REPLACES_KEY: Final = "hgpo.replaces"

_BLANK: Final = b"0" * 64


def encode(frame: pl.DataFrame, metadata: Mapping[str, str]) -> bytes:
    """The bytes of a step table file.

    Args:
        frame: Sorted, complete rows.
        metadata: Key-value metadata beside version and digest.
    """
    blank = table_file.encode(frame, {**metadata, VERSION_KEY: str(schema.VERSION), DIGEST_KEY: _BLANK.decode()})
    position = _digest_position(blank)
    digest = hashlib.sha256(blank).hexdigest().encode()
    return blank[:position] + digest + blank[position + len(digest) :]


def digest_problem(data: bytes) -> str | None:
    """What is wrong with the digest that a file carries; None when it is the file's."""
    try:
        position = _digest_position(data)
    except ValueError as error:
        return str(error)
    stored = data[position : position + len(_BLANK)]
    content = hashlib.sha256(data[:position])
    content.update(_BLANK)
    content.update(memoryview(data)[position + len(_BLANK) :])
    return None if content.hexdigest().encode() == stored else "its bytes do not fit the digest that it carries"


def check_version(metadata: Mapping[str, str], name: str) -> int:
    """The schema version of a file, from its key-value metadata.

    Raises:
        InputError: There is none, or it is newer than this reader.
    """
    text = metadata.get(VERSION_KEY)
    if text is None or not re.fullmatch("[0-9]{1,9}", text):
        raise InputError(f"{name}: expected a step table; the file names no {VERSION_KEY}")
    return schema.known_version(int(text), name)


def describe(name: str, data: bytes, frame: pl.DataFrame, replaces: str | None = None) -> Shard:
    """A file's entry in the manifest, from its bytes, its rows, and the name of the file that it replaces."""
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
    """The rows of a file whose bytes fit the digest that it carries.

    Raises:
        InputError: It cannot be read, or is damaged.
    """
    data = reading.read(path, footer.MOST_BYTES)
    if problem := digest_problem(data):
        raise InputError(f"{path} is damaged ({problem}); `hgpo verify {path}` says more")
    with reading.errors(path):
        footer.check_file_in_memory(data)
        return table_file.read(io.BytesIO(data))


def read_columns(path: Path, columns: Sequence[str]) -> pl.DataFrame:
    """Some columns of a file; only the pages of these columns are read and compared with their checksums.

    Raises:
        InputError: It cannot be read, or is damaged there.
    """
    footer.check_file(path)
    with reading.errors(path), open_regular(path, "file of a step table") as file:
        return table_file.read(file, columns)


def adopt(path: Path, header: Header) -> Shard:
    """The entry of a complete file that its writer could not list in the manifest before it was killed.

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
    # in Thrift's compact protocol a value's field header (0x18) and length (0x40) follow the key
    position = key + len(DIGEST_KEY) + 2
    if key < 0 or data[position - 2 : position] != b"\x18\x40":
        raise ValueError("it carries no digest, or its footer is damaged")
    return position
