"""Tables with one row per step beside a run's step table, such as scores and advantages: one file per iteration.

    RUN/scores/000012.parquet           the scores of iteration 12, with the keys of the rows
    RUN/scores/000012.parquet.sha256    its SHA-256, as `sha256sum` prints it

Iterations are numbered from 1; the rows of iteration 12 have the value 11 in the column `iteration` of the step table.
A file appears whole or not at all, after its checksum. It can be deleted at any time: it is then computed again.
"""

from __future__ import annotations

import hashlib
import io
from typing import TYPE_CHECKING, Any, Final

import orjson
import polars as pl

from hgpo_datasets.shards import POLARS_ERRORS
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.atomic import make_folder, new_path, refuse_link, write_file
from hgpo_envs.files.untrusted_files import open_regular, read_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping
    from io import BufferedReader
    from pathlib import Path

    from hgpo_datasets.verification import VerifyReport

KEYS: Final = ("run", "trajectory", "step")
"""The columns that identify a row."""
CHECKSUM: Final = ".sha256"
_SUFFIX: Final = ".parquet"
_MOST: Final = 4096
"""Size limit of a checksum's file in bytes."""


def path_of(run: Path, name: str, iteration: int) -> Path:
    """Return the path of one iteration's file of the table `name`; iterations are numbered from 1."""
    return run / name / f"{iteration:06d}{_SUFFIX}"


def files_of(run: Path, name: str) -> list[Path]:
    """Return the files of the table `name`, in the order of the iterations."""
    return sorted((run / name).glob(f"*{_SUFFIX}"))


def readable_files(run: Path, name: str) -> list[Path]:
    """Return `files_of`, each of which is a regular file: opening a pipe would wait for its writer.

    Raises:
        InputError: One is a folder, pipe or device.
    """
    files = files_of(run, name)
    for path in files:
        open_regular(path).close()
    return files


def write_table(path: Path, rows: pl.DataFrame, metadata: Mapping[str, Any]) -> None:
    """Write one iteration's file. An existing file is replaced.

    Args:
        path: As of `path_of`.
        rows: The rows, with the columns of `KEYS`.
        metadata: Values that are stored in the file as JSON, by name.

    Raises:
        OSError: The disk is full, or the folder cannot be written. An existing file is unchanged.
    """
    refuse_link(path.parent)
    make_folder(path.parent)
    stored = {name: orjson.dumps(value).decode() for name, value in metadata.items()}
    checksum = path.with_name(path.name + CHECKSUM)
    replaced = (
        read_bytes(checksum, _MOST) if path.exists() and checksum.exists() else b""
    )
    # Polars reports a full disk as an error of the format, so that it writes into memory.
    data = io.BytesIO()
    rows.write_parquet(data, metadata=stored)
    data.seek(0)
    line = _line(data, path)
    with new_path(path) as content:
        content.write_bytes(data.getbuffer())
        # The checksum is first, so that a kill leaves no file without one. The replaced file's stays until it is gone.
        write_file(checksum, line + replaced)
    if replaced:
        write_file(checksum, line)


def read_table(path: Path) -> pl.DataFrame:
    """Read one iteration's file.

    Raises:
        InputError: It is damaged, was changed after it was written, or does not have each row once.
    """
    checksum = path.with_name(path.name + CHECKSUM)
    try:
        with open_regular(path) as file:
            # A flipped bit inside a page decodes to another number: training would go on with it.
            if checksum.exists() and _line(file, path) not in _lines(checksum):
                raise _damaged(path, f"its SHA-256 is not the one in {checksum.name}")
            file.seek(0)
            table = pl.read_parquet(file)
        is_doubled = table.select(KEYS).is_duplicated().any()
    except (OSError, *POLARS_ERRORS) as error:
        raise _damaged(path, error) from error
    if is_doubled:
        raise _damaged(path, "it has rows twice")
    return table


def read_metadata(path: Path, name: str) -> Any:  # noqa: ANN401 - JSON
    """Return a value of a file's metadata; None if it has none of this name.

    Raises:
        InputError: The file is damaged.
    """
    with open_regular(path) as file:
        try:
            return orjson.loads(pl.read_parquet_metadata(file).get(name, "null"))
        except (OSError, ValueError, *POLARS_ERRORS) as error:
            raise _damaged(path, error) from error


def verify_tables(run: Path, name: str, report: VerifyReport) -> None:
    """Compare each file of the table `name` with its checksum, and add what differs to the report."""
    for path in files_of(run, name):
        checksum = path.with_name(path.name + CHECKSUM)
        try:
            expected = _lines(checksum)
            with open_regular(path) as file:
                found = _line(file, path)
                report.bytes += file.tell()
        except (InputError, OSError) as error:
            report.add("unreadable", path, one_line(error))
            continue
        report.files += 1
        if found not in expected:
            report.add(
                "bytes",
                path,
                f"its SHA-256 is not the one in {checksum.name}: one of them was changed",
            )


def _line(file: BufferedReader | io.BytesIO, path: Path) -> bytes:
    """Return the checksum of an open file as `sha256sum` prints it."""
    return f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n".encode()


def _lines(checksum: Path) -> list[bytes]:
    """Return the lines of a checksum's file: two if a process was killed while it replaced the table."""
    return read_bytes(checksum, _MOST).splitlines(keepends=True)


def _damaged(path: Path, error: object) -> InputError:
    return InputError(
        f"{path} cannot be read ({one_line(error)}); delete it, and it is computed again"
    )
