"""What a Parquet file claims to hold, checked against its size and against limits before it is decoded.

A kilobyte may claim 10^12 rows, and two hundred of them may decompress to gigabytes. Polars panics on some claims and
allocates on others. Here the footer is read by itself: column chunks must lie within the file, counts must agree, and
what decoding a row group takes must stay within `MOST_BYTES`, which the writer never exceeds. Files may be as large as
they like: queries read them row group by row group. A footer of more than 16 MiB, as of files of some thousand row
groups, is left to Polars: here it would take a hundred times as much memory.
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Final

from hgpo_datasets import files
from hgpo_datasets.page_checksums import footer_of, pages_of
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from hgpo_datasets.thrift import Structure

MOST_BYTES: Final = 4 << 30
"""The most that a row group takes when it is decoded, and the largest file that is read whole."""

_MOST_FOOTER: Final = 16 << 20
_TAIL: Final = 8

# Field numbers and physical types of parquet.thrift.
_SCHEMA, _ROWS, _ROW_GROUPS = 2, 3, 4
_CHILDREN = 5
_GROUP_COLUMNS, _GROUP_ROWS = 1, 3
_METADATA = 3
_TYPE, _PATH, _VALUES, _UNCOMPRESSED, _COMPRESSED, _DATA_OFFSET, _DICTIONARY_OFFSET = 1, 3, 5, 6, 7, 9, 11
_PAGE_UNCOMPRESSED = 2
_BITS: Final = (1, 32, 64, 96, 32, 64, 128, 128)
"""Bits that one value of each physical type takes when decoded; of a text, those of its view."""
_TEXT_TYPES: Final = frozenset({6, 7})


def check_file(path: Path) -> None:
    """Checks a local file by its footer. Only the footer is read, once as long as the file does not change.

    Raises:
        InputError: It is not a regular file, not Parquet, damaged, or claims too much.
    """
    status = files.regular(path)
    _checked(path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def column_bytes(path: Path) -> dict[str, int]:
    """The stored bytes of each top-level column of a local file, pages and their headers.

    Raises:
        InputError: It is not a regular file, not Parquet, damaged, or claims too much.
    """
    sizes: dict[str, int] = {}
    footer = _sound_footer(path, files.regular(path).st_size)
    for group in footer[_ROW_GROUPS].value.values if footer else ():
        for chunk in group[_GROUP_COLUMNS].value.values:
            column = chunk[_METADATA].value
            name = column[_PATH].value.values[0].decode("utf-8", "replace")
            sizes[name] = sizes.get(name, 0) + column[_COMPRESSED].value
    return sizes


def check_bytes(parquet: bytes) -> None:
    """Checks a complete file in memory: its footer and every page header.

    Raises:
        ValueError: It is not Parquet, damaged, or claims too much.
    """
    data = memoryview(parquet)
    footer = footer_of(data)
    _check_footer(footer, len(data))
    total = 0
    for number, group in enumerate(footer[_ROW_GROUPS].value.values):
        for chunk in group[_GROUP_COLUMNS].value.values:
            for page in pages_of(data, number, chunk[_METADATA].value):
                total += page.header[_PAGE_UNCOMPRESSED].value if _PAGE_UNCOMPRESSED in page.header else 0
    if total > MOST_BYTES:
        raise ValueError(f"its pages claim {total:,} bytes; expected at most {MOST_BYTES:,}")


@functools.lru_cache(maxsize=1 << 16)
def _checked(path: Path, device: int, inode: int, size: int, modified_ns: int) -> None:
    del device, inode, modified_ns  # they tell the cache whether it is the same file
    _sound_footer(path, size)


def _sound_footer(path: Path, size: int) -> Structure:
    """The footer of a file; empty where it is too large to be read here."""
    try:
        footer = _read_footer(path, size)
        if footer:
            _check_footer(footer, size)
    except InputError:
        raise
    except (ValueError, OSError) as error:
        raise InputError(f"{path} cannot be read: {files.first_line(error)}") from error
    return footer


def _read_footer(path: Path, size: int) -> Structure:
    with files.descriptor_of(path) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
        head = file.read(4)
        file.seek(max(0, size - _TAIL))
        tail = file.read(_TAIL)
        length = int.from_bytes(tail[:4], "little")
        if _MOST_FOOTER < length <= size - _TAIL and head == tail[4:] == b"PAR1":
            return {}
        file.seek(max(4, size - _TAIL - length))
        return footer_of(memoryview(head + file.read(length + _TAIL)))


def _check_footer(footer: Structure, size: int) -> None:
    try:
        decoded = _decoded_bytes(footer, size)
    except (KeyError, AttributeError, TypeError, IndexError) as error:
        raise ValueError(f"its footer is damaged ({type(error).__name__}: {error})") from error
    if decoded > MOST_BYTES:
        raise ValueError(f"a row group claims {decoded:,} bytes when decoded; expected at most {MOST_BYTES:,}")


def _decoded_bytes(footer: Structure, size: int) -> int:
    """What the largest row group takes in memory, by what the footer says."""
    leaves = sum(_CHILDREN not in element for element in footer[_SCHEMA].value.values)
    rows = decoded = 0
    for group in footer[_ROW_GROUPS].value.values:
        columns, group_rows = group[_GROUP_COLUMNS].value.values, group[_GROUP_ROWS].value
        if len(columns) != leaves or group_rows < 0:
            raise ValueError("its footer is damaged (row groups do not fit the schema)")
        rows += group_rows
        decoded = max(decoded, sum(_chunk_bytes(chunk[_METADATA].value, group_rows, size) for chunk in columns))
    if rows != footer[_ROWS].value:
        raise ValueError(f"its footer claims {footer[_ROWS].value:,} rows; its row groups have {rows:,}")
    return decoded


def _chunk_bytes(column: Structure, rows: int, size: int) -> int:
    begin = min(column[number].value for number in (_DATA_OFFSET, _DICTIONARY_OFFSET) if number in column)
    stored, uncompressed, values = (column[number].value for number in (_COMPRESSED, _UNCOMPRESSED, _VALUES))
    if begin < 4 or stored < 0 or begin + stored > size or uncompressed < 0:
        raise ValueError("its footer is damaged (a column lies outside the file)")
    if values < rows:
        raise ValueError("its footer is damaged (a column has fewer values than rows)")
    kind = column[_TYPE].value
    if not column[_PATH].value.values:
        raise ValueError("its footer is damaged (a column has no name)")
    return int(values * _BITS[kind] // 8 + (uncompressed if kind in _TEXT_TYPES else 0))
