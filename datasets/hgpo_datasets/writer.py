"""Writes a run: groups of rollouts in, committed shards out.

    StepWriter("runs/first", config={"seed": 1})
        add_group(rows)      a whole group of rollouts at once, or
        add(rows) … finish   steps as they come, from many environments, in any order
        commit()             a shard on disk; happens by itself when enough rows wait

A run that was broken off is opened again with the same call: what is committed stays, `committed` names it, leftovers
are swept away. A shard that was whole on disk but not yet listed is listed now.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import polars as pl

from hgpo_datasets import durable, manifest, rows, schema, shards
from hgpo_datasets.derive import complete
from hgpo_datasets.manifest import Header, Manifest, Shard
from hgpo_envs.errors import InputError, unknown
from hgpo_envs.hashing import DEFAULT_DEPTH, text_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from types import TracebackType

SHARD_ROWS: Final = 100_000
SHARD_BYTES: Final = 256 << 20


class Group(NamedTuple):
    """The name of a group of rollouts within its run."""

    iteration: int
    task_id: str
    group: int


@dataclass(frozen=True, slots=True)
class _Ready:
    """Whole groups that wait for a shard."""

    frame: pl.DataFrame
    groups: frozenset[Group]
    bytes: int


class StepWriter:
    """The one writer of a run. Use it as a context manager: leaving the block commits every finished group.

    After an OSError (a full disk) nothing is lost: the groups wait in memory and `commit` may be called again.

    Args:
        folder: The run's folder; made where it is missing, resumed where it holds a run.
        run: The run's name; the folder's name unless given.
        config: What the run was made with (seeds, versions, settings): values of JSON. Kept in the manifest and in
            every file. A resumed run must have the same; None takes what is there.
        depth: The deepest history and context hash to store.
        shard_rows: Rows that make a shard by themselves; `commit` makes one at any time. A group is never split.
        shard_bytes: Bytes in memory that make a shard, whatever its rows: what bounds the memory.
        defaults: Values of columns that the rows lack (`env_id`, `split`, `iteration` …).
        without: Columns or families whose values are not stored, for example `["prompt", "tokens", "timings"]`; hashes
            are computed before.

    Raises:
        InputError: Another writer has the run open, or what is in the folder does not fit.

    >>> import tempfile
    >>> step = {"task_id": "t", "trajectory": "a", "step": 0, "state": "a room", "action": "look", "reward": 0.0}
    >>> with tempfile.TemporaryDirectory() as folder, StepWriter(folder, run="first") as writer:
    ...     writer.add_group([step, {**step, "step": 1, "reward": 1.0, "terminated": True}])
    ...     shard = writer.commit()
    ...     shard.file, shard.rows, sorted(writer.committed)
    ('steps-000000.parquet', 2, [Group(iteration=0, task_id='t', group=0)])
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        run: str | None = None,
        config: Mapping[str, Any] | None = None,
        depth: int = DEFAULT_DEPTH,
        shard_rows: int = SHARD_ROWS,
        shard_bytes: int = SHARD_BYTES,
        defaults: Mapping[str, Any] | None = None,
        without: Collection[str] = (),
    ) -> None:
        self.folder = Path(folder)
        self._dropped = _columns_to_drop(without, depth)
        self._limits = (shard_rows, shard_bytes)
        self._ready: list[_Ready] = []
        self._waiting: dict[Group, list[rows.Rows]] = {}
        name = run or self.folder.resolve().name
        header = Header(name, depth, schema.VERSION, _package_version(), _json_values(config or {}))
        self.folder.mkdir(parents=True, exist_ok=True)
        self._descriptor = durable.open_locked(self.folder / manifest.NAME)
        try:
            self._manifest = self._open_run(header, run, config)
            self.committed, self._trajectories = self._read_committed()
        except BaseException:
            os.close(self._descriptor)
            raise
        self._defaults = {**(defaults or {}), "run": self.header.run}

    @property
    def header(self) -> Header:
        """What holds for the whole run."""
        assert self._manifest.header is not None
        return self._manifest.header

    def add_group(self, steps: rows.Rows) -> None:
        """Takes one or more whole groups of rollouts.

        Args:
            steps: Their rows in any order: mappings, a Polars frame, or a table with Arrow's C stream (pyarrow,
                pandas). Columns and what may be left out: docs/step_table.md.

        Raises:
            InputError: A row breaks the schema, or the group is already in the run; nothing of it is taken.
        """
        self._check_open()
        depth = self.header.depth
        frame = complete(rows.frame(steps, depth, self._defaults), depth)
        if frame.is_empty():
            return
        groups = frozenset(Group(*row) for row in frame.select(schema.GROUP_KEY).unique().iter_rows())
        names = {text_hash(name) for name in frame.filter(pl.col("step") == 0)["trajectory"]}
        self._check_new(frame, groups, names)
        frame = frame.with_columns(pl.lit(None, frame.schema[name]).alias(name) for name in self._dropped)
        self._ready.append(_Ready(frame, groups, int(frame.estimated_size())))
        self._trajectories |= names
        shard_rows, shard_bytes = self._limits
        rows_ready, bytes_ready = sum(len(one.frame) for one in self._ready), sum(one.bytes for one in self._ready)
        if rows_ready >= shard_rows or bytes_ready >= shard_bytes:
            self.commit()

    def add(self, steps: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> None:
        """Takes one row or several, of any groups, in any order; they wait until `finish` says their group is whole."""
        for step in [steps] if isinstance(steps, Mapping) else steps:
            iteration, task_id, group = (step.get(name, self._defaults.get(name)) for name in schema.GROUP_KEY)
            if task_id is None:
                raise InputError("expected a value for 'task_id' in every row; it is missing")
            self._waiting.setdefault(Group(iteration or 0, task_id, group or 0), []).append(step)

    def finish(self, task_id: str, group: int = 0, iteration: int | None = None) -> None:
        """Says that every row of a group was added.

        Args:
            task_id: The group's task.
            group: Its number among the task's groups.
            iteration: Its iteration; the writer's default unless given.
        """
        name = Group(self._defaults.get("iteration", 0) if iteration is None else iteration, task_id, group)
        if name not in self._waiting:
            raise InputError(f"no rows wait for group {tuple(name)}; add them before it is finished")
        self.add_group(self._waiting[name])
        del self._waiting[name]

    def commit(self) -> Shard | None:
        """Writes the finished groups as one shard and returns when the disk has it; None where there are none.

        Raises:
            OSError: The disk refused. No shard is there, the groups are kept, and `commit` may be called again.
        """
        if not self._ready:
            return None
        self._check_open()
        frames = [one.frame for one in self._ready]
        frame = frames[0] if len(frames) == 1 else pl.concat(frames).sort(schema.SORT_KEY)
        return self._write(frame, self._forget_ready)

    def replace(self, steps: rows.Rows) -> list[Shard]:
        """Puts whole trajectories in the place of committed ones that have the same names, for example aborted ones.

        Each file that holds one of them is written again under a new name, the manifest lists the new file in its
        place, and the old file is removed. Whatever interrupts this, a file holds the old trajectories or the new ones.

        Args:
            steps: Their rows, as `add_group` takes them.

        Raises:
            InputError: A row breaks the schema, or a trajectory is not in the run or in another group; nothing changes.
            OSError: The disk refused; files that were not yet replaced hold the old trajectories.
        """
        self.commit()
        self._check_open()
        depth = self.header.depth
        frame = complete(rows.frame(steps, depth, self._defaults), depth)
        frame = frame.with_columns(pl.lit(None, frame.schema[name]).alias(name) for name in self._dropped)
        key = [*schema.GROUP_KEY, "trajectory"]
        wanted = frame.select(key).unique()
        places: dict[str, pl.DataFrame] = {}
        for shard in self._manifest.shards:
            there = pl.read_parquet(self.folder / shard.file, columns=key).unique()
            if len(found := wanted.join(there, on=key)):
                places[shard.file] = found
        missing = wanted.join(pl.concat([wanted.clear(), *places.values()]), on=key, how="anti")
        if len(missing):
            raise InputError(f"trajectory {missing['trajectory'][0]!r} of that group is not in run {self.header.run!r}")
        made = []
        for file, found in places.items():
            kept = pl.read_parquet(self.folder / file).join(found, on="trajectory", how="anti")
            merged = pl.concat([kept, frame.join(found, on="trajectory", how="semi")]).sort(schema.SORT_KEY)
            made.append(self._write(merged, lambda: None, replaces=file))
            (self.folder / file).unlink()
        return made

    def _write(self, frame: pl.DataFrame, done: Callable[[], None], replaces: str | None = None) -> Shard:
        """Commits rows as one file; `done` is called when the disk has it, also where an exception comes just then."""
        header = self.header
        metadata = {shards.RUN_KEY: header.run, shards.CONFIG_KEY: manifest.canonical(header.config).decode()}
        data = shards.encode(frame, metadata if replaces is None else {**metadata, shards.REPLACES_KEY: replaces})
        path = self.folder / shards.file_name(self._manifest.committed)
        shard = shards.describe(path.name, data, frame, replaces)
        try:
            durable.write_file(path, data)
            self._append(shard)
            done()
        except BaseException:
            self._manifest = manifest.decode((self.folder / manifest.NAME).read_bytes())
            if shard in self._manifest.shards:  # interrupted when it was done
                done()
            else:
                path.unlink(missing_ok=True)
            raise
        return shard

    def close(self) -> None:
        """Commits what is finished and lets another writer open the run. Groups not finished are given up."""
        if self._descriptor >= 0:
            try:
                self.commit()
            finally:
                os.close(self._descriptor)
                self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commits what is whole, also when the block broke off (Ctrl-C); a group still waiting only if it did not."""
        try:
            if kind is None:
                for name in list(self._waiting):
                    self.finish(name.task_id, name.group, name.iteration)
        finally:
            if isinstance(error, OSError):
                self._ready = []  # the disk refused a moment ago: raise that error, not a second one
            self.close()

    def _check_open(self) -> None:
        if self._descriptor < 0:
            raise InputError(f"the writer of run {self.header.run!r} was closed; open another one to go on")

    def _forget_ready(self) -> None:
        self.committed = self.committed.union(*(one.groups for one in self._ready))
        self._ready = []

    def _check_new(self, frame: pl.DataFrame, groups: frozenset[Group], names: set[int]) -> None:
        if twice := groups & self.committed.union(*(one.groups for one in self._ready)):
            raise InputError(
                f"group {tuple(min(twice))} (iteration, task, group) is already in run {self.header.run!r}"
            )
        if names & self._trajectories:
            name = next(name for name in frame["trajectory"] if text_hash(name) in self._trajectories)
            raise InputError(f"trajectory {name!r} is already in run {self.header.run!r}; expected a new identifier")

    def _append(self, content: Header | Shard) -> None:
        line, _ = manifest.encode_line(content, self._manifest.check)
        durable.append(self._descriptor, line)
        self._manifest = manifest.extend(self._manifest, content)

    def _open_run(self, header: Header, run: str | None, config: Mapping[str, Any] | None) -> Manifest:
        """Reads the manifest, or begins one; sweeps leftovers; lists a shard that was whole but not yet listed."""
        data = (self.folder / manifest.NAME).read_bytes()
        self._manifest = manifest.decode(data)
        fresh = _is_beginning(data) and not list(self.folder.glob(shards.PATTERN))
        if self._manifest.problem and not fresh:
            raise InputError(f"{self.folder}: {self._manifest.problem}; `hgpo verify {self.folder}` says more")
        os.ftruncate(self._descriptor, self._manifest.size)  # a line that was never whole was never committed
        for part in self.folder.glob(f"{shards.PATTERN}{durable.PART}"):
            part.unlink()
        if fresh:
            self._manifest = Manifest(None, (), 0, "")
            self._append(header)
            durable.sync_folder(self.folder)
        else:
            _check_same(self.folder, self.header, header, run, config)
            self._check_files()
        return self._manifest

    def _check_files(self) -> None:
        self._remove_replaced()
        listed = {shard.file: shard for shard in self._manifest.shards}
        for name, shard in listed.items():
            path = self.folder / name
            if not path.exists() or path.stat().st_size != shard.bytes:
                raise InputError(
                    f"{path} is {'damaged' if path.exists() else 'missing'}; `hgpo verify {self.folder}` says more"
                )
        unlisted = sorted(path for path in self.folder.glob(shards.PATTERN) if path.name not in listed)
        for path in unlisted:
            if path.name != shards.file_name(self._manifest.committed):
                raise InputError(
                    f"{path} is not of this run; move it elsewhere (scan_steps reads several runs at once)"
                )
            self._append(shards.adopt(path, self.header))
        self._remove_replaced()

    def _remove_replaced(self) -> None:
        """Removes the files that a writer had replaced when it was killed."""
        for name in self._manifest.replaced:
            (self.folder / name).unlink(missing_ok=True)

    def _read_committed(self) -> tuple[set[Group], set[int]]:
        files = [self.folder / shard.file for shard in self._manifest.shards]
        if not files:
            return set(), set()
        first = pl.scan_parquet(files).filter(pl.col("step") == 0).select(*schema.GROUP_KEY, "trajectory").collect()
        groups = {Group(*row) for row in first.select(schema.GROUP_KEY).unique().iter_rows()}
        return groups, {text_hash(name) for name in first["trajectory"]}


def _is_beginning(data: bytes) -> bool:
    """Whether a manifest is empty, or a first line that was never whole; never somebody's other file."""
    opening = b'{"check":"'
    return b"\n" not in data and data.startswith(opening[: len(data)])


def _columns_to_drop(without: Collection[str], depth: int) -> list[str]:
    every = schema.columns(depth)
    known = [*schema.FAMILIES, *(column.name for column in every)]
    for name in without:
        if name not in known:
            raise InputError(unknown("column or family", name, known))
    chosen = [column for column in every if column.name in without or (column.family in without and column.null)]
    for column in chosen:
        if not column.null:
            raise InputError(f"column {column.name} is never null; a run cannot be written without it")
    return [column.name for column in chosen]


def _json_values(config: Mapping[str, Any]) -> dict[str, Any]:
    try:
        values: dict[str, Any] = manifest.plain(config)
    except TypeError as error:
        raise InputError(f"expected a configuration of JSON values: {error}") from error
    return values


def _package_version() -> str:
    try:
        return importlib.metadata.version("hgpo")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _check_same(folder: Path, there: Header, header: Header, run: str | None, config: Mapping[str, Any] | None) -> None:
    """Raises unless a run that is there can be resumed with what was asked for."""
    if run is not None and run != there.run:
        raise InputError(f"{folder} holds the run {there.run!r}, not {run!r}; give another folder")
    if header.depth != there.depth:
        raise InputError(f"{folder} was written with depth {there.depth}, not {header.depth}; give another folder")
    if there.schema_version != schema.VERSION:
        raise InputError(
            f"{folder} was written in schema version {there.schema_version}; give another folder to write to"
        )
    if config is not None and header.config != there.config:
        names = sorted({*header.config, *there.config})
        name = next(name for name in names if header.config.get(name) != there.config.get(name))
        was, asked = there.config.get(name), header.config.get(name)
        raise InputError(
            f"{folder} was written with {name} = {was!r}, not {asked!r}; give another folder or the same value"
        )
