"""Finds everything that can be wrong with a run or a file: bytes, files, rows.

Bytes are compared with the manifest's SHA-256 and with the digest that each file carries, so that a flip is found
wherever it is, padding included; page checksums then say where it is. Rows are read only from files whose bytes are
right: order, steps, nulls, NaN, and every derived column computed again from the others.

Whatever is in the folder becomes a problem in the report, never an exception, and nothing is read without a limit.
"""

from __future__ import annotations

import hashlib
import io
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_datasets import footer, manifest, reading, schema, shards
from hgpo_datasets.derived_columns import broken_steps, derived, first_rows, row_name, value_problems
from hgpo_envs.atomic import scratch_folders, seems_locked
from hgpo_envs.errors import InputError
from hgpo_envs.hashing import text_hash
from hgpo_envs.unicode_text import clean_text

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator

    from hgpo_datasets.manifest import Header, Shard

_PAGES_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        kind: `manifest`, `missing`, `unreadable`, `size`, `bytes`, `digest`, `structure`, `foreign`, `uncommitted`,
            `version`, `columns`, `null`, `order`, `steps`, `value`, `derived`, `run`, `group` or `trajectory`.
        file: The file it is in.
        message: What is wrong, in one line.
    """

    kind: str
    file: str
    message: str


def _problem(kind: str, path: Path, message: str) -> Problem:
    """A problem in a path; paths may hold bytes that are no text."""
    return Problem(kind, clean_text(str(path)), clean_text(message))


@dataclass(slots=True)
class VerifyReport:
    """What `verify` found.

    Attributes:
        source: What was verified.
        problems: What is wrong; empty when nothing is.
        notes: What is harmless: leftovers of a writer that was killed, and what a writer at work has not listed yet.
        files: Files read.
        rows: Rows read.
        bytes: Bytes read.
    """

    source: str
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    files: int = 0
    rows: int = 0
    bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def add(self, kind: str, path: Path, message: str) -> None:
        """Adds a problem."""
        self.problems.append(_problem(kind, path, message))

    def note(self, kind: str, path: Path, message: str) -> None:
        """Adds a note."""
        self.notes.append(_problem(kind, path, message))

    def summary(self) -> str:
        """How much was read, in words."""
        return f"{self.files} files, {self.rows:,} rows, {self.bytes:,} bytes"

    def to_dict(self) -> dict[str, Any]:
        """The report as values of JSON."""
        return {"ok": self.ok, **asdict(self)}


@dataclass(slots=True)
class _Seen:
    """Where groups and trajectories of one run were met."""

    groups: dict[tuple[Any, ...], str] = field(default_factory=dict)
    trajectories: dict[int, str] = field(default_factory=dict)


def verify(source: str | os.PathLike[str]) -> VerifyReport:
    """Verifies a run's folder or a single file; a file in a run's folder is compared with the manifest, too.

    A writer may be at work in the run: what it has not finished is a note, not a problem.

    Raises:
        InputError: There is no such run or file.
    """
    path = Path(source)
    report = VerifyReport(clean_text(str(path)))
    if path.is_dir():
        if not _is_there(path / manifest.NAME):
            raise InputError(f"{path} is not a run: it has no {manifest.NAME}; name a file to verify it alone")
        with _reporting(path, report):
            _verify_run(path, report)
    elif path.is_file():
        with _reporting(path, report):
            _verify_lone_file(path, report)
    else:
        raise InputError(f"{path}: no such run or file on this machine")
    return report


@contextmanager
def _reporting(path: Path, report: VerifyReport) -> Iterator[None]:
    """Turns whatever is raised into a problem: no content of a file may end a verification."""
    try:
        yield
    except InputError as error:
        report.add("unreadable", path, str(error))
    except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001 (Polars' panics are no Exception)
        report.add("unreadable", path, f"cannot be read ({type(error).__name__}: {reading.first_line(error)})")


def _is_there(path: Path) -> bool:
    return path.exists() or path.is_symlink()


def _verify_lone_file(path: Path, report: VerifyReport) -> None:
    listed = None
    if _is_there(path.parent / manifest.NAME):
        with suppress(InputError):  # of the future, or no manifest: then the file is verified by itself
            listed = manifest.read(path.parent)
    shard = next((one for one in listed.shards if one.file == path.name), None) if listed else None
    _verify_file(path, shard, listed.header if listed and shard else None, report, _Seen())


def _verify_run(folder: Path, report: VerifyReport) -> None:
    at_work = seems_locked(folder)  # before anything is read, as the listing is read before the manifest
    present = sorted(folder.glob("*.parquet"))
    for part in sorted(folder.glob(f"{shards.PATTERN}.part")):
        report.note("leftover", part, "temporary file of an earlier version; it may be removed")
    for scratch in scratch_folders(folder):
        report.note("leftover", scratch, "scratch folder of a writer that was killed or is at work")
    listed = _verify_manifest(folder, report, at_work=at_work)
    if listed is None:
        return
    seen = _Seen()
    for shard in listed.shards:
        with _reporting(folder / shard.file, report):
            _verify_file(folder / shard.file, shard, listed.header, report, seen)
    names = {shard.file for shard in listed.shards}
    for extra in present:
        if extra.name in listed.replaced:
            report.note("leftover", extra, "replaced by a later file; opening the run for writing removes it")
        elif extra.name not in names:
            with _reporting(extra, report):
                _report_extra(extra, listed.committed, report, at_work=at_work)


def _verify_manifest(folder: Path, report: VerifyReport, *, at_work: bool) -> manifest.Manifest | None:
    """The manifest as far as it is right; None where it cannot be read."""
    path = folder / manifest.NAME
    try:
        listed = manifest.current(folder)
        size = reading.status(path).st_size
    except InputError as error:
        report.add("version" if "newer" in str(error) else "manifest", path, str(error))
        return None
    if listed.header is None and (at_work or seems_locked(folder)):
        report.note("uncommitted", path, "empty as yet: its writer has only just begun")
        return None
    report.bytes += size
    if listed.problem:
        report.add("manifest", path, listed.problem)
    elif listed.size < size and not at_work:
        report.add("manifest", path, "its last line is not complete; opening the run repairs that")
    return listed


def _report_extra(path: Path, number: int, report: VerifyReport, *, at_work: bool) -> None:
    ours = path.name == manifest.file_name(number)
    if ours and shards.digest_problem(reading.read(path, footer.MOST_BYTES)) is None:
        if at_work:
            report.note("uncommitted", path, "complete, but not yet in the manifest; a writer is at work")
        else:
            line = "complete, but not in the manifest; opening the run for writing lists it"
            report.add("uncommitted", path, line)
    else:
        report.add("foreign", path, "not in the manifest")


def _verify_file(path: Path, shard: Shard | None, header: Header | None, report: VerifyReport, seen: _Seen) -> None:
    if not _is_there(path):
        if path.name in manifest.current(path.parent).replaced:
            report.note("replaced", path, "replaced by a writer during the verification; verify again")
        else:
            report.add("missing", path, "the manifest lists it; it is missing")
        return
    size = reading.status(path).st_size
    report.files += 1
    report.bytes += size
    if shard is not None and size != shard.bytes:
        report.add("size", path, f"{size} bytes; {shard.bytes} were committed")
        return
    data = reading.read(path, footer.MOST_BYTES)
    name = clean_text(str(path))
    problems = list(_byte_problems(name, data, shard))
    report.problems += problems or list(_row_problems(path, data, header, report, seen))


def _byte_problems(name: str, data: bytes, shard: Shard | None) -> Iterable[Problem]:
    digest = shards.digest_problem(data)
    if shard is not None and hashlib.sha256(data).hexdigest() != shard.sha256:
        yield Problem("bytes", name, f"its SHA-256 is not the committed one; {_where(data)}")
    elif digest:
        yield Problem("digest", name, f"{digest}; {_where(data)}")


def _where(data: bytes) -> str:
    """Where damaged bytes lie, as far as page checksums tell."""
    try:
        pages = footer.damaged_pages(data)
    except ValueError as error:
        return f"its structure is damaged ({error})"
    if not pages:
        return "every page fits its checksum: the damage is in headers or footer"
    more = f" and {len(pages) - _PAGES_NAMED} more" if len(pages) > _PAGES_NAMED else ""
    return f"damaged: {'; '.join(pages[:_PAGES_NAMED])}{more}"


def _row_problems(
    path: Path, data: bytes, header: Header | None, report: VerifyReport, seen: _Seen
) -> Iterable[Problem]:
    name = clean_text(str(path))
    try:
        footer.check_file_in_memory(data)
        shards.check_version(pl.read_parquet_metadata(io.BytesIO(data)), path.name)
    except InputError as error:
        yield Problem("version", name, str(error))
        return
    except ValueError as error:
        yield Problem("structure", name, str(error))
        return
    frame = pl.read_parquet(data)
    report.rows += len(frame)
    depth = header.depth if header else schema.stored_depth(frame.columns)
    if wrong := _column_problem(frame, depth):
        yield Problem("columns", name, wrong)
        return
    nulls = [column.name for column in schema.columns(depth) if not column.null and frame[column.name].has_nulls()]
    for column in nulls:
        yield Problem("null", name, f"{column} is never null; {frame[column].null_count()} rows have none")
    if nulls or frame.is_empty():
        return
    yield from _content_problems(name, frame, depth)
    yield from _identity_problems(name, frame, header, seen)


def _column_problem(frame: pl.DataFrame, depth: int) -> str | None:
    expected, found = dict(schema.polars_schema(max(depth, 0))), dict(frame.schema)
    missing = [column for column in expected if column not in found]
    if missing:
        return f"lacks {', '.join(missing)}"
    differs = [f"{column} is {found[column]}, not {kind}" for column, kind in expected.items() if found[column] != kind]
    return "; ".join(differs) or None


def _content_problems(name: str, frame: pl.DataFrame, depth: int) -> Iterable[Problem]:
    ordered = frame.with_row_index("row").sort(schema.SORT_KEY, maintain_order=True)
    if not ordered["row"].is_sorted():
        yield Problem("order", name, f"rows are not sorted by {', '.join(schema.SORT_KEY)}")
        frame = ordered.drop("row")
    first = first_rows(frame)
    last = np.append(first[1:], True)
    broken = broken_steps(frame, first)
    if len(broken):
        line = f"{len(broken)} steps are not contiguous from 0; the first is {row_name(frame, int(broken[0]))}"
        yield Problem("steps", name, line)
        return
    for _, text, rule in value_problems(frame, last):
        rows = frame.select(rule.fill_null(value=False)).to_series()
        if rows.any():
            yield Problem("value", name, _rows_line(frame, rows, text))
    for computed in derived(frame, first, depth):
        rows = frame[computed.name].ne_missing(computed)
        if rows.any():
            yield Problem("derived", name, _rows_line(frame, rows, f"{computed.name} is not what the rows give"))


def _rows_line(frame: pl.DataFrame, rows: pl.Series, text: str) -> str:
    found = rows.arg_true()
    return f"{text} in {len(found)} rows; the first is {row_name(frame, int(found[0]))}"


def _identity_problems(name: str, frame: pl.DataFrame, header: Header | None, seen: _Seen) -> Iterable[Problem]:
    if header is not None and (frame["run"] != header.run).any():
        yield Problem("run", name, f"holds rows of another run than {header.run!r}")
    for row in frame.select("run", *schema.GROUP_KEY).unique(maintain_order=True).iter_rows():
        other = seen.groups.setdefault(row, name)
        if other != name:
            yield Problem("group", name, f"group {row[1:]} is split: a part of it is in {other}")
    starts = frame.filter(pl.col("step") == 0).select("run", "trajectory")
    for run, trajectory in starts.iter_rows():
        key = text_hash(f"{run}\0{trajectory}")
        if key in seen.trajectories:
            yield Problem("trajectory", name, f"trajectory {trajectory!r} is also in {seen.trajectories[key]}")
        seen.trajectories[key] = name
