"""Encode and decode the shards of a run: Parquet files with a checksum in every page.

pyarrow writes, because Polars has no page checksums; it also reads what the writer reads of its own files, and verifies
their checksums. Queries use Polars, which reads several times faster and pushes filters down into the file.

The key-value metadata in the footer contain the schema version, and the run's name and configuration. The content does
not depend on time or machine.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from hgpo_datasets import schema
from hgpo_datasets.manifest import Header, Shard, canonical
from hgpo_envs.errors import InputError
from hgpo_envs.files.untrusted_files import open_regular, read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

PATTERN: Final = "steps-*.parquet"
VERSION_KEY: Final = "hgpo.schema_version"
RUN_KEY: Final = "hgpo.run"
CONFIG_KEY: Final = "hgpo.config"
REPLACES_KEY: Final = "hgpo.replaces"

MOST_BYTES: Final = 4 << 30
"""Largest size in bytes of a file that is read into memory, and four times that of the rows of a shard."""
WHAT: Final = "file of a step table"
POLARS_ERRORS: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""Exceptions that Polars raises for a damaged file. PanicException is not a subclass of Exception."""

_ROW_GROUP_ROWS: Final = 25_000
_COMPRESSION_LEVEL: Final = 6  # for rollouts, files are a third smaller than with level 3 at the same speed
_PAGE_BYTES: Final = 8 << 20  # zstd finds repetitions only within a page: pages of 1 MB make files a quarter larger
_DICTIONARY_BYTES: Final = 64 << 20  # the distinct prompts of a row group exceed pyarrow's default of 1 MB


def encode(frame: pl.DataFrame, metadata: Mapping[str, str]) -> bytes:
    """Encode a shard.

    Args:
        frame: Sorted rows with every column of the schema.
        metadata: Key-value metadata, without the version.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    frame = frame.rechunk()  # pyarrow ends a page at each chunk's end
    out = pa.BufferOutputStream()
    with pq.ParquetWriter(
        out,
        _arrow(frame.clear()).schema,
        compression="zstd",
        compression_level=_COMPRESSION_LEVEL,
        use_dictionary=_text_paths(frame.schema),
        dictionary_pagesize_limit=_DICTIONARY_BYTES,
        data_page_size=_PAGE_BYTES,
        max_rows_per_page=_ROW_GROUP_ROWS,
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        for part in frame.iter_slices(_ROW_GROUP_ROWS):
            writer.write_table(_arrow(part), row_group_size=_ROW_GROUP_ROWS)
        writer.add_key_value_metadata({**metadata, VERSION_KEY: str(schema.VERSION)})
    data: bytes = out.getvalue().to_pybytes()
    return data


def decode(data: bytes | Path, columns: Iterable[str] | None = None) -> pl.DataFrame:
    """Decode the rows of a shard, and verify the checksum of each page that is read.

    Args:
        data: The bytes of the file, or its path.
        columns: Columns to read; all by default.

    Raises:
        ValueError: The data is not Parquet, has no such column, or is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        source = io.BytesIO(data) if isinstance(data, bytes) else data
        names = None if columns is None else list(columns)
        table = pq.ParquetFile(source, page_checksum_verification=True).read(names, use_threads=False)
        table.validate(full=True)  # Polars assumes that texts are valid UTF-8
        return pl.DataFrame(table)
    except (OSError, ValueError, KeyError, MemoryError, pa.ArrowException, *POLARS_ERRORS) as error:
        raise ValueError(first_line(error)) from error


def damaged_columns(data: bytes) -> Iterator[str]:
    """Yield the column chunks whose pages cannot be read or do not match their checksums.

    Raises:
        ValueError: The footer is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=True)
        names = table.schema_arrow.names
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ValueError(first_line(error)) from error
    for group in range(table.num_row_groups):
        for name in names:
            try:
                table.read_row_group(group, columns=[name], use_threads=False)
            except (OSError, ValueError, MemoryError, pa.ArrowException):
                yield f"row group {group}, column {name}"


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


def file_size(path: Path) -> int:
    """Return the size in bytes of a regular file or of a link to one.

    Raises:
        InputError: The file is missing or is not a regular file.
    """
    with open_regular(path, WHAT) as file:
        return os.fstat(file.fileno()).st_size


def read(path: Path, shard: Shard) -> pl.DataFrame:
    """Read the rows of a committed file, and compare its bytes with the manifest.

    Raises:
        InputError: The file cannot be read, or is damaged.
    """
    data = read_bytes(path, MOST_BYTES, WHAT)
    if hashlib.sha256(data).hexdigest() != shard.sha256:
        raise InputError(f"{path} is damaged; run `hgpo verify {path}` for details")
    return decode(data)


def adopt(path: Path, header: Header) -> Shard:
    """Return the manifest entry of a complete file whose writer was killed before it listed the file.

    Raises:
        InputError: The file is damaged, or belongs to another run.
    """
    data = read_bytes(path, MOST_BYTES, WHAT)
    try:
        metadata = pl.read_parquet_metadata(io.BytesIO(data))
        frame = decode(data)
    except (ValueError, *POLARS_ERRORS) as error:
        raise InputError(
            f"{path} is not in the manifest and damaged ({first_line(error)}); remove it to resume the run"
        ) from error
    if metadata.get(RUN_KEY) != header.run or metadata.get(CONFIG_KEY) != canonical(header.config).decode():
        raise InputError(f"{path} belongs to another run ({metadata.get(RUN_KEY)!r:.80}); move it elsewhere")
    return describe(path.name, data, frame, metadata.get(REPLACES_KEY))


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if the message is empty."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def _arrow(values: pl.DataFrame) -> Any:  # noqa: ANN401 (pyarrow's tables have no types)
    return values.to_arrow(compat_level=pl.CompatLevel.newest())  # string views: texts are not copied


def _text_paths(columns: pl.Schema) -> list[str]:
    """Return the paths of the text columns in the file's schema."""
    flat = [name for name, kind in columns.items() if kind == pl.String]
    return flat + [f"{name}.list.element" for name, kind in columns.items() if kind == pl.List(pl.String)]
