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
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from hgpo_datasets import manifest, schema, shards
from hgpo_datasets.branches import IS_FIRST
from hgpo_datasets.derived_columns import (
    derived,
    derived_faults,
    first_rows,
    order_faults,
    value_faults,
)
from hgpo_datasets.partitions import check_processes, process_pool
from hgpo_datasets.rows import row_name
from hgpo_datasets.sources import PARQUET, STEPS, run_at, run_of_file, runs_below
from hgpo_envs.errors import InputError, nearest_path
from hgpo_envs.files.atomic import scratch_folders, seems_locked
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_envs.unicode_text import clean_text
from hgpo_envs.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hgpo_datasets.manifest import Header, Shard


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

    def summary(self) -> str:
        """Return the numbers of files, rows and bytes read as a text."""
        return ", ".join(
            [
                counted(self.files, "file"),
                counted(self.rows, "row"),
                counted(self.bytes, "byte"),
            ]
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {"ok": self.ok, **asdict(self)}


_File = tuple[Path, "Shard | None"]
"""A file, and its line in the manifest."""
_Result = tuple[VerifyReport, list[tuple[Any, ...]]]
"""The report of a file, and the keys of its groups and trajectories, which no other file may have."""


def verify(
    source: str | os.PathLike[str], *, processes: int | None = None
) -> VerifyReport:
    """Verify a run or a single file. A shard of a run is also compared with the manifest.

    A run is named by its folder or its `steps/`. Of a training run, only the step table is verified. If a writer
    has the run open, its unfinished files are notes, not problems.

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
        raise InputError(
            f"expected the path of a run or file, received {type(source).__name__} {source!r}"
        )
    path = Path(source)
    if not (path.is_dir() or path.is_file()):
        raise InputError(
            f"{path}: no such run or file on this machine{nearest_path(path)}"
        )
    if path.is_dir() and run_at(path) is None:
        below = counted(len(runs_below(path)), "run")
        raise InputError(
            f"{path} is not a run: it has no {manifest.NAME} (found {below} below it); pass a run"
        )
    report = VerifyReport(clean_text(str(path)))
    with _reporting(path, report):
        if (run := run_at(path)) is not None:
            _verify_run(run, report, processes)
        else:
            _verify_file(path, report, processes)
    return report


@contextmanager
def _reporting(path: Path, report: VerifyReport) -> Iterator[None]:
    """Convert any exception to a problem, so that one damaged file does not end the verification."""
    try:
        yield
    except schema.VersionError as error:
        report.add("version", path, str(error))
    except InputError as error:
        report.add("unreadable", path, str(error))
    except (Exception, pl.exceptions.PanicException) as error:  # noqa: BLE001 (PanicException is not an Exception)
        report.add(
            "unreadable",
            path,
            f"cannot be read ({type(error).__name__}: {shards.first_line(error)})",
        )


def _verify_file(path: Path, report: VerifyReport, processes: int | None) -> None:
    """Verify a single file, as a shard if it is one."""
    listed = (
        manifest.read(run)
        if (run := run_of_file(path)) is not None
        else manifest.Manifest()
    )
    shard = listed.shards.get(path.name)
    _check_files(
        [(path, shard)],
        listed.header if shard is not None else None,
        run,
        report,
        processes,
    )


def _verify_run(run: Path, report: VerifyReport, processes: int | None) -> None:
    # 1. The lock and the listing, before the manifest: a commit in between is then not taken for a problem.
    at_work = seems_locked(run)
    steps = run / STEPS
    present = sorted(steps.iterdir()) if steps.is_dir() else []
    for scratch in scratch_folders(run):
        report.note(
            "leftover",
            scratch,
            "scratch folder of a writer that was killed or is still open",
        )
    # 2. The manifest. Its damaged end may hide shards; those before it are verified all the same.
    try:
        listed = manifest.current(run, steps)
    except InputError as error:
        kind = "version" if isinstance(error, schema.VersionError) else "manifest"
        report.add(kind, run / manifest.NAME, str(error))
        return
    size = (run / manifest.NAME).stat().st_size
    report.bytes += size
    if listed.problem:
        report.add("manifest", run / manifest.NAME, listed.problem)
    elif listed.size < size and not at_work:
        message = "its last line is incomplete; open the run for writing to repair it"
        report.add("manifest", run / manifest.NAME, message)
    # 3. The shards, and 4. everything else in their folder.
    files = [(steps / name, shard) for name, shard in listed.shards.items()]
    _check_files(files, listed.header, run, report, processes)
    _check_others(present, listed, report, at_work=at_work)


def _check_others(
    present: Sequence[Path],
    listed: manifest.Manifest,
    report: VerifyReport,
    *,
    at_work: bool,
) -> None:
    """Check the files in the folder of the shards that are not shards."""
    for extra in present:
        if extra.name in listed.replaced:
            report.note(
                "leftover",
                extra,
                "replaced by a later file; opening the run for writing removes it",
            )
        elif extra.suffix != PARQUET:
            report.add(
                "foreign",
                extra,
                "not a Parquet file, so that other programs cannot read the folder; move it",
            )
        elif extra.name in listed.shards:
            continue
        elif extra.name != listed.next_file:
            report.add("foreign", extra, "not in the manifest")
        elif at_work:
            report.note(
                "uncommitted",
                extra,
                "not in the manifest yet; a writer has the run open",
            )
        else:
            report.add(
                "uncommitted",
                extra,
                "not in the manifest; opening the run for writing removes it",
            )


def _check_files(
    files: Sequence[_File],
    header: Header | None,
    run: Path | None,
    report: VerifyReport,
    processes: int | None,
) -> None:
    """Check each file by itself, then that no group and no trajectory is in two files."""
    owners: dict[tuple[Any, ...], str] = {}
    check = partial(
        _check_file,
        header=header,
        run=run,
        isolated=processes is not None,
    )
    results = (
        map(check, files)
        if processes is None
        else _in_processes(check, files, processes)
    )
    for (path, _), (checked, keys) in zip(files, results, strict=True):
        for name in ("problems", "notes", "files", "rows", "bytes"):
            setattr(
                report,
                name,
                getattr(report, name) + getattr(checked, name),
            )
        for key in keys:
            if (owner := owners.setdefault(key, path.name)) != path.name:
                noun, _, *value = key
                report.add(
                    noun,
                    path,
                    f"{noun} {', '.join(map(repr, value))} is also in {owner}",
                )


def _in_processes(
    check: Callable[[_File], _Result], files: Sequence[_File], processes: int
) -> Iterator[_Result]:
    """Check files in processes, and yield their results in order.

    If a process ends, the first file without a result is checked in a process of its own, whose end is a problem of
    this file, and the others begin again.
    """
    done = 0
    while done < len(files):
        try:
            with process_pool(min(processes, len(files))) as pool:
                for result in pool.map(check, files[done:]):
                    done += 1
                    yield result
        except BrokenProcessPool:
            yield _alone(check, files[done])
            done += 1


def _alone(check: Callable[[_File], _Result], file: _File) -> _Result:
    try:
        with process_pool(1) as pool:
            return pool.submit(check, file).result()
    except BrokenProcessPool:
        report = VerifyReport(str(file[0]), files=1)
        report.add(
            "unreadable",
            file[0],
            "the process that decoded it was ended, as by a forged file",
        )
        return report, []


def _check_file(
    file: _File, *, header: Header | None, run: Path | None, isolated: bool
) -> _Result:
    """Check a file by itself."""
    path, shard = file
    report = VerifyReport(str(path))
    keys: list[tuple[Any, ...]] = []
    if isolated:
        _limit_memory()
    with _reporting(path, report):
        if not os.path.lexists(path):
            if (
                run is not None
                and path.name in manifest.current(run, run / STEPS).replaced
            ):
                report.note(
                    "replaced",
                    path,
                    "replaced by a writer during the verification; verify again",
                )
            else:
                report.add("missing", path, "listed in the manifest, but missing")
            return report, keys
        data = read_bytes(path, shards.MOST_BYTES, shards.WHAT)
        report.files = 1
        report.bytes = len(data)
        if shard is not None and len(data) != shard.bytes:
            report.add(
                "size",
                path,
                f"expected {shard.bytes:,} bytes (as committed), received {len(data):,}",
            )
        elif shard is not None and hashlib.sha256(data).hexdigest() != shard.sha256:
            # a damaged footer can end the process
            where = f"; {_damage(data)}" if isolated else ""
            report.add("bytes", path, f"its SHA-256 differs from the manifest{where}")
        elif shard is None and any(shards.damaged_columns(data)):
            report.add("bytes", path, _damage(data))
        else:
            keys += _check_content(path, data, header, report)
    return report, keys


def _limit_memory() -> None:
    """Let this process fail, not the machine, if a file declares more memory than any table needs."""
    with suppress(ImportError, ValueError):  # Windows, or a lower limit
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (4 * shards.MOST_BYTES, most))


def _damage(data: bytes) -> str:
    """Return the location of the damage according to the page checksums."""
    try:
        columns = list(shards.damaged_columns(data))
    except ValueError as error:
        return f"its structure is damaged ({error})"
    if not columns:
        return "every page matches its checksum: the damage is in headers or footer"
    return (
        f"damaged: {'; '.join(columns[:5])}{', and more' if len(columns) > 5 else ''}"
    )


def _check_content(
    path: Path, data: bytes, header: Header | None, report: VerifyReport
) -> list[tuple[Any, ...]]:
    """Check the columns and rows of a file whose bytes are intact. Return the keys of its groups and trajectories."""
    shards.check_version(pl.read_parquet_metadata(io.BytesIO(data)), path.name)
    frame = pl.read_parquet(data)
    report.rows += len(frame)
    depth = header.depth if header else max(schema.stored_depth(frame.columns), 0)
    known = schema.columns(depth)
    stored = schema.polars_schema(depth)
    types = dict(frame.schema)
    wrong = [
        f"{name} is {types.get(name)}, not {dtype}"
        for name, dtype in stored.items()
        if types.get(name) != dtype
    ]
    if wrong:
        report.add("columns", path, "; ".join(wrong))
        return []
    for column in known:
        if not column.null and (count := frame[column.name].null_count()):
            report.add(
                "null",
                path,
                f"{column.name} must not be null, but is in {counted(count, 'row')}",
            )
    if report.problems or frame.is_empty():
        return []
    for kind, message in _row_problems(frame, depth):
        report.add(kind, path, message)
    if header is not None and (frame["run"] != header.run).any():
        report.add("run", path, f"contains rows of another run than {header.run!r}")
    groups = frame.select(pl.lit("group"), "run", *schema.GROUP_KEY).unique(
        maintain_order=True
    )
    trajectories = frame.filter(IS_FIRST).select(
        pl.lit("trajectory"),
        "run",
        "trajectory",
    )
    return groups.rows() + trajectories.rows()


def _row_problems(frame: pl.DataFrame, depth: int) -> Iterator[tuple[str, str]]:
    """Yield the kind and the message of each rule that rows violate."""
    order = frame.select(
        pl.arg_sort_by(schema.SORT_KEY, maintain_order=True)
    ).to_series()
    if not order.is_sorted():
        yield "order", f"rows are not sorted by {', '.join(schema.SORT_KEY)}"
        frame = frame.sort(schema.SORT_KEY)
    first = first_rows(frame)
    rules = [("steps", *fault) for fault in order_faults(frame, first)]
    if not any(mask.any() for *_, mask in rules):
        rules += [("value", *fault) for fault in value_faults(frame, first)]
        computed = derived(frame, first, depth)
        rules += [
            ("derived", *fault)
            for fault in derived_faults(frame, computed, supplied=False)
        ]
    for kind, _, text, mask in rules:
        if mask.any():
            rows = frame.filter(mask)
            yield (
                kind,
                f"{text} in {counted(len(rows), 'row')}; the first is {row_name(rows.row(0, named=True))}",
            )
