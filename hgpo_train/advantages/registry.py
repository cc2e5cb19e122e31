"""Estimators by name, and how one is applied to a lazy step table.

An estimator is a function from LazyFrame to LazyFrame over the columns of `input_columns.py`, to add `advantage`.
Row order, aborted trajectories, missing columns, hashes from text, bad rows, chunks and the command line are taken care
of here for all of them alike. docs/estimators.md shows how to write one.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from dataclasses import dataclass, field, make_dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, get_type_hints

import polars as pl
from polars.io.plugins import register_io_source

from hgpo_envs.errors import InputError, unknown
from hgpo_envs.hashing import DEFAULT_DEPTH
from hgpo_train.advantages import input_columns
from hgpo_train.advantages.parameters import Parameters
from hgpo_train.settings import types_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ENTRY_POINTS: Final = "hgpo.estimators"

P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True)
class Estimator(Generic[P]):
    """A registered estimator.

    Attributes:
        name: What users call it.
        summary: One line for listings.
        parameters: The class of its parameters.
        apply: From a table with the columns of `hgpo_train.advantages.input_columns`, and parameters, to the same table
            with `advantage` and the optional columns. It neither drops nor reorders rows.
        details: The names of the optional columns, for given parameters.
        scope: ``group`` if a group of rollouts is enough to compute it, ``batch`` if it takes the whole batch, that
            is all rows of one run and iteration.
        complete: The columns that must not be null, for given parameters.
        function: The function that it was made of, if it was.
    """

    name: str
    summary: str
    parameters: type[P]
    apply: Callable[[pl.LazyFrame, P], pl.LazyFrame]
    details: Callable[[P], Sequence[str]] = lambda _: ()
    scope: str = "group"
    complete: Callable[[P], Sequence[str]] = lambda _: ()
    function: Callable[..., pl.LazyFrame] | None = None


@dataclass(frozen=True)
class EstimatorSpec:
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
    def added(self) -> dict[str, str]:
        """The columns that are added, and what the estimator calls them."""
        details = self.estimator.details(self.parameters) if self.details else ()
        return {self.column: "advantage"} | {f"{self.column}_{name}": name for name in details}

    def columns(self, schema: pl.Schema) -> list[str]:
        """The columns of the table that are read."""
        return columns_read(schema, [self])


def compute(
    steps: pl.LazyFrame | pl.DataFrame,
    estimator: str | Estimator[Any] | Callable[..., pl.LazyFrame],
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
        estimator: A registered name (see `names`), ``module:function``, an `Estimator`, or a function that could be one
            (see `estimator`).
        column: The name of the new column.
        details: Whether to add the estimator's optional columns, `<column>_<name>`: for HGPO each level's advantage,
            group size and effective weight.
        **parameters: The estimator's parameters, by name; see its dataclass.

    Returns:
        The table with `column` (Float64) added.

    Raises:
        InputError: for an unknown estimator or parameter, or a missing column; when collected, for rewards that are
            no finite numbers, returns or advantages that overflow, duplicate steps, trajectories in two
            tasks, a table with no rows.

    >>> table = pl.LazyFrame({"task": "a", "trajectory": ["x", "y"], "step": 0, "state": "s", "reward": [10.0, 0.0],
    ...                       "action_valid": True})
    >>> compute(table, "hgpo", mode="mean_norm").collect()["advantage"].round(3).to_list()
    [5.0, -5.0]
    """
    if isinstance(estimator, str):
        found = get(estimator)
    else:
        found = estimator if isinstance(estimator, Estimator) else from_function(estimator)
    return compute_many(steps, [EstimatorSpec(found, found.parameters.of(parameters), column, details)])


