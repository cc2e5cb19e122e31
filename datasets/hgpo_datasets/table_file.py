"""Encode and decode Parquet files with pyarrow, with a checksum in every page.

Polars neither writes nor verifies page checksums. Queries still use Polars, because it reads several times faster and
pushes filters down into the file. When the writer reads its own files, it uses `read`, which verifies the checksums.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any, Final

import polars as pl

from hgpo_datasets import reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

ROW_GROUP_ROWS: Final = 25_000
_COMPRESSION_LEVEL: Final = 6  # for rollouts, files are a third smaller than with level 3 at the same speed
_PAGE_BYTES: Final = 8 << 20  # zstd finds repetitions only within a page: pages of 1 MB make files a quarter larger
_DICTIONARY_BYTES: Final = 64 << 20  # the distinct prompts of a row group exceed pyarrow's default of 1 MB


def encode(frame: pl.DataFrame, metadata: Mapping[str, str]) -> bytes:
    """Encode a frame as a Parquet file with a checksum in every page.

    The same frame and metadata give the same bytes, independent of the frame's chunks in memory.

    Args:
        frame: The rows.
        metadata: Key-value metadata of the file.
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
        max_rows_per_page=ROW_GROUP_ROWS,
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        for part in frame.iter_slices(ROW_GROUP_ROWS):
            writer.write_table(_arrow(part), row_group_size=ROW_GROUP_ROWS)
        writer.add_key_value_metadata(dict(metadata))
    data: bytes = out.getvalue().to_pybytes()
    return data


def read(file: IO[bytes], columns: Iterable[str] | None = None) -> pl.DataFrame:
    """Read the rows of a file whose footer was checked, and verify the checksum of each page that is read.

    Args:
        file: A seekable binary file.
        columns: Columns to read; all by default.

    Raises:
        ValueError: The file is not Parquet, has no such column, or is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.ParquetFile(file).schema
        leaves = [schema.column(number) for number in range(len(schema))]
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        # texts are read as dictionaries, so that repeated texts take memory once; in this mode pyarrow can read lists
        # of texts only one row group at a time
        table = pq.ParquetFile(file, read_dictionary=texts, page_checksum_verification=True)
        names = table.schema_arrow.names if columns is None else list(columns)
        groups = range(table.num_row_groups)
        parts = [table.read_row_group(group, columns=names, use_threads=False) for group in groups]
        for part in parts:
            part.validate(full=True)  # Polars assumes that texts are valid UTF-8
        return pl.concat(map(_frame, parts or [table.schema_arrow.empty_table().select(names)]))
    except (OSError, ValueError, KeyError, MemoryError, pa.ArrowException, *reading.POLARS_ERRORS) as error:
        raise ValueError(reading.first_line(error)) from error


def _frame(table: pa.Table) -> pl.DataFrame:
    names = table.column_names
    return pl.DataFrame([pl.Series(name, _with_plain_texts(table.column(name))) for name in names])


def _with_plain_texts(values: Any) -> Any:  # noqa: ANN401 (pyarrow's arrays have no types)
    """Replace dictionaries in a column by their texts. Repeated texts share their bytes, as in the file."""
    import pyarrow as pa

    kind = values.type
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([_with_plain_texts(chunk) for chunk in values.chunks or [pa.array([], kind)]])
    if pa.types.is_dictionary(kind):
        return _arrow(pl.Series(values.dictionary).gather(pl.Series(values.indices)))
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_dictionary(kind.value_type):
        make = pa.ListArray if pa.types.is_list(kind) else pa.LargeListArray
        nulls = values.is_null() if values.null_count else None
        return make.from_arrays(values.offsets, _with_plain_texts(values.values), mask=nulls)
    return values


def _arrow(values: pl.DataFrame | pl.Series) -> Any:  # noqa: ANN401 (pyarrow's tables and arrays have no types)
    return values.to_arrow(compat_level=pl.CompatLevel.newest())  # string views: texts are not copied


def _text_paths(schema: pl.Schema) -> list[str]:
    """Return the paths of the text columns in the file's schema."""
    flat = [name for name, kind in schema.items() if kind == pl.String]
    return flat + [f"{name}.list.element" for name, kind in schema.items() if kind == pl.List(pl.String)]
