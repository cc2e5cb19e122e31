"""Advantages of a group by any registered estimator, and the parameters that a page can offer."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

import polars as pl
from msgspec import Meta

from hgpo_datasets import scan_steps
from hgpo_datasets.reader import errors
from hgpo_envs.errors import InputError, unknown
from hgpo_envs.state_keys import STATE_KEYS
from hgpo_train.advantages import registry
from hgpo_train.advantages.alfworld_nodes import ALFWORLD_NODES
from hgpo_train.advantages.input_columns import prepare
from hgpo_train.scores.tables import with_scores
from hgpo_train.settings import descriptions, read_assignments, types_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_train.advantages import Estimator
    from hgpo_train.view.index import Index

RETURNS: Final = ("return", "penalty")
"""Input columns of estimators (`hgpo_train.advantages.input_columns`) that an estimate contains."""


def estimator_documents(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the name, the summary, the scope and the parameters of estimators: names, or ``module:function``.

    Raises:
        InputError: An estimator is unknown.
    """
    estimators = {name: registry.get(name) for name in names}
    return [
        {"name": name, "summary": each.summary, "scope": each.scope, "parameters": _parameters(type(each.parameters))}
        for name, each in estimators.items()
    ]


def _parameters(of: type) -> list[dict[str, Any]]:
    """Describe each parameter: its type, its default, its choices or range, and its meaning."""
    meanings = descriptions(of)
    defaults = of()
    return [
        {"name": name, "default": _plain(getattr(defaults, name)), "meaning": meanings.get(name, ""), **_type(hint)}
        for name, hint in types_of(of).items()
    ]


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _type(hint: Any) -> dict[str, Any]:  # noqa: ANN401 (any annotation)
    """Return the type of a parameter, and its range or its choices."""
    limits: dict[str, Any] = {}
    if hasattr(hint, "__metadata__"):
        for note in hint.__metadata__:
            if isinstance(note, Meta):
                limits |= {"least": note.ge if note.ge is not None else note.gt, "most": note.le}
        hint = get_args(hint)[0]
    if get_origin(hint) is Literal:
        return {"kind": "choice", "choices": list(get_args(hint))}
    names = {bool: "bool", int: "int", float: "float"}
    return {"kind": names.get(hint, "text"), **limits}


def estimator_with(name: str, settings: Sequence[str], known: Sequence[str]) -> Estimator:
    """Return an estimator with its parameters, ``name=value``, if it is known.

    A request must not name a module to import, neither as the estimator nor as its state key.

    Raises:
        InputError: The estimator or a parameter is unknown or invalid.
    """
    if name not in known:
        raise InputError(unknown("estimator", name, known, limit=99))
    estimator = registry.get(name)
    chosen = estimator.with_parameters(**read_assignments("parameters", settings, types_of(type(estimator.parameters))))
    if (key := chosen.parameters.state_key) not in (None, ALFWORLD_NODES, *STATE_KEYS):
        raise InputError(unknown("state key", key, (*STATE_KEYS, ALFWORLD_NODES)))
    return chosen


def estimate(index: Index, number: int, estimator: Estimator) -> dict[str, Any]:
    """Return the advantages of a group's steps.

    Returns:
        ``parameters`` (all of them), and ``columns``: `advantage`, the estimator's details, and `RETURNS`, one value
        per row of the group, in the order of the table. Values of aborted trajectories are null.

    Raises:
        InputError: The table lacks a column or a depth that the estimator reads.
    """
    estimator = estimator.with_parameters(column="advantage", details=True)
    parameters = vars(estimator.parameters)
    depth = parameters.get("history_length", 0)
    if depth > index.depth:
        most = f"{index.depth}, the depth of the stored contexts"
        raise InputError(f"parameter history_length: expected at most {most}, received {depth}")
    group = index.group(number)
    if estimator.scope == "batch":
        numbers, columns = _batch(index, estimator, group["run"], group["iteration"])
        columns = columns.slice(int(numbers.search_sorted(group["row"])), group["rows"])
    else:
        steps = with_scores(index.lazy(group["row"], group["rows"]), list(index.files), estimator.scores)
        columns = _columns(steps, estimator)
    return {
        "estimator": estimator.name,
        "parameters": {key: _plain(value) for key, value in parameters.items()},
        "columns": columns.to_dict(as_series=False),
    }


def _columns(steps: pl.LazyFrame, estimator: Estimator) -> pl.DataFrame:
    with errors("the step table"):
        table = steps.collect(engine="in-memory")
        returns = prepare(table, estimator.parameters, ()).select("(row)", *RETURNS).collect(engine="in-memory")
        estimated = estimator(table).select(list(estimator.added)).collect(engine="in-memory")
    return estimated.rename(estimator.added).hstack(returns.sort("(row)").drop("(row)"))


@lru_cache(8)
def _batch(index: Index, estimator: Estimator, run: str, iteration: int) -> tuple[pl.Series, pl.DataFrame]:
    """Return the row numbers and the estimate of one iteration, which such an estimator needs as a whole."""
    own = (pl.col("run") == run) & (pl.col("iteration") == iteration)
    with errors("the step table"):
        steps = scan_steps(index.files)
        numbers = steps.select("run", "iteration").with_row_index("row").filter(own).select("row").collect()["row"]
    return numbers, _columns(with_scores(steps.filter(own), list(index.files), estimator.scores), estimator)
