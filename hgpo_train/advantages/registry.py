"""Estimators by name, and how one is carried out on a lazy step table.

An estimator is a function from `Steps` to columns, with a frozen dataclass of parameters and a word on which columns
it reads. Everything else (row order, aborted trajectories, missing columns, hashes from text, chunks, the command
line) is done here for all of them alike. docs/estimators.md shows how to add one from another distribution.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError, unknown
from hgpo_train.advantages import returns
from hgpo_train.advantages.parameters import Context, Parameters
from hgpo_train.advantages.steps import CHAIN, arrange, group_keys, require

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from hgpo_train.advantages.steps import Steps

ENTRY_POINTS: Final = "hgpo.estimators"
BLOCK: Final = 1 << 15
"""About how many rows are computed at a time."""

Columns = dict[str, np.ndarray[Any, Any]]
"""What an estimator returns: arrays of shape (height,) by name, `advantage` among them; masked arrays are null where
masked."""

P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What an estimator reads besides rewards and names.

    Attributes:
        depth: The deepest context whose hashes it compares; None if it compares no states.
        context: Which context.
        next_state: Whether it follows steps to the state they led to.
        state_text: Whether it reads the states' text.
        admissible_actions: Whether it reads the actions that were shown.
    """

    depth: int | None = None
    context: Context = "states"
    next_state: bool = False
    state_text: bool = False
    admissible_actions: bool = False


@dataclass(frozen=True)
class Estimator(Generic[P]):
    """A registered estimator.

    Attributes:
        name: What users call it.
        summary: One line for listings.
        parameters: The class of its parameters.
        estimate: From steps, parameters and whether details are wanted, to columns.
        needs: What it reads, for given parameters.
        details: The optional columns and their types, for given parameters.
        scope: ``group`` if a group of rollouts is enough to compute it, ``batch`` if it takes the whole batch, that
            is all rows of one run and iteration.
    """

    name: str
    summary: str
    parameters: type[P]
    estimate: Callable[[Steps, P, bool], Columns]
    needs: Callable[[P], Needs] = lambda _: Needs()
    details: Callable[[P], Mapping[str, pl.DataType]] = lambda _: {}
    scope: str = "group"


@dataclass(frozen=True)
class Job:
    """One estimator with its parameters, and the name of the column it fills.

    Attributes:
        estimator: What computes.
        parameters: With which parameters.
        column: The column of its advantages.
        details: Whether its optional columns are added, as `<column>_<name>`.
    """

    estimator: Estimator[Any]
    parameters: Parameters
    column: str = "advantage"
    details: bool = False

    @property
    def schema(self) -> dict[str, pl.DataType]:
        """The columns that are added, and their types."""
        added: dict[str, pl.DataType] = {self.column: pl.Float64()}
        if self.details:
            for name, kind in self.estimator.details(self.parameters).items():
                added[f"{self.column}_{name}"] = kind
        return added

    def columns(self, available: Collection[str]) -> list[str]:
        """The columns of the table that are read."""
        needs = self.estimator.needs(self.parameters)
        names = [*identity(available), *returns.columns(available, self.parameters)]
        if needs.depth is not None:
            names += context_columns(available, needs.depth, needs.context)
        if needs.next_state:
            names += next_state_columns(available, needs.state_text)
        elif needs.state_text:
            names.append(require(available, "state", why=f"{self.estimator.name} with these parameters"))
        if needs.admissible_actions:
            names.append(require(available, "admissible_actions", why=f"{self.estimator.name} with these parameters"))
        return names


def identity(available: Collection[str]) -> list[str]:
    """The columns that say which row is which, and which rows do not count."""
    names = group_keys(available)
    for name in ("trajectory", "step"):
        names.append(require(available, name, why="an advantage"))
    return [*names, *(["aborted"] if "aborted" in available else [])]


def context_columns(available: Collection[str], depth: int, context: Context) -> list[str]:
    """The stored hashes of a context, or else what they can be made from."""
    stored = [f"{CHAIN[context]}{k}" for k in range(depth + 1)]
    if all(name in available for name in stored):
        return stored
    sources = [("state_hash", "state")] + ([("action_hash", "action")] if context == "states_actions" else [])
    found = [next((name for name in pair if name in available), None) for pair in sources]
    if None in found:
        there = sum(name in available for name in stored)
        had = f"has them to depth {there - 1}" if there else "has none"
        missing = sources[found.index(None)]
        raise InputError(
            f"contexts of depth {depth} need {stored[0]} … {stored[-1]}: the table {had}, "
            f"and neither `{missing[0]}` nor `{missing[1]}` to make them from"
        )
    return cast("list[str]", found)


def next_state_columns(available: Collection[str], text: bool) -> list[str]:
    """The states, and where the last steps led if that is known: their texts, or rather their hashes."""
    hashes, texts = ("state_hash", "next_state_hash"), ("state", "next_state")
    if text or hashes[0] not in available:
        hashes = texts
    state = require(available, hashes[0], texts[0], why="a graph of states")
    following = [name for name in (hashes[1], texts[1]) if name in available]
    return [state, *following[:1]]


