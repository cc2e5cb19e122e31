"""A step table as arrays: rows sorted by task, trajectory and step, groups of rollouts and trajectories as codes.

This is what every estimator computes on. It is made from any frame that has the least columns, in any row order, and
it is where a table that cannot be used is refused, with the row named.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import numpy as np
import polars as pl

from hgpo_envs import hashing
from hgpo_envs.errors import InputError
from hgpo_train.advantages.groups import Groups, encode, encode_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from numpy.typing import NDArray

    from hgpo_train.advantages.parameters import Context

RUN_KEYS: Final = ("run",)
"""Within these, a trajectory's name is unique."""

BATCH_KEYS: Final = ("run", "iteration")
"""Rows that agree on these were rolled out for one update."""

GROUP_KEYS: Final = ("run", "iteration", "env_id", "task_id", "group")
"""Rows that agree on those of these columns that are there are rollouts of one task, to be compared."""

T = TypeVar("T")

CHAIN: Final = {"states": "history_hash_", "states_actions": "context_hash_"}
"""The stored columns of each context, before their depth."""


def group_keys(columns: Collection[str]) -> list[str]:
    """The columns that say which rollouts are compared: those of `GROUP_KEYS`, or `task` for `task_id`."""
    keys = [key for key in GROUP_KEYS if key in columns]
    if "task_id" in columns:
        return keys
    if "task" in columns:
        return [*keys, "task"]
    raise InputError(f"a step table names its tasks in `task_id` or `task`; this one has {_listed(columns)}")


def require(columns: Collection[str], *alternatives: str, why: str) -> str:
    """The first of some columns that is there, or an InputError."""
    for name in alternatives:
        if name in columns:
            return name
    wanted = " or ".join(f"`{name}`" for name in alternatives)
    raise InputError(f"{why} needs the column {wanted}; the table has {_listed(columns)}")


def _listed(columns: Collection[str]) -> str:
    return ", ".join(columns) or "no columns"


