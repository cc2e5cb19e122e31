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

from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from hgpo_envs import hashing
from hgpo_envs.errors import InputError
from hgpo_train.advantages.estimators.grpo import episode_term
from hgpo_train.advantages.estimators.similarity import TextClusters, number_by_task, order_by_name
from hgpo_train.advantages.input_columns import rounded
from hgpo_train.advantages.parameters import (  # noqa: TC001 - evaluated with the annotations
    CrossSteps,
    Ddof,
    Discount,
    EpisodeWeight,
    Epsilon,
    Mode,
    Precision,
    Similarity,
    SimilarityThreshold,
    StepWeight,
)
from hgpo_train.advantages.registry import estimator
from hgpo_train.advantages.trajectories import neighbour, whole_columns
from hgpo_train.advantages.windows import chain, normalise, within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@estimator(
    reads=lambda p: ["state_hash", *(["state", "next_state"] if p.similarity else ["next_state_hash"])],
    details=("episode", "step", "distance"),
)
def graphgpo(  # noqa: D417 - the other parameters are those of several estimators, parameters.py
    steps: pl.LazyFrame,
    *,
    gamma: Discount = 0.1,
    mode: Mode = "mean_std_norm",
    step_weight: StepWeight = 1.0,
    episode_weight: EpisodeWeight = 1.0,
    normalize_distance: bool = False,
    cross_steps: CrossSteps = True,
    similarity: Similarity = False,
    similarity_threshold: SimilarityThreshold = 0.95,
    success: Literal["positive", "full"] = "positive",
    success_reward: float = 10.0,
    goal_text: str = "success",
    ddof: Ddof = 1,
    epsilon: Epsilon = 1e-6,
    precision: Precision = "mixed",
) -> pl.LazyFrame:
    """Compare episode scores of a task, and distances to the goal in its state graph.

    Args:
        gamma: γ, the discount per edge; the official scripts use 0.10 for ALFWorld and 0.20 for WebShop.
        normalize_distance: Whether returns depend on the reduction of the distance instead of the distance.
        success: Which episodes end in the goal: those with a ``positive`` reward, or those whose reward is the ``full``
            `success_reward`.
        success_reward: The return of a step to the goal.
        goal_text: The text of the goal. A state with this text is the goal.

    Raises:
        InputError: `gamma` is 0 with `normalize_distance`, or the threshold is out of range.
    """
    if normalize_distance and not gamma:
        raise InputError("parameter gamma: expected a number above 0 with normalize_distance, received 0")
    reward = pl.col("episode_return")
    won = (pl.col("steps_left") == 0) & (reward > 0 if success == "positive" else reward == success_reward)
    search = _search_texts(steps, won, goal_text, similarity_threshold) if similarity else _search(won, goal_text)
    steps = steps.with_columns(search.alias("(search)"))
    steps = steps.with_columns(pl.col("(search)").struct.unnest())
    steps = steps.with_columns(pl.max_horizontal("(from)", "(to)").alias("(farther)"))
    farthest = pl.col("(farther)").max().over("task_key").fill_null(0.0)
    before, after = (pl.col(name).fill_null(farthest + 1) for name in ("(from)", "(to)"))
    steps = steps.with_columns((after - before + 1 if normalize_distance else after).alias("(edges)"), distance=after)
    value = rounded(success_reward * gamma ** pl.col("(edges)"), precision)
    value = rounded(value - rounded(pl.col("penalty"), precision), precision)
    steps = episode_term(steps, "episode", mode, cross_steps=cross_steps, ddof=ddof, epsilon=epsilon)
    steps = normalise(steps, "step", value, within("state_hash"), mode=mode, ddof=ddof, epsilon=epsilon, alone=0.0)
    return steps.with_columns(advantage=episode_weight * pl.col("episode") + step_weight * pl.col("step"))


_DISTANCES = pl.Struct({"(from)": pl.Float64, "(to)": pl.Float64})
"""Distances from each step's state and next state to the goal; null if no path leads there, or the state is unknown."""


def _search(won: pl.Expr, goal_text: str) -> pl.Expr:
    """Return `_DISTANCES` in the graph of equal states."""
    goal = pl.lit(hashing.text_hash(goal_text), pl.Int64)
    after = pl.when(won).then(goal).otherwise(pl.col("next_state_hash"))
    nodes = [within("state_hash"), chain(pl.col("task_key"), after), chain(pl.col("task_key"), goal)]
    return whole_columns(nodes, _distances, _DISTANCES)


def _search_texts(steps: pl.LazyFrame, won: pl.Expr, goal_text: str, threshold: float) -> pl.Expr:
    """Return `_DISTANCES` in the graph of similar texts.

    The order of texts is that of trajectory names and steps, and the state of a step precedes its next state.
    """
    texts = [pl.col("next_state")] if "next_state" in steps.collect_schema() else []
    after = pl.when(won).then(pl.lit(goal_text)).otherwise(pl.coalesce(*texts, neighbour(pl.col("state"), 1)))
    TextClusters(threshold)  # validates the threshold before anything is read

    def distances(columns: Sequence[pl.Series]) -> pl.Series:
        task, trajectory, step, state, after = columns
        height, tasks = len(task), task.drop_nulls().unique(maintain_order=True)

        def ordered() -> Iterator[tuple[int, int, str]]:
            for row in order_by_name(trajectory, step):
                if task[row] is not None:
                    yield task[row], row, state[row] or ""
                    if after[row] is not None:
                        yield task[row], height + row, after[row]
            for number, name in enumerate(tasks):
                yield name, 2 * height + number, goal_text

        code = number_by_task(ordered(), 2 * height + len(tasks), threshold)
        return _distances([code[:height], code[height : 2 * height], code[2 * height :]])

    rows = [pl.col(name) for name in ("task_key", "trajectory", "step", "state")]
    return whole_columns([*rows, after], distances, _DISTANCES)


def _distances(nodes: Sequence[pl.Series]) -> pl.Series:
    """Return the minimum number of edges to a goal, by a breadth-first search from all goals.

    Args:
        nodes: Three int64 columns: each row's node, its next node (null if unknown), and the goals.
    """
    state, after, goals = nodes
    everything = pl.concat([state, after, goals.drop_nulls().unique()], rechunk=True).to_frame("node").with_row_index()
    number = pl.col("index").min().over("node")  # a node's small number is the index of its first row
    numbers = everything.lazy().select(number).collect(engine="streaming").to_series().to_numpy()
    before, behind, goal = np.split(numbers, [len(state), 2 * len(state)])
    distance = np.full(len(numbers), -1, np.int32)
    distance[goal] = reached = 0
    known = (state.is_not_null() & after.is_not_null()).to_numpy()
    source, target = before[known], behind[known]
    while True:
        unreached = distance[source] < 0
        source, target = source[unreached], target[unreached]
        nearer = source[distance[target] == reached]
        if not len(nearer):
            break
        reached += 1
        distance[nearer] = reached
    distances = pl.DataFrame({"(from)": distance[before], "(to)": np.where(after.is_null(), -1, distance[behind])})
    return distances.select(pl.when(pl.all() >= 0).then(pl.all().cast(pl.Float64))).to_struct("graph")
