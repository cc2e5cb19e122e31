"""Group advantages of step tables: `compute(steps, "hgpo", history_length=2)`, and one function per estimator.

Each function takes a step table (a LazyFrame or DataFrame) and returns a LazyFrame with an additional column. See
docs/estimators.md.
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

    from hgpo_train.advantages.tables import StepTable

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


def hgpo(steps: StepTable, *, column: str = "advantage", details: bool = False, **parameters: object) -> pl.LazyFrame:
    """Compare steps with equal histories of states, for several depths: `compute` with `estimators.hgpo.HGPO`."""
    return compute(steps, "hgpo", column=column, details=details, **parameters)


def gigpo(steps: StepTable, *, column: str = "advantage", details: bool = False, **parameters: object) -> pl.LazyFrame:
    """Compare episodes of a task, and steps in the same state: `compute` with `estimators.gigpo.GiGPO`."""
    return compute(steps, "gigpo", column=column, details=details, **parameters)


def grpo(steps: StepTable, *, column: str = "advantage", details: bool = False, **parameters: object) -> pl.LazyFrame:
    """Compare episodes of a task: `compute` with `estimators.grpo.GRPO`."""
    return compute(steps, "grpo", column=column, details=details, **parameters)


def g2po(steps: StepTable, *, column: str = "advantage", details: bool = False, **parameters: object) -> pl.LazyFrame:
    """Compare episodes of a task, and gains along the edges of its state graph.

    See `compute` with `estimators.g2po.G2PO`.
    """
    return compute(steps, "g2po", column=column, details=details, **parameters)


def graphgpo(
    steps: StepTable, *, column: str = "advantage", details: bool = False, **parameters: object
) -> pl.LazyFrame:
    """Compare episodes of a task, and distances to the goal in its state graph.

    See `compute` with `estimators.graphgpo.GraphGPO`.
    """
    return compute(steps, "graphgpo", column=column, details=details, **parameters)


def rloo(steps: StepTable, *, column: str = "advantage", details: bool = False, **parameters: object) -> pl.LazyFrame:
    """Compare each episode with the mean of the task's other episodes: `compute` with `estimators.rloo.RLOO`."""
    return compute(steps, "rloo", column=column, details=details, **parameters)


def reinforce_pp(
    steps: StepTable, *, column: str = "advantage", details: bool = False, **parameters: object
) -> pl.LazyFrame:
    """Compare episodes of the whole batch: `compute` with `estimators.reinforce_pp.ReinforcePP`."""
    return compute(steps, "reinforce_pp", column=column, details=details, **parameters)
