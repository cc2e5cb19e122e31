"""Verify a run or a file: its files, bytes and rows.

Bytes are compared with the SHA-256 in the manifest and with the digest in each file, which detects any changed bit,
padding included. Page checksums then locate the damage. Rows are checked only if the bytes are intact: their order,
steps, nulls and NaN values, and every derived column, which is recomputed from the other columns.

Damage of any kind is reported as a problem and never raises. All reads have a size limit.
"""

from __future__ import annotations

import hashlib
import io
import os
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_datasets import footer, manifest, reading, schema, shards
from hgpo_datasets.derived_columns import broken_steps, derived, first_rows, row_name, value_problems
from hgpo_datasets.processes import check_processes, in_processes
from hgpo_datasets.run_paths import STEPS, run_at, run_of_file, runs_below
from hgpo_datasets.sources import PARQUET
from hgpo_envs.errors import InputError, ProcessError
from hgpo_envs.files.atomic import scratch_folders, seems_locked
from hgpo_envs.hashing import text_hash
from hgpo_envs.unicode_text import clean_text
from hgpo_envs.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hgpo_datasets.manifest import Header, Shard

_PAGES_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem or note in a report.

    Attributes:
        kind: `manifest`, `missing`, `unreadable`, `size`, `bytes`, `digest`, `structure`, `foreign`, `uncommitted`,
            `version`, `columns`, `null`, `order`, `steps`, `value`, `derived`, `run`, `group` or `trajectory`.
        file: Path of the affected file.
        message: Description in one line.
    """

    kind: str
    file: str
    message: str


def _problem(kind: str, path: Path, message: str) -> Problem:
    """Create a problem, with path and message made valid UTF-8."""
    return Problem(kind, clean_text(str(path)), clean_text(message))


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
        self.problems.append(_problem(kind, path, message))

    def note(self, kind: str, path: Path, message: str) -> None:
        """Add a note."""
        self.notes.append(_problem(kind, path, message))

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
class _Seen:
    """The file of each group and trajectory seen so far in a run."""

    groups: dict[tuple[Any, ...], str] = field(default_factory=dict)
    trajectories: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class _Names:
    """The groups of a file, and its trajectories by the hashes of their names."""

    groups: list[tuple[Any, ...]] = field(default_factory=list)
    trajectories: list[tuple[int, str]] = field(default_factory=list)


def verify(source: str | os.PathLike[str], *, processes: int = 1) -> VerifyReport:
    """Verify a run or a single file. A shard of a run is also compared with the manifest.

    A run is named by its folder or its `steps/`. Of a training run, only the step table is verified.

    If a writer has the run open, its unfinished files are notes, not problems. Every byte is read at each call: nothing
    is remembered of earlier ones, because a file can change without a change of its size and times.

    Args:
        source: The run or file.
        processes: Number of processes, which share the shards of a run. The report does not depend on it.

    Raises:
        InputError: The run or file does not exist, or `processes` is less than 1.
        ProcessError: Processes were killed repeatedly.
    """
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
            _verify_lone_file(path, report)
    else:
        raise InputError(f"{path}: no such run or file on this machine")
    return report


@contextmanager
def _reporting(path: Path, report: VerifyReport) -> Iterator[None]:
    """Convert any exception to a problem, so that one damaged file does not end the verification."""
    try:
        yield
    except ProcessError:
        raise
    except InputError as error:
        report.add("unreadable", path, str(error))
    except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001 (PanicException is not an Exception)
        report.add("unreadable", path, f"cannot be read ({type(error).__name__}: {reading.first_line(error)})")


def _is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _verify_lone_file(path: Path, report: VerifyReport) -> None:
    listed = None
    if (run := run_of_file(path)) is not None:
        with suppress(InputError):  # a newer version, or not a manifest: the file is verified without it
            listed = manifest.read(run)
    shard = next((one for one in listed.shards if one.file == path.name), None) if listed else None
    names = _verify_file(path, shard, listed.header if listed and shard else None, report)
    report.problems += _identity_problems(clean_text(str(path)), names, _Seen())


def _verify_run(folder: Path, report: VerifyReport, processes: int) -> None:
    # the lock and the listing are read before the manifest, so that a commit in between is not taken for a problem
    at_work = seems_locked(folder)
    place = folder / STEPS
    present = sorted(place.iterdir())
    for scratch in scratch_folders(folder):
        report.note("leftover", scratch, "scratch folder of a writer that was killed or is still open")
    listed = _verify_manifest(folder, place, report, at_work=at_work)
    if listed is None:
        return
    seen = _Seen()
    check = partial(_check_shard, folder=folder, place=place, header=listed.header)
    with closing(in_processes(check, listed.shards, processes)) as results:
        for shard, (found, its_names) in zip(listed.shards, results, strict=True):
            report.include(found)
            report.problems += _identity_problems(clean_text(str(place / shard.file)), its_names, seen)
    names = {shard.file for shard in listed.shards}
    for extra in present:
        if extra.name in listed.replaced:
            report.note("leftover", extra, "replaced by a later file; opening the run for writing removes it")
        elif extra.suffix == PARQUET and extra.name not in names:
            with _reporting(extra, report):
                _report_extra(extra, listed.committed, report, at_work=at_work)
        elif extra.suffix != PARQUET:
            report.note("foreign", extra, "not a Parquet file; other programs may be unable to read the folder")


def _check_shard(shard: Shard, *, folder: Path, place: Path, header: Header | None) -> tuple[VerifyReport, _Names]:
    """Verify a shard without the others. Return what was found, and its groups and trajectories."""
    path = place / shard.file
    report, names = VerifyReport(str(path)), _Names()
    with _reporting(path, report):
        if not _is_there(path) and path.name in manifest.current(folder, place).replaced:
            report.note("replaced", path, "replaced by a writer during the verification; verify again")
        else:
            names = _verify_file(path, shard, header, report)
    return report, names


def _verify_manifest(folder: Path, place: Path, report: VerifyReport, *, at_work: bool) -> manifest.Manifest | None:
    """Return the manifest up to its first invalid line, or None if it cannot be read."""
    path = folder / manifest.NAME
    try:
        listed = manifest.current(folder, place)
        size = reading.status(path).st_size
    except InputError as error:
        report.add("version" if isinstance(error, schema.NewerVersionError) else "manifest", path, str(error))
        return None
    if listed.header is None and (at_work or seems_locked(folder)):
        report.note("uncommitted", path, "empty: its writer has not written the first line yet")
        return None
    report.bytes += size
    if listed.problem:
        report.add("manifest", path, listed.problem)
    elif listed.size < size and not at_work:
        report.add("manifest", path, "its last line is incomplete; open the run for writing to repair it")
    return listed


def _report_extra(path: Path, number: int, report: VerifyReport, *, at_work: bool) -> None:
    ours = path.name == manifest.file_name(number)
    if ours and shards.digest_problem(reading.read(path, footer.MOST_BYTES)) is None:
        if at_work:
            report.note("uncommitted", path, "complete, but not yet in the manifest; a writer has the run open")
        else:
            line = "complete, but not in the manifest; open the run for writing to list it"
            report.add("uncommitted", path, line)
    else:
        report.add("foreign", path, "not in the manifest")


def _verify_file(path: Path, shard: Shard | None, header: Header | None, report: VerifyReport) -> _Names:
    """Verify a file without others. Return its groups and trajectories; none if it is damaged."""
    names = _Names()
    if not _is_there(path):
        report.add("missing", path, "listed in the manifest, but missing")
        return names
    size = reading.status(path).st_size
    report.files += 1
    report.bytes += size
    if shard is not None and size != shard.bytes:
        report.add("size", path, f"expected {shard.bytes} bytes (as committed), received {size}")
        return names
    data = reading.read(path, footer.MOST_BYTES)
    problems = list(_byte_problems(clean_text(str(path)), data, shard))
    report.problems += problems or list(_row_problems(path, data, header, report, names))
    return names


def _byte_problems(name: str, data: bytes, shard: Shard | None) -> Iterable[Problem]:
    digest = shards.digest_problem(data)
    if shard is not None and hashlib.sha256(data).hexdigest() != shard.sha256:
        yield Problem("bytes", name, f"its SHA-256 differs from the manifest; {_where(data)}")
    elif digest:
        yield Problem("digest", name, f"{digest}; {_where(data)}")


def _where(data: bytes) -> str:
    """Return the location of the damage according to the page checksums."""
    try:
        pages = footer.damaged_pages(data)
    except ValueError as error:
        return f"its structure is damaged ({error})"
    if not pages:
        return "every page matches its checksum: the damage is in headers or footer"
    more = f" and {len(pages) - _PAGES_NAMED} more" if len(pages) > _PAGES_NAMED else ""
    return f"damaged: {'; '.join(pages[:_PAGES_NAMED])}{more}"


def _row_problems(
    path: Path, data: bytes, header: Header | None, report: VerifyReport, names: _Names
) -> Iterable[Problem]:
    """Yield the problems of a file's rows, and add its groups and trajectories to `names`."""
    name = clean_text(str(path))
    try:
        footer.check_file_in_memory(data)
        version = shards.check_version(pl.read_parquet_metadata(io.BytesIO(data)), path.name)
    except InputError as error:
        yield Problem("version", name, str(error))
        return
    except ValueError as error:
        yield Problem("structure", name, str(error))
        return
    frame = pl.read_parquet(data)
    report.rows += len(frame)
    depth = header.depth if header else schema.stored_depth(frame.columns)
    known = schema.columns(max(depth, 0))
    stored = [column for column in known if column.since <= version]
    if wrong := _column_problem(frame, stored):
        yield Problem("columns", name, wrong)
        return
    nulls = [column.name for column in stored if not column.null and frame[column.name].has_nulls()]
    for column in nulls:
        rows = counted(frame[column].null_count(), "row")
        yield Problem("null", name, f"{column} must not be null, but is in {rows}")
    if nulls or frame.is_empty():
        return
    later = [pl.lit(None, column.type).alias(column.name) for column in known if column.since > version]
    yield from _content_problems(name, frame.with_columns(later), depth, stored)
    if header is not None and (frame["run"] != header.run).any():
        yield Problem("run", name, f"contains rows of another run than {header.run!r}")
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


