"""GraphGPO: distances to the goal in a graph of states (arXiv 2605.26684; recipe/GraphGPO of verl-agent).

The states of a task are nodes. Each step is an edge of length 1 from its state to the next one. The last step of an
episode with a reward above 0 leads to the goal. d(s) is the minimum number of edges from s to the goal:

    R_t = 10 γ^d(s_{t+1})                                  or, with `normalize_distance`,
    R_t = 10 γ^(d(s_{t+1}) - d(s_t) + 1)
    A_step(t) = (R_t - c_t - mean) / (std + ε)             over the steps of the task in the same state; c_t is the
                                                           penalty of an invalid action; no division for `mean_norm`
    A(t) = w_episode A_episode(t) + w_step A_step(t)       a term with the weight 0 is skipped

A_episode is the advantage of GRPO (`grpo.py`).

Special cases, as in the official code: the variance's divisor is n - 1; A_step is 0 in singleton groups. If no path
leads from a node to the goal, its distance is the task's largest finite distance + 1, which is 1 in a task without a
success. The last step of a failed episode leads to its `next_state` if that is known, else it is not an edge. Step
rewards only affect episode scores. With `similarity`, states with similar texts are one node, but steps are compared
with steps in equal states.

Differences of paper and code: the paper credits the *reduction* of the distance (`normalize_distance`); the official
default credits the distance itself. With γ = 0.1, most differences between returns are smaller than the penalty of 0.1.
The official code represents the goal by the text "success", so a state with this text (or a similar one, with
`similarity`) is the goal; choose a `goal_text` that differs from all states to avoid this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from hgpo_envs import hashing
from hgpo_envs.errors import InputError
from hgpo_train.advantages.estimators.gigpo import weighted_parts
from hgpo_train.advantages.estimators.grpo import episode_level
from hgpo_train.advantages.input_columns import penalised, power
from hgpo_train.advantages.parameters import Discount, Mode, Parameters
from hgpo_train.advantages.registry import Estimator, register
from hgpo_train.advantages.similarity import TextClusters, number_by_task, order_by_name
from hgpo_train.advantages.trajectories import batches, neighbour, steps_left
from hgpo_train.advantages.windows import Level, chain, normalise, within

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class GraphGPO(Parameters):
    """The parameters of GraphGPO, in addition to those of returns.

    Attributes:
        gamma: γ, the discount per edge; the official scripts use 0.10 for ALFWorld and 0.20 for WebShop.
        mode: ``mean_std_norm`` divides deviations by the standard deviation, ``mean_norm`` does not.
        step_weight: The weight of the step term; 0 skips it.
        episode_weight: The weight of the episode term; 0 skips it.
        normalize_distance: Whether returns depend on the reduction of the distance instead of the distance.
        cross_steps: Whether the episode term's mean and std are over all rows of the task (the official default); if
            false, over one row per trajectory.
        similarity: Whether states with similar texts are one node.
        similarity_threshold: The minimum ratio of similar texts, in (0, 1).
        success: Which episodes end in the goal: those with a ``positive`` reward, or those whose reward is the ``full``
            `success_reward`.
        success_reward: The return of a step to the goal.
        goal_text: The text of the goal. A state with this text is the goal.
        ddof: Delta degrees of freedom of the standard deviation: the divisor is n - ddof.
    """

    gamma: Discount = 0.1
    mode: Mode = "mean_std_norm"
    step_weight: float = 1.0
    episode_weight: float = 1.0
    normalize_distance: bool = False
    cross_steps: bool = True
    similarity: bool = False
    similarity_threshold: float = 0.95
    success: Literal["positive", "full"] = "positive"
    success_reward: float = 10.0
    goal_text: str = "success"
    ddof: Literal[0, 1] = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.normalize_distance and not self.gamma:
            raise InputError("parameter gamma: expected a number above 0 with normalize_distance, received 0")


def graphgpo_advantages(steps: pl.LazyFrame, p: GraphGPO) -> pl.LazyFrame:
    """Add `advantage`, its terms `episode` and `step`, and the `distance` from the step's next state to the goal."""
    steps = steps.with_columns(search(p, steps.collect_schema()).alias("(search)"))
    steps = steps.with_columns(pl.col("(search)").struct.unnest())
    steps = steps.with_columns(pl.max_horizontal("(from)", "(to)").alias("(farther)"))
    farthest = pl.col("(farther)").max().over("task_key").fill_null(0.0)
    before, after = (pl.col(name).fill_null(farthest + 1) for name in ("(from)", "(to)"))
    steps = steps.with_columns((after - before + 1 if p.normalize_distance else after).alias("(edges)"), distance=after)
    value = penalised(p.success_reward * power(p.gamma, pl.col("(edges)")), p)
    levels = {
        "episode": episode_level(p, mode=p.mode, cross_steps=p.cross_steps, lone_scale=1 + p.epsilon),
        "step": Level(value, ["state_hash"], alone=pl.lit(0.0)),
    }
    steps = normalise(steps, levels, mode=p.mode, ddof=p.ddof, epsilon=p.epsilon)
    return weighted_parts(steps, {"episode": p.episode_weight, "step": p.step_weight})


