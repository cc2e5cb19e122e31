"""GraphGPO: distances to the goal in a graph of states (arXiv 2605.26684; recipe/GraphGPO of verl-agent).

The states of a task are nodes. Each step is an edge of length 1 from its state to the next one. The last step of an
episode with a reward above 0 leads to the goal. d(s) is the minimum number of edges from s to the goal:

    R_t = 10 γ^d(s_{t+1})                                  or, with `normalize_distance`,
    R_t = 10 γ^(d(s_{t+1}) - d(s_t) + 1)
    A_step(t) = (R_t - c_t - mean) / (std + ε)             over the steps of the task in the same state; c_t is the
                                                           penalty of an invalid action; no division for `mean_norm`
    A(t) = w_episode A_episode(t) + w_step A_step(t)       a term with the weight 0 is skipped

A_episode is the advantage of GRPO (`grpo.py`).

`potential="rewardflow"` is RewardFlow (arXiv 2603.18859; rewardflow/ of tmlr-group/RewardFlow), whose values decay from
the goal along observed steps:

    V(s) = max over the observed successors of γ V(s'), 10 at the goal, 0 if no path leads there;   V(s) = 10 γ^d(s)
    R_t  = V(s_{t+1}) - V(s_t)                             the step's own reward if the next state is unknown

The steps of a group have the same V(s_t), so that A_step is GraphGPO's with the same γ, except where a path to the goal
is missing (V is 0, and GraphGPO's distance is the largest + 1) or the next state unknown (GraphGPO's too). The official
scripts use `mode="mean_norm"` and γ = 0.9 (0.95 for search). Differences: the official code knows no next state at the
last step of the longest rollouts, even of a success; it gives the goal the reward of the first step that it finds to
its text; and it simplifies the states of its benchmarks before, which a `state_key` can do here.

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

from typing import TYPE_CHECKING, Annotated, Final, Literal, Unpack

import numpy as np
import polars as pl
from msgspec import Meta

from hgpo_envs import hashing
from hgpo_envs.errors import InputError
from hgpo_train.advantages.estimators.grpo import with_episode
from hgpo_train.advantages.estimators.similarity import clusters
from hgpo_train.advantages.input_columns import rounded
from hgpo_train.advantages.parameters import (
    CallOptions,
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
from hgpo_train.advantages.windows import chain, neighbour, normalise, within

if TYPE_CHECKING:
    from collections.abc import Sequence

_DISTANCES: Final = pl.Struct({"from": pl.Float64, "to": pl.Float64})
"""Distances from each step's state and next state to the goal; null if no path leads there, or the state is unknown."""


EdgeDiscount = Annotated[
    Discount,
    Meta(
        description="γ, the discount per edge; the official scripts use 0.10 for ALFWorld and 0.20 for WebShop."
    ),
]
Potential = Annotated[
    Literal["distance", "rewardflow"],
    Meta(
        description="distance credits the distance of the next state to the goal (GraphGPO), rewardflow the change of "
        "a value that decays with the distance (RewardFlow)."
    ),
]
NormalizeDistance = Annotated[
    bool,
    Meta(
        description="Whether returns depend on the reduction of the distance instead of the distance."
    ),
]
Success = Annotated[
    Literal["positive", "full"],
    Meta(
        description="Which episodes end in the goal: those with a positive reward, or those whose reward is the full "
        "success_reward."
    ),
]
GoalReward = Annotated[float, Meta(description="The return of a step to the goal.")]
GoalText = Annotated[
    str, Meta(description="The text of the goal. A state with this text is the goal.")
]


