"""Write a run: groups of rollouts are collected and committed as shards.

    StepWriter("runs/mine", config={"seed": 1})
        add_group(rows)      add one or more complete groups of rollouts
        commit()             write a shard; called automatically when enough rows are pending
        extend(rows)         add rollouts to groups that are committed already
        scan()               the committed steps as a LazyFrame

To resume an interrupted run, open it again with the same arguments. Committed groups are kept; `committed` lists them.

Guarantees, for any exception and any time at which the process is killed: a group is in the table completely or not at
all, and only once; a committed group is never lost. A group that was accepted (`add_group` returned, or raised
OSError) is committed at the end of the `with` block, also after an exception, unless the disk cannot be written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import orjson
import polars as pl

from hgpo_datasets import manifest, rows, schema, shards
from hgpo_datasets.branches import IS_FIRST
from hgpo_datasets.derived_columns import (
    TRAJECTORY_KEY,
    derived,
    derived_faults,
    first_rows,
    order_faults,
    value_faults,
)
from hgpo_datasets.manifest import Header, Shard
from hgpo_datasets.rows import RowError, preview
from hgpo_datasets.shard_folder import ShardFolder
from hgpo_envs.errors import InputError, check_known, unknown
from hgpo_envs.files.secrets import redact, redact_json
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_envs.hashing import DEFAULT_DEPTH
from hgpo_envs.plugins import installed_version
from hgpo_envs.unicode_text import clean_text

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, KeysView
    from collections.abc import Set as AbstractSet

SHARD_ROWS: Final = 100_000
SHARD_BYTES: Final = 256 << 20
_FILE: Final = "file"
"""The column of a scan with the path of a row's shard."""


class GroupKey(NamedTuple):
    """The key of a group of rollouts within its run."""

    iteration: int
    task_id: str
    group: int


