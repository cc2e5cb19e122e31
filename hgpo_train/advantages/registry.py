"""The registry of estimators, and their application to lazy step tables.

An estimator is a function that receives a LazyFrame with the columns of `input_columns.py` and returns it with a column
`advantage`. The framework handles row order, aborted trajectories, missing columns, hashes of texts, invalid rows,
chunks and the command line for all estimators. docs/estimators.md describes how to write one.
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, get_type_hints

import polars as pl
from polars.io.plugins import register_io_source

from hgpo_envs.errors import InputError, one_line, unknown
from hgpo_envs.hashing import DEFAULT_DEPTH
from hgpo_envs.plugins import distribution, import_object, installed, load
from hgpo_train.advantages import input_columns
from hgpo_train.advantages.parameters import Parameters
from hgpo_train.advantages.tables import check_name, check_types, step_table
from hgpo_train.settings import types_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hgpo_train.advantages.tables import StepTable

ENTRY_POINTS: Final = "hgpo.estimators"

P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True)
class Estimator(Generic[P]):
    """A registered estimator.

    Attributes:
        name: Its name in the registry.
        summary: A one-line description.
        parameters: The dataclass of its parameters.
        apply: A function of a table with the columns of `hgpo_train.advantages.input_columns` and of parameters. It
            returns the table with `advantage` and the optional columns, and neither drops nor reorders rows.
        details: A function of parameters that returns the names of the optional columns.
        scope: ``group`` if an advantage depends only on its group of rollouts, ``batch`` if it depends on all rows of
            one run and iteration.
        complete: A function of parameters that returns the columns that must not be null.
        function: The function that `from_function` turned into this estimator; None for other estimators.
        imported_as: ``module:object`` for an estimator that is imported and not registered.
    """

    name: str
    summary: str
    parameters: type[P]
    apply: Callable[[pl.LazyFrame, P], pl.LazyFrame]
    details: Callable[[P], Sequence[str]] = lambda _: ()
    scope: str = "group"
    complete: Callable[[P], Sequence[str]] = lambda _: ()
    function: Callable[..., pl.LazyFrame] | None = None
    imported_as: str = ""

    @property
    def reference(self) -> str:
        """The name with which `get` finds the estimator in another process."""
        if self.function is not None:
            return f"{self.function.__module__}:{self.function.__qualname__}"
        return self.imported_as or self.name


@dataclass(frozen=True)
class EstimatorSpec:
    """An estimator with its parameters and the names of its result columns. It can be sent to other processes.

    Attributes:
        estimator: The estimator.
        parameters: Its parameters.
        column: The name of the column of advantages.
        details: Whether its optional columns are added, as `<column>_<name>`.
    """

    estimator: Estimator[Any]
    parameters: Parameters
    column: str = "advantage"
    details: bool = False

    @property
    def added(self) -> dict[str, str]:
        """The added columns, each with the estimator's name for it."""
        details = self.estimator.details(self.parameters) if self.details else ()
        return {self.column: "advantage"} | {f"{self.column}_{name}": name for name in details}

    def __reduce__(self) -> tuple[Callable[..., EstimatorSpec], tuple[object, ...]]:
        """Pickle the estimator by its name, because its functions and generated classes cannot be pickled."""
        return _named_spec, (self.estimator.reference, asdict(self.parameters), self.column, self.details)


def _named_spec(name: str, parameters: dict[str, Any], column: str, details: bool) -> EstimatorSpec:
    found = get(name)
    return EstimatorSpec(found, found.parameters.of(parameters), column, details)


def compute(
    steps: StepTable,
    estimator: str | Estimator[Any] | Callable[..., pl.LazyFrame],
    *,
    column: str = "advantage",
    details: bool = False,
    **parameters: object,
) -> pl.LazyFrame:
    """Add each step's advantage to a step table.

    Rows can have any order, which does not change; no column is dropped or renamed. Nothing is computed before the
    result is collected, and only the required columns are read. Trajectories with an `aborted` row are in no group, and
    the advantage of their steps is null.

    Args:
        steps: A Polars LazyFrame or DataFrame, a path or URL (`hgpo_datasets.scan_steps`), or a pandas or pyarrow
            table, with at least `task` (or `task_id`), `trajectory`, `step`, `reward`, `action_valid` and, for
            estimators that compare states, `state` or the stored hashes.
        estimator: A registered name (see `names`), ``module:function``, an `Estimator`, or a function (see
            `estimator`).
        column: The name of the new column.
        details: Whether to add the estimator's optional columns, `<column>_<name>`: for HGPO each level's advantage,
            group size and effective weight.
        **parameters: The estimator's parameters by name; see its dataclass.

    Returns:
        The table with the additional column `column` (Float64).

    Raises:
        InputError: `steps` is no table, the estimator or a parameter is unknown, a parameter is invalid, or a column
            is missing. When the result is collected: a reward is not finite, a return or advantage overflows, a step is
            duplicated, a trajectory belongs to two tasks, or the table has no rows.

    >>> table = pl.LazyFrame({"task": "a", "trajectory": ["x", "y"], "step": 0, "state": "s", "reward": [1.0, 0.0],
    ...                       "action_valid": True})
    >>> compute(table, "hgpo", mode="mean_norm").collect()["advantage"].round(3).to_list()
    [5.0, -5.0]
    """
    if isinstance(estimator, str):
        found = get(estimator)
    else:
        found = estimator if isinstance(estimator, Estimator) else from_function(estimator)
    return compute_many(steps, [EstimatorSpec(found, found.parameters.of(parameters), column, details)])


