"""Check the footer of a Parquet file against the file's size and fixed limits before the file is decoded.

A file of one kilobyte can declare 10^12 rows, and a file of 200 kilobytes can decompress to gigabytes. Some of these
footers make Polars panic, some make it allocate the declared size, and a schema of 10,000 levels ends the process. The
checks cover the footer's size, the depth of the schema, the position of column chunks, the row counts, and the decoded
size of each row group. `MOST_BYTES` limits that size; the writer never exceeds it. The number of row groups is not
limited, because queries read one row group at a time.
"""

from __future__ import annotations

import functools
import io
import os
import zlib
from typing import IO, TYPE_CHECKING, Final

from hgpo_datasets import reading
from hgpo_datasets.thrift import Structure, decode
from hgpo_envs.files.untrusted_files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MOST_BYTES: Final = 4 << 30
"""Largest accepted size in bytes of a decoded row group, and of a file that is read into memory."""

_MOST_FOOTER: Final = 16 << 20  # enough for thousands of row groups; a decoded footer takes about 100 times its size
_MOST_LEVELS: Final = 100
_MAGIC: Final = b"PAR1"
_TAIL: Final = 8

# Field numbers of parquet.thrift.
_SCHEMA, _ROWS, _ROW_GROUPS = 2, 3, 4
_LEAF_TYPE, _NAME, _CHILDREN = 1, 4, 5
_GROUP_COLUMNS, _GROUP_ROWS = 1, 3
_METADATA = 3
_TYPE, _PATH, _VALUES, _UNCOMPRESSED, _COMPRESSED, _DATA_OFFSET, _DICTIONARY_OFFSET = 1, 3, 5, 6, 7, 9, 11
_PAGE_UNCOMPRESSED, _PAGE_COMPRESSED, _PAGE_CRC = 2, 3, 4
_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2 = 5, 7, 8
_PAGE_VALUES = 1
_BITS: Final = (1, 32, 64, 96, 32, 64, 128, 128)
"""Size in bits of one decoded value of each physical type; for texts, the size of a string view."""
_TEXT_TYPES: Final = frozenset({6, 7})


