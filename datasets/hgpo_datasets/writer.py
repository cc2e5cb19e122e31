"""Write a run: groups of rollouts are collected and committed as shards.

    StepWriter("runs/first", config={"seed": 1})
        add_group(rows)      add one or more complete groups of rollouts
        commit()             write a shard; called automatically when enough rows are pending

To resume an interrupted run, open it again with the same arguments. Committed groups are kept; `committed` lists them.
If the last shard is complete on disk but missing from the manifest, it is added to the manifest.

Guarantees, for any exception and any time at which the process is killed: a group is in the table completely or not at
all, and only once; a committed group is never lost. A group that was accepted (`add_group` returned, or raised
OSError) is committed at the end of the `with` block, also after an exception, unless the disk cannot be written.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import polars as pl

from hgpo_datasets import rows, schema, shards
from hgpo_datasets.derived_columns import complete, row_name
from hgpo_datasets.rows import RowError, WrongRow, name_preview
from hgpo_datasets.shard_folder import ShardFolder
from hgpo_envs.errors import InputError, unknown
from hgpo_envs.files.secrets import redact
from hgpo_envs.hashing import DEFAULT_DEPTH, text_hash

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from hgpo_datasets.manifest import Header, Shard
    from hgpo_envs.files.atomic import FolderLock

SHARD_ROWS: Final = 100_000
SHARD_BYTES: Final = 256 << 20
MOST_BYTES: Final = shards.MOST_BYTES // 4
"""Largest size in memory, in bytes, of the rows of one call of `add_group` and of a shard."""


class GroupKey(NamedTuple):
    """The key of a group of rollouts within its run."""

    iteration: int
    task_id: str
    group: int


@dataclass(frozen=True, slots=True, eq=False)
class _PendingGroups:
    """Accepted groups that are not committed yet: those of one call of `add_group`."""

    frame: pl.DataFrame
    groups: frozenset[GroupKey]
    trajectories: frozenset[int]
    bytes: int


class StepWriter:
    """A writer of a run. A run has at most one open writer.

    Use it as a context manager: leaving the block commits every accepted group. After an OSError (for example a full
    disk) the groups stay in memory, and `commit` can be called again.

    Args:
        folder: The run's folder. It is created if it is missing, and resumed if it contains a run.
        run: Name of the run; the folder's name by default.
        config: Configuration of the run (seeds, versions, settings) as JSON values. It is stored in the manifest and in
            every file, without secrets (`hgpo_envs.files.secrets`). A resumed run must have the same configuration;
            None accepts the existing one.
        depth: Largest k of the history and context hashes to store, at most `schema.MAX_DEPTH`.
        shard_rows: Number of pending rows at which a shard is written. A group is never split.
        shard_bytes: Size of the pending rows in memory, in bytes, at which a shard is written.
        defaults: Values of columns that the rows do not have (`env_id`, `split`, `iteration` …).
        without: Columns or families that are not stored, for example `["prompt", "tokens", "timings"]`. Their hashes
            are computed and stored.
        lock: A lock of the folder that the caller holds and keeps, for programs that write other files there as well.
            By default the writer takes and releases one.

    Attributes:
        folder: The run's folder as an absolute path.
        committed: Keys of the committed groups.

    Raises:
        InputError: An argument is invalid, another writer has the run open, or the folder contains a different run or
            damaged files.
        OSError: The folder cannot be written.

    >>> import tempfile
    >>> step = {"task_id": "t", "trajectory": "a", "step": 0, "state": "a room", "action": "look", "reward": 0.0}
    >>> with tempfile.TemporaryDirectory() as folder, StepWriter(folder, run="first") as writer:
    ...     writer.add_group([step, {**step, "step": 1, "reward": 1.0, "terminated": True}])
    ...     shard = writer.commit()
    ...     shard.file, shard.rows, sorted(writer.committed)
    ('steps-000000.parquet', 2, [GroupKey(iteration=0, task_id='t', group=0)])
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
        lock: FolderLock | None = None,
    ) -> None:
        _check_types(folder, run, config, depth)
        rows.check_defaults(defaults or {}, depth)
        self.folder = Path(folder).absolute()
        self._dropped = _columns_to_drop(without, depth)
        self._limits = (shard_rows, min(shard_bytes, MOST_BYTES))
        self._ready: list[_PendingGroups] = []
        self._writing: tuple[Shard, tuple[_PendingGroups, ...]] | None = None
        self._run = ShardFolder(self.folder, run, config, depth, lock)
        try:
            self.committed, self._trajectories = self._read_committed()
        except BaseException:
            self._run.close()
            raise
        self._defaults = {**(defaults or {}), "run": self.header.run}

    @property
    def header(self) -> Header:
        """The manifest's description of the run."""
        return self._run.header

    def add_group(self, steps: rows.Rows) -> None:
        """Add one or more complete groups of rollouts. Either all rows of a call are added, or none.

        Args:
            steps: Rows in any order: mappings, a Polars frame, or a table with Arrow's C stream interface (pyarrow,
                pandas). docs/step_table.md lists the columns and their defaults.

        Raises:
            RowError: Rows violate the schema, or belong to another run. `RowError.wrong` lists each trajectory with
                invalid rows, with row and column. No row is added. Correct or remove these trajectories, and call
                again.
            InputError: The input is not a table of rows, a column is unknown or missing, or a group is already in the
                run. No row is added.
            OSError: The rows were added, and the shard that they completed could not be written. Call `commit` to try
                again.
        """
        self._check_open()
        taken = self._checked(steps)
        if taken is not None:
            self._ready.append(taken)
            self._commit_full()

    def commit(self) -> Shard | None:
        """Write the accepted groups as a shard, which is on disk when this returns.

        Several shards are written if the groups are too large for one, which can happen after a failed commit.

        Returns:
            The last shard written; None if there are no accepted groups.

        Raises:
            OSError: The disk cannot be written. Groups that are not yet in a shard are kept; call `commit` to try
                again.
            InputError: The run's folder was moved or replaced, or the writer is closed. The groups are kept.
        """
        if not self._ready:
            return None
        self._check_open()
        self._settle()
        shard = None
        while self._ready:
            shard = self._write_shard(self._next_shard())
        return shard

    def replace(self, steps: rows.Rows) -> list[Shard]:
        """Replace committed trajectories, for example aborted ones, by complete trajectories of the same names.

        Finished groups are committed first. Each file with one of the trajectories is written again under a new name;
        then the manifest lists the new file instead of the old one, and the old file is removed. If this is
        interrupted, each file contains either all old or all new trajectories.

        Args:
            steps: Rows of the trajectories, as in `add_group`.

        Returns:
            The files that were written.

        Raises:
            RowError: Rows violate the schema, or belong to another run. Nothing is replaced.
            InputError: A trajectory is not in the run, or is in another group there. Nothing is replaced.
            OSError: The disk cannot be written. Files that were not replaced yet contain the old trajectories.
        """
        self.commit()
        self._check_open()
        frame = self._completed(steps)
        key = [*schema.GROUP_KEY, "trajectory"]
        wanted = frame.select(key).unique()
        replaced: dict[Shard, pl.DataFrame] = {}
        for shard in self._run.listed:
            names = wanted.join(self._run.columns(shard, key).unique(), on=key)
            if not names.is_empty():
                replaced[shard] = names
        missing = wanted.join(pl.concat([wanted.clear(), *replaced.values()]), on=key, how="anti")
        if not missing.is_empty():
            name, group = name_preview(missing["trajectory"][0]), name_preview(missing.row(0)[:3])
            raise InputError(f"trajectory {name} of group {group} is not in run {self.header.run!r}")
        return [self._replace_in(shard, names, frame) for shard, names in replaced.items()]

    def _replace_in(self, shard: Shard, names: pl.DataFrame, frame: pl.DataFrame) -> Shard:
        kept = shards.read(self._run.shards / shard.file, shard).join(names, on="trajectory", how="anti")
        merged = pl.concat([kept, frame.join(names, on="trajectory", how="semi")]).sort(schema.SORT_KEY)
        return self._write_shard((_PendingGroups(merged, frozenset(), frozenset(), 0),), replaces=shard.file)

    def close(self) -> None:
        """Commit the accepted groups and release the run's lock.

        Raises:
            OSError: The disk cannot be written. The groups that were not committed are lost.
        """
        if self._run.is_open:
            try:
                self.commit()
            finally:
                self._run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Commit the accepted groups, also after an exception of the block, which is propagated.

        Raises:
            OSError: The disk cannot be written, after a block without an exception; after one, this is a note of it.
                Groups that were not committed are lost.
        """
        try:
            self.close()
        except (Exception, pl.exceptions.PanicException) as failure:
            lost = sum(len(pending.groups) for pending in self._ready)
            note = f"{lost} finished groups could not be committed to {self.folder}"
            if error is None:
                failure.add_note(note)
                raise
            error.add_note(f"while leaving, {note}: {failure}")

    def _checked(self, steps: rows.Rows) -> _PendingGroups | None:
        """Check complete groups and return them; None if there are no rows."""
        run, frame = self.header.run, self._completed(steps)
        if frame.is_empty():
            return None
        starts = frame.filter(pl.col("step") == 0)
        groups = frozenset(map(GroupKey, *(starts[name].to_list() for name in schema.GROUP_KEY)))
        self._check_absent(groups)
        names = {text_hash(name): name for name in starts["trajectory"].to_list()}
        # not merged, because a run may have millions
        taken = [self._trajectories, *(pending.trajectories for pending in self._ready)]
        if twice := [name for key, name in names.items() if any(key in keys for keys in taken)]:
            raise RowError(
                WrongRow(None, name, 0, "trajectory", f"trajectory {name_preview(name)} is already in run {run!r}")
                for name in twice
            )
        size = int(frame.estimated_size())
        if size > MOST_BYTES:
            raise InputError(
                f"expected at most {MOST_BYTES:,} bytes of rows per call, received {size:,}; add fewer groups per "
                "call, or do not store some columns (`without`)"
            )
        return _PendingGroups(frame, groups, frozenset(names), size)

    def _completed(self, steps: rows.Rows) -> pl.DataFrame:
        """Convert rows to their stored form, with every column."""
        depth, run = self.header.depth, self.header.run
        frame = complete(rows.frame(steps, depth, self._defaults), depth)
        if (frame["run"] != run).any():
            foreign = frame.filter(pl.col("run") != run)
            raise RowError(
                WrongRow(None, name, foreign["step"][row], "run", f"{row_name(foreign, row)}: {other}")
                for row, name in enumerate(foreign["trajectory"])
                for other in [
                    f"expected run {run!r}, received {name_preview(foreign['run'][row])}; drop the column to copy rows"
                ]
            )
        values = frame.to_dict() | {"error": _redacted(frame["error"])}
        for name in self._dropped:
            values[name] = pl.Series(name, [None], dtype=values[name].dtype).new_from_index(0, len(frame))
        return pl.DataFrame(list(values.values()))

    def _commit_full(self) -> None:
        shard_rows, shard_bytes = self._limits
        rows_ready = sum(len(pending.frame) for pending in self._ready)
        if rows_ready >= shard_rows or sum(pending.bytes for pending in self._ready) >= shard_bytes:
            self.commit()

    def _next_shard(self) -> tuple[_PendingGroups, ...]:
        """Return as many of the accepted groups, in order, as fit into one shard."""
        size, count = self._ready[0].bytes, 1
        for pending in self._ready[1:]:
            size += pending.bytes
            if size > 2 * MOST_BYTES:
                break
            count += 1
        return tuple(self._ready[:count])

    def _write_shard(self, batch: tuple[_PendingGroups, ...], replaces: str | None = None) -> Shard:
        frames = [pending.frame for pending in batch]
        frame = frames[0] if len(frames) == 1 else pl.concat(frames).sort(schema.SORT_KEY)
        metadata = self._run.metadata | ({} if replaces is None else {shards.REPLACES_KEY: replaces})
        data = shards.encode(frame, metadata)
        shard = shards.describe(self._run.next_file, data, frame, replaces)
        self._run.check_room(shard)
        self._writing = (shard, batch)
        try:
            self._run.write(shard, data)
            self._settle()
        except BaseException as error:
            self._settle_after(error)
            raise
        return shard

    def _settle_after(self, error: BaseException) -> None:
        try:
            self._settle()
        except Exception as second:  # noqa: BLE001 (the next commit tries again; the first error is raised)
            error.add_note(f"an incomplete shard in {self.folder} could not be removed yet: {second}")

    def _settle(self) -> None:
        """Make the folder and the writer's state consistent after a write that succeeded, failed or was interrupted."""
        if self._writing is None:
            return
        shard, batch = self._writing
        if self._run.settle(shard):
            self.committed = self.committed.union(*(pending.groups for pending in batch))
            self._trajectories = self._trajectories.union(*(pending.trajectories for pending in batch))
            self._ready = [pending for pending in self._ready if pending not in batch]
        self._writing = None

    def _check_open(self) -> None:
        if not self._run.is_open:
            raise InputError(f"the writer of run {self.header.run!r} is closed; open a new one to resume the run")

    def _holds(self, name: GroupKey) -> bool:
        return name in self.committed or any(name in pending.groups for pending in self._ready)

    def _check_absent(self, groups: Iterable[GroupKey]) -> None:
        if twice := [name for name in groups if self._holds(name)]:
            name = name_preview(tuple(min(twice)))
            raise InputError(f"group {name} (iteration, task, group) is already in run {self.header.run!r}")

    def _read_committed(self) -> tuple[frozenset[GroupKey], frozenset[int]]:
        groups: set[GroupKey] = set()
        trajectories: set[int] = set()
        for shard in self._run.listed:
            first = self._run.columns(shard, schema.SORT_KEY).filter(pl.col("step") == 0)
            groups.update(GroupKey(*row) for row in first.select(schema.GROUP_KEY).unique().iter_rows())
            trajectories.update(text_hash(name) for name in first["trajectory"])
        return frozenset(groups), frozenset(trajectories)


