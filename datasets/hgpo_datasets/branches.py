"""Branches: trajectories that share their first steps with a parent, from which they fork.

A row is stored once. The rows of a branch begin at its `branch_step`, and the steps before are those of its `parent`, a
trajectory of the same group; the parent can be a branch itself. Whoever needs whole trajectories calls `with_prefixes`;
whoever needs independent rollouts calls `roots`. A table without the two columns has no branches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_datasets.schema import GROUP_KEY
from hgpo_envs.errors import InputError

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

DEEPEST: Final = 100
"""Branches of branches up to this depth are read: a table of another origin may name them in a circle."""

_TRAJECTORY: Final = ("run", "trajectory")
_EPISODE: Final = ("episode_return", "episode_length", "episode_won")
"""Columns that are equal in all rows of a trajectory, and that differ between a branch and its parent."""


def has_branches(steps: pl.DataFrame | pl.LazyFrame) -> bool:
    """Return whether a step table has branches."""
    if not set(COLUMNS) <= set(steps.collect_schema()):
        return False
    if isinstance(steps, pl.DataFrame):
        return steps["parent"].null_count() < steps.height
    return not steps.filter(IS_BRANCH).head(1).select("parent").collect().is_empty()


def roots(steps: pl.LazyFrame) -> pl.LazyFrame:
    """Return the rows of a step table without those of branches: its independent rollouts."""
    return steps.filter(~IS_BRANCH) if set(COLUMNS) <= set(steps.collect_schema()) else steps


def with_prefixes(steps: pl.LazyFrame) -> pl.LazyFrame:
    """Add the steps that branches share with their parents, so that every trajectory begins at step 0.

    Args:
        steps: A step table with `trajectory` and `step`, and with `run` if it has several.

    Returns:
        The table with the column `in_prefix` (Boolean), which is true in added rows. These follow all others; they have
        the `trajectory` of the branch, its `parent`, `branch_step` and what is equal in all rows of a trajectory.
        Without branches the rows are unchanged.

    Raises:
        InputError: Branches are nested more than `DEEPEST` deep, as in a circle.

    >>> steps = pl.LazyFrame({"trajectory": ["a", "a", "b"], "step": [0, 1, 1], "parent": [None, None, "a"],
    ...                       "branch_step": [None, None, 1], "action": ["go", "look", "open"]})
    >>> with_prefixes(steps).filter(trajectory="b").sort("step").select("step", "action", "in_prefix").collect().rows()
    [(0, 'go', True), (1, 'open', False)]
    """
    own = steps.with_columns(in_prefix=pl.lit(value=False))
    if not has_branches(steps):
        return own
    columns = steps.collect_schema().names()
    keys = [name for name in _TRAJECTORY if name in columns]
    ancestor = [*keys[:-1], "(ancestor)"]
    shared = [name for name in _EPISODE if name in columns]
    links = steps.filter(IS_BRANCH).select(*keys, *COLUMNS, *shared).unique(keys).collect()

    # Each round adds the rows of the next ancestor: of the parent, then of the parent's parent.
    parents = links.select(*keys[:-1], pl.col("trajectory").alias("(ancestor)"), *_renamed(COLUMNS))
    wanted = links.with_columns(pl.col("parent").alias("(ancestor)"), pl.col("branch_step").alias("(end)"))
    parts = [own]
    for _ in range(DEEPEST):
        kept = [name for name in columns if name not in wanted.columns or name in keys[:-1]]
        rows = steps.select(*kept, pl.col("trajectory").alias("(ancestor)"))
        prefix = rows.join(wanted.lazy(), on=ancestor).filter(pl.col("step") < pl.col("(end)"))
        parts.append(prefix.with_columns(in_prefix=pl.lit(value=True)).select(*columns, "in_prefix"))
        further = wanted.join(parents, on=ancestor)
        wanted = further.with_columns(
            pl.col("(parent)").alias("(ancestor)"),
            pl.min_horizontal("(end)", "(branch_step)").alias("(end)"),
        ).drop(_names(COLUMNS))
        if wanted.is_empty():
            return pl.concat(parts)
    name = wanted["trajectory"][0]
    raise InputError(f"trajectory {name!r}: expected branches nested up to {DEEPEST} deep, received more, or a circle")


def _names(columns: tuple[str, ...]) -> list[str]:
    return [f"({name})" for name in columns]


def _renamed(columns: tuple[str, ...]) -> list[pl.Expr]:
    return [pl.col(name).alias(f"({name})") for name in columns]


def branch_faults(frame: pl.DataFrame, first: NDArray[np.bool_]) -> Iterator[Fault]:
    """Yield the rules of branches, with the rows that violate them. The rows must be sorted.

    Args:
        frame: Whole groups, with all columns of the schema.
        first: The mask of the first row of each trajectory, bool of shape (rows,).
    """
    has_step = pl.col("branch_step").is_not_null()
    same = pl.all_horizontal(pl.col(name).eq_missing(pl.col(name).shift()) for name in COLUMNS)
    inner = pl.lit(pl.Series(~first))
    both = frame.select((has_step != IS_BRANCH) | (inner & ~same)).to_series()
    yield "parent", "expected parent and branch_step in all rows of a branch, and in none of others", both
    if not has_branches(frame):
        return

    # The parent's own row at which the branch leaves it. At its first row, the branch would be one of its own parent.
    at = frame.select(
        *GROUP_KEY,
        pl.col("trajectory").alias("parent"),
        pl.col("step").alias("branch_step"),
        pl.lit(pl.Series(~first)).alias("(known)"),
        *_renamed(("state", "state_hash")),
    )
    rows = frame.with_columns(pl.lit(pl.Series(first)).alias("(first)"))
    rows = rows.join(at, on=[*GROUP_KEY, *COLUMNS], how="left", maintain_order="left")
    is_start = pl.col("(first)") & IS_BRANCH
    lost = rows.select(is_start & ~pl.col("(known)").fill_null(value=False)).to_series()
    other = pl.any_horizontal(pl.col(name) != pl.col(f"({name})") for name in ("state", "state_hash"))
    changed = rows.select(is_start & other).to_series()
    yield "parent", "expected a trajectory of the same group with a step of branch_step after its first one", lost
    yield "branch_step", "expected the state of the parent's step of that number", changed