def check_file(path: Path) -> os.stat_result:
    """Check the footer of a local file and return the file's status. An unchanged file is checked only once.

    Raises:
        InputError: The file is not a regular file, is not Parquet, is damaged, or exceeds a limit.
    """
    status = reading.status(path)
    _checked(path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
    return status


def check_file_in_memory(parquet: bytes) -> None:
    """Check the footer and every page header of a complete file.

    Raises:
        ValueError: The bytes are not Parquet, are damaged, or exceed a limit.
    """
    claimed = sum(_integer(header, _PAGE_UNCOMPRESSED) for _, header, _ in _pages(parquet))
    if claimed > MOST_BYTES:
        raise ValueError(f"expected pages of at most {MOST_BYTES:,} bytes, received pages that declare {claimed:,}")


def damaged_pages(parquet: bytes) -> list[str]:
    """Return descriptions of the pages of a complete file whose checksum is missing or wrong.

    Raises:
        ValueError: The file's structure is damaged, so that its pages cannot be located.
    """
    return [
        name
        for name, header, stored in _pages(parquet)
        if _PAGE_CRC not in header or header[_PAGE_CRC] != _signed(zlib.crc32(stored))
    ]


def column_bytes(path: Path) -> dict[str, int]:
    """Return the stored size in bytes, page headers included, of each top-level column of a local file.

    Raises:
        InputError: The file is not a regular file, is not Parquet, is damaged, or exceeds a limit.
    """
    sizes: dict[str, int] = {}
    for group in _read(path)[_ROW_GROUPS]:
        for chunk in group[_GROUP_COLUMNS]:
            column = chunk[_METADATA]
            name = column[_PATH][0].decode("utf-8", "replace")
            sizes[name] = sizes.get(name, 0) + column[_COMPRESSED]
    return sizes


@functools.lru_cache(maxsize=1 << 16)
def _checked(path: Path, device: int, inode: int, size: int, modified_ns: int) -> None:
    del device, inode, size, modified_ns  # part of the cache's key only: a changed file is checked again
    _read(path)


def _read(path: Path) -> Structure:
    """Read and check the footer of a local file."""
    with reading.errors(path), open_regular(path, "Parquet file") as file:
        return _footer(file)


def _footer(file: IO[bytes]) -> Structure:
    """Read and check the footer of an open file.

    Raises:
        ValueError: The file is not a complete Parquet file, or its footer is invalid.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    head = file.read(len(_MAGIC))
    file.seek(max(0, size - _TAIL))
    tail = file.read(_TAIL)
    length = int.from_bytes(tail[:4], "little")
    if size < len(_MAGIC) + _TAIL or (head, tail[4:]) != (_MAGIC, _MAGIC):
        raise ValueError("not a complete Parquet file: it does not begin and end with PAR1")
    if length > size - _TAIL - len(_MAGIC):
        raise ValueError(f"its footer declares a length of {length:,} bytes, which exceeds the file's size")
    if length > _MOST_FOOTER:
        raise ValueError(f"expected a footer of at most {_MOST_FOOTER:,} bytes, received {length:,}")
    file.seek(size - _TAIL - length)
    footer, end = decode(file.read(length), 0)
    if end != length:
        raise ValueError("its footer has a wrong length")
    try:
        _check_levels(footer[_SCHEMA])
        decoded = _decoded_bytes(footer, size)
    except (KeyError, AttributeError, TypeError, IndexError) as error:
        raise ValueError(f"its footer is damaged ({type(error).__name__}: {error})") from error
    if decoded > MOST_BYTES:
        raise ValueError(f"expected row groups of at most {MOST_BYTES:,} decoded bytes, received {decoded:,}")
    return footer


def _check_levels(elements: list[Structure]) -> None:
    """Check the depth of a schema, a list of elements in which parents precede their children."""
    open_groups: list[int] = []
    for element in elements:
        open_groups.append(element.get(_CHILDREN, 0))
        if len(open_groups) > _MOST_LEVELS:
            raise ValueError(f"its schema has more than {_MOST_LEVELS} levels")
        while open_groups and open_groups[-1] <= 0:
            open_groups.pop()
            if open_groups:
                open_groups[-1] -= 1


def _decoded_bytes(footer: Structure, size: int) -> int:
    """Return the decoded size in bytes of the largest row group, as declared by the footer."""
    leaves = [(element[_LEAF_TYPE], element[_NAME]) for element in footer[_SCHEMA] if _CHILDREN not in element]
    rows = decoded = 0
    for group in footer[_ROW_GROUPS]:
        columns, group_rows = group[_GROUP_COLUMNS], group[_GROUP_ROWS]
        found = [(chunk[_METADATA][_TYPE], chunk[_METADATA][_PATH][-1]) for chunk in columns]
        if found != leaves or group_rows < 0:
            raise ValueError("its footer is damaged (row groups do not match the schema)")
        rows += group_rows
        decoded = max(decoded, sum(_chunk_bytes(chunk[_METADATA], group_rows, size) for chunk in columns))
    if rows != footer[_ROWS]:
        raise ValueError(f"its footer declares {footer[_ROWS]:,} rows; its row groups have {rows:,}")
    return decoded


def _chunk_bytes(column: Structure, rows: int, size: int) -> int:
    begin, end = _chunk_range(column)
    uncompressed, values, kind = column[_UNCOMPRESSED], column[_VALUES], column[_TYPE]
    if begin < len(_MAGIC) or end < begin or end > size or uncompressed < 0:
        raise ValueError("its footer is damaged (a column lies outside the file)")
    if values < rows:
        raise ValueError("its footer is damaged (a column has fewer values than rows)")
    return int(values * _BITS[kind] // 8 + (uncompressed if kind in _TEXT_TYPES else 0))


def _chunk_range(column: Structure) -> tuple[int, int]:
    begin = min(column[number] for number in (_DATA_OFFSET, _DICTIONARY_OFFSET) if number in column)
    return begin, begin + column[_COMPRESSED]


def _pages(parquet: bytes) -> Iterator[tuple[str, Structure, memoryview]]:
    """Yield the description, header and stored bytes of each page of a complete file.

    Raises:
        ValueError: The footer is invalid, or a page lies outside its column.
    """
    data = memoryview(parquet)
    for group, metadata in enumerate(_footer(io.BytesIO(parquet))[_ROW_GROUPS]):
        for chunk in metadata[_GROUP_COLUMNS]:
            column = chunk[_METADATA]
            name = b".".join(column[_PATH]).decode("utf-8", "replace")
            position, end = _chunk_range(column)
            number, values = 0, 0
            while position < end:
                page = f"row group {group}, column {name}, page {number}"
                header, start = decode(parquet, position)
                position = start + _integer(header, _PAGE_COMPRESSED)
                if not start <= position <= end:
                    raise ValueError(f"{page} lies outside its column")
                values += _page_values(header)
                yield page, header, data[start:position]
                number += 1
            if values != column[_VALUES]:
                line = f"row group {group}, column {name} declares {column[_VALUES]} values; its pages have {values}"
                raise ValueError(line)


def _page_values(header: Structure) -> int:
    """Return the number of the column's values in a page: 0 for a dictionary page.

    Raises:
        ValueError: The number is negative or too large for the page's size. Polars ends the process at such a page.
    """
    kind = next(
        (kind for kind in (_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_V2) if isinstance(header.get(kind), dict)), None
    )
    values = _integer(header[kind], _PAGE_VALUES) if kind else 0
    if values < 0 or (kind == _DICTIONARY_PAGE and values > _integer(header, _PAGE_UNCOMPRESSED)):
        raise ValueError(f"a page has {values} values")
    return 0 if kind == _DICTIONARY_PAGE else values


def _integer(header: Structure, field: int) -> int:
    value = header.get(field)
    if not isinstance(value, int):
        raise ValueError(f"field {field} of a page's header is not a number")  # noqa: TRY004 (data, not a caller)
    return value


def _signed(crc: int) -> int:
    """Convert an unsigned CRC-32 to Thrift's signed int32."""
    return crc - (1 << 32) if crc >= 1 << 31 else crc
