"""GraphGPO: distances to the goal in a graph of states (arXiv 2605.26684; recipe/GraphGPO of verl-agent).

The states of a task are nodes, each step an edge from its state to the next, all of length 1. The last step of an
episode with a reward above 0 leads to the goal. d(s) is the least number of edges from s to the goal:

    R_t = 10 γ^d(s_{t+1})                                  or, with `normalize_distance`,
    R_t = 10 γ^(d(s_{t+1}) - d(s_t) + 1)
    A_step(t) = (R_t - c_t - mean) / (std + ε) among the steps of the task at the same state; c_t the penalty of an
                invalid action; without division for `mean_norm`
    A(t) = w_episode A_episode(t) + w_step A_step(t)       a part of weight 0 is skipped

A_episode is GRPO's (`grpo.py`).

Special cases, as in the official code: std divides by n - 1, a lone step has A_step 0. A node from which the goal is
not reached is one edge farther than the task's farthest node that does; with no success in the task all are at 1. A
failed episode's last step leads to its `next_state` if that is known, else nowhere. Step rewards are read only for
episode scores. With `similarity`, similar states are one node, but steps are compared at equal states as before.

Where it surprises: the paper credits the *reduction* of distance, which is `normalize_distance`; the default rates the
distance alone. At γ = 0.1 returns differ so little that a penalty of 0.1 outweighs most of them. The official code's
goal is the text "success", so a state that reads so is the goal (and so is one similar to it, with `similarity`); a
`goal_text` that no state has keeps them apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from hgpo_envs import hashing
from hgpo_envs.errors import InputError
from hgpo_train.advantages.estimators.gigpo import weighted_parts
from hgpo_train.advantages.estimators.grpo import episode_advantages
from hgpo_train.advantages.input_columns import penalised, power
from hgpo_train.advantages.parameters import Discount, Mode, Parameters
from hgpo_train.advantages.registry import Estimator, register
from hgpo_train.advantages.similarity import TextClusters, number_by_task, order_by_name
from hgpo_train.advantages.trajectories import batches, neighbour, steps_left
from hgpo_train.advantages.windows import chain, normalise, within

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class GraphGPO(Parameters):
    """GraphGPO's parameters, besides those of returns.

    Attributes:
        gamma: The discount of an edge; the official scripts use 0.10 for ALFWorld and 0.20 for WebShop.
        mode: Whether deviations are divided by standard deviations.
        step_weight: The weight of the step's part; 0 skips it.
        episode_weight: The weight of the episode's part; 0 skips it.
        normalize_distance: Whether a step is rated by how much nearer it came.
        cross_steps: Whether the episode's mean and std are over rows (the official default) or over trajectories.
        similarity: Whether states with similar texts are one node.
        similarity_threshold: The least ratio of similar texts, in (0, 1).
        success: Which episodes end in the goal: those with a `positive` reward, or with the `full` `success_reward`.
        success_reward: The return of a step into the goal.
        goal_text: What the goal reads; a state that reads so is the goal.
        ddof: 0 divides squares by n, 1 by n - 1.
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
            raise InputError("normalize_distance needs a gamma above 0, for γ^-1")


def graphgpo_advantages(steps: pl.LazyFrame, p: GraphGPO) -> pl.LazyFrame:
    """Adds `advantage`, its parts `episode` and `step`, and the `distance` of the state that a step leads to."""
    steps = steps.with_columns(search(p, steps.collect_schema()).alias("(search)"))
    steps = steps.with_columns(pl.col("(search)").struct.unnest())
    farthest = pl.max_horizontal(pl.col("(from)").max(), pl.col("(to)").max()).over("task_key").fill_null(0.0)
    before, after = (pl.col(name).fill_null(farthest + 1) for name in ("(from)", "(to)"))
    steps = steps.with_columns((after - before + 1 if p.normalize_distance else after).alias("(edges)"), distance=after)
    value = penalised(p.success_reward * power(p.gamma, pl.col("(edges)")), p)
    normalised = partial(normalise, mode=p.mode, ddof=p.ddof, epsilon=p.epsilon, alone=pl.lit(0.0))
    steps = normalised(steps, value, {"step": ["state_hash"]})
    lone_scale = 1 + p.epsilon
    steps = episode_advantages(steps, p, mode=p.mode, cross_steps=p.cross_steps, ddof=p.ddof, lone_scale=lone_scale)
    return weighted_parts(steps, {"episode": p.episode_weight, "step": p.step_weight})


def search(p: GraphGPO, columns: Collection[str]) -> pl.Expr:
    """The distances of each step's state, `(from)`, and of the next one, `(to)`; null where no goal is reached."""
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
    """Numbers nodes by similarity: each step's state, then its next one, by trajectory (in order of name) and step."""
    TextClusters(p.similarity_threshold)  # refuses a threshold out of range before anything is read

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
    """The least number of edges to a goal, searched from all goals at once, an edge further at a time.

    Args:
        nodes: int64 of each row's node, of the node after it (null where that is not known), and of the goals.
    """
    known = (nodes[0].is_not_null() & nodes[1].is_not_null()).to_numpy()
    state, after, goal = _numbered(*nodes)
    distance = np.full(len(state) + len(after) + len(goal), np.inf)
    distance[goal] = 0.0
    source, target, reached = state[known], after[known], 0.0
    while True:
        waiting = np.isinf(distance[source])
        source, target = source[waiting], target[waiting]
        nearer = source[distance[target] == reached]
        if not len(nearer):
            break
        reached += 1.0
        distance[nearer] = reached
    missing = ~(nodes[1].is_not_null().to_numpy())
    ends = {"(from)": distance[state], "(to)": np.where(missing, np.inf, distance[after])}
    frame = pl.DataFrame(ends)
    return frame.select(pl.when(pl.all().is_finite()).then(pl.all())).to_struct("graph")


def _numbered(state: pl.Series, after: pl.Series, goals: pl.Series) -> list[NDArray[np.int64]]:
    """Numbers of nodes in place of their hashes: the number of a node is the first row whose state it is.

    The node after a step is nearly always the state of the next row, whose number is known; only others are looked up.
    """
    rows = pl.LazyFrame([state.cast(pl.Int64).alias("state"), after.cast(pl.Int64).alias("after")])
    first = pl.col("row").cast(pl.Int64).min().over("state").alias("number")
    found = rows.with_row_index("row").select("row", "state", "after", first).collect(engine="streaming")
    apart = found.select(~pl.col("after").eq_missing(pl.col("state").shift(-1))).to_series().to_numpy().copy()
    apart[-1:] = True
    firsts = found.filter(pl.col("row") == pl.col("number")).select("state", "number")
    others = pl.concat([found["after"].filter(pl.Series(apart)), goals.drop_nulls().unique().cast(pl.Int64)])
    unseen = len(state) + pl.col("place").cast(pl.Int64).min().over("state")  # nodes that are no row's state
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
        "Episode scores, and distances to the goal",
        GraphGPO,
        graphgpo_advantages,
        lambda _: ("episode", "step", "distance"),
        complete=lambda _: ("state_hash",),
    )
)
