"""Verify a run or a file: its files, bytes and rows.

The bytes of a run's files are compared with the SHA-256 in the manifest, which detects any changed bit. Files outside
of runs have only the checksums of their pages. Rows are checked if the bytes are intact: order, steps, nulls and NaN
values, and the columns that are computed from others.

Damage is reported as a problem and never raises. A forged file can end the process that decodes it: files of others are
decoded in processes of their own, whose end is a problem of the file.
"""

from __future__ import annotations

import hashlib
import io
import os
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_datasets import manifest, schema, shards
from hgpo_datasets.derived_columns import broken_steps, derived, first_rows, row_name, value_problems
from hgpo_datasets.partitions import check_processes, in_processes
from hgpo_datasets.sources import PARQUET, STEPS, run_at, run_of_file, runs_below
from hgpo_envs.errors import InputError, ProcessError
from hgpo_envs.files.atomic import scratch_folders, seems_locked
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_envs.hashing import text_hash
from hgpo_envs.unicode_text import clean_text
from hgpo_envs.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from hgpo_datasets.manifest import Header, Shard

_COLUMNS_NAMED: Final = 5
"""Number of damaged columns that a problem names."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem or note in a report.

    Attributes:
        kind: `manifest`, `missing`, `unreadable`, `size`, `bytes`, `foreign`, `uncommitted`, `version`, `columns`,
            `null`, `order`, `steps`, `value`, `derived`, `run`, `group` or `trajectory`.
        file: Path of the affected file.
        message: Description in one line.
    """

    kind: str
    file: str
    message: str


@dataclass(slots=True)
class VerifyReport:
    """Result of `verify`.

    Attributes:
        source: The verified path.
        problems: The problems; empty if the source is intact.
        notes: Harmless findings: leftovers of a killed writer, and files that an open writer has not listed yet.
        files: Number of files read.
        rows: Number of rows read.
        bytes: Number of bytes read.
    """

    source: str
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    files: int = 0
    rows: int = 0
    bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    def add(self, kind: str, path: Path, message: str) -> None:
        """Add a problem."""
        self.problems.append(Problem(kind, clean_text(str(path)), clean_text(message)))

    def note(self, kind: str, path: Path, message: str) -> None:
        """Add a note."""
        self.notes.append(Problem(kind, clean_text(str(path)), clean_text(message)))

    def include(self, other: VerifyReport) -> None:
        """Add what was found in a file."""
        self.problems += other.problems
        self.notes += other.notes
        self.files += other.files
        self.rows += other.rows
        self.bytes += other.bytes

    def summary(self) -> str:
        """Return the numbers of files, rows and bytes read as a text."""
        return ", ".join([counted(self.files, "file"), counted(self.rows, "row"), counted(self.bytes, "byte")])

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {"ok": self.ok, **asdict(self)}


@dataclass(slots=True)
class _Names:
    """The groups of a file, and its trajectories by the hashes of their names."""

    groups: list[tuple[Any, ...]] = field(default_factory=list)
    trajectories: list[tuple[int, str]] = field(default_factory=list)


def verify(source: str | os.PathLike[str], *, processes: int | None = None) -> VerifyReport:
    """Verify a run or a single file. A shard of a run is also compared with the manifest.

    A run is named by its folder or its `steps/`. Of a training run, only the step table is verified.

    If a writer has the run open, its unfinished files are notes, not problems. Every byte is read at each call: nothing
    is remembered of earlier ones, because a file can change without a change of its size and times.

    Args:
        source: The run or file.
        processes: Number of other processes, which decode the files. The report does not depend on it. None decodes
            them in this process: do so only with files of your own, because a forged file can end it. Programs that
            start processes need ``if __name__ == "__main__":``.

    Raises:
        InputError: The run or file does not exist, or `processes` is less than 1.
    """
    if processes is not None:
        check_processes(processes)
    if not isinstance(source, str | os.PathLike):
        raise InputError(f"expected the path of a run or file, received {type(source).__name__} {source!r}")
    path = Path(source)
    report = VerifyReport(clean_text(str(path)))
    if path.is_dir():
        run = run_at(path)
        if run is None:
            found = counted(len(runs_below(path)), "run")
            raise InputError(
                f"{path} is not a run: it has no {manifest.NAME} (found {found} below it); pass a run, or a single "
                "file to verify it alone"
            )
        with _reporting(path, report):
            _verify_run(run, report, processes)
    elif path.is_file():
        with _reporting(path, report):
            _verify_file(path, report, processes)
    else:
        raise InputError(f"{path}: no such run or file on this machine")
    return report


@contextmanager
def _reporting(path: Path, report: VerifyReport) -> Iterator[None]:
    """Convert any exception to a problem, so that one damaged file does not end the verification."""
    try:
        yield
    except InputError as error:
        report.add("unreadable", path, str(error))
    except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001 (PanicException is not an Exception)
        report.add("unreadable", path, f"cannot be read ({type(error).__name__}: {shards.first_line(error)})")


