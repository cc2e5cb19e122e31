"""A step table as arrays: rows sorted by trajectory and step, groups of rollouts and trajectories as codes.

This is what every estimator computes on. It is made from any frame that has the least columns, in any row order, and
it is where a table that cannot be used is refused, with the row named.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from hgpo_envs import hashing
from hgpo_envs.errors import InputError
from hgpo_train.advantages.groups import Groups, encode

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from hgpo_train.advantages.parameters import Context

RUN_KEYS: Final = ("run",)
"""Within these, a trajectory's name is unique."""

BATCH_KEYS: Final = ("run", "iteration")
"""Rows that agree on these were rolled out for one update."""

GROUP_KEYS: Final = ("run", "iteration", "env_id", "task_id", "group")
"""Rows that agree on those of these columns that are there are rollouts of one task, to be compared."""

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


@dataclass(frozen=True)
class Steps:
    """Rows sorted by trajectory and step, those of aborted trajectories left out.

    Attributes:
        frame: The columns that were asked for, `height` rows.
        task: The groups of rollouts that are compared.
        trajectory: The trajectories; codes ascend by 1 from the first row to the last.
        rows: For each row, its place in the frame that this was made from; intp of shape (height,).
        depth: The deepest context that will be asked for.
    """

    frame: pl.DataFrame
    task: Groups
    trajectory: Groups
    rows: NDArray[np.intp]
    depth: int = 0
    _chains: dict[Context, tuple[NDArray[np.int64], NDArray[np.bool_]]] = field(default_factory=dict, repr=False)

    @property
    def height(self) -> int:
        """How many rows there are."""
        return self.frame.height

    @cached_property
    def batch(self) -> Groups:
        """The rows of one run and iteration."""
        keys = [key for key in BATCH_KEYS if self.has(key)]
        return encode(_codes(self.frame, keys)) if keys else Groups(np.zeros(self.height, np.int64), 1)

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
        return np.asarray(np.diff(self.trajectory.code, prepend=-1) != 0)

    @cached_property
    def last(self) -> NDArray[np.bool_]:
        """Where a trajectory ends; bool of shape (height,)."""
        return np.asarray(np.diff(self.trajectory.code, append=self.trajectory.number) != 0)

    def has(self, name: str) -> bool:
        """Whether a column was there and asked for."""
        return name in self.frame.columns

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A column as float64, refused where it is null, NaN or infinite."""
        values = self.frame[name].cast(pl.Float64).to_numpy()  # null becomes NaN
        finite = np.isfinite(values)
        if not finite.all():
            row = int(np.argmin(finite))
            raise InputError(f"{name} must be a finite number, got {self.frame[name][row]} at {self.where(row)}")
        return values

    def flags(self, name: str) -> NDArray[np.bool_]:
        """A column of true and false (or 0 and 1), refused where it is null."""
        column = self.frame[name]
        if column.null_count():
            row = int(column.is_null().arg_max() or 0)
            raise InputError(f"{name} must be true or false, got null at {self.where(row)}")
        return column.cast(pl.Boolean).to_numpy()

    def where(self, row: int) -> str:
        """A row's names, for messages."""
        keys = [*(key for key in (*GROUP_KEYS, "task") if self.has(key)), "trajectory", "step"]
        return ", ".join(f"{key}={self.frame[key][row]!r}" for key in keys)

    def context(self, depth: int, kind: Context) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The hash of each step's state and the `depth` states before it, and where it exists.

        Returns:
            Values, int64 of shape (height,), and where they are defined, bool of the same shape.
        """
        name = f"{CHAIN[kind]}{depth}"
        if self.has(name):
            stored = self.frame[name]
            return stored.fill_null(0).to_numpy(), stored.is_not_null().to_numpy()
        if depth >= self.lengths.max(initial=0):
            return np.zeros(self.height, np.int64), np.zeros(self.height, np.bool_)
        values, defined = self._chain(kind)
        return values[depth], defined[depth]

    def _chain(self, kind: Context) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The chain down to `depth`, from states (and actions) that are in the table; made once."""
        if kind not in self._chains:
            depth = int(min(self.depth, self.lengths.max(initial=1) - 1))
            actions = self.hashes("action_hash", "action") if kind == "states_actions" else None
            self._chains[kind] = hashing.chain_columns(self.states, self.first, depth, actions)
        return self._chains[kind]

    @cached_property
    def states(self) -> NDArray[np.int64]:
        """The hash of each step's state."""
        return self.hashes("state_hash", "state")

    def next_states(self) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """The hash of the state that each step led to, and where it is known.

        A `next_state_hash` or `next_state` that is there counts; else it is the state of the trajectory's next step.

        Returns:
            int64 of shape (height,), and bool of the same shape.
        """
        after, known = np.roll(self.states, -1), ~self.last
        for name in ("next_state_hash", "next_state"):
            if self.has(name):
                column = self.frame[name]
                given = column.is_not_null().to_numpy()
                values = column.drop_nulls()
                after[given] = text_hashes(values) if name == "next_state" else values.to_numpy()
                known |= given
        return after, known

    def next_texts(self) -> list[str | None]:
        """The text of the state that each step led to, None where it is not known."""
        own = pl.when(~pl.Series("last", self.last)).then(pl.col("state").shift(-1))
        given = [pl.col("next_state")] if self.has("next_state") else []
        texts: list[str | None] = self.frame.select(pl.coalesce(*given, own)).to_series().to_list()
        return texts

    def hashes(self, stored: str, text: str) -> NDArray[np.int64]:
        """A stored column of hashes, or the hashes of a text column, each distinct text hashed once."""
        name = stored if self.has(stored) else text
        column = self.frame[name]
        if column.null_count():
            row = int(column.is_null().arg_max() or 0)
            raise InputError(f"{name} must not be null, as it is at {self.where(row)}")
        return column.to_numpy() if name == stored else text_hashes(column)


