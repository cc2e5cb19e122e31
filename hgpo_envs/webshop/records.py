"""Records at rest: a file of JSON, one record a line, and where each begins, so that any one is read by itself.

    <name>.jsonl            the records, mapped; or <name>.jsonl.gz, held unpacked by every process
    <name>.starts.npy       int64 (records + 1,): where each line begins in the unpacked text, and where the last ends

Any tool reads them (`polars.scan_ndjson`, DuckDB, jq); here one record costs one `orjson.loads` of its line. `Labels`
is a column of few distinct texts as numbers, so that rows that hold a text are found without reading any.
"""

from __future__ import annotations

import gzip
import mmap
from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from numpy.typing import NDArray


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
        self._starts: Final[NDArray[np.int64]] = mapped(folder / f"{name}.starts.npy")
        self._text: Final = _text(folder / f"{name}.jsonl")

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401 - JSON
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        return orjson.loads(self._text[int(self._starts[index]) : int(self._starts[index + 1])])


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
        self._codes: Final[NDArray[np.int32]] = mapped(folder / f"{name}.npy")
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


def mapped(path: Path) -> NDArray[Any]:
    """An array of a .npy file; mapped unless it is small, for what is empty cannot be."""
    array: NDArray[Any] = np.load(path, mmap_mode="r" if path.stat().st_size > 256 else None, allow_pickle=False)
    return array.view(np.ndarray)


def _text(path: Path) -> bytes | mmap.mmap:
    """A file's bytes, mapped unless there are none; unpacked if only its gzipped form is there."""
    if not path.is_file():
        return gzip.decompress(path.with_name(path.name + ".gz").read_bytes())
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
