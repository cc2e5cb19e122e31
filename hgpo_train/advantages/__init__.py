"""Group advantages of saved steps: `compute(steps, "hgpo", history_length=2)`, and one function an estimator.

Every function takes a step table (lazy or not) and returns a lazy one with a column more. See docs/estimators.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hgpo_train.advantages import estimators
from hgpo_train.advantages.registry import (
    Estimator,
    EstimatorSpec,
    compute,
    compute_many,
    estimator,
    get,
    names,
    register,
)

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "Estimator",
    "EstimatorSpec",
    "compute",
    "compute_many",
    "estimator",
    "estimators",
    "g2po",
    "get",
    "gigpo",
    "graphgpo",
    "grpo",
    "hgpo",
    "names",
    "register",
    "reinforce_pp",
    "rloo",
]


def hgpo(
    steps: pl.LazyFrame | pl.DataFrame, *, column: str = "advantage", details: bool = False, **parameters: object
) -> pl.LazyFrame:
    """Steps against those with the same history of states, level by level: `compute` with `estimators.hgpo.HGPO`."""
    return compute(steps, "hgpo", column=column, details=details, **parameters)


def gigpo(
    steps: pl.LazyFrame | pl.DataFrame, *, column: str = "advantage", details: bool = False, **parameters: object
) -> pl.LazyFrame:
    """Episodes, and steps against those at the same state: `compute` with `estimators.gigpo.GiGPO`."""
    return compute(steps, "gigpo", column=column, details=details, **parameters)


def grpo(
    steps: pl.LazyFrame | pl.DataFrame, *, column: str = "advantage", details: bool = False, **parameters: object
) -> pl.LazyFrame:
    """Episodes against those of the same task: `compute` with `estimators.grpo.GRPO`."""
    return compute(steps, "grpo", column=column, details=details, **parameters)


def g2po(
    steps: pl.LazyFrame | pl.DataFrame, *, column: str = "advantage", details: bool = False, **parameters: object
) -> pl.LazyFrame:
    """Episodes, and gains over the graph of states: `compute` with `estimators.g2po.G2PO`."""
    return compute(steps, "g2po", column=column, details=details, **parameters)


def graphgpo(
    steps: pl.LazyFrame | pl.DataFrame, *, column: str = "advantage", details: bool = False, **parameters: object
) -> pl.LazyFrame:
    """Episodes, and distances to the goal in the graph of states: `compute` with `estimators.graphgpo.GraphGPO`."""
    return compute(steps, "graphgpo", column=column, details=details, **parameters)


def rloo(
    steps: pl.LazyFrame | pl.DataFrame, *, column: str = "advantage", details: bool = False, **parameters: object
) -> pl.LazyFrame:
    """Episodes against the mean of the other ones of the task: `compute` with `estimators.rloo.RLOO`."""
    return compute(steps, "rloo", column=column, details=details, **parameters)


def reinforce_pp(
    steps: pl.LazyFrame | pl.DataFrame, *, column: str = "advantage", details: bool = False, **parameters: object
) -> pl.LazyFrame:
    """Episodes against the whole batch: `compute` with `estimators.reinforce_pp.ReinforcePP`."""
    return compute(steps, "reinforce_pp", column=column, details=details, **parameters)