@estimator(
    reads=lambda p: [
        "state_hash",
        *(["state", "next_state"] if p.similarity else ["next_state_hash"]),
    ],
    details=("episode", "step", "distance"),
)
def graphgpo(
    steps: pl.LazyFrame,
    *,
    gamma: EdgeDiscount = 0.1,
    mode: Mode = "mean_std_norm",
    step_weight: StepWeight = 1.0,
    episode_weight: EpisodeWeight = 1.0,
    potential: Potential = "distance",
    normalize_distance: NormalizeDistance = False,
    cross_steps: CrossSteps = True,
    similarity: Similarity = False,
    similarity_threshold: SimilarityThreshold = 0.95,
    success: Success = "positive",
    success_reward: GoalReward = 10.0,
    goal_text: GoalText = "success",
    ddof: Ddof = 1,
    epsilon: Epsilon = 1e-6,
    precision: Precision = "mixed",
    **_: Unpack[CallOptions],
) -> pl.LazyFrame:
    """Compare episode scores of a task, and distances to the goal in its state graph.

    Raises:
        InputError: `gamma` is 0 with `normalize_distance`, or the threshold is out of range.
    """
    if normalize_distance and not gamma:
        raise InputError(
            "parameter gamma: expected a number above 0 with normalize_distance, received 0"
        )
    reward = pl.col("episode_return")
    won = (pl.col("steps_left") == 0) & (
        reward > 0 if success == "positive" else reward == success_reward
    )
    if similarity:
        texts = [pl.col("next_state")] if "next_state" in steps.collect_schema() else []
        after = pl.coalesce(*texts, neighbour("state", 1))
        nodes = {
            "node": pl.col("state"),
            "next": pl.when(won).then(pl.lit(goal_text)).otherwise(after),
        }
        similar = clusters(nodes, similarity_threshold, goal=goal_text)
        steps = steps.with_columns(similar.alias("(similar)")).with_columns(
            pl.col("(similar)").struct.unnest()
        )
    else:
        goal = pl.lit(hashing.text_hash(goal_text), pl.Int64)
        after = pl.when(won).then(goal).otherwise("next_state_hash")
        nodes = {"node": pl.col("state_hash"), "next": after, "goal": goal}
        steps = steps.with_columns(
            chain(pl.col("task_key"), node).alias(name) for name, node in nodes.items()
        )
    # a column: each use would search again
    distances = pl.map_batches(["node", "next", "goal"], _distances, _DISTANCES)
    steps = steps.with_columns(distances.alias("(graph)")).with_columns(
        pl.col("(graph)").struct.unnest()
    )
    # of the states with a path to the goal, the farthest is that of a step
    unreachable = pl.col("from").max().over("task_key").fill_null(0.0) + 1
    before, after = (pl.col(name).fill_null(unreachable) for name in ("from", "to"))
    steps = steps.with_columns(
        (after - before + 1 if normalize_distance else after).alias("edges"),
        distance=after,
    )
    value = success_reward * gamma ** pl.col("edges")
    if potential == "rewardflow":
        before, after = (
            success_reward * (gamma ** pl.col(name)).fill_null(0.0)
            for name in ("from", "to")
        )
        value = (
            pl.when(pl.col("next").is_null())
            .then("step_reward")
            .otherwise(after - before)
        )
    value = rounded(value, precision)
    value = rounded(value - rounded(pl.col("penalty"), precision), precision)
    # float64: unlike the others, the official code does not round 1 + ε, by which it divides a lone score
    steps = with_episode(
        steps,
        mode=mode,
        cross_steps=cross_steps,
        ddof=ddof,
        epsilon=epsilon,
        precision="float64",
    )
    steps = normalise(
        steps,
        "step",
        value,
        within("state_hash"),
        mode=mode,
        ddof=ddof,
        epsilon=epsilon,
        alone=0.0,
    )
    return steps.with_columns(
        advantage=episode_weight * pl.col("episode") + step_weight * pl.col("step")
    )


def _distances(nodes: Sequence[pl.Series]) -> pl.Series:
    """Return the minimum number of edges to a goal, by a breadth-first search from all goals.

    Args:
        nodes: Three int64 columns: each row's node, its next node (null if unknown), and the goals.
    """
    state, after, goals = nodes
    everything = (
        pl.concat([state, after, goals.drop_nulls().unique()], rechunk=True)
        .to_frame("node")
        .with_row_index()
    )
    # a node's small number is the index of its first row
    number = pl.col("index").min().over("node")
    numbers = (
        everything.lazy()
        .select(number)
        .collect(engine="streaming")
        .to_series()
        .to_numpy()
    )
    before, behind, goal = np.split(numbers, [len(state), 2 * len(state)])
    distance = np.full(len(numbers), -1, np.int32)
    distance[goal] = reached = 0
    known = (state.is_not_null() & after.is_not_null()).to_numpy()
    source = before[known]
    target = behind[known]
    while True:
        unreached = distance[source] < 0
        source = source[unreached]
        target = target[unreached]
        nearer = source[distance[target] == reached]
        if not len(nearer):
            break
        reached += 1
        distance[nearer] = reached
    distances = pl.DataFrame(
        {
            "from": distance[before],
            "to": np.where(after.is_null(), -1, distance[behind]),
        }
    )
    return distances.select(
        pl.when(pl.all() >= 0).then(pl.all().cast(pl.Float64))
    ).to_struct()