class Columns:
    """The columns of a sorted table as arrays, each checked and converted once.

    Attributes:
        frame: The table.
        first: Where a trajectory begins; bool of shape (rows,).
    """

    def __init__(self, frame: pl.DataFrame, first: NDArray[np.bool_]) -> None:
        self.frame = frame
        self.first = first
        self._made: dict[tuple[str, ...], Any] = {}

    def has(self, name: str) -> bool:
        """Whether a column was there and asked for."""
        return name in self.frame.columns

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A column as float64, refused where it is null, NaN or infinite."""
        return self._once(("numbers", name), lambda: self._numbers(name))

    def flags(self, name: str) -> NDArray[np.bool_]:
        """A column of true and false (or 0 and 1), refused where it is null."""
        return self._once(("flags", name), lambda: self.complete(name).cast(pl.Boolean).to_numpy())

    def hashes(self, stored: str, text: str) -> NDArray[np.int64]:
        """A stored column of hashes, or the hashes of a text column; refused where it is null."""
        name = stored if self.has(stored) else text
        return self._once(("hashes", name), lambda: hashed(self.complete(name)))

    def optional_hashes(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The same for a column with nulls: values, and where they are."""
        return self._once(("optional", name), lambda: self._optional_hashes(name))

    def texts(self, name: str) -> list[str | None]:
        """A column of texts."""
        return self._once(("texts", name), self.frame[name].to_list)

    def chain(self, kind: Context, depth: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """All context hashes down to a depth, made from states (and actions); see `hashing.chain_columns`."""

        def make() -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
            actions = self.hashes("action_hash", "action") if kind == "states_actions" else None
            return hashing.chain_columns(self.hashes("state_hash", "state"), self.first, depth, actions)

        return self._once(("chain", kind), make)

    def where(self, row: int) -> str:
        """A row's names, for messages."""
        keys = [*(key for key in (*GROUP_KEYS, "task") if self.has(key)), "trajectory", "step"]
        return ", ".join(f"{key}={self.frame[key][row]!r}" for key in keys)

    def _once(self, key: tuple[str, ...], make: Callable[[], T]) -> T:
        if key not in self._made:
            self._made[key] = make()
        return cast("T", self._made[key])

    def _numbers(self, name: str) -> NDArray[np.float64]:
        values = self.frame[name].cast(pl.Float64).to_numpy()  # null becomes NaN
        finite = np.isfinite(values)
        if not finite.all():
            row = int(np.argmin(finite))
            raise InputError(f"{name} must be a finite number, got {self.frame[name][row]} at {self.where(row)}")
        return values

    def complete(self, name: str) -> pl.Series:
        """A column, refused where it is null."""
        column = self.frame[name]
        if column.null_count():
            raise InputError(f"{name} must not be null, as it is at {self.where(int(column.is_null().arg_max() or 0))}")
        return column

    def _optional_hashes(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        column = self.frame[name]
        there = column.is_not_null().to_numpy()
        values = np.zeros(len(column), dtype=np.int64)
        values[there] = hashed(column.drop_nulls())
        return values, there


def hashed(column: pl.Series) -> NDArray[np.int64]:
    """A column of stored hashes as it is, a column of texts hashed, each distinct text once."""
    if column.dtype == pl.Int64:
        return column.to_numpy()
    texts = column.cast(pl.String)
    first, place = np.unique(_codes(texts.to_frame("text"), ["text"]), return_inverse=True)
    return hashing.text_hashes(texts[first])[place]


@dataclass(frozen=True)
class Steps:
    """Rows sorted by task, trajectory and step, those of aborted trajectories left out.

    Attributes:
        task: The groups of rollouts that are compared; codes never go down from row to row.
        trajectory: The trajectories; codes go up by 0 or 1 from row to row.
        columns: The columns that were asked for, of these rows or of a longer table.
        part: Which rows of `columns` these are.
        depth: The deepest context that will be asked for.
    """

    task: Groups
    trajectory: Groups
    columns: Columns
    part: slice
    depth: int = 0

    @property
    def height(self) -> int:
        """How many rows there are."""
        return len(self.task.code)

    @cached_property
    def starts(self) -> NDArray[np.intp]:
        """The first row of each trajectory."""
        return np.flatnonzero(self.first)

    @cached_property
    def lengths(self) -> NDArray[np.intp]:
        """The number of steps of each trajectory."""
        return np.diff(self.starts, append=self.height)

    @cached_property
    def first(self) -> NDArray[np.bool_]:
        """Where a trajectory begins; bool of shape (height,)."""
        return _begins(self.trajectory.code)

    @cached_property
    def last(self) -> NDArray[np.bool_]:
        """Where a trajectory ends; bool of shape (height,)."""
        return np.roll(self.first, -1)

    @cached_property
    def batch(self) -> Groups:
        """The rows of one run and iteration."""
        keys = [key for key in BATCH_KEYS if self.columns.has(key)]
        if not keys:
            return Groups(np.zeros(self.height, np.int64), 1)
        return encode(_codes(self.columns.frame[self.part], keys))

    @property
    def states(self) -> NDArray[np.int64]:
        """The hash of each step's state."""
        return self.columns.hashes("state_hash", "state")[self.part]

    @property
    def actions(self) -> NDArray[np.int64]:
        """The hash of each step's action."""
        return self.columns.hashes("action_hash", "action")[self.part]

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A column as float64; InputError where it is null, NaN or infinite."""
        return self.columns.numbers(name)[self.part]

    def flags(self, name: str) -> NDArray[np.bool_]:
        """A column of true and false; InputError where it is null."""
        return self.columns.flags(name)[self.part]

    def complete(self, name: str) -> pl.Series:
        """A column as it is; InputError where it is null."""
        return self.columns.complete(name)[self.part]

    def texts(self, name: str) -> list[str | None]:
        """A column of texts; Nones where it was not there."""
        return self.columns.texts(name)[self.part] if self.columns.has(name) else [None] * self.height

    def context(self, depth: int, kind: Context) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The hash of each step's state and the `depth` states before it, and where it exists.

        Returns:
            Values, int64 of shape (height,), and where they are defined, bool of the same shape.
        """
        name = f"{CHAIN[kind]}{depth}"
        if self.columns.has(name):
            values, defined = self.columns.optional_hashes(name)
        else:
            chain, exists = self.columns.chain(kind, self.depth)
            values, defined = chain[depth], exists[depth]
        return values[self.part], defined[self.part]

    def next_states(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The hash of the state that each step led to, and where it is known.

        A `next_state_hash` or `next_state` that is there counts; else it is the state of the trajectory's next step.

        Returns:
            int64 of shape (height,), and bool of the same shape.
        """
        after, known = np.roll(self.states, -1), ~self.last
        for name in ("next_state_hash", "next_state"):
            if self.columns.has(name):
                values, given = self.columns.optional_hashes(name)
                after = np.where(given[self.part], values[self.part], after)
                known = known | given[self.part]
        return after, known

    def next_texts(self) -> list[str | None]:
        """The text of the state that each step led to, None where it is not known."""
        following = [*self.texts("state")[1:], None]
        for row in np.flatnonzero(self.last):
            following[row] = None
        return [given or own for given, own in zip(self.texts("next_state"), following, strict=True)]

    def blocks(self, rows: int) -> Iterator[Steps]:
        """These steps, a few whole tasks at a time: about `rows` rows each."""
        borders = np.flatnonzero(np.diff(self.task.code, append=self.task.number)) + 1
        cuts = np.searchsorted(borders, np.arange(rows, self.height + rows, rows), side="right") - 1
        ends = np.unique(np.append(borders[cuts[cuts >= 0]], borders[-1:]))
        for start, end in pairwise([0, *ends.tolist()]):
            part = slice(start, end)
            yield Steps(
                _renumbered(self.task.code[part]),
                _renumbered(self.trajectory.code[part]),
                self.columns,
                slice(self.part.start + start, self.part.start + end),
                self.depth,
            )


def arrange(frame: pl.DataFrame, depth: int = 0) -> tuple[Steps, NDArray[np.int64]]:
    """Sorts a frame's rows by task, trajectory and step, and leaves aborted trajectories out.

    Tasks come in the order of their first rows, and so do the trajectories of a task.

    Args:
        frame: The least columns (`identity`), and those that the estimator needs, in any row order.
        depth: The deepest context that will be asked for.

    Returns:
        The steps, and the place of each in the frame; int64 of shape (height,).

    Raises:
        InputError: for a step that is there twice, a trajectory in two tasks, a step that is no number.
    """
    task, trajectory = _names(frame)
    step = _step_numbers(frame)
    rows = np.arange(frame.height)
    onward = _begins(trajectory)[1:] | (step[1:] > step[:-1])
    if not (_ascends(task) and _ascends(trajectory) and onward.all()):
        rows = np.lexsort((step, trajectory, task))
        _refuse_duplicates(frame, rows, trajectory[rows], step[rows])
    kept = _kept(frame, trajectory)
    if kept is not None:
        rows = rows[kept[rows]]
    if len(rows) < frame.height or not _ascends(rows):
        frame, task, trajectory = frame[rows], task[rows], trajectory[rows]
    steps = Steps(
        _renumbered(task), _renumbered(trajectory), Columns(frame, _begins(trajectory)), slice(0, len(rows)), depth
    )
    return steps, rows


def _names(frame: pl.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The number of each row's task and of its trajectory, by first appearance; int64 of shape (rows,) each."""
    keys = group_keys(frame.columns)
    task_begins = _changes(frame, keys)
    task = _spread(encode(_codes(frame.select(keys)[np.flatnonzero(task_begins)], keys)).code, task_begins)
    begins = task_begins | _changes(frame, ["trajectory"])
    heads = np.flatnonzero(begins)
    names = frame.select("trajectory")[heads]
    if names.to_series().n_unique() == len(heads):  # as in tables that are written in order
        return task, np.cumsum(begins) - 1
    trajectory = encode_pairs(Groups(task[heads], len(task)), _codes(names, ["trajectory"]))
    _refuse_shared_trajectories(frame[heads], trajectory)
    return task, _spread(trajectory.code, begins)


def _spread(codes: NDArray[np.int64], begins: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Codes of runs of rows, on each row."""
    spread: NDArray[np.int64] = codes[np.cumsum(begins) - 1]
    return spread


def _begins(codes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Where a code differs from that of the row before; true at the first row."""
    begins = np.ones(len(codes), dtype=np.bool_)
    np.not_equal(codes[1:], codes[:-1], out=begins[1:])
    return begins


def _changes(frame: pl.DataFrame, columns: list[str]) -> NDArray[np.bool_]:
    """Where any of the columns differs from the row before; true at the first row."""
    changed = frame.select(pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(1)) for name in columns))
    changes = changed.to_series().to_numpy().copy()
    changes[:1] = True
    return changes


def _codes(frame: pl.DataFrame, columns: list[str]) -> NDArray[np.int64]:
    """For each row, the number of the first row that agrees with it on the columns."""
    first = frame.select(columns).with_row_index("(row)").select(pl.col("(row)").first().over(columns))
    return first.to_series().cast(pl.Int64).to_numpy()


def _ascends(codes: NDArray[np.int64]) -> bool:
    """Whether codes never go down."""
    return bool((codes[1:] >= codes[:-1]).all())


def _renumbered(codes: NDArray[np.int64]) -> Groups:
    """Runs of equal codes, numbered from 0."""
    code = np.cumsum(_begins(codes)) - 1
    return Groups(code, int(code[-1]) + 1 if len(code) else 0)


def _step_numbers(frame: pl.DataFrame) -> NDArray[np.int64]:
    step = frame["step"]
    if not step.dtype.is_integer() or step.null_count():
        came = "null" if step.dtype.is_integer() else str(step.dtype)
        raise InputError(f"step must be a whole number in every row, got {came}")
    return step.cast(pl.Int64).to_numpy()


def _refuse_shared_trajectories(heads: pl.DataFrame, trajectory: Groups) -> None:
    """One trajectory name belongs to one group of rollouts."""
    names = [*(key for key in RUN_KEYS if key in heads.columns), "trajectory"]
    if encode(_codes(heads, names)).number == trajectory.number:
        return
    keys = group_keys(heads.columns)
    shared = heads.group_by(names, maintain_order=True).agg(pl.struct(keys).unique(maintain_order=True).head(2))
    row = shared.filter(pl.col(keys[0]).list.len() > 1).row(0, named=True)
    raise InputError(
        f"a trajectory belongs to one task, but trajectory {row['trajectory']!r} is in {row[keys[0]][0]} "
        f"and in {row[keys[0]][1]}; name trajectories apart"
    )


def _refuse_duplicates(
    frame: pl.DataFrame, rows: NDArray[np.intp], trajectory: NDArray[np.int64], step: NDArray[np.int64]
) -> None:
    twice = (np.diff(trajectory) == 0) & (np.diff(step) == 0)
    if twice.any():
        row = frame.row(int(rows[int(np.argmax(twice))]), named=True)
        task = row[group_keys(frame.columns)[-1]]
        raise InputError(
            f"a step is there once, but trajectory {row['trajectory']!r} of task {task!r} has step {row['step']} twice"
        )


def _kept(frame: pl.DataFrame, trajectory: NDArray[np.int64]) -> NDArray[np.bool_] | None:
    """The rows of trajectories with no aborted row; None where that is all of them."""
    if "aborted" not in frame.columns:
        return None
    aborted = frame["aborted"].fill_null(value=False).cast(pl.Boolean).to_numpy()
    if not aborted.any():
        return None
    ended = np.zeros(int(trajectory.max()) + 1, dtype=np.bool_)
    ended[trajectory[aborted]] = True
    return ~ended[trajectory]
