"""Branches in the input of estimators: their whole trajectories, and where they leave their parents.

`hgpo_datasets.branches` describes how a step table stores branches. Tables without branches are not changed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_envs.errors import InputError
from hgpo_train.advantages.windows import key

COLUMNS: Final = frozenset({"parent", "branch_step"})
"""The columns of branches. A table that has only one of them means something else by it, and has no branches."""

if TYPE_CHECKING:
    from collections.abc import Collection


def have_branches(schema: Collection[str]) -> bool:
    """Return whether a table can have branches."""
    return set(schema) >= COLUMNS


def check_branch_types(schema: pl.Schema) -> None:
    """Raise `InputError` if the columns of branches have types that cannot be used as what they mean."""
    if not have_branches(schema):
        return
    if schema["parent"] not in (schema["trajectory"], pl.Null()):
        expected = f"{schema['trajectory']}, the type of trajectory"
        raise InputError(f"column parent: expected {expected}, received {schema['parent']}; convert it with cast")
    if not (schema["branch_step"].is_numeric() or schema["branch_step"] == pl.Null()):  # pandas has floats for nulls
        raise InputError(f"column branch_step: expected integers, received {schema['branch_step']}; use cast")


def with_parents(steps: pl.DataFrame, name: str, *, accepted: bool) -> pl.DataFrame:
    """Add `in_prefix`, and after all other rows those of the steps that branches share with their parents.

    Args:
        steps: A step table.
        name: The estimator, for error messages.
        accepted: Whether it takes branches.

    Returns:
        The table; unchanged, and without the new column, if it has no branches.

    Raises:
        InputError: The estimator takes no branches, or a parent is not in the table.
    """
    if not have_branches(steps.columns) or steps["parent"].null_count() == steps.height:
        return steps
    from hgpo_datasets.branches import with_prefixes  # tables without branches need none of the package

    keys = [column for column in ("run",) if column in steps.columns]
    branches = steps.filter(pl.col("parent").is_not_null()).unique([*keys, "trajectory"], maintain_order=True)
    if not accepted:
        raise InputError(
            f"{branches.height} trajectories are branches, whose first steps are those of their parents: {name} would "
            "count them as rollouts; use carl, tree_loo, tree_grpo or tree_hgpo, or the run without branches"
        )
    known = steps.select(
        *keys,
        pl.col("trajectory").alias("parent"),
        pl.col("step").cast(branches.schema["branch_step"]).alias("branch_step"),
    )
    lost = branches.join(known, on=[*keys, *COLUMNS], how="anti", maintain_order="left")
    if lost.height:
        branch, parent, step = lost.select("trajectory", "parent", "branch_step").row(0)
        expected = f"step {step} of its parent {parent!r} in the table"
        raise InputError(f"trajectory {branch!r}: expected {expected}, received none; keep whole groups together")
    return with_prefixes(steps.lazy()).collect()


def parent_columns(schema: Collection[str]) -> list[pl.Expr]:
    """Return `parent_key` and `branch_step`, which are null where a trajectory is no branch."""
    if not have_branches(schema):
        return [pl.lit(None, pl.Int64).alias("parent_key"), pl.lit(None, pl.Int64).alias("branch_step")]
    parent = key(name for name in ("run", "parent") if name in schema)
    return [
        pl.when(pl.col("parent").is_not_null()).then(parent).alias("parent_key"),
        pl.col("branch_step").cast(pl.Int64),
    ]
