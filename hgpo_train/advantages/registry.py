"""The registry of estimators, and their application to lazy step tables.

An estimator is a function that receives a LazyFrame with the columns of `input_columns.py` and returns it with a column
`advantage`; its keyword arguments are its parameters. Row order, aborted trajectories, missing columns, hashes of
texts, invalid rows, chunks and the command line are the same for all. docs/estimators.md describes how to write one.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    cast,
    get_type_hints,
)

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.wording import listed
from hgpo_train.advantages.input_columns import StepTableError, columns_used, prepare
from hgpo_train.advantages.parameters import Parameters
from hgpo_train.advantages.score_columns import check_scores, require_scores
from hgpo_train.advantages.tables import step_table
from hgpo_train.registry import NamedFunction, Registry
from hgpo_train.settings import build, types_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from polars._typing import EngineType

    from hgpo_train.advantages.tables import StepTable

    Names = Sequence[str] | Callable[[Any], Sequence[str]]
    """Names of columns, or a function from parameters to them."""

    InTraining = Callable[
        [pl.DataFrame, Any, Any, Sequence[Mapping[str, float]]],
        tuple[pl.DataFrame, dict[str, float]],
    ]
    """A function of steps, parameters, the trained model and the metrics of earlier iterations; see `estimator`."""

P = ParamSpec("P")

LARGE: Final = 20_000
"""The number of rows above which Polars' streaming engine is faster."""
_ESTIMATES: Final = "(estimates)"


