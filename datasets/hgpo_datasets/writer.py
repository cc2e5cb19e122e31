"""Writes a run: groups of rollouts in, committed shards out.

    StepWriter("runs/first", config={"seed": 1})
        add_group(rows)      one or more complete groups of rollouts, or
        add(rows) … finish   steps as they come, from many environments, in any order
        commit()             a shard on disk; happens by itself when enough rows wait

A run that was interrupted is opened again with the same call: what is committed stays, and `committed` names it. A
shard that was complete on disk but not yet listed in the manifest is listed then.

What holds, whatever is raised and whenever the process is killed: a group is in the table completely or not at all,
and once; a committed group stays. A group that was accepted (`add_group` or `finish` returned, or raised OSError) is
committed when the block is left, however it is left, unless the disk refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import polars as pl

from hgpo_datasets import footer, rows, schema, shards
from hgpo_datasets.derived_columns import complete, row_name
from hgpo_datasets.row_errors import RowError, WrongRow
from hgpo_datasets.shard_folder import ShardFolder
from hgpo_envs.errors import InputError, unknown
from hgpo_envs.hashing import DEFAULT_DEPTH, text_hash
from hgpo_envs.secrets import redact

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable
    from types import TracebackType

    from hgpo_datasets.manifest import Header, Shard

SHARD_ROWS: Final = 100_000
SHARD_BYTES: Final = 256 << 20
MOST_BYTES: Final = footer.MOST_BYTES // 4
"""The most bytes in memory that one call of `add_group` may bring, and that make a shard."""


class GroupKey(NamedTuple):
    """The name of a group of rollouts within its run."""

    iteration: int
    task_id: str
    group: int


@dataclass(frozen=True, slots=True, eq=False)
class _PendingGroups:
    """Accepted groups that wait for a shard: one call of `add_group`."""

    frame: pl.DataFrame
    groups: frozenset[GroupKey]
    trajectories: frozenset[int]
    bytes: int


class StepWriter:
    """The one writer of a run. Use it as a context manager: leaving the block commits every finished group.

    After an OSError (a full disk) nothing is lost: the groups wait in memory and `commit` may be called again.

    Args:
        folder: The run's folder; created if it is missing, resumed if it holds a run.
        run: The run's name; the folder's name by default.
        config: What the run was made with (seeds, versions, settings): JSON values. Kept in the manifest and in every
            file, without secrets (`hgpo_envs.secrets`). A resumed run must have the same; None accepts what is there.
        depth: The deepest history and context hash to store, at most `schema.MAX_DEPTH`.
        shard_rows: Rows that make a shard by themselves; `commit` makes one at any time. A group is never split.
        shard_bytes: Bytes in memory that make a shard, whatever its rows: this bounds the memory.
        defaults: Values of columns that the rows lack (`env_id`, `split`, `iteration` …).
        without: Columns or families whose values are not stored, for example `["prompt", "tokens", "timings"]`; hashes
            are computed before.

    Attributes:
        folder: The run's folder.
        committed: The groups that are committed.

    Raises:
        InputError: Another writer has the run open, or what is in the folder does not fit.
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
    ) -> None:
        if not 0 <= depth <= schema.MAX_DEPTH:
            raise InputError(f"depth: expected 0 to {schema.MAX_DEPTH}, got {depth}")
        rows.check_defaults(defaults or {}, depth)
        self.folder = Path(folder).absolute()
        self._dropped = _columns_to_drop(without, depth)
        self._limits = (shard_rows, min(shard_bytes, MOST_BYTES))
        self._ready: list[_PendingGroups] = []
        self._waiting: dict[GroupKey, list[Mapping[str, Any]]] = {}
        self._writing: tuple[Shard, tuple[_PendingGroups, ...]] | None = None
        self._run = ShardFolder(self.folder, run, config, depth)
        try:
            self.committed, self._trajectories = self._read_committed()
        except BaseException:
            self._run.close()
            raise
        self._defaults = {**(defaults or {}), "run": self.header.run}

    @property
    def header(self) -> Header:
        """What holds for the whole run."""
        return self._run.header

    def add_group(self, steps: rows.Rows) -> None:
        """Takes one or more complete groups of rollouts. One call is one unit: all of its rows are taken, or none.

        Args:
            steps: Their rows in any order: mappings, a Polars frame, or a table with Arrow's C stream (pyarrow,
                pandas). Columns and what may be left out: docs/step_table.md.

        Raises:
            RowError: Rows break the schema, or belong to another run. `RowError.wrong` names each trajectory that has
                wrong rows, with the row and the column. Nothing of the call is taken; without or with corrected rows
                of these trajectories it may be repeated.
            InputError: These are not rows, a column is unknown or missing, or a group is already in the run. Nothing
                is taken.
            OSError: The rows are taken and filled a shard, which the disk refused. `commit` may be called again.
        """
        self._check_open()
        taken = self._checked(steps)
        if taken is not None:
            self._ready.append(taken)
            self._commit_full()

    def add(self, steps: Mapping[str, Any] | Iterable[Mapping[str, Any]]) -> None:
        """Takes one row or several, of any groups, in any order; they wait until `finish` is called for their group.

        Only the columns that name the group are checked here, the others by `finish`.

        Raises:
            InputError: This is not a row, its `iteration`, `task_id` or `group` is missing or of a wrong type, or its
                group is already in the run. The rows before it are taken.
        """
        self._check_open()
        for step in [steps] if isinstance(steps, Mapping) else steps:
            if not isinstance(step, Mapping):
                raise InputError(f"expected rows that are mappings, got {type(step).__name__}")
            name = self._name(*(step.get(column) for column in schema.GROUP_KEY))
            if name not in self._waiting:
                self._check_absent({name})
            self._waiting.setdefault(name, []).append(step)

    def finish(self, task_id: str, group: int = 0, iteration: int | None = None) -> None:
        """Says that every row of a group was added.

        Args:
            task_id: The group's task.
            group: Its number among the task's groups.
            iteration: Its iteration; the writer's default unless given.

        Raises:
            RowError: Rows break the schema, as in `add_group`. All rows of the group still wait: add what is missing
                and finish it again, or `discard` it.
            InputError: No rows of this group wait.
            OSError: The group is taken and filled a shard, which the disk refused. `commit` may be called again.
        """
        self._check_open()
        name = self._name(iteration, task_id, group)
        if name not in self._waiting:
            raise InputError(f"no rows wait for group {tuple(name)}; add them before it is finished")
        self._take_waiting(name)
        self._commit_full()

    def discard(self, task_id: str, group: int = 0, iteration: int | None = None) -> None:
        """Gives up the rows of a group that was not finished. Without such rows nothing happens.

        Args:
            task_id: The group's task.
            group: Its number among the task's groups.
            iteration: Its iteration; the writer's default unless given.
        """
        name = self._name(iteration, task_id, group)
        self._waiting.pop(name, None)

    def commit(self) -> Shard | None:
        """Writes the finished groups as a shard and returns when the disk has it.

        Groups that could not be written before, and are too large for one shard together, make several.

        Returns:
            The last shard written; None where no groups wait.

        Raises:
            OSError: The disk refused. The groups that are not yet in a shard are kept, and `commit` may be called
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
        """Puts complete trajectories in the place of committed ones of the same names, for example of aborted ones.

        Finished groups are committed first. Each file that holds one of the trajectories is written again under a new
        name, the manifest lists the new file in its place, and the old file is removed. Whenever this is interrupted,
        a file holds the old trajectories or the new ones.

        Args:
            steps: Their rows, as `add_group` takes them.

        Returns:
            The files that were written.

        Raises:
            RowError: Rows break the schema, or belong to another run. Nothing is replaced.
            InputError: A trajectory is not in the run, or is in another group there. Nothing is replaced.
            OSError: The disk refused; files that were not yet replaced hold the old trajectories.
        """
        self.commit()
        self._check_open()
        frame = self._completed(steps)
        key = [*schema.GROUP_KEY, "trajectory"]
        wanted = frame.select(key).unique()
        places: dict[str, pl.DataFrame] = {}
        for file in self._run.files:
            found = wanted.join(shards.read_columns(file, key).unique(), on=key)
            if not found.is_empty():
                places[file.name] = found
        missing = wanted.join(pl.concat([wanted.clear(), *places.values()]), on=key, how="anti")
        if not missing.is_empty():
            name = missing["trajectory"][0]
            raise InputError(f"trajectory {name!r} of group {missing.row(0)[:3]} is not in run {self.header.run!r}")
        return [self._replace_in(file, found, frame) for file, found in places.items()]

    def _replace_in(self, file: str, names: pl.DataFrame, frame: pl.DataFrame) -> Shard:
        kept = shards.read(self.folder / file).join(names, on="trajectory", how="anti")
        merged = pl.concat([kept, frame.join(names, on="trajectory", how="semi")]).sort(schema.SORT_KEY)
        return self._write_shard((_PendingGroups(merged, frozenset(), frozenset(), 0),), replaces=file)

    def close(self) -> None:
        """Commits what is finished and lets another writer open the run. Groups not finished are given up.

        Raises:
            OSError: The disk refused. The groups that were not committed are lost.
        """
        if self._run.is_open:
            try:
                self.commit()
            finally:
                self._run.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commits what is finished; a group whose rows still wait only if the block did not raise.

        What the block raised is what comes out: if the disk then refuses, that is added to it as a note.

        Raises:
            RowError: The block raised nothing, and waiting rows break the schema. All other groups are committed.
            OSError: The block raised nothing, and the disk refused. Groups that were not committed are lost.
        """
        refused = None if error is not None else self._take_all_waiting()
        try:
            self.close()
        except (Exception, pl.exceptions.PanicException) as failure:
            lost = sum(len(one.groups) for one in self._ready)
            line = f"{lost} finished groups could not be committed to {self.folder}"
            if error is None:
                failure.add_note(f"{line}; {refused}" if refused else line)
                raise
            error.add_note(f"while leaving, {line}: {failure}")
        if refused is not None:
            raise refused

    def _checked(self, steps: rows.Rows) -> _PendingGroups | None:
        """Complete groups, ready for a shard; None where there are no rows."""
        run, frame = self.header.run, self._completed(steps)
        if frame.is_empty():
            return None
        groups = frozenset(GroupKey(*row) for row in frame.select(schema.GROUP_KEY).unique().iter_rows())
        self._check_absent(groups)
        names = {text_hash(name): name for name in frame.filter(pl.col("step") == 0)["trajectory"]}
        taken = [self._trajectories, *(one.trajectories for one in self._ready)]  # not united: a run may hold millions
        known = [name for name in names if any(name in some for some in taken)]
        if known:
            raise RowError(
                WrongRow(None, names[one], 0, "trajectory", f"trajectory {names[one]!r} is already in run {run!r}")
                for one in known
            )
        size = int(frame.estimated_size())
        if size > MOST_BYTES:
            raise InputError(
                f"the groups take {size:,} bytes; expected at most {MOST_BYTES:,} together; give fewer at once, or "
                "leave columns out (`without`)"
            )
        return _PendingGroups(frame, groups, frozenset(names), size)

    def _completed(self, steps: rows.Rows) -> pl.DataFrame:
        """Rows with every column, as they are stored."""
        depth, run = self.header.depth, self.header.run
        frame = complete(rows.frame(steps, depth, self._defaults), depth)
        foreign = frame.filter(pl.col("run") != run)
        if not foreign.is_empty():
            raise RowError(
                WrongRow(None, name, foreign["step"][row], "run", f"{row_name(foreign, row)}: {other}")
                for row, name in enumerate(foreign["trajectory"])
                for other in [f"run is {foreign['run'][row]!r}, expected {run!r}; drop the column to copy rows"]
            )
        dropped = [pl.lit(None, frame.schema[name]).alias(name) for name in self._dropped]
        return frame.with_columns(_redacted(frame["error"])).with_columns(dropped)

    def _name(self, iteration: object, task_id: object, group: object) -> GroupKey:
        """A group's name, as its rows will hold it; what is None is the writer's default."""
        given = (iteration, task_id, group)
        values = [
            rows.key_value(name, self._defaults.get(name, default) if value is None else value)
            for name, value, default in zip(schema.GROUP_KEY, given, (0, None, 0), strict=True)
        ]
        return GroupKey(*values)

    def _take_waiting(self, name: GroupKey) -> None:
        if not self._holds(name):  # else it was taken just before an interrupt
            taken = self._checked(self._waiting[name])
            if taken is not None:
                self._ready.append(taken)
        del self._waiting[name]

    def _take_all_waiting(self) -> InputError | None:
        """Takes every group that waits; returns the first refusal."""
        refused = None
        for name in list(self._waiting):
            try:
                self._take_waiting(name)
            except InputError as error:
                refused = refused or error
        return refused

    def _commit_full(self) -> None:
        shard_rows, shard_bytes = self._limits
        rows_ready, bytes_ready = sum(len(one.frame) for one in self._ready), sum(one.bytes for one in self._ready)
        if rows_ready >= shard_rows or bytes_ready >= shard_bytes:
            self.commit()

    def _next_shard(self) -> tuple[_PendingGroups, ...]:
        """The first of the ready groups, as many as fit into one shard."""
        size, count = self._ready[0].bytes, 1
        for one in self._ready[1:]:
            size += one.bytes
            if size > 2 * MOST_BYTES:
                break
            count += 1
        return tuple(self._ready[:count])

    def _write_shard(self, batch: tuple[_PendingGroups, ...], replaces: str | None = None) -> Shard:
        frames = [one.frame for one in batch]
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
        except Exception as second:  # noqa: BLE001 (the next commit tries again; the first error is what comes out)
            error.add_note(f"what it left in {self.folder} could not be removed yet: {second}")

    def _settle(self) -> None:
        """Makes disk and memory agree after a shard was written, refused, or interrupted at any line."""
        if self._writing is None:
            return
        shard, batch = self._writing
        if self._run.settle(shard):
            self.committed = self.committed.union(*(one.groups for one in batch))
            self._trajectories = self._trajectories.union(*(one.trajectories for one in batch))
            self._ready = [one for one in self._ready if one not in batch]
        self._writing = None

    def _check_open(self) -> None:
        if not self._run.is_open:
            raise InputError(f"the writer of run {self.header.run!r} is closed; open another one to continue the run")

    def _holds(self, name: GroupKey) -> bool:
        return name in self.committed or any(name in one.groups for one in self._ready)

    def _check_absent(self, groups: Iterable[GroupKey]) -> None:
        if twice := [name for name in groups if self._holds(name)]:
            name = tuple(min(twice))
            raise InputError(f"group {name} (iteration, task, group) is already in run {self.header.run!r}")

    def _read_committed(self) -> tuple[frozenset[GroupKey], frozenset[int]]:
        groups: set[GroupKey] = set()
        trajectories: set[int] = set()
        for file in self._run.files:
            first = shards.read_columns(file, schema.SORT_KEY).filter(pl.col("step") == 0)
            groups.update(GroupKey(*row) for row in first.select(schema.GROUP_KEY).unique().iter_rows())
            trajectories.update(text_hash(name) for name in first["trajectory"])
        return frozenset(groups), frozenset(trajectories)


def _redacted(errors: pl.Series) -> pl.Series:
    """The column `error` without secrets, which servers and libraries repeat in their messages.

    States, prompts and responses are stored as they were read: their hashes and token ids belong to those texts, and
    a policy redacts the replies of its server itself.
    """
    if errors.null_count() == len(errors):
        return errors
    return pl.Series("error", [text and redact(text) for text in errors], dtype=errors.dtype)


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
