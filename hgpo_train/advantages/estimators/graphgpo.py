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
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from hgpo_envs import hashing
from hgpo_envs.errors import InputError
from hgpo_train.advantages.estimators.gigpo import step_advantages
from hgpo_train.advantages.estimators.grpo import episode_advantages
from hgpo_train.advantages.groups import Groups, encode_pairs
from hgpo_train.advantages.parameters import Mode, Parameters
from hgpo_train.advantages.registry import Estimator, Needs, register
from hgpo_train.advantages.returns import episode_rewards, penalised
from hgpo_train.advantages.similarity import by_name, number_by_task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from hgpo_train.advantages.registry import Columns
    from hgpo_train.advantages.steps import Steps


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

    gamma: float = 0.1
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


@dataclass(frozen=True)
class Graph:
    """The states of all tasks, and where each step leads.

    Attributes:
        task: The task of each node; int64 of shape (nodes,).
        state: The node that each step starts from; int64 of shape (rows,).
        after: The node that each step leads to, -1 where that is not known; int64 of shape (rows,).
        goal: The node of each task's goal; int64 of shape (tasks,).
    """

    task: NDArray[np.int64]
    state: NDArray[np.int64]
    after: NDArray[np.int64]
    goal: NDArray[np.int64]


def estimate(steps: Steps, p: GraphGPO, details: bool) -> Columns:
    """GraphGPO's advantages.

    Returns:
        `advantage`; with details its parts `episode` and `step`, and the `distance` of the state that a step leads to.
    """
    graph = build_graph(steps, p)
    distance, beyond = distances(graph)
    after = np.where(graph.after < 0, beyond[steps.task.code], distance[graph.after])
    edges = after - distance[graph.state] + 1 if p.normalize_distance else after
    episode, step = np.zeros(steps.height), np.zeros(steps.height)
    if p.episode_weight:
        episode = episode_advantages(
            steps, p, mode=p.mode, cross_steps=p.cross_steps, ddof=p.ddof, lone_scale=1 + p.epsilon
        )
    if p.step_weight:
        groups = encode_pairs(steps.task, steps.states)
        step = step_advantages(
            penalised(p.success_reward * p.gamma**edges, steps, p), groups, p.mode, p.ddof, p.epsilon
        )
    columns: Columns = {"advantage": p.episode_weight * episode + p.step_weight * step}
    if details:
        columns |= {"episode": episode, "step": step, "distance": after}
    return columns


def build_graph(steps: Steps, p: GraphGPO) -> Graph:
    """Numbers states and goals, and follows each step."""
    task = np.concatenate([steps.task.code, steps.task.code, np.arange(steps.task.number)])
    code = similar_nodes(steps, p) if p.similarity else equal_nodes(steps, p, task)
    owner = np.empty(int(code.max()) + 1, dtype=np.int64)
    owner[code[code >= 0]] = task[code >= 0]
    state, after, goal = np.split(code, [steps.height, 2 * steps.height])
    return Graph(owner, state, after, goal)


def equal_nodes(steps: Steps, p: GraphGPO, task: NDArray[np.int64]) -> NDArray[np.int64]:
    """The nodes of all states, of all next states (-1 where unknown) and of the goals, one after the other."""
    after, known = steps.next_states()
    won = succeeded(steps, p)
    goal = hashing.text_hash(p.goal_text)
    values = np.concatenate([steps.states, np.where(won, goal, after), np.full(steps.task.number, goal)])
    there = np.concatenate([np.ones_like(known), known | won, np.ones(steps.task.number, dtype=np.bool_)])
    code = np.full(len(values), -1, dtype=np.int64)
    code[there] = encode_pairs(Groups(task[there], steps.task.number), values[there]).code
    return code


def similar_nodes(steps: Steps, p: GraphGPO) -> NDArray[np.int64]:
    """The same by similarity: each step's state, then its next state, by trajectory (in order of name) and step."""
    states, after = steps.texts("state"), steps.next_texts()
    for row in np.flatnonzero(succeeded(steps, p)):
        after[row] = p.goal_text

    def texts() -> Iterator[tuple[int, int, str]]:
        for task, row in by_name(steps):
            yield task, row, states[row] or ""
            following = after[row]
            if following is not None:
                yield task, steps.height + row, following
        for task in range(steps.task.number):
            yield task, 2 * steps.height + task, p.goal_text

    return number_by_task(texts(), 2 * steps.height + steps.task.number, p.similarity_threshold).code


def succeeded(steps: Steps, p: GraphGPO) -> NDArray[np.bool_]:
    """The last rows of episodes that end in the goal."""
    rewards = episode_rewards(steps, p)
    return np.asarray(steps.last & (rewards > 0 if p.success == "positive" else rewards == p.success_reward))


def distances(graph: Graph) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each node's distance to its task's goal, going back from all goals at once, an edge at a time.

    Returns:
        float64 of shape (nodes,), unreached nodes filled in; and of shape (tasks,), what they are filled with.
    """
    distance = np.full(len(graph.task), np.inf)
    distance[graph.goal] = 0.0
    source, target = graph.state[graph.after >= 0], graph.after[graph.after >= 0]
    reached = 0.0
    while True:
        waiting = np.isinf(distance[source])
        source, target = source[waiting], target[waiting]
        nearer = source[distance[target] == reached]
        if not len(nearer):
            break
        reached += 1.0
        distance[nearer] = reached
    finite = np.isfinite(distance)
    beyond = np.ones(len(graph.goal))
    np.maximum.at(beyond, graph.task[finite], distance[finite] + 1)
    return np.where(finite, distance, beyond[graph.task]), beyond


def needs(p: GraphGPO) -> Needs:
    """States and next states."""
    return Needs(next_state=True, state_text=p.similarity)


def detail_columns(p: GraphGPO) -> dict[str, pl.DataType]:  # noqa: ARG001  (an Estimator's signature)
    """The optional columns."""
    return {name: pl.Float64() for name in ("episode", "step", "distance")}


ESTIMATOR = register(
    Estimator("graphgpo", "Episode scores, and distances to the goal", GraphGPO, estimate, needs, detail_columns)
)
