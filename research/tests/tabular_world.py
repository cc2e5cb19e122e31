"""Small tabular worlds whose true values are computed by dynamic programming, as step tables and truth tables.

A task is a graph of states with deterministic moves and a time limit. Reaching the goal pays 1, reaching the pit ends
the episode. The policy is a softmax over random logits of the visible state. State and time determine the value.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from hgpo_datasets import StepWriter
from hgpo_envs.hashing import chain_columns, text_hashes

STATES = 6
ACTIONS = 3
LIMIT = 8
GOAL = STATES
PIT = STATES + 1


@dataclass(frozen=True)
class World:
    """One task: moves (STATES, ACTIONS), action probabilities of the same shape, and values (LIMIT + 1, STATES + 2)."""

    moves: np.ndarray
    policy: np.ndarray
    value: np.ndarray
    gamma: float

    def q(self, state, t):
        after = self.moves[state]
        return (after == GOAL) + self.gamma * self.value[t + 1][after]


def world(rng: np.random.Generator, gamma: float) -> World:
    moves = rng.integers(0, STATES + 2, (STATES, ACTIONS))
    logits = rng.normal(size=(STATES, ACTIONS))
    policy = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    value = np.zeros((LIMIT + 1, STATES + 2))
    made = World(moves, policy, value, gamma)
    for t in reversed(range(LIMIT)):
        for state in range(STATES):
            value[t, state] = (policy[state] * made.q(state, t)).sum()
    return made


def play(
    tasks: int,
    rollouts: int,
    seed: int,
    *,
    gamma=0.95,
    noise=0.0,
    again: int | None = None,
):
    """Return a step table and its truth table.

    Args:
        tasks: Number of tasks, each with its own world.
        rollouts: Number of rollouts per task.
        seed: Seed of worlds, rollouts and noise.
        gamma: The discount of the true values.
        noise: Standard deviation of the noise of each half of the truth.
        again: Another number gives other rollouts of the same worlds.
    """
    rng = np.random.default_rng(seed)
    worlds = None if again is None else [world(rng, gamma) for _ in range(tasks)]
    rng = rng if again is None else np.random.default_rng([seed, again])
    rows = []
    for task in range(tasks):
        here = worlds[task] if worlds else world(rng, gamma)
        for rollout in range(rollouts):
            state = 0
            t = 0
            while state < STATES and t < LIMIT:
                action = rng.choice(ACTIONS, p=here.policy[state])
                after = here.moves[state, action]
                row = {
                    "task_id": f"task {task:03d}",
                    "trajectory": f"{task:03d}/{rollout:03d}",
                    "step": t,
                    "state": f"room {state}",
                    "action": f"door {action}",
                    "reward": float(after == GOAL),
                    "terminated": bool(after >= STATES),
                    "truncated": bool(t == LIMIT - 1 and after < STATES),
                    "won": bool(after == GOAL),
                    "value": here.value[t, state],
                    "q": here.q(state, t)[action],
                    "prompt_hash": int(text_hashes([f"{task} {state}"])[0]),
                    "choice": int(action),
                    "probabilities": here.policy[state].tolist(),
                }
                rows.append(row)
                state = after
                t = t + 1
    table = pl.DataFrame(rows).with_columns(
        action_valid=True, true_advantage=pl.col("q") - pl.col("value")
    )
    names = ["value", "q", "prompt_hash", "choice", "probabilities"]
    truth = table.select("trajectory", "step", *names, advantage="true_advantage")
    for name in ("value", "advantage"):
        halves = {
            half: pl.col(name) + noise * pl.Series(rng.normal(size=truth.height))
            for half in ("first", "second")
        }
        truth = truth.with_columns(
            value.alias(f"{name}_{half}") for half, value in halves.items()
        )
        truth = truth.with_columns(
            ((pl.col(f"{name}_first") + pl.col(f"{name}_second")) / 2).alias(name)
        )
    truth = truth.with_columns(
        pl.lit(noise / 2**0.5).alias(f"{name}_error")
        for name in ("value", "q", "advantage")
    )
    steps = table.drop(names)
    values, defined = chain_columns(
        text_hashes(steps["state"]), (steps["step"] == 0).to_numpy(), 4
    )
    return steps.with_columns(
        pl.when(pl.Series(known)).then(pl.Series(values[k])).alias(f"history_hash_{k}")
        for k, known in enumerate(defined)
    ), truth


def store(steps: pl.DataFrame, folder) -> None:
    """Write a step table as a run."""
    rows = steps.drop("true_advantage", "^history_hash.*$")
    with StepWriter(folder) as writer:
        for group in rows.partition_by("task_id", maintain_order=True):
            writer.add_group(group.to_dicts())


def perfect(
    steps: pl.LazyFrame, *, shift: float = 0.0, scale: float = 1.0
) -> pl.LazyFrame:
    """Return the true advantage, in the unit of scaled rewards."""
    return steps.with_columns(
        advantage=scale * (10.0 * pl.col("true_advantage") + shift)
    )


def noise(steps: pl.LazyFrame) -> pl.LazyFrame:
    """Return pseudo-random advantages, which do not depend on rewards."""
    key = pl.col("trajectory_key") * 31 + pl.col("step")
    return steps.with_columns(advantage=(key % 7919).cast(pl.Float64) / 3959.5 - 1.0)