def _content_problems(name: str, frame: pl.DataFrame, depth: int, stored: Iterable[schema.Column]) -> Iterable[Problem]:
    ordered = frame.with_row_index("row").sort(schema.SORT_KEY, maintain_order=True)
    if not ordered["row"].is_sorted():
        yield Problem("order", name, f"rows are not sorted by {', '.join(schema.SORT_KEY)}")
        frame = ordered.drop("row")
    first = first_rows(frame)
    last = np.append(first[1:], True)
    broken = broken_steps(frame, first)
    if len(broken):
        first_broken = row_name(frame, int(broken[0]))
        line = f"steps are not contiguous from 0 in {counted(len(broken), 'row')}; the first is {first_broken}"
        yield Problem("steps", name, line)
        return
    for _, text, rule in value_problems(frame, last):
        rows = frame.select(rule.fill_null(value=False)).to_series()
        if rows.any():
            yield Problem("value", name, _rows_line(frame, rows, text))
    names = {column.name for column in stored}
    for computed in derived(frame, first, depth):
        if computed.name not in names:
            continue
        rows = frame[computed.name].ne_missing(computed)
        if rows.any():
            yield Problem("derived", name, _rows_line(frame, rows, f"{computed.name} differs from the computed value"))


def _rows_line(frame: pl.DataFrame, rows: pl.Series, text: str) -> str:
    found = rows.arg_true()
    return f"{text} in {counted(len(found), 'row')}; the first is {row_name(frame, int(found[0]))}"


def _identity_problems(name: str, names: _Names, seen: _Seen) -> Iterable[Problem]:
    """Yield the groups and trajectories of a file that are also in others, and add its own to `seen`."""
    for row in names.groups:
        other = seen.groups.setdefault(row, name)
        if other != name:
            yield Problem("group", name, f"group {row[1:]} is split: other rows of it are in {other}")
    for key, trajectory in names.trajectories:
        if key in seen.trajectories:
            yield Problem("trajectory", name, f"trajectory {trajectory!r} is also in {seen.trajectories[key]}")
        seen.trajectories[key] = name