@dataclass(frozen=True)
class Estimator(NamedFunction):
    """An estimator with its parameters: `hgpo(steps, gamma=1)` is `compute(steps, "hgpo", gamma=1)`.

    Attributes:
        name: Its name in the registry.
        function: Its function of a table with the columns of `hgpo_train.advantages.input_columns`.
        parameters: Its parameters: the keyword arguments of the function, and those of `Parameters`.
        reads, optional, scores, scope, in_training, smallest_group, branches: As of the decorator `estimator`; the
            first two are functions of parameters.
        column, details: As of `compute`.
    """

    function: Callable[..., pl.LazyFrame]
    parameters: Any  # of a class with these fields, a subclass of `Parameters`
    reads: Callable[[Any], Sequence[str] | None] = lambda _: None
    optional: Callable[[Any], Sequence[str]] = lambda _: ()
    scores: tuple[str, ...] = ()
    scope: str = "group"
    in_training: InTraining | None = None
    smallest_group: int = 1
    branches: bool = False
    column: str = "advantage"
    details: bool = False

    def __call__(self, steps: StepTable, **options: Any) -> pl.LazyFrame:
        """Add each step's advantage to a step table; see `compute`."""
        return compute(steps, self, **options)

    @property
    def biased_by_outcomes(self) -> bool:
        """Whether a choice by outcomes of the steps where rollouts branch biases its advantages."""
        return self.branches and not getattr(self.parameters, "fresh", False)

    @property
    def __signature__(self) -> inspect.Signature:
        """The signature of a call: the estimator's parameters with their values, those of returns, and two options."""
        first = inspect.Parameter(
            "steps", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="StepTable"
        )
        named = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value)
            for name, value in self._options().items()
        ]
        return inspect.Signature([first, *named], return_annotation="LazyFrame")

    def with_parameters(
        self,
        *,
        column: str | None = None,
        details: bool | None = None,
        **parameters: object,
    ) -> Estimator:
        """Return the estimator with other parameters, and with another name of its column."""
        values = self.parameters
        if parameters:
            values = build(type(values), asdict(values) | parameters, "parameter")
        return replace(
            self,
            parameters=values,
            column=self.column if column is None else column,
            details=self.details if details is None else details,
        )

    @property
    def added(self) -> dict[str, str]:
        """The added columns, each with the function's name for it."""
        optional = self.optional(self.parameters) if self.details else ()
        return {self.column: "advantage"} | {
            f"{self.column}_{name}": name for name in optional
        }

    def columns(self, schema: pl.Schema) -> list[str]:
        """Return the columns of a table that are read; all if the estimator does not say. None may be missing."""
        scores: Sequence[str] = ()
        if self.scores:
            scores = require_scores(schema, self.scores, self.name)
        reads = self.reads(self.parameters)
        used, *_ = columns_used(schema, self.parameters, reads, self.name)
        return list(schema) if reads is None else list(dict.fromkeys([*used, *scores]))

    def apply(self, steps: pl.LazyFrame) -> pl.LazyFrame:
        """Call the function on a table with the input columns."""
        # The class of parameters has all of `Parameters`, and the function names those that it uses.
        given = list(inspect.signature(self.function).parameters.values())[1:]
        names = [
            each.name
            for each in given
            if each.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        return self.function(
            steps, **{name: getattr(self.parameters, name) for name in names}
        )

    def __reduce__(self) -> tuple[Callable[..., Estimator], tuple[object, ...]]:
        """Pickle the estimator by its name: a module has the estimator in the place of its function."""
        module = self.function.__module__
        name = self.name
        # only this package's are registered in every process
        if not module.startswith("hgpo_train."):
            name = f"{module}:{self.function.__qualname__}"
        return _unpickled, (name, self._options())

    def _options(self) -> dict[str, Any]:
        """Return the keyword arguments of a call with their values."""
        return {
            **vars(self.parameters),
            "column": self.column,
            "details": self.details,
        }


if TYPE_CHECKING:

    class TypedEstimator(Estimator, Generic[P]):
        """An estimator as editors and type checkers see it: a call has the parameters that its function declares."""

        def __call__(
            self,
            steps: StepTable,
            *_: P.args,
            **options: P.kwargs,
        ) -> pl.LazyFrame:
            """Add each step's advantage to a step table; see `compute`."""
            ...


def _unpickled(name: str, values: dict[str, Any]) -> Estimator:
    return get(name).with_parameters(**values)


def compute(
    steps: StepTable,
    estimator: str | Estimator | Callable[..., pl.LazyFrame],
    *,
    column: str | None = None,
    details: bool | None = None,
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
        column: The name of the new column, by default `advantage`.
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
    if isinstance(estimator, str):
        estimator = get(estimator)
    elif not isinstance(estimator, Estimator):
        estimator = as_estimator(estimator)
    estimator = estimator.with_parameters(column=column, details=details, **parameters)
    return compute_many(steps, [estimator])


def compute_many(
    steps: StepTable, estimators: Iterable[str | Estimator]
) -> pl.LazyFrame:
    """Add the columns of several estimators, which have different names, to a step table; see `compute`.

    The column of an estimator that is given by its registered name is `advantage_<name>`.

    >>> table = pl.LazyFrame({"task": "a", "trajectory": ["x", "y"], "step": 0, "reward": [1.0, 0.0],
    ...                       "action_valid": True})
    >>> compute_many(table, ["grpo", "rloo"]).select("advantage_grpo", "advantage_rloo").collect().rows()
    [(0.707..., 10.0), (-0.707..., -10.0)]
    """
    # 1. The estimators and their table.
    named: list[Estimator] = []
    for each in estimators:
        if isinstance(each, str):
            named.append(get(each).with_parameters(column=f"advantage_{each}"))
        else:
            named.append(each)
    table = step_table(steps, [score for each in named for score in each.scores])

    for each in named:
        # 2. The names of its columns.
        schema = table.collect_schema()
        names = list(each.added)
        for column in names:
            if not column:
                raise InputError("column: expected a name, received an empty text")
            if column in schema:
                raise InputError(
                    f"the table already has a column {column!r}; choose another name for the advantages"
                )

        # 3. One expression of the columns that it reads: Polars then reads only these, and keeps the rows' order. An
        # expression has one column as its result, so that several are the fields of a struct. One is returned as it is,
        # which is faster for small tables.
        fields = pl.Struct(dict.fromkeys(names, pl.Float64()))
        estimates = pl.map_batches(
            each.columns(schema),
            partial(_estimates, estimator=each),
            return_dtype=fields if names[1:] else pl.Float64(),
        )
        if names[1:]:
            added = [pl.col(_ESTIMATES).struct.field(name) for name in names]
            table = table.with_columns(estimates.alias(_ESTIMATES))
            table = table.with_columns(added).drop(_ESTIMATES)
        else:
            table = table.with_columns(estimates.alias(each.column))
    return table


def _estimates(columns: Sequence[pl.Series], estimator: Estimator) -> pl.Series:
    """Return what an estimator adds to a table, from the columns that it reads: a column, or structs of several."""
    # 1. The query. Windows over many groups are twice as fast in the streaming engine, which takes longer to start.
    steps = pl.DataFrame(columns)
    added = [
        pl.col(name).cast(pl.Float64).alias(column)
        for column, name in estimator.added.items()
    ]
    engine: EngineType = "streaming" if steps.height > LARGE else "in-memory"
    try:
        prepared = prepare(
            steps,
            estimator.parameters,
            estimator.reads(estimator.parameters),
            estimator.name,
            branches=estimator.branches,
        )
        if estimator.scores:
            check_scores(prepared, estimator.scores, steps)
        table = (
            estimator.apply(prepared)
            .select("(row)", "(aborted)", *added)
            .collect(engine=engine)
        )
    except InputError as error:  # of a query that is part of this one
        raise StepTableError(str(error)) from None
    except OverflowError as error:
        raise StepTableError(
            f"{estimator.name}: a parameter is too large ({one_line(error)})"
        ) from error
    except (
        AttributeError,
        pl.exceptions.ColumnNotFoundError,
        pl.exceptions.InvalidOperationError,
    ) as error:
        expected = f"to return a LazyFrame with {listed(list(estimator.added.values()))}, from columns that it receives"
        raise StepTableError(
            f"expected the estimator {estimator.name} {expected} ({one_line(error)})"
        ) from error

    # 2. The table's rows in their order, which the function may have changed, with a finite value for each.
    if table.height != steps.height:
        raise StepTableError(
            f"expected {estimator.name} to return all {steps.height} rows, received {table.height}"
        )
    if not table["(row)"].is_sorted():
        table = table.sort("(row)")
    values = table[estimator.column]
    aborted = table["(aborted)"].to_numpy()
    bad = ~(np.isfinite(values.to_numpy()) | aborted)  # NumPy has NaN for null
    if bad.any():
        row = int(bad.argmax())
        expected = f"a finite advantage of {estimator.name} (also in singleton groups)"
        raise StepTableError(f"expected {expected}, received {values[row]}", steps[row])

    # 3. What a function adds to aborted trajectories has no meaning.
    results = pl.col(list(estimator.added))
    if aborted.any():
        results = pl.when(~pl.col("(aborted)")).then(results)
    table = table.select(results)
    return table.to_struct() if table.width > 1 else table.to_series()


# ----------------------------------------------------------------------------------------------------- registration


def estimator(
    name: str | None = None,
    *,
    reads: Names | None = None,
    details: Names = (),
    scores: Sequence[str] = (),
    scope: str = "group",
    in_training: InTraining | None = None,
    smallest_group: int = 1,
    branches: bool = False,
) -> Callable[
    [Callable[Concatenate[pl.LazyFrame, P], pl.LazyFrame]], TypedEstimator[P]
]:
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
        scores: The names of scores (`hgpo_train.scores`) whose columns the function reads, such as ``entropy``.
            Training computes them; the scores of a saved run are those of `hgpo score`.
        scope: ``group`` if an advantage depends only on its group of rollouts, ``batch`` if it depends on all rows of
            one run and iteration.
        in_training: What `hgpo train` calls instead of the function, for an estimator that needs gradients: it receives
            an iteration's steps, the parameters, the model and the metrics of earlier iterations, and returns the steps
            with `advantage` and its own metrics.
        smallest_group: The number of rollouts of a group that `in_training` needs.
        branches: Whether the function takes tables with branches (`hgpo_train.advantages.trees`); others refuse them.

    Raises:
        InputError: Another estimator is registered under this name.
    """

    def decorate(
        function: Callable[Concatenate[pl.LazyFrame, P], pl.LazyFrame],
    ) -> TypedEstimator[P]:
        new = replace(
            as_estimator(function, name),
            reads=_of_parameters(reads),
            optional=_of_parameters(details),
            scores=tuple(scores),
            scope=scope,
            in_training=in_training,
            smallest_group=smallest_group,
            branches=branches,
        )
        return cast("TypedEstimator[P]", _ESTIMATORS.add(new))

    return decorate


def _of_parameters(names: Any) -> Callable[[Any], Any]:  # noqa: ANN401 - `Names | None`
    """Return names as a function of parameters."""
    return names if callable(names) else lambda _: names


def as_estimator(function: object, name: str | None = None) -> Estimator:
    """Return a function as an estimator, without registering it; see `estimator`."""
    if not callable(function) or not inspect.signature(function).parameters:
        expected = "a name, module:function, an Estimator or a function of a LazyFrame"
        raise InputError(
            f"estimator: expected {expected}, received {one_line(repr(function))}"
        )
    name = name or str(getattr(function, "__name__", type(function).__name__))
    if not re.fullmatch(r"[^\s/\\]+", name):  # part of names of files and columns
        raise InputError(
            f"estimator: expected a name without spaces and slashes, received {name!r}"
        )

    # The parameters become the fields of a class, which validates them as any other settings. One of `Parameters` keeps
    # its type, and has the function's default.
    types = get_type_hints(function, include_extras=True) | types_of(Parameters)
    fields = []
    for parameter in list(inspect.signature(function).parameters.values())[1:]:
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:  # SharedOptions
            continue
        if (
            parameter.kind is not inspect.Parameter.KEYWORD_ONLY
            or parameter.default is inspect.Parameter.empty
        ):
            expected = "keyword-only parameters with defaults after the first one"
            raise InputError(
                f"the estimator {name!r}: expected {expected}, received {parameter.name!r}"
            )
        annotation = types.get(
            parameter.name,
            Any if parameter.default is None else type(parameter.default),
        )
        fields.append((parameter.name, annotation, field(default=parameter.default)))
    namespace = {"__module__": function.__module__, "__doc__": inspect.getdoc(function)}
    parameters = make_dataclass(
        name,
        fields,
        bases=(Parameters,),
        frozen=True,
        kw_only=True,
        namespace=namespace,
    )
    return Estimator(name, function, parameters())


def _read(found: object, name: str) -> Estimator:
    """Return a function of another package as an estimator: one of an entry point has its name."""
    estimator = found if isinstance(found, Estimator) else as_estimator(found)
    return estimator if ":" in name else replace(estimator, name=name)


_ESTIMATORS: Final = Registry("hgpo.estimators", "an estimator", _read)


def get(name: str) -> Estimator:
    """Return an estimator by its registered name, or one as ``module:function``, which is imported."""
    known, _, rest = name.partition(":")
    if "=" in rest:
        raise InputError(
            f"estimator: expected a name without parameters, such as {known!r}, received {name!r}"
        )
    return _ESTIMATORS.get(name)


def names(*, scored: bool = False) -> list[str]:
    """Return the names of registered estimators that need a step table only, neither scores nor a model.

    Warn if an entry point cannot be imported.

    Args:
        scored: Whether to add those that read scores.
    """
    # Others cannot be computed from any table, which is what "all" means to a caller.
    found = [_ESTIMATORS.get(name) for name in _ESTIMATORS.names()]
    return [
        each.name
        for each in found
        if each.in_training is None and (scored or not each.scores)
    ]
