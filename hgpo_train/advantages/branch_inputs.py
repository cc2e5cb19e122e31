"""Branches in the input of estimators: their whole trajectories, and where they leave their parents.

`hgpo_datasets.branches` describes how a step table stores branches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_envs.errors import InputError
from hgpo_train.advantages.windows import key

if TYPE_CHECKING:
    from collections.abc import Collection

COLUMNS: Final = frozenset({"parent", "branch_step"})
"""The columns of branches. A table that has only one of them means something else by it, and has no branches."""


def with_parents(steps: pl.DataFrame, name: str, *, accepted: bool) -> pl.DataFrame:
    """Add `in_prefix`, and after all other rows those of the steps that branches share with their parents.

    Args:
        steps: A step table with branches.
        name: The estimator, for error messages.
        accepted: Whether it takes branches.

    Raises:
        InputError: The estimator takes no branches, or a parent is not in the table.
    """
    # tables without branches need none of the package
    from hgpo_datasets.branches import IS_BRANCH, with_prefixes

    # Other programs write numbers with nulls as floats, and names in other types. What is neither finds no parent.
    steps = steps.with_columns(
        pl.col("parent").cast(steps.schema["trajectory"], strict=False),
        pl.col("branch_step").cast(pl.Int64, strict=False),
        pl.col("step").cast(pl.Int64),
    )
    run = ["run"] if "run" in steps.columns else []
    branches = steps.filter(IS_BRANCH).unique([*run, "trajectory"], maintain_order=True)
    if not accepted:
        raise InputError(
            f"{branches.height} trajectories are branches, whose first steps are those of their parents: {name} would "
            "count them as rollouts; use carl, tree_loo, tree_grpo or tree_hgpo, or the run without branches"
        )
    known = steps.select(*run, parent="trajectory", branch_step="step")
    lost = branches.join(known, on=[*run, *COLUMNS], how="anti", maintain_order="left")
    if lost.height:
        branch, parent, step = lost.select("trajectory", "parent", "branch_step").row(0)
        expected = f"step {step} of its parent {parent!r} in the table"
        raise InputError(
            f"trajectory {branch!r}: expected {expected}, received none; keep whole groups together"
        )
    return with_prefixes(steps)


def parent_columns(schema: Collection[str]) -> dict[str, pl.Expr]:
    """Return `parent_key` and `branch_step`, which are null if the table has no branches."""
    if not set(schema) >= COLUMNS:
        nothing = pl.lit(None, pl.Int64)
        return {"parent_key": nothing, "branch_step": nothing}
    parent = key(name for name in ("run", "parent") if name in schema)
    is_branch = pl.col("parent").is_not_null()
    return {
        "parent_key": pl.when(is_branch).then(parent),
        "branch_step": pl.col("branch_step").cast(pl.Int64),
    }
