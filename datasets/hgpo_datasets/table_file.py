"""A frame ⇄ the bytes of one Parquet file, by pyarrow, with a checksum in every page.

Polars writes no checksums and does not compare them. Queries are its work all the same, because it reads several times
faster and moves filters into the file. The writer reads back what it builds upon through `read`, which compares them.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any, Final

import polars as pl

from hgpo_datasets import reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa
MOST_BYTES: Final = 4 << 30
"""The most that a row group takes when it is decoded, and the largest file that is read whole."""

ROW_GROUP_ROWS: Final = 25_000
_COMPRESSION_LEVEL: Final = 6  # a third smaller than 3 on rollouts, where states and prompts repeat, at the same speed
_PAGE_BYTES: Final = 8 << 20  # zstd finds repetitions within a page only: pages of 1 MB make files a quarter larger
_DICTIONARY_BYTES: Final = 64 << 20  # prompts of a row group repeat, but take more than the usual 1 MB


def encode(frame: pl.DataFrame, metadata: Mapping[str, str]) -> bytes:
    """The bytes of a Parquet file that holds the frame, with a checksum in every page.

    The same frame and metadata give the same bytes, however the frame's columns lie in memory.

    Args:
        frame: The rows.
        metadata: The file's key-value metadata.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    frame = frame.rechunk()  # pages end where chunks end
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
    """The rows of a file whose footer is sound; each page that is read is compared with its checksum.

    Args:
        file: A file that can seek.
        columns: The columns to read; all of them by default.

    Raises:
        ValueError: It is not Parquet, lacks a column, or is damaged.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.ParquetFile(file).schema
        leaves = [schema.column(number) for number in range(len(schema))]
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        # as dictionaries, texts that repeat are held once; so read, lists of texts come a row group at a time
        table = pq.ParquetFile(file, read_dictionary=texts, page_checksum_verification=True)
        names = table.schema_arrow.names if columns is None else list(columns)
        groups = range(table.num_row_groups)
        parts = [table.read_row_group(group, columns=names, use_threads=False) for group in groups]
        for part in parts:
            part.validate(full=True)  # Polars takes for granted that texts are UTF-8
        return pl.concat(map(_frame, parts or [table.schema_arrow.empty_table().select(names)]))
    except (OSError, ValueError, KeyError, MemoryError, pa.ArrowException, *reading.POLARS_ERRORS) as error:
        raise ValueError(reading.first_line(error)) from error


def _frame(table: pa.Table) -> pl.DataFrame:
    names = table.column_names
    return pl.DataFrame([pl.Series(name, _with_plain_texts(table.column(name))) for name in names])


def _with_plain_texts(values: Any) -> Any:  # noqa: ANN401 (pyarrow's arrays have no types)
    """A column with its dictionaries looked up. Texts that repeat share their bytes, as they did in the file."""
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
    return values.to_arrow(compat_level=pl.CompatLevel.newest())  # texts as views: none is copied


def _text_paths(schema: pl.Schema) -> list[str]:
    """The columns of texts, as the file's schema names them."""
    flat = [name for name, kind in schema.items() if kind == pl.String]
    return flat + [f"{name}.list.element" for name, kind in schema.items() if kind == pl.List(pl.String)]