def compute_many(steps: StepTable, specs: Sequence[EstimatorSpec]) -> pl.LazyFrame:
    """Add the columns of several estimators to a step table; see `compute`.

    Raises:
        InputError: As for `compute`; also if the table already has a column of the same name.
    """
    steps = step_table(steps)
    given = steps.collect_schema()
    check_types(given)
    added: list[str] = []
    for spec in specs:
        check_name(spec.column)
        for name in spec.added:
            if name in given:
                raise InputError(f"the table already has a column {name!r}; choose another name for the advantages")
            if name in added:
                raise InputError(f"expected different columns for different estimators, received {name!r} twice")
            added.append(name)
    # Estimators may overwrite any column, so the table's columns are also stored under reserved names.
    kept = {f"(given) {name}": name for name in given}
    steps = input_columns.with_keys(steps, given, *(pl.col(name).alias(kept_as) for kept_as, name in kept.items()))
    for number, spec in enumerate(specs):
        if number:
            steps = steps.with_columns(pl.col(kept_as).alias(name) for kept_as, name in kept.items())
        steps = _with_columns_of(spec, steps, given)
    return steps.select(*(pl.col(kept_as).alias(name) for kept_as, name in kept.items()), *added)


def _with_columns_of(spec: EstimatorSpec, steps: pl.LazyFrame, given: pl.Schema) -> pl.LazyFrame:
    """Add the columns of one estimator to a table with keys and the stored columns ``(given) <name>``."""
    p, name = spec.parameters, spec.estimator.name
    steps, checks = _prepared(steps, p, given)
    try:
        estimated = spec.estimator.apply(steps, p)
        schema = estimated.collect_schema()
    except pl.exceptions.ColumnNotFoundError as error:
        absent = str(error).split('"')[1] if '"' in str(error) else str(error).splitlines()[0]
        depth = getattr(p, "history_length", None)
        raise input_columns.missing(absent, given, f"{name} with these parameters", depth) from None
    for made in spec.added.values():
        if made not in schema:
            raise InputError(f"expected the estimator {name!r} to add a column {made!r}, received none; add it")
    advantage = pl.col("advantage").cast(pl.Float64)
    if p.precision == "float32":
        advantage = advantage.cast(pl.Float32).cast(pl.Float64)
    rows = [pl.col(f"(given) {key}").alias(key) for key in input_columns.row_keys(given)]
    further = [
        *map(input_columns.absent, spec.estimator.complete(p)),
        input_columns.absent(
            "advantage", f"an advantage of {name} (a singleton group needs one too: see `Level.alone`, or fill nulls)"
        ),
        input_columns.not_finite(
            advantage, f"expected a finite advantage of {name}, received {{shown}} (are rewards too large?)"
        ),
    ]
    marks = input_columns.mark_bad_rows(further, before=len(checks))
    bad = input_columns.raise_for_bad_rows(marks, estimated, [*checks, *further], rows)
    counts = ~(bad | pl.col("(aborted)"))
    added = {column: pl.col(made) for column, made in spec.added.items()} | {spec.column: advantage}
    return estimated.with_columns(pl.when(counts).then(value).alias(column) for column, value in added.items())


def prepare(steps: pl.LazyFrame, p: Parameters) -> pl.LazyFrame:
    """Add all input columns of estimators (`hgpo_train.advantages.input_columns`) to a step table.

    Use it to inspect the input of an estimator. Columns of the table with the same names are replaced.
    """
    schema = steps.collect_schema()
    return _prepared(input_columns.with_keys(steps, schema), p, schema)[0]


def _prepared(
    steps: pl.LazyFrame, p: Parameters, given: pl.Schema
) -> tuple[pl.LazyFrame, list[input_columns.RowCheck]]:
    """Add returns and hashes according to the parameters; also return the checks of rows."""
    steps, checks = input_columns.with_returns(steps, p, given)
    return input_columns.with_hashes(steps, getattr(p, "history_length", DEFAULT_DEPTH), given), checks


def columns_read(schema: pl.Schema, specs: Sequence[EstimatorSpec]) -> list[str]:
    """Return the columns of a table that some estimators read, as determined by Polars' query planner."""
    read: list[str] = list(schema)

    def scan(with_columns: list[str] | None, *_: object) -> Iterator[pl.DataFrame]:
        read[:] = [name for name in schema if with_columns is None or name in with_columns]
        yield pl.DataFrame(schema=schema).select(read)

    table = register_io_source(scan, schema=schema)
    added = [column for spec in specs for column in spec.added]
    with contextlib.suppress(InputError):  # raised because the table has no rows
        compute_many(table, specs).select(added).collect()
    return read


# ----------------------------------------------------------------------------------------------------- registration


