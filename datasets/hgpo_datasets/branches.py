"""Branches: trajectories that share their first steps with a parent, from which they fork.

A row is stored once. The rows of a branch begin at its `branch_step`, and the steps before are those of its `parent`, a
trajectory of the same group; the parent can be a branch itself. Whoever needs whole trajectories calls `with_prefixes`;
whoever needs independent rollouts calls `roots`. A table without the two columns has no branches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_datasets.schema import GROUP_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from hgpo_datasets.rows import Fault

COLUMNS: Final = ("parent", "branch_step")

IS_BRANCH: Final = pl.col("parent").is_not_null()
"""Whether a row is of a branch."""

IS_FIRST: Final = pl.col("step") == pl.col("branch_step").fill_null(0)
"""Whether a row is the first one of its trajectory that is stored."""

_OF_TRAJECTORY: Final = (
    *COLUMNS,
    "episode_return",
    "episode_length",
    "episode_won",
)
"""Columns that are equal in all rows of a trajectory, and that differ between a branch and its parent."""


def has_branches(steps: pl.DataFrame | pl.LazyFrame) -> bool:
    """Return whether a step table has branches."""
    if not set(COLUMNS) <= set(steps.collect_schema()):
        return False
    found = steps.lazy().filter(IS_BRANCH).head(1)
    return not found.select("parent").collect().is_empty()


def roots(steps: pl.LazyFrame) -> pl.LazyFrame:
    """Return the rows of a step table without those of branches: its independent rollouts."""
    if not set(COLUMNS) <= set(steps.collect_schema()):
        return steps
    return steps.filter(~IS_BRANCH)


def with_prefixes(steps: pl.DataFrame | pl.LazyFrame) -> pl.DataFrame:
    """Add the steps that branches share with their parents, so that every trajectory begins at step 0.

    Args:
        steps: A step table with `trajectory` and `step`, and with `run` if it has several.

    Returns:
        The table with the column `in_prefix` (Boolean), which is true in added rows. These follow all others, and have
        the `trajectory` of the branch and what is equal in all its rows. Without branches the rows are unchanged.

    >>> steps = pl.DataFrame({"trajectory": ["a", "a", "b"], "step": [0, 1, 1], "parent": [None, None, "a"],
    ...                       "branch_step": [None, None, 1], "action": ["go", "look", "open"]})
    >>> with_prefixes(steps).filter(trajectory="b").sort("step").select("step", "action", "in_prefix").rows()
    [(0, 'go', True), (1, 'open', False)]
    """
    own = steps.lazy().collect().with_columns(in_prefix=pl.lit(value=False))
    if not has_branches(own):
        return own
    run = ["run"] if "run" in own.columns else []
    equal = [name for name in _OF_TRAJECTORY if name in own.columns]
    branches = own.filter(IS_BRANCH).unique([*run, "trajectory"])
    branches = branches.select(*run, "trajectory", *equal)

    # A parent that is a branch has its own prefix one round earlier. Steps only decrease, so that no round is the last
    # one before all prefixes are whole, and a circle of parents ends the rounds, too.
    whole = own
    while True:
        parents = whole.drop(*equal, "in_prefix").rename({"trajectory": "parent"})
        shared = branches.join(parents, on=[*run, "parent"])
        shared = shared.filter(pl.col("step") < pl.col("branch_step"))
        shared = shared.with_columns(in_prefix=pl.lit(value=True))
        longer = pl.concat([own, shared.select(own.columns)])
        if longer.height == whole.height:
            return whole
        whole = longer


def branch_faults(frame: pl.DataFrame, first: NDArray[np.bool_]) -> Iterator[Fault]:
    """Yield the rules of branches, with the rows that violate them. The rows must be sorted.

    Args:
        frame: Whole groups, with all columns of the schema.
        first: The mask of the first row of each trajectory, bool of shape (rows,).
    """
    is_first = pl.lit(pl.Series(first))
    same = [pl.col(name).eq_missing(pl.col(name).shift()) for name in COLUMNS]
    alone = pl.col("branch_step").is_not_null() != IS_BRANCH
    varies = ~is_first & ~pl.all_horizontal(same)
    expected = (
        "expected parent and branch_step in all rows of a branch, and in none of others"
    )
    yield "parent", expected, frame.select(alone | varies).to_series()
    if not has_branches(frame):
        return

    # The parent's own row at which the branch leaves it. At its first row, the branch would be one of its own parent.
    left = frame.filter(~first).select(
        *GROUP_KEY,
        pl.col("trajectory").alias("parent"),
        pl.col("step").alias("branch_step"),
        pl.col("state").alias("(state)"),
        pl.col("state_hash").alias("(hash)"),
        pl.lit(value=True).alias("(known)"),
    )
    keys = [*GROUP_KEY, *COLUMNS]
    left = left.unique(keys)  # a damaged table can have a step twice
    rows = frame.join(left, on=keys, how="left", maintain_order="left")
    begins = is_first & IS_BRANCH
    lost = rows.select(begins & pl.col("(known)").is_null()).to_series()
    yield (
        "parent",
        "expected a trajectory of the same group with a step of branch_step after its first one",
        lost,
    )
    other = (pl.col("state") != pl.col("(state)")) | (
        pl.col("state_hash") != pl.col("(hash)")
    )
    changed = rows.select(begins & other).to_series()
    yield (
        "branch_step",
        "expected the state of the parent's step of that number",
        changed,
    )
