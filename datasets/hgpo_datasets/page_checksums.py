"""Page checksums for Parquet files: added after Polars has written them, and checked.

Polars writes no checksums, and the library that does would make up a third of the whole installation. A page's
checksum is the CRC-32 of its bytes as stored (compressed, without the header), in field 4 of the page header. Pages
therefore grow by a few bytes, and the offsets and sizes in the footer and the page index move with them. Any reader
that verifies checksums finds them. Source: parquet-format, `PageHeader.crc` in parquet.thrift and "Checksumming" in
README.md.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from hgpo_datasets import thrift
from hgpo_datasets.thrift import Field, Structure

if TYPE_CHECKING:
    from collections.abc import Iterator

_MAGIC: Final = b"PAR1"

# Field numbers of parquet.thrift.
_FILE_ROW_GROUPS: Final = 4
_GROUP_COLUMNS, _GROUP_SIZE, _GROUP_OFFSET, _GROUP_COMPRESSED_SIZE = 1, 2, 5, 6
_CHUNK_OFFSET, _CHUNK_METADATA, _CHUNK_LOCATIONS_OFFSET, _CHUNK_LOCATIONS_LENGTH = 2, 3, 4, 5
_CHUNK_STATISTICS_OFFSET, _CHUNK_STATISTICS_LENGTH = 6, 7
_COLUMN_PATH, _COLUMN_UNCOMPRESSED_SIZE, _COLUMN_COMPRESSED_SIZE = 3, 6, 7
_COLUMN_DATA_OFFSET, _COLUMN_INDEX_PAGE_OFFSET, _COLUMN_DICTIONARY_OFFSET, _COLUMN_BLOOM_OFFSET = 9, 10, 11, 14
_PAGE_COMPRESSED_SIZE, _PAGE_CRC = 3, 4
_LOCATIONS, _LOCATION_OFFSET, _LOCATION_SIZE = 1, 1, 2


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a file.

    Attributes:
        row_group: The row group's number, from 0.
        column: The column's path, joined by dots.
        number: The page's number within its column chunk, from 0; a dictionary is a page.
        offset: Where its header begins, in bytes from the file's start.
        header: The decoded header.
        start: Where its stored bytes begin.
        end: Where they end.
    """

    row_group: int
    column: str
    number: int
    offset: int
    header: Structure
    start: int
    end: int


def add_page_checksums(parquet: bytes) -> bytes:
    """The same Parquet file with a CRC-32 in every page header.

    Args:
        parquet: A complete file without bloom filters, as Polars writes it.

    Raises:
        ValueError: It is not such a file.
    """
    data = memoryview(parquet)
    footer = footer_of(data)
    out = bytearray(_MAGIC)
    groups = footer[_FILE_ROW_GROUPS].value.values
    moved = [_add_to_row_group(data, number, group, out) for number, group in enumerate(groups)]
    for group, pages in zip(groups, moved, strict=True):
        for chunk in group[_GROUP_COLUMNS].value.values:
            _move_page_index(data, chunk, pages, out)
    encoded = thrift.encode(footer)
    return bytes(out) + encoded + len(encoded).to_bytes(4, "little") + _MAGIC


def damaged_pages(parquet: bytes) -> list[Page]:
    """The pages whose bytes do not fit their checksum, or that have none.

    Raises:
        ValueError: The file's structure is so damaged that its pages cannot be walked.
    """
    data = memoryview(parquet)
    groups = footer_of(data)[_FILE_ROW_GROUPS].value.values
    try:
        return [
            page
            for group, metadata in enumerate(groups)
            for chunk in metadata[_GROUP_COLUMNS].value.values
            for page in pages_of(data, group, chunk[_CHUNK_METADATA].value)
            if _PAGE_CRC not in page.header or page.header[_PAGE_CRC].value != _crc(data[page.start : page.end])
        ]
    except (KeyError, AttributeError, TypeError) as error:
        raise ValueError(f"its footer lacks what every column chunk has ({type(error).__name__}: {error})") from error


def _crc(stored: memoryview) -> int:
    value = zlib.crc32(stored)
    return value - (1 << 32) if value >= 1 << 31 else value  # Thrift's i32 is signed


def footer_of(data: memoryview) -> Structure:
    """A file's footer, from its bytes.

    Raises:
        ValueError: It is not a complete Parquet file.
    """
    if len(data) < 12 or bytes(data[:4]) != _MAGIC or bytes(data[-4:]) != _MAGIC:
        raise ValueError("not a complete Parquet file: it does not begin and end with PAR1")
    length = int.from_bytes(data[-8:-4], "little")
    if length > len(data) - 12:
        raise ValueError(f"its footer says it is {length} bytes long, more than the file holds")
    footer, end = thrift.decode(data[: len(data) - 8], len(data) - 8 - length)
    if end != len(data) - 8 or _FILE_ROW_GROUPS not in footer:
        raise ValueError("its footer does not end where it should")
    return footer


