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
from hgpo_train.advantages.input_columns import rounded
from hgpo_train.advantages.parameters import Discount, Mode, Precision  # noqa: TC001 - evaluated with the annotations
from hgpo_train.advantages.registry import estimator
from hgpo_train.advantages.similarity import TextClusters, number_by_task, order_by_name
from hgpo_train.advantages.trajectories import neighbour, whole_columns
from hgpo_train.advantages.windows import chain, normalise, within
from hgpo_train.settings import NonNegativeFloat  # noqa: TC001 - evaluated with the annotations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


@estimator(
    reads=lambda p: ["state_hash", *(["state", "next_state"] if p.similarity else ["next_state_hash"])],
    details=("episode", "step", "distance"),
)
def graphgpo(
    steps: pl.LazyFrame,
    *,
    gamma: Discount = 0.1,
    mode: Mode = "mean_std_norm",
    step_weight: float = 1.0,
    episode_weight: float = 1.0,
    normalize_distance: bool = False,
    cross_steps: bool = True,
    similarity: bool = False,
    similarity_threshold: float = 0.95,
    success: Literal["positive", "full"] = "positive",
    success_reward: float = 10.0,
    goal_text: str = "success",
    ddof: Literal[0, 1] = 1,
    epsilon: NonNegativeFloat = 1e-6,
    precision: Precision = "mixed",
) -> pl.LazyFrame:
    """Compare episode scores of a task, and distances to the goal in its state graph.

    Args:
        steps: A table with the input columns of estimators.
        gamma: γ, the discount per edge; the official scripts use 0.10 for ALFWorld and 0.20 for WebShop.
        mode: ``mean_std_norm`` divides deviations by the standard deviation, ``mean_norm`` does not.
        step_weight: The weight of the step term.
        episode_weight: The weight of the episode term.
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
        epsilon: ε, added to standard deviations.
        precision: As in `Parameters`.

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

    def distances(columns: Sequence[pl.Series], **_: object) -> pl.Series:
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


def _distances(nodes: Sequence[pl.Series], **_: object) -> pl.Series:
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