def _verify_file(path: Path, report: VerifyReport, processes: int | None) -> None:
    """Verify a single file, as a shard if it is one."""
    run, header, shard = run_of_file(path), None, None
    if run is not None:
        listed = manifest.read(run)
        shard = next((shard for shard in listed.shards if shard.file == path.name), None)
        header = listed.header if shard is not None else None
    _check_files([(path, shard)], header, run, report, processes)


def _verify_run(run: Path, report: VerifyReport, processes: int | None) -> None:
    # the lock and the listing are read before the manifest, so that a commit in between is not taken for a problem
    at_work = seems_locked(run)
    place = run / STEPS
    present = sorted(place.iterdir()) if place.is_dir() else []
    for scratch in scratch_folders(run):
        report.note("leftover", scratch, "scratch folder of a writer that was killed or is still open")
    listed = _verify_manifest(run, report, at_work=at_work)
    if listed is None:
        return
    _check_files([(place / shard.file, shard) for shard in listed.shards], listed.header, run, report, processes)
    names = {shard.file for shard in listed.shards}
    for extra in present:
        if extra.name in listed.replaced:
            report.note("leftover", extra, "replaced by a later file; opening the run for writing removes it")
        elif extra.suffix != PARQUET:
            report.note("foreign", extra, "not a Parquet file; other programs may be unable to read the folder")
        elif extra.name not in names and extra.name != manifest.file_name(listed.committed):
            report.add("foreign", extra, "not in the manifest")
        elif extra.name not in names and at_work:
            report.note("uncommitted", extra, "not in the manifest yet; a writer has the run open")
        elif extra.name not in names:
            report.add("uncommitted", extra, "not in the manifest; open the run for writing to list it")


def _verify_manifest(run: Path, report: VerifyReport, *, at_work: bool) -> manifest.Manifest | None:
    """Return the manifest up to its first invalid line, or None if it cannot be read."""
    path = run / manifest.NAME
    try:
        listed = manifest.current(run, run / STEPS)
    except InputError as error:
        report.add("version" if isinstance(error, schema.NewerVersionError) else "manifest", path, str(error))
        return None
    size = path.stat().st_size
    if listed.header is None and (at_work or seems_locked(run)):
        report.note("uncommitted", path, "empty: its writer has not written the first line yet")
        return None
    report.bytes += size
    if listed.problem:
        report.add("manifest", path, listed.problem)
    elif listed.size < size and not at_work:
        report.add("manifest", path, "its last line is incomplete; open the run for writing to repair it")
    return listed


def _check_files(
    files: Sequence[tuple[Path, Shard | None]],
    header: Header | None,
    run: Path | None,
    report: VerifyReport,
    processes: int | None,
) -> None:
    """Check each file by itself, then that no group and no trajectory is in two files."""
    groups: dict[tuple[Any, ...], str] = {}
    trajectories: dict[int, str] = {}
    check = partial(_check_file, header=header, run=run, isolated=processes is not None)
    for (path, _), (found, names) in zip(files, _results(check, files, processes), strict=True):
        report.include(found)
        for row in names.groups:
            if groups.setdefault(row, path.name) != path.name:
                report.add("group", path, f"group {row[1:]} is split: other rows of it are in {groups[row]}")
        for key, name in names.trajectories:
            if key in trajectories:
                report.add("trajectory", path, f"trajectory {name!r} is also in {trajectories[key]}")
            trajectories[key] = path.name


_Check = tuple["Path", "Shard | None"]


def _results(
    check: Callable[[_Check], tuple[VerifyReport, _Names]], files: Sequence[_Check], processes: int | None
) -> Iterator[tuple[VerifyReport, _Names]]:
    """Yield the result of each file; a problem if it ends the process that decodes it."""
    if processes is None:
        yield from map(check, files)
        return
    done = 0
    while done < len(files):
        try:
            with closing(in_processes(check, files[done:], processes, isolated=True)) as results:
                for result in results:
                    done += 1
                    yield result
        except ProcessError:
            path = files[done][0]
            report = VerifyReport(str(path), files=1)
            report.add("unreadable", path, "the process that decoded it was ended, as by a forged file")
            done += 1
            yield report, _Names()


def _check_file(
    file: _Check, *, header: Header | None, run: Path | None, isolated: bool
) -> tuple[VerifyReport, _Names]:
    """Check a file by itself. Return what was found, and its groups and trajectories."""
    (path, shard), names = file, _Names()
    report = VerifyReport(str(path))
    if isolated:
        _limit_memory()
    with _reporting(path, report):
        if not os.path.lexists(path):
            if run is not None and path.name in manifest.current(run, run / STEPS).replaced:
                report.note("replaced", path, "replaced by a writer during the verification; verify again")
            else:
                report.add("missing", path, "listed in the manifest, but missing")
            return report, names
        data = read_bytes(path, shards.MOST_BYTES, shards.WHAT)
        report.files, report.bytes = 1, len(data)
        if shard is not None and len(data) != shard.bytes:
            report.add("size", path, f"expected {shard.bytes:,} bytes (as committed), received {len(data):,}")
        elif shard is not None and hashlib.sha256(data).hexdigest() != shard.sha256:
            # a damaged footer can end the process
            where = f"; {_damage(data)}" if isolated else ""
            report.add("bytes", path, f"its SHA-256 differs from the manifest{where}")
        else:
            _check_rows(path, data, header, report, names, checksums=shard is None)
    return report, names


