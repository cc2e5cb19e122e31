"""Check that a table has the columns that estimators read, and name all missing ones in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from hgpo_envs.errors import InputError
from hgpo_envs.wording import listed
from hgpo_train.advantages.registry import columns_read, compute_many

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_train.advantages.registry import EstimatorSpec


class _Column(NamedTuple):
    dtype: pl.DataType
    meaning: str
    instead: tuple[str, ...] = ()  # columns that can replace it


_COLUMNS: Final = {
    "task_id": _Column(pl.String(), "text: the task that was played", ("task",)),
    "trajectory": _Column(pl.String(), "text: the rollout that the step belongs to"),
    "step": _Column(pl.Int64(), "an integer: the step's number in its rollout"),
    "reward": _Column(pl.Float64(), "a number: the step's reward"),
    "won": _Column(pl.Boolean(), "true or false: at a rollout's last step, whether it succeeded"),
    "score": _Column(pl.Float64(), "a number: at a rollout's last step, the benchmark's score"),
    "action_valid": _Column(pl.Boolean(), "true or false: whether the environment accepted the action"),
    "state": _Column(pl.String(), "text: what was observed before the action", ("state_hash",)),
    "action": _Column(pl.String(), "text: the action", ("action_hash",)),
}
"""The columns of docs/estimators.md that have no default."""


def check_columns(schema: pl.Schema, specs: Sequence[EstimatorSpec]) -> None:
    """Check that a table has the columns that some estimators read.

    Args:
        schema: The table's columns.
        specs: The estimators.

    Raises:
        InputError: Columns are missing; the line names all of them and says what to put into them.
    """
    absent = {
        name: column
        for name, column in _COLUMNS.items()
        if name not in schema and schema.keys().isdisjoint(column.instead)
    }
    if not absent:
        return
    complete = pl.Schema({**schema, **{name: column.dtype for name, column in absent.items()}})
    try:
        compute_many(pl.LazyFrame(schema=complete), specs)
    except InputError:
        return  # another error of the table, which is raised when advantages are computed
    read = columns_read(complete, specs)
    missing = [f"`{name}` ({column.meaning})" for name, column in absent.items() if name in read]
    if missing:
        names = listed([spec.estimator.name for spec in specs])
        raise InputError(
            f"the table has no {listed(missing)}, which {names} {'reads' if len(specs) == 1 else 'read'}; it has "
            f"{', '.join(schema) or 'no columns'}. Rename or add columns, for example in Polars: "
            'table.rename({"game": "task_id"}).with_columns(action_valid=True)'
        )
