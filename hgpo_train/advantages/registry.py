"""The registry of estimators, and their application to lazy step tables.

An estimator is a function that receives a LazyFrame with the columns of `input_columns.py` and returns it with a column
`advantage`; its keyword arguments are its parameters. Row order, aborted trajectories, missing columns, hashes of
texts, invalid rows, chunks and the command line are the same for all. docs/estimators.md describes how to write one.
"""

from __future__ import annotations

import inspect
import warnings
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from typing import TYPE_CHECKING, Any, Final, get_type_hints

import polars as pl

from hgpo_envs.errors import InputError, one_line, unknown
from hgpo_envs.plugins import import_object, installed, load
from hgpo_train.advantages import input_columns
from hgpo_train.advantages.parameters import Parameters
from hgpo_train.advantages.tables import step_table
from hgpo_train.settings import types_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hgpo_train.advantages.tables import StepTable

    Names = Sequence[str] | Callable[[Any], Sequence[str]]
    """Names of columns, or a function from parameters to them."""

ENTRY_POINTS: Final = "hgpo.estimators"

_registered: dict[str, Estimator] = {}


@dataclass(frozen=True)
class Estimator:
    """An estimator. A call with a step table computes it: `hgpo(steps, gamma=1)` is `compute(steps, "hgpo", gamma=1)`.

    Attributes:
        name: Its name in the registry.
        function: Its function of a table with the columns of `hgpo_train.advantages.input_columns`.
        parameters: The dataclass of its parameters: its keyword arguments, and those of `Parameters`.
        reads: A function of parameters that returns the hashes and columns of texts that it reads; None if unknown.
        details: A function of parameters that returns the names of its optional columns.
        scope: ``group`` if an advantage depends only on its group of rollouts, ``batch`` if it depends on all rows of
            one run and iteration.
    """

    name: str
    function: Callable[..., pl.LazyFrame]
    parameters: type[Parameters]
    reads: Callable[[Any], Sequence[str] | None]
    details: Callable[[Any], Sequence[str]]
    scope: str = "group"

    def __call__(
        self, steps: StepTable, *, column: str = "advantage", details: bool = False, **parameters: object
    ) -> pl.LazyFrame:
        """Add each step's advantage to a step table; see `compute`."""
        return compute(steps, self, column=column, details=details, **parameters)

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (inspect.getdoc(self.function) or self.name).splitlines()[0].rstrip(".")

    def apply(self, steps: pl.LazyFrame, p: Parameters) -> pl.LazyFrame:
        """Call the function with its keyword arguments.

        Raises:
            InputError: It returns no LazyFrame, or reads a column that the table does not have.
        """
        own = list(inspect.signature(self.function).parameters)[1:]
        estimated: object = self.function(steps, **{name: getattr(p, name) for name in own})
        if not isinstance(estimated, pl.LazyFrame):
            kind = type(estimated).__name__
            raise InputError(f"the estimator {self.name!r}: expected it to return a LazyFrame, received {kind}")
        return estimated


@dataclass(frozen=True)
class EstimatorSpec:
    """An estimator with its parameters and the names of its result columns. It can be sent to other processes.

    Attributes:
        estimator: The estimator.
        parameters: Its parameters.
        column: The name of the column of advantages.
        details: Whether its optional columns are added, as `<column>_<name>`.
    """

    estimator: Estimator
    parameters: Parameters
    column: str = "advantage"
    details: bool = False

    @property
    def added(self) -> dict[str, str]:
        """The added columns, each with the estimator's name for it."""
        details = self.estimator.details(self.parameters) if self.details else ()
        return {self.column: "advantage"} | {f"{self.column}_{name}": name for name in details}

    def columns(self, schema: pl.Schema) -> list[str]:
        """Return the columns of a table that are read; all if the estimator does not say.

        Raises:
            InputError: Columns are missing.
        """
        reads = self.estimator.reads(self.parameters)
        used, _ = input_columns.columns_used(schema, self.parameters, reads or (), self.estimator.name)
        return list(schema) if reads is None else used

    def __reduce__(self) -> tuple[Callable[..., EstimatorSpec], tuple[object, ...]]:
        """Pickle the estimator by its name: a module has the estimator in the place of its function."""
        function = self.estimator.function
        name = self.estimator.name
        if _registered.get(name) is not self.estimator or not function.__module__.startswith("hgpo_train."):
            name = f"{function.__module__}:{function.__qualname__}"
        return spec, (name, self.column, self.details, asdict(self.parameters))


