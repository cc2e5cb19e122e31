"""Trees of rollouts: which steps leave the same node, how probable a step is in the tree, and returns over branches.

A group is a tree. Its first node is the start of the task, which all rollouts leave. Where branches leave their parent,
they and the parent's own next step leave the same node: they have the same past, and differ in what the policy drew
from there on. Every other node is left by one step.

    children(u)   the number of steps that leave the node u
    Q(t)          r_t + γ V(the next node), and r_t alone at a last step
    V(u)          the mean of Q over the steps that leave u
    weight(t)     the product of 1 / children(u) over the nodes on the way to t and its own, without the first one

V is an unweighted mean because the policy drew each child independently. So Q(t) has the expectation of a return, with
less variance; and steps of a tree, weighted, have the distribution of steps of rollouts, so that a place where much was
branched does not count more than others.

**Fresh branches.** All that holds if steps were chosen without a look at what followed them. If a rule reads outcomes,
the parent's own continuation says why its step was chosen, and is no independent draw (SIPO). With `fresh`, branches
are compared among themselves and never with their parent, and returns above a branch are those of the rollout itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import numpy as np
import polars as pl
from msgspec import Meta

from hgpo_train.advantages.discounting import discounted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hgpo_train.advantages.parameters import Mode

    Booleans = NDArray[np.bool_]
    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]

Fresh = Annotated[
    bool,
    Meta(
        description="Whether branches are compared only with other branches, for runs whose steps were chosen by "
        "outcomes (mixed-outcomes)."
    ),
]
TreeWeights = Annotated[
    bool,
    Meta(
        description="Whether advantages are multiplied by the probability of their step in the tree."
    ),
]

_READ: Final = (
    "task_key",
    "trajectory_key",
    "parent_key",
    "branch_step",
    "step",
    "step_reward",
)
_ADDED: Final = {
    "node": pl.Int64(),
    "children": pl.Float64(),
    "weight": pl.Float64(),
    "tree_return": pl.Float64(),
}


def with_tree(
    steps: pl.LazyFrame, *, gamma: float, fresh: bool = False
) -> pl.LazyFrame:
    """Add the columns of a tree.

    Args:
        steps: A table with the input columns of estimators that take branches.
        gamma: γ, the discount per step.
        fresh: Whether branches and their parent leave different nodes.

    Returns:
        The table with `node` (Int64, the number of the node that the step leaves), `children`, `weight` and
        `tree_return`, Q(t), all Float64. In aborted trajectories they have no meaning.
    """

    def columns(read: Sequence[pl.Series]) -> pl.Series:
        tree = _Tree(pl.DataFrame(read), fresh=fresh)
        values = (tree.node, tree.children, tree.weights(), tree.returns(gamma))
        return pl.DataFrame(
            dict(zip(_ADDED, values, strict=True)), schema=_ADDED
        ).to_struct()

    added = pl.map_batches(_READ, columns, return_dtype=pl.Struct(_ADDED))
    return steps.with_columns(added.alias("(tree)")).unnest("(tree)")


class _Tree:
    """The trees of all groups of a table, whose rows are numbered.

    Attributes:
        whole: Of each row whether its trajectory is not aborted.
        starts: The first row of each trajectory.
        lengths: The number of rows of each trajectory.
        number: Of each row the number of its trajectory.
        above: Of each trajectory the parent's row at which it leaves the parent; -1 if there is none.
        depth: Of each trajectory the number of its ancestors.
        node: Of each row the number of the node that it leaves.
        children: Of each row the number of rows that leave its node, float64.
    """

    def __init__(self, steps: pl.DataFrame, *, fresh: bool) -> None:
        self.fresh = fresh
        self.rewards = steps["step_reward"].to_numpy()
        self.whole = steps["task_key"].is_not_null().to_numpy()
        keys = steps["trajectory_key"].to_numpy()
        changes = np.append(True, keys[1:] != keys[:-1])
        self.starts = np.flatnonzero(changes)
        self.lengths = np.diff(self.starts, append=len(keys))
        self.number = changes.cumsum() - 1
        firsts = steps[self.starts].select(
            "task_key",
            trajectory_key="parent_key",
            step="branch_step",
        )
        self.above = self._found(steps, firsts)
        self.depth = self._depths()
        self.node, is_root = self._nodes(firsts)
        counts = np.bincount(self.node[self.whole], minlength=self.node.max() + 1)
        self.children = np.maximum(counts, 1)[self.node].astype(np.float64)
        self.share = np.where(is_root, 1.0, 1.0 / self.children)

    def _found(self, steps: pl.DataFrame, firsts: pl.DataFrame) -> Integers:
        """Return `above`. An aborted parent has no outcome, and counts as none."""
        rows = steps.select(
            "trajectory_key",
            pl.col("step").cast(pl.Int64),
            pl.int_range(pl.len()).alias("row"),
        )
        rows = rows.filter(self.whole)
        found = firsts.join(
            rows, on=["trajectory_key", "step"], how="left", maintain_order="left"
        )
        above: Integers = found["row"].fill_null(-1).to_numpy()
        return above

    def _depths(self) -> Integers:
        has_parent = self.above >= 0
        parent = self.number[self.above]
        depth = np.zeros(len(self.starts), np.int64)
        while True:
            deeper = np.where(has_parent, depth[parent] + 1, 0)
            # A circle of parents would deepen without end.
            if (deeper == depth).all() or deeper.max() > len(depth):
                return depth
            depth = deeper

    def _nodes(self, firsts: pl.DataFrame) -> tuple[Integers, Booleans]:
        """Return `node`, and whether a row begins a rollout."""
        # A row has a node of its own, but for first rows. Those of rollouts share one with their task, and those of
        # branches with their parent; without the parent, branches of one step share one.
        height = len(self.number)
        together = firsts.select(pl.struct(pl.all()).rank("dense")).to_series()
        node = np.arange(height)
        node[self.starts] = height + together.cast(pl.Int64).to_numpy()
        if not self.fresh:
            linked = self.above >= 0
            node[self.starts[linked]] = self.above[linked]
        is_root = np.zeros(height, np.bool_)
        is_root[self.starts] = firsts["trajectory_key"].is_null().to_numpy()
        return node, is_root

    def weights(self) -> Floats:
        """Return the weight of each row, computed from rollouts to the deepest branches."""
        shares = pl.DataFrame({"number": self.number, "share": self.share})
        own = pl.col("share").cum_prod().over("number")
        weights = shares.select(own).to_series().to_numpy().copy()
        for depth in range(1, self.depth.max() + 1):
            chosen = self.depth == depth
            above = self.above[chosen]
            before = weights[above]
            if not self.fresh:
                # the branch's own first row has the share of the node, too
                before = before / self.share[above]
            rows = np.flatnonzero(chosen[self.number])
            weights[rows] *= np.repeat(before, self.lengths[chosen])
        return weights

    def returns(self, gamma: float) -> Floats:
        """Return Q of each row, computed from the deepest branches to rollouts."""
        height = len(self.number)
        is_last = np.append(self.number[1:] != self.number[:-1], True)
        # children of the next node
        n = np.where(is_last, 1.0, np.roll(self.children, -1))
        returns = np.empty(height)
        # the sum of Q over the branches that leave a row's node
        branches = np.zeros(height)
        for depth in range(self.depth.max(), -1, -1):
            chosen = self.depth == depth
            rows = np.flatnonzero(chosen[self.number])
            starts = np.cumsum(self.lengths[chosen]) - self.lengths[chosen]
            # V of the next node is (Q + the sum of its branches) / n, where Q is the trajectory's own.
            others = np.where(is_last, 0.0, np.roll(branches, -1))
            rewards = self.rewards + gamma * others / n
            returns[rows] = discounted(rewards[rows], gamma / n[rows], starts)
            if not self.fresh:
                linked = chosen & (self.above >= 0) & self.whole[self.starts]
                np.add.at(branches, self.above[linked], returns[self.starts[linked]])
        return returns


def weighted_normalise(
    steps: pl.LazyFrame,
    into: str,
    value: pl.Expr,
    group: pl.Expr,
    *,
    weight: pl.Expr,
    mode: Mode,
    ddof: int,
    epsilon: float,
) -> pl.LazyFrame:
    """Add (x - mean) / (std + ε) within each row's group, or x - mean with ``mean_norm``, with weights.

        mean = Σ w x / Σ w,    std² = Σ w (x - mean)² / (Σ w - ddof · Σ w² / Σ w)

    With equal weights of 1 these are the mean and the standard deviation of `hgpo_train.advantages.windows.normalise`.

    Args:
        steps: A table.
        into: The name of the new column (Float64), null in groups with fewer than two rows of a positive weight, and
            x - mean where the values of those are equal.
        value: The compared value x.
        group: The int64 key of the group; see `hgpo_train.advantages.windows.within`.
        weight: The weight w; rows with weight 0 are compared, and are no part of the sums.
        mode: Whether deviations are divided by the standard deviation.
        ddof: Delta degrees of freedom.
        epsilon: ε.
    """
    x = pl.col("(x)")
    w = pl.col("(w)")
    counts = w > 0
    steps = steps.with_columns(
        group.alias("(group)"),
        value.cast(pl.Float64).alias("(x)"),
        weight.cast(pl.Float64).alias("(w)"),
    )
    steps = steps.with_columns(
        w.sum().over("(group)").alias("(total)"),
        (w * w).sum().over("(group)").alias("(squares)"),
        ((w * x).sum() / w.sum()).over("(group)").alias("(mean)"),
        x.filter(counts).min().over("(group)").alias("(least)"),
        x.filter(counts).max().over("(group)").alias("(most)"),
        counts.sum().over("(group)").alias("(n)"),
    )
    deviation = x - pl.col("(mean)")
    steps = steps.with_columns(
        (w * deviation * deviation).sum().over("(group)").alias("(spread)")
    )
    total = pl.col("(total)")
    std = (pl.col("(spread)") / (total - ddof * pl.col("(squares)") / total)).sqrt()
    score = deviation / (std + epsilon) if mode == "mean_std_norm" else deviation

    # Sums are rounded: what differs from the mean by rounding alone is exactly 0, and so no level of `tree_hgpo`.
    rounding = 1e-12 * pl.max_horizontal(
        pl.col("(least)").abs(), pl.col("(most)").abs()
    )
    is_constant = pl.col("(most)") - pl.col("(least)") <= rounding
    is_equal = deviation.abs() <= rounding
    # A row that is no part of the sums, such as one with a penalty, may differ from equal values: not divided by ε.
    score = (
        pl.when(is_equal).then(0.0).when(is_constant).then(deviation).otherwise(score)
    )
    return steps.with_columns(
        pl.when(pl.col("(group)").is_not_null() & (pl.col("(n)") > 1))
        .then(score)
        .alias(into)
    )