def search(p: GraphGPO, columns: Collection[str]) -> pl.Expr:
    """Return the distances from each step's state, `(from)`, and next state, `(to)`, to the goal.

    A distance is null if no path leads to the goal, or if the next state is unknown.

    Args:
        p: The parameters.
        columns: The names of the table's columns.
    """
    reward = pl.col("episode_return")
    won = (steps_left() == 0) & (reward > 0 if p.success == "positive" else reward == p.success_reward)
    found = pl.Struct({"(from)": pl.Float64, "(to)": pl.Float64})
    if not p.similarity:
        goal = pl.lit(hashing.text_hash(p.goal_text), pl.Int64)
        after = pl.when(won).then(goal).otherwise(pl.col("next_state_hash"))
        nodes = [within("state_hash"), chain(pl.col("task_key"), after), chain(pl.col("task_key"), goal)]
        return batches(nodes, _distances, found)
    texts = [pl.col("next_state")] if "next_state" in columns else []
    after = pl.when(won).then(pl.lit(p.goal_text)).otherwise(pl.coalesce(*texts, neighbour(pl.col("state"), 1)))
    similar = similar_nodes(p)
    rows = [pl.col(name) for name in ("task_key", "trajectory", "step", "state")]
    return batches([*rows, after], lambda given: _distances(similar(given)), found)


def similar_nodes(p: GraphGPO) -> Callable[[Sequence[pl.Series]], list[pl.Series]]:
    """Return a function that numbers nodes by similarity, for `_distances`.

    The order of texts is that of trajectory names and steps, and the state of a step precedes its next state.
    """
    TextClusters(p.similarity_threshold)  # validates the threshold before anything is read

    def nodes(columns: Sequence[pl.Series]) -> list[pl.Series]:
        task, trajectory, step, state, after = columns
        height = len(task)
        tasks = task.drop_nulls().unique(maintain_order=True)

        def texts() -> Iterator[tuple[int, int, str]]:
            for row in order_by_name(trajectory, step):
                if task[row] is not None:
                    yield task[row], row, state[row] or ""
                    if after[row] is not None:
                        yield task[row], height + row, after[row]
            for number, name in enumerate(tasks):
                yield name, 2 * height + number, p.goal_text

        code = number_by_task(texts(), 2 * height + len(tasks), p.similarity_threshold)
        return [code[:height], code[height : 2 * height], code[2 * height :]]

    return nodes


def _distances(nodes: Sequence[pl.Series]) -> pl.Series:
    """Return the minimum number of edges to a goal, by a breadth-first search from all goals.

    Args:
        nodes: Three int64 columns: each row's node, its next node (null if unknown), and the goals.
    """
    known = (nodes[0].is_not_null() & nodes[1].is_not_null()).to_numpy()
    most = sum(map(len, nodes))
    small = np.int32 if most < 2**31 else np.int64  # half the memory traffic
    state, after, goal = (numbers.astype(small) for numbers in _numbered(*nodes))
    distance = np.full(most, -1, small)
    distance[goal] = reached = 0
    source, target = state[known], after[known]
    while True:
        unreached = distance[source] < 0
        source, target = source[unreached], target[unreached]
        nearer = source[distance[target] == reached]
        if not len(nearer):
            break
        reached += 1
        distance[nearer] = reached
    missing = ~(nodes[1].is_not_null().to_numpy())
    ends = {"(from)": distance[state], "(to)": np.where(missing, -1, distance[after])}
    frame = pl.DataFrame(ends)
    return frame.select(pl.when(pl.all() >= 0).then(pl.all().cast(pl.Float64))).to_struct("graph")


def _numbered(state: pl.Series, after: pl.Series, goals: pl.Series) -> list[NDArray[np.int64]]:
    """Replace the hashes of nodes by small numbers: the index of the first row in the node's state.

    The next node of a step is usually the state of the next row, whose number is known. Only the others are looked up.
    """
    rows = pl.LazyFrame([state.cast(pl.Int64).alias("state"), after.cast(pl.Int64).alias("after")])
    first = pl.col("row").cast(pl.Int64).min().over("state").alias("number")
    found = rows.with_row_index("row").select("row", "state", "after", first).collect(engine="streaming")
    apart = found.select(~pl.col("after").eq_missing(pl.col("state").shift(-1))).to_series().to_numpy().copy()
    apart[-1:] = True
    firsts = found.filter(pl.col("row") == pl.col("number")).select("state", "number")
    others = pl.concat([found["after"].filter(pl.Series(apart)), goals.drop_nulls().unique().cast(pl.Int64)])
    unseen = len(state) + pl.col("place").cast(pl.Int64).min().over("state")  # nodes without a row
    looked_up = (
        others.to_frame("state")
        .with_row_index("place")
        .join(firsts, on="state", how="left", maintain_order="left", nulls_equal=True)
        .select(pl.col("number").fill_null(unseen))
        .to_series()
        .to_numpy()
    )
    number = found["number"].to_numpy()
    reached = np.append(number[1:], 0)
    places = int(apart.sum())
    reached[apart] = looked_up[:places]
    return [number, reached, looked_up[places:]]


ESTIMATOR = register(
    Estimator(
        "graphgpo",
        "Compares episode scores of a task, and distances to the goal in its state graph",
        GraphGPO,
        graphgpo_advantages,
        lambda _: ("episode", "step", "distance"),
        complete=lambda _: ("state_hash",),
    )
)