def compute_many(steps: pl.LazyFrame | pl.DataFrame, specs: Sequence[EstimatorSpec]) -> pl.LazyFrame:
    """A step table with the columns of several estimators."""
    steps = steps.lazy()
    given = steps.collect_schema()
    added: list[str] = []
    for spec in specs:
        for name in spec.added:
            if name in given or name in added:
                raise InputError(f"the table already has a column {name!r}; give another name for the advantages")
            added.append(name)
    # Estimators may use any name for a column of theirs, so the table's own are kept under names that they do not use.
    kept = {f"(given) {name}": name for name in given}
    steps = input_columns.with_keys(steps, given, *(pl.col(name).alias(kept_as) for kept_as, name in kept.items()))
    for number, spec in enumerate(specs):
        if number:
            steps = steps.with_columns(pl.col(kept_as).alias(name) for kept_as, name in kept.items())
        steps = _with_columns_of(spec, steps, given)
    return steps.select(*(pl.col(kept_as).alias(name) for kept_as, name in kept.items()), *added)


def _with_columns_of(spec: EstimatorSpec, steps: pl.LazyFrame, given: pl.Schema) -> pl.LazyFrame:
    """A table with keys, the table's own columns put aside, and those that a job adds."""
    p, name = spec.parameters, spec.estimator.name
    steps, refusals = _prepared(steps, p, given)
    try:
        estimated = spec.estimator.apply(steps, p)
        schema = estimated.collect_schema()
    except pl.exceptions.ColumnNotFoundError as error:
        absent = str(error).split('"')[1] if '"' in str(error) else str(error).splitlines()[0]
        depth = getattr(p, "history_length", None)
        raise input_columns.missing(absent, given, f"{name} with these parameters", depth) from None
    for made in spec.added.values():
        if made not in schema:
            raise InputError(f"the estimator {name!r} must add a column {made!r}; it adds none")
    advantage = pl.col("advantage").cast(pl.Float64)
    if p.precision == "float32":
        advantage = advantage.cast(pl.Float32).cast(pl.Float64)
    line = f"the advantage of {name} must be a finite number, got {{shown}}: rewards are too large, or a column is null"
    rows = [pl.col(f"(given) {key}").alias(key) for key in input_columns.row_keys(given)]
    further = [*map(input_columns.absent, spec.estimator.complete(p)), input_columns.not_finite(advantage, line)]
    fault = input_columns.mark_bad_rows(further, before=len(refusals))
    counts = input_columns.raise_for_bad_rows(fault, estimated, [*refusals, *further], rows) & ~pl.col("(aborted)")
    added = {column: pl.col(made) for column, made in spec.added.items()} | {spec.column: advantage}
    return estimated.with_columns(pl.when(counts).then(value).alias(column) for column, value in added.items())


def prepare(steps: pl.LazyFrame, p: Parameters) -> pl.LazyFrame:
    """A step table with all the columns that an estimator is written over (`hgpo_train.advantages.input_columns`).

    For looking at what an estimator sees: those of the table's own columns that have the same names are replaced.
    """
    schema = steps.collect_schema()
    return _prepared(input_columns.with_keys(steps, schema), p, schema)[0]


def _prepared(
    steps: pl.LazyFrame, p: Parameters, given: pl.Schema
) -> tuple[pl.LazyFrame, list[input_columns.RowCheck]]:
    """A table with keys, and returns and hashes as the parameters say; and what is to be refused of it."""
    steps, refusals = input_columns.with_returns(steps, p, given)
    return input_columns.with_hashes(steps, getattr(p, "history_length", DEFAULT_DEPTH), given), refusals


def columns_read(schema: pl.Schema, specs: Sequence[EstimatorSpec]) -> list[str]:
    """The columns of a table that some jobs read, as Polars finds them when it plans the query."""
    asked: list[str] = list(schema)

    def scan(with_columns: list[str] | None, *_: object) -> Iterator[pl.DataFrame]:
        asked[:] = [name for name in schema if with_columns is None or name in with_columns]
        yield pl.DataFrame(schema=schema).select(asked)

    table = register_io_source(scan, schema=schema)
    added = [column for spec in specs for column in spec.added]
    with contextlib.suppress(InputError):  # the table has no rows
        compute_many(table, specs).select(added).collect()
    return asked


# ----------------------------------------------------------------------------------------------------- registration


_registered: dict[str, Estimator[Any]] = {}