_registered: dict[str, Estimator[Any]] = {}


def register(found: Estimator[P]) -> Estimator[P]:
    """Register an estimator under its name.

    Raises:
        InputError: Another estimator is registered under this name.
    """
    if _registered.setdefault(found.name, found) is not found:
        raise InputError(f"an estimator {found.name!r} is registered already; choose another name")
    return found


def estimator(
    name: str | None = None, *, details: Sequence[str] = (), scope: str = "group"
) -> Callable[[Callable[..., pl.LazyFrame]], Callable[..., pl.LazyFrame]]:
    """Return a decorator that registers a function as an estimator: ``@estimator("mine")``.

    The function receives a LazyFrame with the columns of `hgpo_train.advantages.input_columns` and returns it with a
    column `advantage`. Its other parameters must be keyword-only and have defaults. They become parameters of the
    estimator, in addition to those of `Parameters`. A parameter with the name of one of `Parameters` overrides its
    default, and the function receives the value, too.

    Args:
        name: The name in the registry; the function's name by default.
        details: Names of optional columns that the function adds; `compute` returns them with ``details=True``.
        scope: ``group`` or ``batch``; see `Estimator`.
    """

    def decorate(function: Callable[..., pl.LazyFrame]) -> Callable[..., pl.LazyFrame]:
        register(from_function(function, name, details=details, scope=scope))
        return function

    return decorate


def from_function(
    function: Callable[..., pl.LazyFrame], name: str | None = None, *, details: Sequence[str] = (), scope: str = "group"
) -> Estimator[Any]:
    """Create an estimator from a function, without registering it; see `estimator`.

    Raises:
        InputError: It is no function of a table, or a parameter is not keyword-only or has no default.
    """
    given: object = function
    if not callable(given) or not inspect.signature(given).parameters:
        expected = "a name, module:function, an Estimator or a function of a LazyFrame"
        raise InputError(f"estimator: expected {expected}, received {one_line(repr(given))}")
    name = name or function.__name__
    _, *own = inspect.signature(function).parameters.values()
    types = get_type_hints(function, include_extras=True) | types_of(Parameters)
    fields = []
    for parameter in own:
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY or parameter.default is inspect.Parameter.empty:
            raise InputError(
                f"the estimator {name!r}: expected keyword-only parameters with defaults after the first one, "
                f"received {parameter.name!r}; put it after a `*` and give it a default"
            )
        kind = types.get(parameter.name, Any if parameter.default is None else type(parameter.default))
        fields.append((parameter.name, kind, field(default=parameter.default)))
    parameters = make_dataclass(
        name, fields, bases=(Parameters,), frozen=True, kw_only=True, namespace={"__module__": function.__module__}
    )

    def estimate(steps: pl.LazyFrame, p: Parameters) -> pl.LazyFrame:
        found: object = function(steps, **{parameter.name: getattr(p, parameter.name) for parameter in own})
        if not isinstance(found, pl.LazyFrame):
            kind = type(found).__name__
            raise InputError(f"the estimator {name!r}: expected it to return a LazyFrame, received {kind}")
        return found

    summary = (inspect.getdoc(function) or name).splitlines()[0].rstrip(".")
    return Estimator(name, summary, parameters, estimate, lambda _: details, scope, function=function)


def get(name: str) -> Estimator[Any]:
    """Return an estimator by its registered name or as ``module:function``.

    Raises:
        InputError: The name is unknown (the message suggests the closest one), or the package that provides the
            estimator cannot be imported.
    """
    if ":" in name:
        return _imported(name)
    if name not in _registered and name in installed(ENTRY_POINTS):
        _load_entry_point(name)
    if name not in _registered:
        raise InputError(unknown("estimator", name, names()))
    return _registered[name]


def names() -> list[str]:
    """Return the names of all registered estimators, including entry points. Warn if one of them cannot be imported."""
    _load_entry_points()
    return list(_registered)


def _imported(name: str) -> Estimator[Any]:
    """Import ``module:function`` or ``module:ESTIMATOR`` from Python's path or the working directory."""
    found = _estimator_of(import_object(name, "an estimator"), name)
    return found if found.function is not None or found.name in _registered else replace(found, imported_as=name)


def _estimator_of(found: object, source: str) -> Estimator[Any]:
    if isinstance(found, Estimator):
        return found
    known = next((each for each in _registered.values() if each.function is found), None)
    if known is not None:
        return known
    if callable(found):
        return from_function(found)
    raise InputError(f"{source}: expected a function or an Estimator, received {found!r}")


@cache
def _load_entry_points() -> None:
    """Register the estimators of other distributions, from their entry points."""
    for name in installed(ENTRY_POINTS):
        try:
            _load_entry_point(name)
        except InputError as error:
            warnings.warn(str(error), stacklevel=2)


def _load_entry_point(name: str) -> None:
    entry = installed(ENTRY_POINTS)[name]
    found = _estimator_of(load(entry), f"{ENTRY_POINTS} {name!r} of the distribution {distribution(entry)}")
    if found.name not in _registered:
        register(found if found.name == name else replace(found, name=name))