def arrange(frame: pl.DataFrame, depth: int = 0) -> Steps:
    """Sorts a frame's rows by trajectory and step, numbers its groups and leaves aborted trajectories out.

    Args:
        frame: The least columns (`identity`), and those that the estimator needs, in any row order.
        depth: The deepest context that will be asked for.

    Raises:
        InputError: for a step that is there twice, a trajectory in two tasks, a step that is no number.
    """
    keys = group_keys(frame.columns)
    run_begins = _changes(frame, [*keys, "trajectory"])
    begins = np.flatnonzero(run_begins)
    pieces = np.diff(begins, append=frame.height)
    heads = frame[begins]
    task = encode(_codes(heads, keys))
    trajectory = encode(_codes(heads, [*keys, "trajectory"]))
    _refuse_shared_trajectories(heads, trajectory)
    step = _step_numbers(frame)
    rows = np.arange(frame.height)
    if len(begins) > trajectory.number or bool((np.diff(step) <= 0)[~run_begins[1:]].any()):
        rows = np.lexsort((step, np.repeat(trajectory.code, pieces)))
        _refuse_duplicates(frame, rows, np.repeat(trajectory.code, pieces)[rows], step[rows])
    kept = _kept(frame, np.repeat(trajectory.code, pieces))
    if kept is not None:
        rows = rows[kept[rows]]
    unchanged = len(rows) == frame.height and len(begins) == trajectory.number and _ascending(rows)
    return Steps(
        frame if unchanged else frame[rows],
        Groups(np.repeat(task.code, pieces)[rows], task.number),
        encode(np.repeat(trajectory.code, pieces)[rows]),
        rows,
        depth,
    )


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


def _ascending(rows: NDArray[np.intp]) -> bool:
    return bool((np.diff(rows) > 0).all())


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


def text_hashes(texts: pl.Series) -> NDArray[np.int64]:
    """The hash of each text, each distinct text hashed once; int64 of shape (rows,)."""
    texts = texts.cast(pl.String)
    first, place = np.unique(_codes(texts.to_frame("text"), ["text"]), return_inverse=True)
    return hashing.text_hashes(texts[first])[place]