class StepWriter(AbstractContextManager["StepWriter"]):
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

    Attributes:
        folder: The run's folder as an absolute path.
        header: The manifest's description of the run.
        committed: Keys of the committed groups, also of those that follow.
        accepted: Keys of the groups that were added, committed or not, also of those that follow.
        trajectories: Identifiers of the committed trajectories, also of those that follow.

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
    ) -> None:
        self.folder = Path(folder).absolute()
        header = _header(
            run or self.folder.resolve().name,
            depth,
            config,
        )
        if defaults:
            known = {column.name: column for column in schema.columns(depth)}
            for name, value in defaults.items():
                check_known("step table column", name, known)
                rows.series_of([value], known[name])
        self._dropped = _columns_to_drop(without, depth)
        self._limits = (shard_rows, shard_bytes)
        self._ready: list[pl.DataFrame] = []
        self._writing: tuple[Shard, pl.DataFrame, int] | None = None
        self._run = ShardFolder(self.folder, header)
        self.header = self._run.header
        try:
            if self.header != header:
                _check_same(
                    self.folder,
                    self.header,
                    header,
                    named=run is not None,
                    configured=config is not None,
                )
            starts = (
                self.scan(_FILE)
                .filter(IS_FIRST)
                .select(*TRAJECTORY_KEY, _FILE)
                .collect()
            )
        except BaseException:
            self._run.close()
            raise
        groups = starts.select(*schema.GROUP_KEY, _FILE).unique()
        self._files = {
            GroupKey(*key): Path(path).name for *key, path in groups.iter_rows()
        }
        self.committed: KeysView[GroupKey] = self._files.keys()
        self.trajectories: AbstractSet[str] = set(starts["trajectory"])
        # Both committed and accepted ones count: none may come a second time.
        self.accepted: AbstractSet[GroupKey] = set(self._files)
        self._accepted_trajectories = set(self.trajectories)
        self._defaults = {**(defaults or {}), "run": self.header.run}

    def add_group(self, steps: rows.Rows, *, checked: bool = False) -> None:
        """Add one or more complete groups of rollouts. Either all rows of a call are added, or none.

        Args:
            steps: Rows in any order: mappings, a Polars frame, or a table with Arrow's C stream interface (pyarrow,
                pandas). docs/step_table.md lists the columns and their defaults.
            checked: Whether the rows are known to be complete trajectories with valid values, as those of a collection.
                Only their types are checked then; those of a Polars frame, which must have all columns, are not.

        Raises:
            RowError: Rows violate the schema, or belong to another run. No row is added. Correct or remove the
                trajectories that it lists, and call again.
            InputError: The input is not a table of rows, a column is unknown or missing, or a group is already in the
                run. No row is added.
            OSError: The rows were added, and the shard that they completed could not be written. Call `commit` to try
                again.
        """
        frame = self.completed(steps, checked=checked)
        if frame.is_empty():
            return
        groups = _groups(frame)
        if again := groups & self.accepted:
            name = preview(tuple(min(again)), 200)
            raise InputError(
                f"group {name} (iteration, task, group) is already in run {self.header.run!r}"
            )
        trajectories = set(frame["trajectory"].unique())
        self._refuse_accepted(trajectories)
        self.accepted |= groups
        self._accepted_trajectories |= trajectories
        self._ready.append(frame)
        shard_rows, shard_bytes = self._limits
        if (
            sum(map(len, self._ready)) >= shard_rows
            or sum(each.estimated_size() for each in self._ready) >= shard_bytes
        ):
            self.commit()

    def extend(self, steps: rows.Rows) -> list[Shard]:
        """Add complete rollouts to groups, of which some may be committed already, and commit them.

        The file of a committed group is written again as in `replace`; the others get a file of their own. Accepted
        groups are committed first. If this is interrupted, some of the files contain the new rollouts, which
        `trajectories` then lists, and the others do not. The new files are returned.

        Args:
            steps: Rows of new trajectories, as in `add_group`.

        Raises:
            RowError: Rows violate the schema or belong to another run, or a trajectory is already in the run. Nothing
                is added.
            OSError: The disk cannot be written. Rollouts whose file was not written are not in the run.
        """
        self.commit()
        frame = self.completed(steps, checked=False)
        self._refuse_accepted(set(frame["trajectory"].unique()))
        keys = frame.select(schema.GROUP_KEY).iter_rows()
        new = frame.filter([key not in self.committed for key in keys])
        written = self._write_again(frame)
        if not new.is_empty():
            written.append(self._write_shard([new]))
        return written

    def commit(self) -> Shard | None:
        """Write the accepted groups, if there are any, as a shard, which is on disk when this returns.

        Raises:
            OSError: The disk cannot be written. The groups are kept; call `commit` to try again.
            InputError: The run's folder was moved or replaced, or the writer is closed. The groups are kept.
        """
        if not self._ready:
            return None
        self._check_open()
        self._settle()
        return self._write_shard(self._ready) if self._ready else None

    def replace(self, steps: rows.Rows, *, checked: bool = False) -> list[Shard]:
        """Replace committed trajectories, for example aborted ones, by complete trajectories of the same names.

        Branches may be new, and are added. Accepted groups are committed first. Each file with one of the trajectories
        is written again under a new name; then the manifest lists the new file instead of the old one, and the old file
        is removed. If this is interrupted, each file contains either all old or all new trajectories. The new files are
        returned.

        Args:
            steps: Rows of the trajectories, as in `add_group`.
            checked: As in `add_group`.

        Raises:
            RowError: Rows violate the schema, or belong to another run. Nothing is replaced.
            InputError: A trajectory is not in the run, or is in another group there. Nothing is replaced.
            OSError: The disk cannot be written. Files that were not replaced yet contain the old trajectories.
        """
        self.commit()
        frame = self.completed(steps, checked=checked)
        missing = frame.filter(pl.col("parent").is_null()).select(TRAJECTORY_KEY)
        for shard in self._shards_of(frame):
            stored = pl.scan_parquet(self._run.steps / shard.file, glob=False)
            known = stored.select(TRAJECTORY_KEY).unique().collect()
            missing = missing.join(known, on=TRAJECTORY_KEY, how="anti")
        if not missing.is_empty():
            *group, name = missing.row(0)
            raise InputError(
                f"trajectory {preview(name, 200)} of group {preview(group, 200)} is not in the run"
            )
        return self._write_again(frame)

    def _write_again(self, frame: pl.DataFrame) -> list[Shard]:
        """Write each file with a group of these rows again, with them instead of its trajectories of these names."""
        written = []
        for shard in self._shards_of(frame):
            path = self._run.steps / shard.file
            data = read_bytes(path, shards.MOST_BYTES, shards.WHAT)
            if hashlib.sha256(data).hexdigest() != shard.sha256:
                raise InputError(
                    f"{path} is damaged; run `hgpo verify {path}` for details"
                )
            stored = pl.read_parquet(data)
            kept = stored.join(frame, on="trajectory", how="anti")
            new = frame.join(stored, on=schema.GROUP_KEY, how="semi")
            written.append(self._write_shard([kept, new], replaces=shard.file))
        return written

    def _shards_of(self, frame: pl.DataFrame) -> list[Shard]:
        """Return the files with groups of some rows, so that the cost of reading does not grow with the run."""
        files = {self._files[group] for group in _groups(frame) & self.committed}
        return [self._run.manifest.shards[file] for file in sorted(files)]

    def close(self) -> None:
        """Commit the accepted groups and release the run's lock. After an OSError, groups not committed are lost."""
        if self._run.is_open:
            try:
                self.commit()
            finally:
                self._run.close()

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Close the writer, also after an exception of the block, of which a failure to commit becomes a note."""
        try:
            self.close()
        except (Exception, pl.exceptions.PanicException) as failure:
            lost = len(self.accepted - self.committed)
            note = f"{lost} finished groups could not be committed to {self.folder}"
            if error is None:
                failure.add_note(note)
                raise
            error.add_note(f"while leaving, {note}: {failure}")

    def scan(self, file: str | None = None) -> pl.LazyFrame:
        """Return the committed steps, with the path of each row's shard as the column `file` if it is given."""
        files = [self._run.steps / name for name in self._run.manifest.shards]
        if files:
            return pl.scan_parquet(files, glob=False, include_file_paths=file)
        paths = {} if file is None else {file: schema.TEXT}
        columns = schema.polars_schema(self.header.depth)
        return pl.LazyFrame(schema={**columns, **paths})

    def _refuse_accepted(self, trajectories: set[str]) -> None:
        if names := sorted(trajectories & self._accepted_trajectories):
            already = f"is already in run {self.header.run!r}"
            raise RowError(
                (name, f"trajectory {preview(name, 200)} {already}") for name in names
            )

    def _check_open(self) -> None:
        if not self._run.is_open:
            raise InputError(
                f"the writer of run {self.header.run!r} is closed; open a new one to resume the run"
            )

    def completed(self, steps: rows.Rows, *, checked: bool = False) -> pl.DataFrame:
        """Return rows as they are stored, with every column, without adding them.

        The arguments and the errors are those of `add_group`.
        """
        depth = self.header.depth
        self._check_open()
        # 1. The rows as a sorted frame with every column.
        if not (checked and isinstance(steps, pl.DataFrame)):
            steps = rows.frame(steps, depth, self._defaults)
        frame = steps.sort(schema.SORT_KEY, maintain_order=True)
        if frame.is_empty():
            return frame
        # 2. The columns that are computed. Supplied ones are compared with them, but for the hashes of states.
        first = first_rows(frame)
        if not checked:
            rows.refuse(frame, order_faults(frame, first))
            rows.refuse(frame, value_faults(frame, first))
        computed = derived(frame, first, depth)
        if not checked:
            rows.refuse(frame, derived_faults(frame, computed))
            run = self.header.run
            expected = f"expected run {run!r}; drop the column to copy rows"
            rows.refuse(frame, [("run", expected, frame["run"] != run)])
        last = pl.lit(pl.Series(np.append(first[1:], True)))
        frame = frame.with_columns(*computed, pl.when(last).then("next_state"))
        frame = frame.select(column.name for column in schema.columns(depth))
        # 3. What is not stored.
        if frame["error"].null_count() < len(frame):
            # states, prompts and responses stay as they are, because hashes and token ids refer to these texts
            errors = [text and redact(text) for text in frame["error"]]
            frame = frame.with_columns(pl.Series("error", errors, schema.TEXT))
        return frame.with_columns(
            pl.lit(None, frame.schema[name]).alias(name) for name in self._dropped
        )

    def _write_shard(
        self, frames: list[pl.DataFrame], replaces: str | None = None
    ) -> Shard:
        frame = pl.concat(frames).sort(schema.SORT_KEY)
        data = shards.encode(frame, shards.metadata_of(self.header))
        shard = Shard(
            file=self._run.manifest.next_file,
            sha256=hashlib.sha256(data).hexdigest(),
            bytes=len(data),
            rows=len(frame),
            trajectories=frame.filter(IS_FIRST).height,
            groups=frame.select(schema.GROUP_KEY).n_unique(),
            replaces=replaces,
        )
        # From here on, `_settle` knows what was begun, whatever interrupts it.
        self._run.check_free()
        self._writing = shard, frame, len(self._ready)
        try:
            self._run.write(shard, data)
            self._settle()
        except BaseException as error:
            try:
                self._settle()
            except Exception as second:  # noqa: BLE001 (the next commit tries again; the first error is raised)
                error.add_note(
                    f"an incomplete shard in {self.folder} could not be removed yet: {second}"
                )
            raise
        return shard

    def _settle(self) -> None:
        """Make folder and memory consistent after a write that succeeded, failed or was interrupted."""
        if self._writing is None:
            return
        shard, frame, ready = self._writing
        if shard.file in self._run.manifest.shards or self._run.settle(shard):
            groups = _groups(frame)
            trajectories = set(frame["trajectory"].unique())
            self._files.update(dict.fromkeys(groups, shard.file))
            self.trajectories |= trajectories
            self.accepted |= groups
            self._accepted_trajectories |= trajectories
            del self._ready[:ready]
        self._writing = None


