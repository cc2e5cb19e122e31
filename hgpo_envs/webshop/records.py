"""Random access to JSON records: a file with one record per line and the offset of each line.

    <name>.jsonl            the records, memory-mapped; or <name>.jsonl.gz, decompressed by every process
    <name>.starts.npy       int64 (records + 1,): the offset of each line in the decompressed text, and its end

Other tools can read the files (`polars.scan_ndjson`, DuckDB, jq). Reading one record here decodes one line.
`Labels` stores a column with few distinct texts as integers, so that the rows with a text are found without reading
records.
"""

from __future__ import annotations

import gzip
import math
import mmap
import os
from array import array
from bisect import bisect_left
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import numpy as np
import orjson

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.untrusted_files import open_regular, read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray


Value = TypeVar("Value", bound=np.generic)

LONGEST_RECORD: Final = 1 << 24
"""The maximum size of a record in bytes, as in `hgpo_envs.webshop.data.raw_files`."""

LONGEST_UNPACKED: Final = 1 << 26
"""The maximum decompressed size in bytes of a gzipped file of records. Only small catalogues are gzipped."""

_SMALL: Final = 256


class RecordWriter:
    """A writer of records; `close` writes their offsets.

    Args:
        folder: The folder of the files.
        name: The files' name without suffix.
        compress: Whether to gzip the text, for small files.
    """

    def __init__(self, folder: Path, name: str, *, compress: bool = False) -> None:
        self._starts_path = folder / f"{name}.starts.npy"
        path = folder / f"{name}.jsonl{'.gz' * compress}"
        self._file = path.open("wb")
        # no time and no file name in the gzip header, so that the same records give the same bytes
        self._text = (
            gzip.GzipFile("", "wb", fileobj=self._file, mtime=0)
            if compress
            else self._file
        )
        self._starts = array("q", [0])

    def write(self, record: object) -> None:
        """Append one record: any value that orjson supports. Infinities become null."""
        line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
        self._text.write(line)
        self._starts.append(self._starts[-1] + len(line))

    def close(self) -> None:
        """Complete the files."""
        self._text.close()
        self._file.close()
        np.save(self._starts_path, np.frombuffer(self._starts, np.int64))


class Records:
    """The records of a file. Each is decoded on access.

    A mapped file that is deleted stays readable as long as this object exists.

    Args:
        folder: The folder of the files.
        name: The files' name without suffix.
        record: The type of the records. Reading a record of another type raises ValueError.

    Raises:
        InputError: If a file is missing or damaged, or if the two files do not match.
    """

    def __init__(self, folder: Path, name: str, record: Any = Any) -> None:  # noqa: ANN401 (a type)
        self._decode = msgspec.json.Decoder(record).decode
        path = folder / f"{name}.starts.npy"
        self._starts: Final = mapped(path, np.int64)
        self._text: Final = _text(folder / f"{name}.jsonl")
        if not len(self._starts) or self._starts[-1] != len(self._text):
            raise InputError(
                f"{path} does not fit {name}.jsonl; build the catalogue again"
            )

    def __len__(self) -> int:
        return len(self._starts) - 1

    def size(self, index: int) -> int:
        """Return the size of a record in bytes."""
        return int(self._starts[index + 1]) - int(self._starts[index])

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401 - JSON
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        start = int(self._starts[index])
        end = int(self._starts[index + 1])
        if not 0 <= end - start <= LONGEST_RECORD:
            raise ValueError(f"record {index} has {end - start} bytes")
        return self._decode(self._text[start:end])


class LabelWriter:
    """A writer of a column of texts for `Labels`."""

    def __init__(self) -> None:
        self._codes = array("i")
        self._known: dict[str, int] = {}

    def add(self, text: str) -> None:
        """Append the next row's text."""
        self._codes.append(self._known.setdefault(text, len(self._known)))

    def save(self, folder: Path, name: str) -> None:
        """Write `<name>.npy`, the number of each row's text, and the sorted distinct texts as records."""
        texts = sorted(self._known)
        number = np.empty(len(texts), np.int32)
        number[[self._known[text] for text in texts]] = np.arange(
            len(texts), dtype=np.int32
        )
        np.save(folder / f"{name}.npy", number[np.frombuffer(self._codes, np.int32)])
        write_records(folder, name, texts)


class Labels:
    """A column of texts, stored as one memory-mapped integer per row.

    Args:
        folder: The folder of the files.
        name: The files' name without suffix.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._codes: Final = mapped(folder / f"{name}.npy", np.int32)
        self._texts: Final = Records(folder, name, str)

    def rows(self, text: str) -> NDArray[np.int64]:
        """Return the rows with exactly this text, ascending."""
        number = bisect_left(self._texts, text)
        if number == len(self._texts) or self._texts[number] != text:
            return np.empty(0, np.int64)
        return np.flatnonzero(self._codes == number)


def write_records(
    folder: Path, name: str, records: Iterable[object], *, compress: bool = False
) -> None:
    """Write a file of records and their offsets."""
    writer = RecordWriter(folder, name, compress=compress)
    for record in records:
        writer.write(record)
    writer.close()


def mapped(path: Path, *kinds: type[Value], columns: int = 0) -> NDArray[Value]:
    """Return the read-only array of a .npy file.

    The file is memory-mapped unless it is small, because an empty array cannot be mapped.

    Args:
        path: The file.
        kinds: The allowed types of its values.
        columns: The length of the second dimension; 0 for an array of one dimension.

    Raises:
        InputError: If the file is not such an array, or if its size differs from its header.
    """
    with open_regular(path, "file of a catalogue") as file:
        try:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("another format")  # noqa: TRY301
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
            size = os.fstat(file.fileno()).st_size - file.tell()
            right = (
                shape[1:] == (columns,) * bool(columns)
                and min(shape) >= 0
                and not fortran
            )
            if (
                not right
                or dtype.type not in kinds
                or math.prod(shape) * dtype.itemsize != size
            ):
                raise ValueError(f"{dtype} of shape {shape} in {size:,} bytes")  # noqa: TRY301
            if size <= _SMALL:
                return np.frombuffer(file.read(size), dtype).reshape(shape)
            return np.memmap(file, dtype, "r", file.tell(), shape).view(np.ndarray)
        except Exception as error:
            # NumPy's header parser raises any error of Python's tokenizer
            raise InputError(
                f"{path} is damaged ({one_line(error)}); build the catalogue again"
            ) from error


@contextmanager
def report_damage(folder: Path) -> Iterator[None]:
    """Turn an error that inconsistent catalogue files cause in the block into a one-line InputError."""
    try:
        yield
    except InputError:
        raise
    except (
        LookupError,
        TypeError,
        ValueError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise InputError(
            f"the catalogue in {folder} is damaged ({type(error).__name__}: {one_line(error)}); "
            "see `hgpo data show webshop --verify`, or build it again"
        ) from None


def _text(path: Path) -> bytes | mmap.mmap:
    """Return a file's bytes, memory-mapped unless it is empty, or decompressed if there is only a gzipped file."""
    if not os.path.lexists(path):
        return read_bytes(
            path.with_name(path.name + ".gz"),
            LONGEST_UNPACKED,
            "catalogue's file",
            unpack=True,
        )
    with open_regular(path, "catalogue's file") as file:
        size = os.fstat(file.fileno()).st_size
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