def compute(
    steps: pl.LazyFrame | pl.DataFrame,
    estimator: str | Estimator[Any],
    *,
    column: str = "advantage",
    details: bool = False,
    **parameters: object,
) -> pl.LazyFrame:
    """A step table with one more column: each step's advantage.

    Rows may come in any order and stay where they are; no column is dropped or renamed. Nothing is computed before
    the result is collected, and only the columns that are needed are read. Steps of trajectories with an `aborted`
    row take part in no group and have no advantage (null).

    Args:
        steps: At the least `task` (or `task_id`), `trajectory`, `step`, `reward`, `action_valid` and, for what
            compares states, `state` or the stored hashes.
        estimator: A registered name (see `names`), or an `Estimator`.
        column: The name of the new column.
        details: Whether to add the estimator's optional columns, `<column>_<name>`: for HGPO each level's advantage,
            group size and effective weight.
        **parameters: The estimator's parameters, by name; see its dataclass.

    Returns:
        The table with `column` (Float64) added.

    Raises:
        InputError: for an unknown estimator or parameter, or a missing column; when collected, for rewards that are
            no finite numbers, steps that are there twice, trajectories in two tasks, a table with no rows.

    >>> table = pl.LazyFrame({"task": "a", "trajectory": ["x", "y"], "step": 0, "state": "s", "reward": [10.0, 0.0],
    ...                       "action_valid": True})
    >>> compute(table, "hgpo", mode="mean_norm").collect()["advantage"].round(3).to_list()
    [5.0, -5.0]
    """
    found = get(estimator) if isinstance(estimator, str) else estimator
    return carry_out(steps, [Job(found, found.parameters.of(parameters), column, details)])


def carry_out(steps: pl.LazyFrame | pl.DataFrame, jobs: Sequence[Job]) -> pl.LazyFrame:
    """A step table with the columns of several estimators, computed in one pass."""
    steps = steps.lazy()
    available = steps.collect_schema().names()
    added: dict[str, pl.DataType] = {}
    for job in jobs:
        for name, kind in job.schema.items():
            if name in available or name in added:
                raise InputError(f"the table already has a column {name!r}; give another name for the advantages")
            added[name] = kind
    needed = list(dict.fromkeys(name for job in jobs for name in job.columns(available)))

    def run(series: Sequence[pl.Series], return_dtype: object = None) -> pl.Series:  # noqa: ARG001 (Polars gives it)
        return estimate(pl.DataFrame(list(series)), jobs).to_struct()

    expression = pl.map_batches([pl.col(name) for name in needed], run, return_dtype=pl.Struct(added))
    return steps.with_columns(expression.struct.unnest())


def estimate(frame: pl.DataFrame, jobs: Sequence[Job]) -> pl.DataFrame:
    """The columns of several estimators for the rows of a frame that holds the columns they need."""
    if not frame.height:
        raise InputError("the step table has no rows")
    depths = [job.estimator.needs(job.parameters).depth for job in jobs]
    steps, rows = arrange(frame.rechunk(), depth=max((depth for depth in depths if depth is not None), default=0))
    columns = []
    for job in jobs:
        if not steps.height:
            columns += [pl.Series(name, [None] * frame.height, kind) for name, kind in job.schema.items()]
            continue
        made = _estimate(job, steps)
        if job.parameters.precision == "float32":
            made["advantage"] = made["advantage"].astype(np.float32)
        for name, kind in job.schema.items():
            values = made["advantage" if name == job.column else name.removeprefix(f"{job.column}_")]
            columns.append(_column(name, values, kind, rows, frame.height))
    return pl.DataFrame(columns)


def _estimate(job: Job, steps: Steps) -> Columns:
    """An estimator's columns: computed a few tasks at a time where groups are enough, so that arrays stay in cache."""
    if job.estimator.scope == "batch":
        return job.estimator.estimate(steps, job.parameters, job.details)
    parts = [job.estimator.estimate(block, job.parameters, job.details) for block in steps.blocks(BLOCK)]
    return {name: _joined([part[name] for part in parts]) for name in parts[0]}


def _joined(parts: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    data = np.concatenate([np.ma.getdata(part) for part in parts])
    if not any(isinstance(part, np.ma.MaskedArray) for part in parts):
        return data
    return np.ma.array(data, mask=np.concatenate([np.ma.getmaskarray(part) for part in parts]))


def _column(
    name: str, values: np.ndarray[Any, Any], kind: pl.DataType, rows: NDArray[np.int64], height: int
) -> pl.Series:
    """Values of some rows as a column of the whole table, null in the other rows and where they are masked."""
    present = np.zeros(height, dtype=np.bool_)
    present[rows] = ~np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else True
    placed = np.zeros(height, dtype=values.dtype)
    placed[rows] = np.ma.getdata(values)
    column = pl.Series(name, placed).cast(kind)
    return column if present.all() else column.set(pl.Series(~present), None)


_registered: dict[str, Estimator[Any]] = {}


def register(estimator: Estimator[P]) -> Estimator[P]:
    """Makes an estimator known by its name. Names are taken once."""
    if _registered.setdefault(estimator.name, estimator) is not estimator:
        raise InputError(f"an estimator {estimator.name!r} is registered already; choose another name")
    return estimator


def get(name: str) -> Estimator[Any]:
    """The estimator of that name, ours or from an entry point; InputError with the nearest name for an unknown one."""
    if name not in _registered:
        _load_entry_points()
    if name not in _registered:
        raise InputError(unknown("estimator", name, names()))
    return _registered[name]


def names() -> list[str]:
    """The names of all estimators, those of entry points included."""
    _load_entry_points()
    return list(_registered)


@cache
def _load_entry_points() -> None:
    """Registers what other distributions offer under `hgpo.estimators`."""
    for entry in entry_points(group=ENTRY_POINTS):
        loaded = entry.load()
        if not isinstance(loaded, Estimator):
            raise InputError(f"entry point {entry.name!r} of group {ENTRY_POINTS} is {loaded!r}, not an Estimator")
        register(loaded)
