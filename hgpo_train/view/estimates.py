"""Advantages of a group: by any registered estimator, or those that a training run was trained on.

Both have one form: `columns`, lists with one value per row of the group, in the order of the table.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal, get_args, get_origin

import msgspec
import polars as pl

from hgpo_datasets import scan_steps
from hgpo_datasets.branches import IS_FIRST
from hgpo_datasets.reader import errors
from hgpo_datasets.row_tables import path_of
from hgpo_envs.errors import InputError, unknown
from hgpo_envs.state_keys import STATE_KEYS
from hgpo_train.advantages import Estimator, registry
from hgpo_train.advantages.advantage_tables import (
    FOLDER,
    join_advantages,
    read_metadata,
    trained_advantages,
)
from hgpo_train.advantages.alfworld_nodes import ALFWORLD_NODES
from hgpo_train.advantages.input_columns import prepare
from hgpo_train.advantages.parameters import Parameters
from hgpo_train.scores.tables import with_scores
from hgpo_train.settings import build, descriptions, read_assignments, types_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from hgpo_train.view.index import Index

AS_TRAINED: Final = "trained"
"""The name under which the advantages of training are asked for, in the place of an estimator's."""
RETURNS: Final = ("return", "penalty")
"""Input columns of estimators (`hgpo_train.advantages.input_columns`) that an estimate contains."""
_STEP: Final = ("run", "trajectory", "step")