def _redacted(errors: pl.Series) -> pl.Series:
    """Remove secrets, which messages of servers and libraries may contain, from the column `error`.

    States, prompts and responses are stored unchanged, because their hashes and token ids refer to these texts. A
    policy redacts the replies of its server itself.
    """
    if errors.null_count() == len(errors):
        return errors
    return pl.Series("error", [text and redact(text) for text in errors], dtype=errors.dtype)


def _check_types(folder: object, run: object, config: object, depth: object) -> None:
    if not isinstance(folder, str | os.PathLike):
        raise InputError(f"expected the path of a run's folder, received {type(folder).__name__} {folder!r}")
    if not isinstance(run, str | None):
        raise InputError(f"run: expected the run's name as text, received {run!r}")
    if not isinstance(config, Mapping | None):
        raise InputError(f"config: expected a dictionary of JSON values, received {config!r}")
    if not isinstance(depth, int) or not 0 <= depth <= schema.MAX_DEPTH:
        raise InputError(f"depth: expected 0 to {schema.MAX_DEPTH}, received {depth!r}")


def _columns_to_drop(without: Collection[str], depth: int) -> list[str]:
    every = schema.columns(depth)
    known = [*schema.FAMILIES, *(column.name for column in every)]
    for name in without:
        if name not in known:
            raise InputError(unknown("column or family", name, known))
    chosen = [column for column in every if column.name in without or (column.family in without and column.null)]
    for column in chosen:
        if not column.null:
            raise InputError(f"column {column.name} is never null and must be stored; remove it from `without`")
    return [column.name for column in chosen]
