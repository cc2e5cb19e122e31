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

from hgpo_train.advantages.input_columns import discounted
from hgpo_train.advantages.windows import within

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hgpo_train.advantages.parameters import Mode

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
    Meta(description="Whether advantages are multiplied by the probability of their step in the tree."),
]

_READ: Final = ("task_key", "trajectory_key", "parent_key", "branch_step", "step", "step_reward")
_ADDED: Final = {"node": pl.Int64(), "children": pl.Float64(), "weight": pl.Float64(), "tree_return": pl.Float64()}


def with_tree(steps: pl.LazyFrame, *, gamma: float, fresh: bool = False) -> pl.LazyFrame:
    """Add the columns of a tree.

    Args:
        steps: A table with the input columns of estimators that take branches.
        gamma: γ, the discount per step.
        fresh: Whether branches and their parent leave different nodes.

    Returns:
        The table with `node` (Int64, the number of the node that the step leaves), `children`, `weight` and
        `tree_return`, Q(t), all Float64. In aborted trajectories they have no meaning.
    """

    def tree(columns: Sequence[pl.Series]) -> pl.Series:
        return _Tree(pl.DataFrame(columns), fresh=fresh).columns(gamma).to_struct()

    added = pl.map_batches(_READ, tree, return_dtype=pl.Struct(_ADDED))
    return steps.with_columns(added.alias("(tree)")).unnest("(tree)")