def _limit_memory() -> None:
    """Let this process fail, not the machine, if a file declares more memory than any table needs."""
    try:
        import resource
    except ImportError:  # Windows
        return
    limit = 4 * shards.MOST_BYTES
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))


def _damage(data: bytes) -> str:
    """Return the location of the damage according to the page checksums."""
    try:
        columns = list(shards.damaged_columns(data))
    except ValueError as error:
        return f"its structure is damaged ({error})"
    if not columns:
        return "every page matches its checksum: the damage is in headers or footer"
    more = f" and {len(columns) - _COLUMNS_NAMED} more" if len(columns) > _COLUMNS_NAMED else ""
    return f"damaged: {'; '.join(columns[:_COLUMNS_NAMED])}{more}"


def _check_rows(
    path: Path, data: bytes, header: Header | None, report: VerifyReport, names: _Names, *, checksums: bool
) -> None:
    """Check the rows of a file, and add its groups and trajectories to `names`."""
    try:
        version = shards.check_version(pl.read_parquet_metadata(io.BytesIO(data)), path.name)
    except InputError as error:
        report.add("version", path, str(error))
        return
    if checksums and (columns := list(shards.damaged_columns(data))):
        report.add("bytes", path, f"damaged: {'; '.join(columns[:_COLUMNS_NAMED])}")
        return
    frame = pl.read_parquet(data)
    report.rows += len(frame)
    depth = header.depth if header else max(schema.stored_depth(frame.columns), 0)
    known = schema.columns(depth)
    stored = [column for column in known if column.since <= version]
    if wrong := _column_problem(frame, stored):
        report.add("columns", path, wrong)
        return
    nulls = [column.name for column in stored if not column.null and frame[column.name].has_nulls()]
    for column in nulls:
        rows = counted(frame[column].null_count(), "row")
        report.add("null", path, f"{column} must not be null, but is in {rows}")
    if nulls or frame.is_empty():
        return
    later = [pl.lit(None, column.type).alias(column.name) for column in known if column.since > version]
    for kind, message in _row_problems(frame.with_columns(later), depth, {column.name for column in stored}):
        report.add(kind, path, message)
    if header is not None and (frame["run"] != header.run).any():
        report.add("run", path, f"contains rows of another run than {header.run!r}")
    names.groups += frame.select("run", *schema.GROUP_KEY).unique(maintain_order=True).rows()
    starts = frame.filter(pl.col("step") == 0).select("run", "trajectory")
    names.trajectories += [(text_hash(f"{run}\0{trajectory}"), trajectory) for run, trajectory in starts.iter_rows()]


def _column_problem(frame: pl.DataFrame, stored: Iterable[schema.Column]) -> str | None:
    expected, found = {column.name: column.type for column in stored}, dict(frame.schema)
    missing = [column for column in expected if column not in found]
    if missing:
        return f"lacks {', '.join(missing)}"
    differs = [f"{column} is {found[column]}, not {kind}" for column, kind in expected.items() if found[column] != kind]
    return "; ".join(differs) or None


def _row_problems(frame: pl.DataFrame, depth: int, stored: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the kind and the message of each problem."""
    ordered = frame.with_row_index("row").sort(schema.SORT_KEY, maintain_order=True)
    if not ordered["row"].is_sorted():
        yield "order", f"rows are not sorted by {', '.join(schema.SORT_KEY)}"
        frame = ordered.drop("row")
    first = first_rows(frame)
    last = np.append(first[1:], True)
    broken = broken_steps(frame, first)
    if len(broken):
        first_broken = row_name(frame, int(broken[0]))
        yield "steps", f"steps are not contiguous from 0 in {counted(len(broken), 'row')}; the first is {first_broken}"
        return
    for _, text, rule in value_problems(frame, last):
        rows = frame.select(rule.fill_null(value=False)).to_series()
        if rows.any():
            yield "value", _rows_line(frame, rows, text)
    for computed in derived(frame, first, depth):
        rows = frame[computed.name].ne_missing(computed)
        if computed.name in stored and rows.any():
            yield "derived", _rows_line(frame, rows, f"{computed.name} differs from the computed value")


def _rows_line(frame: pl.DataFrame, rows: pl.Series, text: str) -> str:
    places = rows.arg_true()
    return f"{text} in {counted(len(places), 'row')}; the first is {row_name(frame, int(places[0]))}"
