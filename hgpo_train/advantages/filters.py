"""The group filter of dynamic sampling (DAPO, arXiv 2503.14476): groups with equal scores give no signal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from hgpo_train.advantages.input_columns import group_keys

if TYPE_CHECKING:
    from collections.abc import Collection


def informative(columns: Collection[str], score: str = "episode_return") -> pl.Expr:
    """Return an expression that is true for groups whose rollouts have different scores; null scores are ignored.

    DAPO drops the other groups and refills the batch. `hgpo rollout --dynamic` does this during collection.

    Args:
        columns: The names of the table's columns, which determine the columns that identify a group.
        score: The column of scores, constant within a rollout.

    >>> table = pl.DataFrame({"task": ["a", "a", "b", "b"], "episode_return": [1.0, 0.0, 1.0, 1.0]})
    >>> table.filter(informative(table.columns))["task"].to_list()
    ['a', 'a']
    """
    return (pl.col(score).max() != pl.col(score).min()).over(group_keys(columns)).fill_null(value=False)