class _Tree:
    """The trees of all groups of a table, whose rows are numbered.

    Attributes:
        starts: The first row of each trajectory.
        above: Of each trajectory the row of its parent that leaves the same node; -1 if there is none.
        depth: Of each trajectory the number of its ancestors.
    """

    def __init__(self, steps: pl.DataFrame, *, fresh: bool) -> None:
        self.fresh = fresh
        self.rewards = steps["step_reward"].to_numpy()
        keys = steps["trajectory_key"].to_numpy()
        self.starts = np.flatnonzero(np.append(True, keys[1:] != keys[:-1]))
        self.lengths = np.diff(self.starts, append=len(keys))
        self.number = np.repeat(np.arange(len(self.starts)), self.lengths)

        # 1. The row of the parent at which each branch leaves it. An aborted parent has no outcome, and no such row.
        self.whole = steps["task_key"].is_not_null().to_numpy()
        rows = steps.select("trajectory_key", "step").with_row_index("(row)").filter(self.whole)
        firsts = steps[self.starts].select(
            "task_key",
            pl.col("parent_key").alias("trajectory_key"),
            pl.col("branch_step").alias("step"),
        )
        rows = rows.with_columns(pl.col("step").cast(pl.Int64), pl.col("(row)").cast(pl.Int64))
        found = firsts.join(rows, on=["trajectory_key", "step"], how="left", maintain_order="left")
        self.above: Integers = found["(row)"].fill_null(-1).to_numpy()

        # 2. The node of each row is its own, but for first rows, which share theirs: rollouts with their task, branches
        # with their parent, and without it with branches of the same step.
        height = len(keys)
        is_branch = firsts["trajectory_key"].is_not_null().to_numpy()
        shared = firsts.select(pl.struct(pl.all()).rank("dense").cast(pl.Int64)).to_series().to_numpy()
        self.node = np.arange(height)
        self.node[self.starts] = height + shared
        joined = (self.above >= 0) & (not fresh)
        self.node[self.starts[joined]] = self.above[joined]
        counted = np.bincount(self.node[self.whole], minlength=int(self.node.max()) + 1)
        self.children = np.maximum(counted, 1)[self.node].astype(np.float64)
        self.is_root = np.zeros(height, np.bool_)
        self.is_root[self.starts[~is_branch]] = True

        # 3. The depth of each trajectory.
        has_parent = self.above >= 0
        parent = np.where(has_parent, self.number[self.above], 0)
        self.depth: Integers = np.zeros(len(self.starts), np.int64)
        for _ in range(len(self.starts)):
            deeper = np.where(has_parent, self.depth[parent] + 1, 0)
            if (deeper == self.depth).all():
                break
            self.depth = deeper

    def columns(self, gamma: float) -> pl.DataFrame:
        values = (self.node, self.children, self._weights(), self._returns(gamma))
        return pl.DataFrame(dict(zip(_ADDED, values, strict=True)), schema=_ADDED)

    def _rows(self, depth: int) -> tuple[Integers, Integers]:
        """Return the rows of all trajectories of a depth, and the positions of their first rows among these."""
        chosen = self.depth == depth
        rows = np.flatnonzero(chosen[self.number])
        lengths = self.lengths[chosen]
        return rows, np.cumsum(lengths) - lengths

    def _weights(self) -> Floats:
        """Return the weights, from rollouts to the deepest branches."""
        share = pl.Series(np.where(self.is_root, 1.0, 1.0 / self.children))
        own = pl.DataFrame({"number": self.number, "share": share})
        weights: Floats = own.select(pl.col("share").cum_prod().over("number")).to_series().to_numpy().copy()
        for depth in range(1, self.depth.max(initial=0) + 1):
            chosen = self.depth == depth
            above = self.above[chosen]
            before = weights[above]  # of the parent's step, with its share in the node that the branch has, too
            if not self.fresh:
                before = before * self.children[above]
            rows, _ = self._rows(depth)
            weights[rows] *= np.repeat(before, self.lengths[chosen])
        return weights

    def _returns(self, gamma: float) -> Floats:
        """Return Q, from the deepest branches to rollouts."""
        height = len(self.node)
        returns = np.empty(height)
        of_branches = np.zeros(height)  # the sum of Q over the branches that leave a row's node
        for depth in range(self.depth.max(initial=0), -1, -1):
            rows, starts = self._rows(depth)
            # With n steps at the next node, of which one is the trajectory's own: V = (Q + the sum of the others) / n.
            is_last = np.append(self.number[1:] != self.number[:-1], True)[rows]
            following = np.minimum(rows + 1, height - 1)
            n = np.where(is_last, 1.0, self.children[following])
            others = np.where(is_last, 0.0, of_branches[following])
            returns[rows] = discounted(self.rewards[rows] + gamma * others / n, gamma / n, starts)
            if not self.fresh:
                linked = (self.depth == depth) & (self.above >= 0) & self.whole[self.starts]
                np.add.at(of_branches, self.above[linked], returns[self.starts[linked]])
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
        into: The name of the new column (Float64), null in groups with fewer than two rows of a positive weight.
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
    steps = steps.with_columns((w * deviation * deviation).sum().over("(group)").alias("(spread)"))
    total = pl.col("(total)")
    std = (pl.col("(spread)") / (total - ddof * pl.col("(squares)") / total)).sqrt()
    score = deviation / (std + epsilon) if mode == "mean_std_norm" else deviation

    # Sums are rounded: what differs from equal values by rounding alone is exactly 0.
    rounding = 1e-12 * pl.max_horizontal(pl.col("(least)").abs(), pl.col("(most)").abs())
    equal = (pl.col("(most)") - pl.col("(least)") <= rounding) & (deviation.abs() <= rounding)
    score = pl.when(equal).then(0.0).otherwise(score)
    return steps.with_columns(pl.when(pl.col("(group)").is_not_null() & (pl.col("(n)") > 1)).then(score).alias(into))


def leave_one_out(steps: pl.LazyFrame, into: str, value: str) -> pl.LazyFrame:
    """Add x - the mean of the other steps that leave the same node; x itself where there are none."""
    x = pl.col(value)
    node = within("node")
    n = pl.col("children")
    others = (x.sum().over(node) - x) / (n - 1)
    least = x.min().over(node)
    equal = x.max().over(node) - least <= 1e-12 * least.abs()
    compared = pl.when(equal).then(0.0).otherwise(x - others)
    return steps.with_columns(pl.when(n > 1).then(compared).otherwise(x).alias(into))
