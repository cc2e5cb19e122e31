"""Finds everything that can be wrong with a run or a file: bytes, files, rows.

Bytes are compared with the manifest's SHA-256 and with the digest that each file carries, so that a flip is found
wherever it is, padding included; page checksums then say where it is. Rows are read only from files whose bytes are
right: order, steps, nulls, NaN, and every derived column computed again from the others.
"""

from __future__ import annotations

import hashlib
import io
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_datasets import durable, manifest, schema, shards
from hgpo_datasets.derive import broken_steps, derived, first_rows, row_name, value_problems
from hgpo_datasets.page_checksums import damaged_pages
from hgpo_envs.errors import InputError
from hgpo_envs.hashing import text_hash

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from hgpo_datasets.manifest import Header, Shard

_PAGES_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        kind: `manifest`, `missing`, `size`, `bytes`, `digest`, `foreign`, `uncommitted`, `version`, `columns`, `null`,
            `order`, `steps`, `value`, `derived`, `run`, `group` or `trajectory`.
        file: The file it is in.
        message: What is wrong, in one line.
    """

    kind: str
    file: str
    message: str


@dataclass(slots=True)
class Report:
    """What `verify` found.

    Attributes:
        source: What was verified.
        problems: What is wrong; empty when nothing is.
        notes: What is odd but harmless: leftovers of a writer that was killed.
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

    def to_dict(self) -> dict[str, Any]:
        """The report as values of JSON."""
        return {"ok": self.ok, **asdict(self)}


@dataclass(slots=True)
class _Seen:
    """Where groups and trajectories of one run were met."""

    groups: dict[tuple[Any, ...], str] = field(default_factory=dict)
    trajectories: dict[int, str] = field(default_factory=dict)


def verify(source: str | os.PathLike[str]) -> Report:
    """Verifies a run's folder or a single file; a file in a run's folder is compared with the manifest, too.

    Raises:
        InputError: There is no such run or file.
    """
    path = Path(source)
    report = Report(str(path))
    if path.is_dir():
        _verify_run(path, report)
    elif path.is_file():
        try:
            listed = _manifest_of(path.parent)
        except InputError:
            listed = None  # of the future; the file says so itself
        shard = next((one for one in listed.shards if one.file == path.name), None) if listed else None
        header = listed.header if listed and shard else None
        _verify_file(path, shard, header, report, _Seen())
    else:
        raise InputError(f"{path}: no such run or file on this machine")
    return report


def _manifest_of(folder: Path) -> manifest.Manifest | None:
    path = folder / manifest.NAME
    return manifest.decode(path.read_bytes()) if path.exists() else None


def _verify_run(folder: Path, report: Report) -> None:
    present = sorted(folder.glob("*.parquet"))  # before the manifest is read: a writer may be at work
    report.notes += [
        Problem("leftover", str(path), "temporary file of a writer that was killed or is at work")
        for path in sorted(folder.glob(f"*{durable.PART}"))
    ]
    try:
        listed = _manifest_of(folder)
    except InputError as error:
        report.problems.append(Problem("version", str(folder / manifest.NAME), str(error)))
        return
    if listed is None:
        raise InputError(f"{folder} is not a run: it has no {manifest.NAME}; name a file to verify it alone")
    path = folder / manifest.NAME
    report.bytes += path.stat().st_size
    if listed.problem:
        report.problems.append(Problem("manifest", str(path), listed.problem))
    elif listed.size < path.stat().st_size:
        report.problems.append(Problem("manifest", str(path), "its last line is not whole; opening the run mends that"))
    seen = _Seen()
    for shard in listed.shards:
        if (folder / shard.file).exists():
            _verify_file(folder / shard.file, shard, listed.header, report, seen)
        else:
            report.problems.append(Problem("missing", str(folder / shard.file), "the manifest lists it; it is missing"))
    names = {shard.file for shard in listed.shards}
    for extra in present:
        if extra.name in listed.replaced:
            report.notes.append(Problem("leftover", str(extra), "replaced; opening the run for writing removes it"))
        elif extra.name not in names:
            _report_extra(extra, listed.committed, report)


def _report_extra(path: Path, number: int, report: Report) -> None:
    if path.name == shards.file_name(number) and shards.digest_problem(path.read_bytes()) is None:
        line = "whole, but not in the manifest; opening the run for writing lists it"
        report.problems.append(Problem("uncommitted", str(path), line))
    else:
        report.problems.append(Problem("foreign", str(path), "not in the manifest"))


def _verify_file(path: Path, shard: Shard | None, header: Header | None, report: Report, seen: _Seen) -> None:
    data = path.read_bytes()
    report.files += 1
    report.bytes += len(data)
    problems = list(_byte_problems(str(path), data, shard)) or list(_row_problems(path, data, header, report, seen))
    report.problems += problems


def _byte_problems(name: str, data: bytes, shard: Shard | None) -> Iterable[Problem]:
    digest = shards.digest_problem(data)
    if shard is not None and len(data) != shard.bytes:
        yield Problem("size", name, f"{len(data)} bytes; {shard.bytes} were committed")
    elif shard is not None and hashlib.sha256(data).hexdigest() != shard.sha256:
        yield Problem("bytes", name, f"its SHA-256 is not the committed one; {_where(data)}")
    elif digest:
        yield Problem("digest", name, f"{digest}; {_where(data)}")


def _where(data: bytes) -> str:
    """Where damaged bytes lie, as far as page checksums tell."""
    try:
        pages = damaged_pages(data)
    except ValueError as error:
        return f"its structure is damaged ({error})"
    except (KeyError, AttributeError, TypeError, IndexError, OverflowError) as error:
        return f"its structure is damaged ({type(error).__name__})"
    if not pages:
        return "every page fits its checksum: the damage is in headers or footer"
    named = [f"row group {page.row_group}, column {page.column}, page {page.number}" for page in pages[:_PAGES_NAMED]]
    return (
        "damaged: " + "; ".join(named) + (f" and {len(pages) - _PAGES_NAMED} more" if len(pages) > _PAGES_NAMED else "")
    )


def _row_problems(path: Path, data: bytes, header: Header | None, report: Report, seen: _Seen) -> Iterable[Problem]:
    name = str(path)
    try:
        shards.check_version(pl.read_parquet_metadata(io.BytesIO(data)), path.name)
    except InputError as error:
        yield Problem("version", name, str(error))
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
    wrong = {text: frame.select(rule.fill_null(value=False)).to_series() for text, rule in value_problems(frame, last)}
    for text, rows in wrong.items():
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