def _groups(frame: pl.DataFrame) -> set[GroupKey]:
    """Return the groups of some rows."""
    return {GroupKey(*key) for key in frame.select(schema.GROUP_KEY).unique().rows()}


def _header(run: object, depth: object, config: object) -> Header:
    """Return the description of a new run. Its configuration has JSON values without secrets."""
    if not isinstance(run, str):
        raise InputError(f"run: expected the run's name as text, received {run!r}")
    if not isinstance(depth, int) or not 0 <= depth <= schema.MAX_DEPTH:
        raise InputError(f"depth: expected 0 to {schema.MAX_DEPTH}, received {depth!r}")
    if not isinstance(config, Mapping | None):
        raise InputError(
            f"config: expected a dictionary of JSON values, received {config!r}"
        )
    try:
        values = redact_json(orjson.loads(manifest.canonical(config or {})))
    except TypeError as error:
        raise InputError(f"expected a configuration of JSON values: {error}") from error
    return Header(
        clean_text(run),
        depth,
        schema.VERSION,
        installed_version("hgpo") or "not installed",
        values,
    )


def _check_same(
    folder: Path, was: Header, now: Header, *, named: bool, configured: bool
) -> None:
    """Raise unless an existing run can be resumed with the requested name, depth and configuration."""
    if named and was.run != now.run:
        raise InputError(
            f"{folder} contains the run {was.run!r}, not {now.run!r}; use another folder"
        )
    stored = {"depth": was.depth} | (_leaves(was.config) if configured else {})
    asked = {"depth": now.depth} | (_leaves(now.config) if configured else {})
    # A setting that only one of them has can follow from another that differs, which is named instead.
    shared = sorted(stored.keys() & asked.keys())
    for name in shared + sorted(stored.keys() ^ asked.keys()):
        before = stored.get(name, "unset")
        after = asked.get(name, "unset")
        if before != after:
            raise InputError(
                f"{folder} was written with {name} {before}, not {after}; use another folder"
            )


def _leaves(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of nested tables, as texts, by their dotted names."""
    leaves: dict[str, Any] = {}
    for name, value in values.items():
        nested = isinstance(value, dict) and value
        leaves |= (
            _leaves(value, f"{prefix}{name}.")
            if nested
            else {f"{prefix}{name} =": repr(value)}
        )
    return leaves


def _columns_to_drop(without: Collection[str], depth: int) -> list[str]:
    """Return the columns that are not stored. Those that readers need to understand the others must be."""
    every = schema.columns(depth)
    needed = ("won", "parent", "branch_step")
    optional = [
        column
        for column in every
        if column.null and not column.derived and column.name not in needed
    ]
    known = {
        *schema.FAMILIES,
        *(column.name for column in every),
    }
    accepted = {name for column in optional for name in (column.name, column.family)}
    for name in without:
        if name not in known:
            raise InputError(unknown("column or family", name, sorted(accepted)))
        if name not in accepted:
            raise InputError(
                f"without: {name} is always stored, because readers need it; remove it"
            )
    return [
        column.name
        for column in optional
        if not {column.name, column.family}.isdisjoint(without)
    ]