def spec(name: str, column: str, details: bool, parameters: dict[str, Any]) -> EstimatorSpec:
    """Return an estimator by its name (see `get`) with parameters by name."""
    found = get(name)
    return EstimatorSpec(found, found.parameters.of(parameters), column, details)


def compute(
    steps: StepTable,
    estimator: str | Estimator | Callable[..., pl.LazyFrame],
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
        **parameters: The estimator's parameters by name, and those of returns (`Parameters`).

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
    found = get(estimator) if isinstance(estimator, str) else as_estimator(estimator)
    return compute_many(steps, [EstimatorSpec(found, found.parameters.of(parameters), column, details)])


def compute_many(steps: StepTable, specs: Sequence[EstimatorSpec]) -> pl.LazyFrame:
    """Add the columns of several estimators to a step table; see `compute`.

    Raises:
        InputError: As for `compute`; also if the table already has a column of the same name.
    """
    steps = step_table(steps)
    source, schema = steps, steps.collect_schema()
    added = [name for each in specs for name in each.added]
    for place, name in enumerate(added):
        if not name:
            raise InputError(f"column: expected the name of the new column, received {name!r}")
        if name in schema or name in added[:place]:
            raise InputError(f"the table already has a column {name!r}; choose another name for the advantages")
    # Estimators may overwrite any column, so the table's columns are also stored under reserved names.
    kept = {f"(given) {name}": name for name in schema}
    steps = steps.with_columns(pl.col(name).alias(copy) for copy, name in kept.items())
    for number, each in enumerate(specs, 1):
        steps = steps.with_columns(pl.col(copy).alias(name) for copy, name in kept.items())
        estimated = _with_columns_of(each, steps, source)
        steps = estimated.select(*kept, *(name for done in specs[:number] for name in done.added))
    return steps.select(*(pl.col(copy).alias(name) for copy, name in kept.items()), *added)


def _with_columns_of(spec: EstimatorSpec, steps: pl.LazyFrame, source: pl.LazyFrame) -> pl.LazyFrame:
    """Add the columns of one estimator. The order of the source's rows is that of the table."""
    name, p = spec.estimator.name, spec.parameters
    prepared = input_columns.prepare(steps, p, spec.estimator.reads(p), name, source=source)
    try:
        estimated = spec.estimator.apply(prepared, p)
        schema = estimated.collect_schema()
    except pl.exceptions.ColumnNotFoundError as error:
        raise InputError(f"the estimator {name!r} reads a column that is not there: {one_line(error)}") from None
    for column in spec.added.values():
        if column not in schema:
            raise InputError(f"expected the estimator {name!r} to add a column {column!r}, received none; add it")
    advantage = pl.col("advantage").cast(pl.Float64)
    bad = ~advantage.is_finite().fill_null(value=False) & ~pl.col("(aborted)")

    def check(found: pl.Series) -> pl.Series:
        if found.any():
            row = estimated.with_row_index("(row)").filter(bad).select("(row)", "advantage").head(1)
            place, value = row.collect(engine="in-memory").row(0)
            line = f"expected a finite advantage of {name} (also in singleton groups), received {value}"
            raise input_columns.StepTableError(f"{line} at {input_columns.row_name(source, place)}")
        return found

    complete = ~(bad.map_batches(check, return_dtype=pl.Boolean, is_elementwise=True) | pl.col("(aborted)"))
    columns = {column: pl.col(own) for column, own in spec.added.items()} | {spec.column: advantage}
    return estimated.with_columns(pl.when(complete).then(value).alias(column) for column, value in columns.items())


# ----------------------------------------------------------------------------------------------------- registration


def estimator(
    name: str | None = None, *, reads: Names | None = None, details: Names = (), scope: str = "group"
) -> Callable[[Callable[..., pl.LazyFrame]], Estimator]:
    """Return a decorator that registers a function as an estimator: ``@estimator("mine")``.

    The function receives a LazyFrame with the columns of `hgpo_train.advantages.input_columns` and returns it with a
    column `advantage`. Its other parameters must be keyword-only and have defaults; they are validated by their
    annotations. They are the estimator's parameters, in addition to those of `Parameters`. A parameter with the name of
    one of `Parameters` overrides its default, and the function receives the value, too.

    Args:
        name: The name in the registry; the function's name by default.
        reads: The hashes (`history_hash_2`) and columns of texts that the function reads, or a function from parameters
            to them. None for all that can be derived from a table, which is then read completely.
        details: Names of optional columns that the function adds; `compute` returns them with ``details=True``.
        scope: ``group`` or ``batch``; see `Estimator`.
    """

    def decorate(function: Callable[..., pl.LazyFrame]) -> Estimator:
        return register(as_estimator(function, name, reads=reads, details=details, scope=scope))

    return decorate


def register(found: Estimator) -> Estimator:
    """Register an estimator under its name.

    Raises:
        InputError: Another estimator is registered under this name.
    """
    if _registered.setdefault(found.name, found) is not found:
        raise InputError(f"an estimator {found.name!r} is registered already; choose another name")
    return found


def as_estimator(
    function: Callable[..., pl.LazyFrame],
    name: str | None = None,
    *,
    reads: Names | None = None,
    details: Names = (),
    scope: str = "group",
) -> Estimator:
    """Create an estimator from a function, without registering it; see `estimator`. Estimators are returned unchanged.

    Raises:
        InputError: It is no function of a table, or a parameter is not keyword-only or has no default.
    """
    if isinstance(function, Estimator):
        return function
    known: object = function
    if not callable(known) or not inspect.signature(known).parameters:
        expected = "a name, module:function, an Estimator or a function of a LazyFrame"
        raise InputError(f"estimator: expected {expected}, received {one_line(repr(known))}")
    name = name or function.__name__
    types = get_type_hints(function, include_extras=True) | types_of(Parameters)
    fields = []
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY or parameter.default is inspect.Parameter.empty:
            raise InputError(
                f"the estimator {name!r}: expected keyword-only parameters with defaults after the first one, "
                f"received {parameter.name!r}; put it after a `*` and give it a default"
            )
        annotation = types.get(parameter.name, Any if parameter.default is None else type(parameter.default))
        fields.append((parameter.name, annotation, field(default=parameter.default)))
    meanings = (inspect.getdoc(function) or "").replace("Args:\n", "Attributes:\n")
    own = {"__module__": function.__module__, "__doc__": meanings}
    parameters = make_dataclass(name, fields, bases=(Parameters,), frozen=True, kw_only=True, namespace=own)
    read, optional = (value if callable(value) else lambda _, names=value: names for value in (reads, details))
    return Estimator(name, function, parameters, read, optional, scope)


def get(name: str) -> Estimator:
    """Return an estimator by its registered name or as ``module:function``.

    Raises:
        InputError: The name is unknown (the message suggests the closest one), or the package that provides the
            estimator cannot be imported.
    """
    if ":" in name:
        return as_estimator(import_object(name, "an estimator"))  # type: ignore[arg-type]  # checked there
    if name not in _registered and name in installed(ENTRY_POINTS):
        found = as_estimator(load(installed(ENTRY_POINTS)[name]))  # type: ignore[arg-type]  # checked there
        _registered.setdefault(name, found if found.name == name else replace(found, name=name))
    if name not in _registered:
        raise InputError(unknown("estimator", name, names()))
    return _registered[name]


def names() -> list[str]:
    """Return the names of all registered estimators, including entry points. Warn if one of them cannot be imported."""
    for name in installed(ENTRY_POINTS):
        try:
            get(name)
        except InputError as error:
            warnings.warn(str(error), stacklevel=2)
    return list(_registered)
