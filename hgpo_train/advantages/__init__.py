"""Group advantages of saved steps: `compute(steps, "hgpo", history_length=2)`, and one function an estimator.

Every function takes a step table (lazy or not) and returns a lazy one with a column more. See docs/estimators.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hgpo_train.advantages import estimators
from hgpo_train.advantages.registry import Estimator, Job, Needs, carry_out, compute, get, names, register

if TYPE_CHECKING:
    import polars as pl

__all__ = [
    "Estimator",
    "Job",
    "Needs",
    "carry_out",
    "compute",
    "estimators",
    "get",
    "grpo",
    "hgpo",
    "names",
    "register",
]


def hgpo(
    steps: pl.LazyFrame | pl.DataFrame, *, column: str = "advantage", details: bool = False, **parameters: object
) -> pl.LazyFrame:
    """HGPO: `compute(steps, "hgpo", …)`, with the parameters of `estimators.hgpo.HGPO`."""
    return compute(steps, "hgpo", column=column, details=details, **parameters)


def grpo(
    steps: pl.LazyFrame | pl.DataFrame, *, column: str = "advantage", details: bool = False, **parameters: object
) -> pl.LazyFrame:
    """GRPO: `compute(steps, "grpo", …)`, with the parameters of `estimators.grpo.GRPO`."""
    return compute(steps, "grpo", column=column, details=details, **parameters)
