"""Dynamic sampling's group filter (DAPO, arXiv 2503.14476): groups whose rollouts all score the same teach nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from hgpo_train.advantages.input_columns import group_keys

if TYPE_CHECKING:
    from collections.abc import Collection


def informative(columns: Collection[str], score: str = "episode_return") -> pl.Expr:
    """True on the rows of groups whose rollouts do not all have the same score; rows without one are not counted.

    DAPO drops the other groups and refills the batch; `hgpo rollout --dynamic` does so while collecting.

    Args:
        columns: The table's columns, for what names a group.
        score: A column that is the same on all rows of a rollout.

    >>> table = pl.DataFrame({"task": ["a", "a", "b", "b"], "episode_return": [1.0, 0.0, 1.0, 1.0]})
    >>> table.filter(informative(table.columns))["task"].to_list()
    ['a', 'a']
    """
    return (pl.col(score).max() != pl.col(score).min()).over(group_keys(columns)).fill_null(value=False)