def pages_of(data: memoryview, group: int, column: Structure) -> Iterator[Page]:
    """The pages of a column chunk, in the order they lie in.

    Raises:
        ValueError: They lie outside the file or the column.
    """
    path = b".".join(column[_COLUMN_PATH].value.values).decode("utf-8", "replace")
    position = min(column[n].value for n in (_COLUMN_DATA_OFFSET, _COLUMN_DICTIONARY_OFFSET) if n in column)
    end = position + column[_COLUMN_COMPRESSED_SIZE].value
    if not 0 < position <= end <= len(data):
        raise ValueError(f"column {path} of row group {group} lies outside the file")
    number = 0
    while position < end:
        header, start = thrift.decode(data, position)
        stop = start + header[_PAGE_COMPRESSED_SIZE].value if _PAGE_COMPRESSED_SIZE in header else -1
        if not start <= stop <= end:
            raise ValueError(f"page {number} of column {path} of row group {group} lies outside its column")
        yield Page(group, path, number, position, header, start, stop)
        position, number = stop, number + 1


def _add_to_column(data: memoryview, group: int, chunk: Structure, out: bytearray) -> tuple[int, dict[int, Page]]:
    """Appends a column chunk with checksums and moves its offsets; returns its growth and the pages by old offset."""
    column = chunk[_CHUNK_METADATA].value
    if _COLUMN_INDEX_PAGE_OFFSET in column or _COLUMN_BLOOM_OFFSET in column:
        raise ValueError("expected a Parquet file without index pages and bloom filters")
    before = len(out)
    moved: dict[int, Page] = {}
    for page in pages_of(data, group, column):
        page.header[_PAGE_CRC] = Field(thrift.I32, _crc(data[page.start : page.end]))
        offset = len(out)
        out += thrift.encode(page.header)
        start = len(out)
        out += data[page.start : page.end]
        moved[page.offset] = replace(page, offset=offset, start=start, end=len(out))
    growth = len(out) - before - column[_COLUMN_COMPRESSED_SIZE].value
    for number in (_COLUMN_DATA_OFFSET, _COLUMN_DICTIONARY_OFFSET):
        if number in column:
            column[number].value = moved[column[number].value].offset
    for number in (_COLUMN_COMPRESSED_SIZE, _COLUMN_UNCOMPRESSED_SIZE):
        column[number].value += growth
    chunk[_CHUNK_OFFSET].value = 0  # as the format asks where the metadata is in the footer alone
    return growth, moved


def _add_to_row_group(data: memoryview, group: int, metadata: Structure, out: bytearray) -> dict[int, Page]:
    """Appends a row group with checksums and moves its offsets; returns the new pages by old offset."""
    begin, grown = len(out), 0
    moved: dict[int, Page] = {}
    for chunk in metadata[_GROUP_COLUMNS].value.values:
        growth, pages = _add_to_column(data, group, chunk, out)
        grown += growth
        moved |= pages
    for number in (_GROUP_SIZE, _GROUP_COMPRESSED_SIZE):
        if number in metadata:
            metadata[number].value += grown
    if _GROUP_OFFSET in metadata:
        metadata[_GROUP_OFFSET].value = begin
    return moved


def _move_page_index(data: memoryview, chunk: Structure, moved: dict[int, Page], out: bytearray) -> None:
    """Appends a column chunk's page index: statistics as they are, locations moved."""
    if _CHUNK_STATISTICS_OFFSET in chunk:
        begin, length = chunk[_CHUNK_STATISTICS_OFFSET].value, chunk[_CHUNK_STATISTICS_LENGTH].value
        chunk[_CHUNK_STATISTICS_OFFSET].value = len(out)
        out += data[begin : begin + length]
    if _CHUNK_LOCATIONS_OFFSET in chunk:
        locations, _ = thrift.decode(data, chunk[_CHUNK_LOCATIONS_OFFSET].value)
        for location in locations[_LOCATIONS].value.values:
            page = moved[location[_LOCATION_OFFSET].value]
            location[_LOCATION_OFFSET].value = page.offset
            location[_LOCATION_SIZE].value = page.end - page.offset
        encoded = thrift.encode(locations)
        chunk[_CHUNK_LOCATIONS_OFFSET].value = len(out)
        chunk[_CHUNK_LOCATIONS_LENGTH].value = len(encoded)
        out += encoded
