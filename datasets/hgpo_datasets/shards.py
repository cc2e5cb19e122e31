"""Encode and decode the shards of a run: Parquet files with a checksum in every page.

pyarrow writes and locates damage, because Polars has no page checksums. Queries use Polars, which reads several times
faster and pushes filters down into the file.

The key-value metadata in the footer contain the schema version, and the run's name and configuration.
"""

from __future__ import annotations

import io
import os
import re
from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_datasets import schema
from hgpo_datasets.manifest import Header, canonical
from hgpo_envs.files.untrusted_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

VERSION_KEY: Final = "hgpo.schema_version"
RUN_KEY: Final = "hgpo.run"
CONFIG_KEY: Final = "hgpo.config"

MOST_BYTES: Final = 4 << 30
"""Largest size in bytes of a file that is read into memory."""
WHAT: Final = "file of a step table"
POLARS_ERRORS: Final = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
"""Exceptions that Polars raises for a damaged file. PanicException is not a subclass of Exception."""

_ROW_GROUP_ROWS: Final = 25_000
_PAGE_BYTES: Final = 8 << 20  # zstd finds repetitions only within a page
# the distinct texts of a row group exceed pyarrow's default of 1 MB
_DICTIONARY_BYTES: Final = 64 << 20


def encode(frame: pl.DataFrame, metadata: Mapping[str, str]) -> bytes:
    """Encode a shard.

    Texts have dictionaries, except prompts, which are rarely equal. Higher levels of compression than zstd's first save
    a tenth of the size for more than twice the time.

    Args:
        frame: Sorted rows with every column of the schema.
        metadata: Key-value metadata, without the version.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = [
        name
        for name, dtype in frame.schema.items()
        if dtype == schema.TEXT and name != "prompt"
    ]
    texts += [
        f"{name}.list.element"
        for name, dtype in frame.schema.items()
        if dtype == schema.TEXTS
    ]
    # string views, so that texts are not copied; one chunk, because pyarrow ends a page at each chunk's end
    table = frame.rechunk().to_arrow(compat_level=pl.CompatLevel.newest())
    out = pa.BufferOutputStream()
    with pq.ParquetWriter(
        out,
        table.schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=texts,
        # by which readers skip row groups; those of all columns take a tenth of the time
        write_statistics=["run", *schema.SORT_KEY],
        dictionary_pagesize_limit=_DICTIONARY_BYTES,
        data_page_size=_PAGE_BYTES,
        max_rows_per_page=_ROW_GROUP_ROWS,
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        writer.write_table(table, row_group_size=_ROW_GROUP_ROWS)
        writer.add_key_value_metadata({**metadata, VERSION_KEY: str(schema.VERSION)})
    data: bytes = out.getvalue().to_pybytes()
    return data


def metadata_of(header: Header) -> dict[str, str]:
    """Return the key-value metadata of each file of a run, without the version."""
    return {
        RUN_KEY: header.run,
        CONFIG_KEY: canonical(header.config).decode(),
    }


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


def check_version(metadata: Mapping[str, str], name: str) -> None:
    """Raise VersionError unless a file's key-value metadata have the schema version of this package."""
    text = metadata.get(VERSION_KEY)
    if text is None or not re.fullmatch("[0-9]{1,9}", text):
        raise schema.VersionError(
            f"{name}: expected a step table, received a file without the metadata {VERSION_KEY}; hgpo view, "
            "hgpo stats and hgpo advantages read tables of other programs"
        )
    schema.check_version(int(text), name)


def file_size(path: Path) -> int:
    """Return the size in bytes of a regular file or of a link to one. Raise InputError for anything else."""
    with open_regular(path, WHAT) as file:
        return os.fstat(file.fileno()).st_size


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if the message is empty."""
    return next(iter(str(error).splitlines()), "") or type(error).__name__