def estimator_documents(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the name, the summary and the parameters of estimators: names, or ``module:function``.

    Raises:
        InputError: An estimator is unknown.
    """
    documents = []
    for name in names:
        found = registry.get(name)
        parameters = _parameters(type(found.parameters))
        documents.append(
            {"name": name, "summary": found.summary, "parameters": parameters}
        )
    return documents


def _parameters(of: type) -> list[dict[str, Any]]:
    """Describe each parameter: its type, its default, its choices or range, and its meaning."""
    meanings = descriptions(of)
    defaults = of()
    return [
        {
            "name": name,
            "default": _plain(getattr(defaults, name)),
            "meaning": meanings.get(name, ""),
            **_type(hint),
        }
        for name, hint in types_of(of).items()
    ]


def _plain(value: object) -> object:
    return (
        value
        if value is None or isinstance(value, bool | int | float | str)
        else str(value)
    )


def _type(hint: Any) -> dict[str, Any]:  # noqa: ANN401 (any annotation)
    """Return the type of a parameter, and its range or its choices."""
    limits: dict[str, Any] = {}
    if hasattr(hint, "__metadata__"):
        for note in hint.__metadata__:
            if isinstance(note, msgspec.Meta):
                limits["least"] = note.ge if note.ge is not None else note.gt
                limits["most"] = note.le
        hint = get_args(hint)[0]
    if get_origin(hint) is Literal:
        return {"kind": "choice", "choices": list(get_args(hint))}
    names = {bool: "bool", int: "int", float: "float"}
    return {"kind": names.get(hint, "text"), **limits}


def estimator_with(
    name: str, settings: Sequence[str], known: Sequence[str]
) -> Estimator:
    """Return an estimator with its parameters, ``name=value``, if it is known.

    A request must not name a module to import, neither as the estimator nor as its state key.

    Raises:
        InputError: The estimator or a parameter is unknown or invalid.
    """
    if name not in known:
        raise InputError(unknown("estimator", name, known, limit=99))
    estimator = registry.get(name)
    chosen = estimator.with_parameters(
        **read_assignments("parameters", settings, types_of(type(estimator.parameters)))
    )
    key = chosen.parameters.state_key
    if not is_safe_state_key(key):
        raise InputError(unknown("state key", key, (*STATE_KEYS, ALFWORLD_NODES)))
    return chosen


def is_safe_state_key(key: object) -> bool:
    """Return whether a state key imports no module."""
    return key in (None, ALFWORLD_NODES, *STATE_KEYS)


def estimate(index: Index, number: int, estimator: Estimator | None) -> dict[str, Any]:
    """Return the advantages of a group's steps by an estimator; by None, those that the run was trained on.

    A step that was not trained on, such as one of an aborted rollout or of a filtered group, has none.

    Returns:
        ``estimator``, ``parameters`` (all of them), and ``columns``: `advantage`, the estimator's details, and
        `RETURNS`. Values of aborted trajectories are null.

    Raises:
        InputError: The table lacks a column or a depth that the estimator reads, or no advantages of training can be
            read.
    """
    if estimator is None:
        return _trained_estimate(index, number)
    estimator = estimator.with_parameters(column="advantage", details=True)
    _check_depth(index, estimator)
    group = index.group(number)
    if estimator.scope == "batch":
        before = index.groups.filter(
            pl.col("row") < group["row"], run=group["run"], iteration=group["iteration"]
        )
        columns = _batch(index, estimator, group["run"], group["iteration"])
        columns = columns.slice(int(before["rows"].sum()), group["rows"])
    else:
        with errors(index.place):
            steps = with_scores(
                index.lazy(group["row"], group["rows"]), index.files, estimator.scores
            )
            columns = _columns(steps.collect(engine="in-memory"), estimator)
    return _document(estimator.name, vars(estimator.parameters), columns)


def _check_depth(index: Index, estimator: Estimator) -> None:
    depth = getattr(estimator.parameters, "history_length", 0)
    if depth > index.depth:
        most = f"{index.depth}, the depth of the stored contexts"
        raise InputError(
            f"parameter history_length: expected at most {most}, received {depth}"
        )


def _trained_estimate(index: Index, number: int) -> dict[str, Any]:
    run = index.run
    group = index.group(number)
    stored = trained_advantages(run, group["iteration"])
    if stored is None:
        stored = _stored(run).limit(0)  # those of other iterations
    joined = _joined(run, index.lazy(group["row"], group["rows"]), stored)
    if joined.height != group["rows"]:
        raise InputError(
            f"{run / FOLDER}: expected each step once; `hgpo train` writes such tables"
        )

    # Returns are computed with the parameters that the table names. None of them may import a module.
    parameters = _trained_parameters(path_of(run, FOLDER, group["iteration"] + 1))
    known = {
        name: value
        for name, value in parameters.items()
        if name in types_of(Parameters) and name != "state_key"
    }
    with errors(index.place):
        table = index.lazy(group["row"], group["rows"]).collect(engine="in-memory")
        returns = _returns(table, build(Parameters, known, "parameter"))
    return _document(AS_TRAINED, parameters, joined.hstack(returns))


def rollout_estimates(
    index: Index, estimator: Estimator | None
) -> dict[str, list[Any]]:
    """Return columns of each rollout of a run that need its steps.

    Args:
        index: The run.
        estimator: The estimator; None for the advantages of training.

    Returns:
        ``spread``, the largest advantage of a rollout's steps minus the smallest, and ``tokens``, the number of tokens
        in its responses; null where unknown.

    Raises:
        InputError: As `estimate`.
    """
    steps = scan_steps(index.files)
    with errors(index.place):
        if estimator is not None:
            _check_depth(index, estimator)
            scored = with_scores(steps, index.files, estimator.scores)
            advantages = (
                registry.compute(scored, estimator, column="advantage")
                .select("advantage")
                .collect()
            )
        else:
            advantages = _joined(index.run, steps, _stored(index.run))
        tokens = pl.col("response_token_ids").list.len()
        counted = steps.select("step", "branch_step", tokens=tokens).collect()
    values = counted.with_columns(advantages["advantage"])
    of_rollouts = values.group_by(IS_FIRST.cum_sum(), maintain_order=True).agg(
        (pl.col("advantage").max() - pl.col("advantage").min()).alias("spread"),
        pl.when(pl.col("tokens").count() > 0).then(pl.col("tokens").sum()),
    )
    return of_rollouts.select("spread", "tokens").to_dict(as_series=False)


def _stored(run: Path) -> pl.LazyFrame:
    """Return the advantages that a run was trained on."""
    stored = trained_advantages(run)
    if stored is None:
        raise InputError(
            f"{run}: expected the advantages of a training run in the folder {FOLDER!r}, found none"
        )
    return stored


def _joined(run: Path, steps: pl.LazyFrame, stored: pl.LazyFrame) -> pl.DataFrame:
    """Return the stored advantage and its parts of each step."""
    with errors(run / FOLDER):
        names = [
            name for name in stored.collect_schema() if name.startswith("advantage")
        ]
        values = stored.select(
            *_STEP, pl.col(names).cast(pl.Float64).name.replace("^advantage_", "")
        )
        return (
            join_advantages(steps.select(_STEP), values)
            .drop(_STEP)
            .collect(engine="in-memory")
        )


class _Column(msgspec.Struct):
    parameters: dict[str, Any] = {}


class _Metadata(msgspec.Struct):
    columns: dict[str, _Column] = {}


def _trained_parameters(table: Path) -> dict[str, Any]:
    """Return the parameters of an iteration's advantages; none if nothing of it was trained on."""
    if not table.is_file():
        return {}
    with errors(table):
        columns = msgspec.convert(read_metadata(table), _Metadata).columns
    return columns.get("advantage", _Column()).parameters


def _document(
    name: str, parameters: dict[str, Any], columns: pl.DataFrame
) -> dict[str, Any]:
    return {
        "estimator": name,
        "parameters": {key: _plain(value) for key, value in parameters.items()},
        "columns": columns.to_dict(as_series=False),
    }


def _columns(table: pl.DataFrame, estimator: Estimator) -> pl.DataFrame:
    """Return the advantages, details and returns of a table, in the order of its rows."""
    estimated = (
        estimator(table).select(list(estimator.added)).collect(engine="in-memory")
    )
    return estimated.rename(estimator.added).hstack(
        _returns(table, estimator.parameters)
    )


def _returns(table: pl.DataFrame, parameters: Parameters) -> pl.DataFrame:
    found = (
        prepare(table, parameters, (), branches=True)
        .select("(row)", *RETURNS)
        .collect(engine="in-memory")
    )
    return found.sort("(row)").drop("(row)")


@lru_cache(8)
def _batch(
    index: Index, estimator: Estimator, run: str, iteration: int
) -> pl.DataFrame:
    """Return the estimate of one iteration, which such an estimator needs as a whole."""
    with errors(index.place):
        steps = scan_steps(index.files).filter(run=run, iteration=iteration)
        steps = with_scores(steps, index.files, estimator.scores)
        return _columns(steps.collect(engine="in-memory"), estimator)