def register(found: Estimator[P]) -> Estimator[P]:
    """Makes an estimator known by its name. Names are taken once."""
    if _registered.setdefault(found.name, found) is not found:
        raise InputError(f"an estimator {found.name!r} is registered already; choose another name")
    return found


def estimator(
    name: str | None = None, *, details: Sequence[str] = (), scope: str = "group"
) -> Callable[[Callable[..., pl.LazyFrame]], Callable[..., pl.LazyFrame]]:
    """Registers a function as an estimator: ``@estimator("mine")``.

    The function takes a LazyFrame with the columns that `hgpo_train.advantages.input_columns` documents and returns it
    with a column `advantage`. Its other parameters are keyword-only with defaults and become the estimator's, beside
    those of `Parameters`; one that is called as one of those changes its default and is handed over as well.

    Args:
        name: What users call it; the function's own name if not given.
        details: Columns that it adds besides, to be had with ``details=True``.
        scope: See `Estimator`.
    """

    def decorate(function: Callable[..., pl.LazyFrame]) -> Callable[..., pl.LazyFrame]:
        register(from_function(function, name, details=details, scope=scope))
        return function

    return decorate


def from_function(
    function: Callable[..., pl.LazyFrame], name: str | None = None, *, details: Sequence[str] = (), scope: str = "group"
) -> Estimator[Any]:
    """A function as an estimator; see `estimator`."""
    name = name or function.__name__
    _, *own = inspect.signature(function).parameters.values()
    types = get_type_hints(function, include_extras=True) | types_of(Parameters)
    fields = []
    for parameter in own:
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY or parameter.default is inspect.Parameter.empty:
            raise InputError(
                f"the estimator {name!r} must take its parameters by keyword, each with a default; "
                f"{parameter.name!r} is not so"
            )
        kind = types.get(parameter.name, Any if parameter.default is None else type(parameter.default))
        fields.append((parameter.name, kind, field(default=parameter.default)))
    parameters = make_dataclass(
        name, fields, bases=(Parameters,), frozen=True, kw_only=True, namespace={"__module__": function.__module__}
    )

    def estimate(steps: pl.LazyFrame, p: Parameters) -> pl.LazyFrame:
        return function(steps, **{parameter.name: getattr(p, parameter.name) for parameter in own})

    summary = (inspect.getdoc(function) or name).splitlines()[0].rstrip(".")
    return Estimator(name, summary, parameters, estimate, lambda _: details, scope, function=function)


def get(name: str) -> Estimator[Any]:
    """An estimator by its registered name or as ``module:function``.

    Raises:
        InputError: There is none of that name; the message suggests the nearest one.
    """
    if ":" in name:
        return _imported(name)
    if name not in _registered:
        _load_entry_points()
    if name not in _registered:
        raise InputError(unknown("estimator", name, names()))
    return _registered[name]


def names() -> list[str]:
    """The names of all registered estimators, those of entry points included."""
    _load_entry_points()
    return list(_registered)


def _imported(name: str) -> Estimator[Any]:
    """``module:function`` or ``module:ESTIMATOR``, the module found as Python does or in the working directory."""
    module_name, _, attribute = name.partition(":")
    folder = str(Path.cwd())
    sys.path.append(folder)
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(f"expected an estimator as module:function, got {name!r}: {error}") from error
    finally:
        sys.path.remove(folder)
    return _estimator_of(found, name)


def _estimator_of(found: object, source: str) -> Estimator[Any]:
    if isinstance(found, Estimator):
        return found
    known = next((each for each in _registered.values() if each.function is found), None)
    if known is not None:
        return known
    if callable(found):
        return from_function(found)
    raise InputError(f"{source} must be a function or an Estimator, got {found!r}")


@cache
def _load_entry_points() -> None:
    """Registers what other distributions offer under `hgpo.estimators`."""
    for entry in entry_points(group=ENTRY_POINTS):
        found = _estimator_of(entry.load(), f"entry point {entry.name!r} of group {ENTRY_POINTS}")
        if found.name not in _registered:
            register(found if found.name == entry.name else replace(found, name=entry.name))
