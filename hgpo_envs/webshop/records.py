"""Records at rest: a file of JSON, one record a line, and where each begins, so that any one is read by itself.

    <name>.jsonl            the records, mapped; or <name>.jsonl.gz, held unpacked by every process
    <name>.starts.npy       int64 (records + 1,): where each line begins in the unpacked text, and where the last ends

Any tool reads them (`polars.scan_ndjson`, DuckDB, jq); here one record costs one `orjson.loads` of its line. `Labels`
is a column of few distinct texts as numbers, so that rows that hold a text are found without reading any.
"""

from __future__ import annotations

import gzip
import math
import mmap
import os
from array import array
from bisect import bisect_left
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.untrusted_files import open_regular, read_unpacked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from io import BufferedReader
    from pathlib import Path

    from numpy.typing import NDArray


LONGEST_RECORD: Final = 1 << 24
"""Bytes of one record; `hgpo_envs.webshop.data.raw_files` believes no longer one either."""

LONGEST_UNPACKED: Final = 1 << 26
"""Bytes of a file of records that is kept gzipped, unpacked: only small catalogues are."""

_SMALL: Final = 256


class RecordWriter:
    """Writes records as they come; `close` writes where they begin.

    Args:
        folder: Where the files go.
        name: Their name.
        compress: Whether the text is gzipped, for small files.
    """

    def __init__(self, folder: Path, name: str, *, compress: bool = False) -> None:
        self._starts_path = folder / f"{name}.starts.npy"
        path = folder / f"{name}.jsonl{'.gz' * compress}"
        self._file = path.open("wb")
        # neither a time nor a file name goes into the head: the same records give the same bytes
        self._text = gzip.GzipFile("", "wb", fileobj=self._file, mtime=0) if compress else self._file
        self._starts = array("q", [0])

    def write(self, record: object) -> None:
        """Appends one record: anything that orjson writes; an infinity becomes null."""
        line = orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
        self._text.write(line)
        self._starts.append(self._starts[-1] + len(line))

    def close(self) -> None:
        """Completes the files."""
        self._text.close()
        self._file.close()
        np.save(self._starts_path, np.frombuffer(self._starts, np.int64))


class Records:
    """The records of a file, each decoded when it is asked for.

    A mapped file that is deleted stays readable until the records are let go.
    """

    def __init__(self, folder: Path, name: str) -> None:
        path = folder / f"{name}.starts.npy"
        self._starts: Final[NDArray[np.int64]] = mapped(path, np.int64)
        self._text: Final = _text(folder / f"{name}.jsonl")
        if not len(self._starts) or self._starts[-1] != len(self._text):
            raise InputError(f"{path} does not fit {name}.jsonl; build the catalogue again")

    def __len__(self) -> int:
        return len(self._starts) - 1

    def size(self, index: int) -> int:
        """Bytes of a record."""
        return int(self._starts[index + 1]) - int(self._starts[index])

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401 - JSON
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        start, end = int(self._starts[index]), int(self._starts[index + 1])
        if not 0 <= end - start <= LONGEST_RECORD:
            raise ValueError(f"record {index} has {end - start} bytes")
        return orjson.loads(self._text[start:end])


class LabelWriter:
    """Gathers a column of texts and writes it for `Labels`."""

    def __init__(self) -> None:
        self._codes = array("i")
        self._known: dict[str, int] = {}

    def add(self, text: str) -> None:
        """The next row's text."""
        self._codes.append(self._known.setdefault(text, len(self._known)))

    def save(self, folder: Path, name: str) -> None:
        """Writes `<name>.npy`, each row's number, and the texts in ascending order, numbered so, as records."""
        texts = sorted(self._known)
        number = np.empty(len(texts), np.int32)
        number[[self._known[text] for text in texts]] = np.arange(len(texts), dtype=np.int32)
        np.save(folder / f"{name}.npy", number[np.frombuffer(self._codes, np.int32)])
        write_records(folder, name, texts)


class Labels:
    """A column of texts, a number a row, mapped."""

    def __init__(self, folder: Path, name: str) -> None:
        self._codes: Final[NDArray[np.int32]] = mapped(folder / f"{name}.npy", np.int32)
        self._texts: Final = Records(folder, name)

    def rows(self, text: str) -> NDArray[np.int64]:
        """The rows that hold this text exactly, ascending."""
        number = bisect_left(self._texts, text)
        if number == len(self._texts) or self._texts[number] != text:
            return np.empty(0, np.int64)
        return np.flatnonzero(self._codes == number)


def write_records(folder: Path, name: str, records: Iterable[object], *, compress: bool = False) -> None:
    """Writes a whole file of records."""
    writer = RecordWriter(folder, name, compress=compress)
    for record in records:
        writer.write(record)
    writer.close()


def mapped(path: Path, *kinds: type[np.generic], columns: int = 0) -> NDArray[Any]:
    """An array of a .npy file, read-only; mapped unless it is small, for what is empty cannot be.

    Args:
        path: The file.
        kinds: The types that its values may have.
        columns: 0 for one dimension, else the second of two.

    Raises:
        InputError: The file is no such array, or not as long as its header says.
    """
    with open_regular(path, "array of a catalogue") as file:
        try:
            shape, dtype, size = _header(file, kinds, columns)
            if size <= _SMALL:
                return np.frombuffer(file.read(size), dtype).reshape(shape)
            return np.memmap(file, dtype, "r", file.tell(), shape).view(np.ndarray)
        except Exception as error:  # NumPy's parser of headers raises whatever Python's tokenizer does
            raise InputError(f"{path} is damaged ({one_line(error)}); build the catalogue again") from error


def _header(
    file: BufferedReader, kinds: tuple[type[np.generic], ...], columns: int
) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape, type and bytes of the array in a .npy file. Raises ValueError where it is not as expected."""
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise ValueError(f"format {version}")
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
    size = os.fstat(file.fileno()).st_size - file.tell()
    fits = len(shape) == 1 + bool(columns) and shape[1:] == (columns,) * bool(columns) and min(shape) >= 0
    if not fits or fortran or not any(issubclass(dtype.type, kind) for kind in kinds):
        raise ValueError(f"{dtype} of shape {shape}")
    if math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"{dtype} of shape {shape} in {size:,} bytes")
    return shape, dtype, size


@contextmanager
def report_damage(folder: Path) -> Iterator[None]:
    """Says in one line that a catalogue is damaged, where its parts contradict each other."""
    try:
        yield
    except InputError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InputError(
            f"the catalogue in {folder} is damaged ({type(error).__name__}: {one_line(error)}); "
            "see `hgpo data show webshop --verify`, or build it again"
        ) from None


def _text(path: Path) -> bytes | mmap.mmap:
    """A file's bytes, mapped unless there are none; unpacked if only its gzipped form is there."""
    if not os.path.lexists(path):
        return read_unpacked(path.with_name(path.name + ".gz"), LONGEST_UNPACKED, "catalogue's file")
    with open_regular(path, "catalogue's file") as file:
        size = os.fstat(file.fileno()).st_size
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
