"""Bias and coverage of the cross-validated gain, by simulation: python -m research.benchmarks.gain_simulation [FOLDER]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from hgpo_envs.hashing import chain_columns, mix
from hgpo_research.comparison.gain import held_out
from hgpo_research.comparison.row_gradients import RowGradients
from hgpo_train.advantages.variants import read_variants

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

STATES: Final = 5
ACTIONS: Final = 3
LIMIT: Final = 8
GOAL: Final = STATES
PIT: Final = STATES + 1
ESTIMATORS: Final = "grpo:cross_steps=false,shrinkage_gae,hgpo"


class Worlds:
    """Random tasks: a chain of states where one action leads on, and the others back, nowhere or to the end.

    Args:
        skill: The logit of the right action.
        batches: The number of batches; each has its own tasks.
        tasks: The number of tasks of each.
        rng: Draws the tasks.
    """

    def __init__(self, skill: float, batches: int, tasks: int, rng: np.random.Generator) -> None:
        shape = (batches, tasks, STATES)
        right = np.where(rng.random(shape) < 0.7, 0, rng.integers(0, ACTIONS, shape))
        ahead = np.broadcast_to(np.arange(1, STATES + 1), shape)
        self.moves = rng.integers(0, STATES, (*shape, ACTIONS))
        self.moves = np.minimum(self.moves, ahead[..., None] - 1)
        self.moves = np.where(rng.random(self.moves.shape) < 0.3, PIT, self.moves)
        np.put_along_axis(self.moves, right[..., None], ahead[..., None], -1)
        logits = rng.normal(0, 0.5, self.moves.shape)
        logits += skill * (np.arange(ACTIONS) == right[..., None])
        power = np.exp(logits)
        self.policy = power / power.sum(-1, keepdims=True)
        self._solve()

    def _solve(self) -> None:
        """Compute success, its gradient by logits, and the expected visits of states, by dynamic programming."""
        batches, tasks = self.moves.shape[:2]
        after = np.zeros((LIMIT + 1, batches, tasks, STATES + 2))
        after[:, :, :, GOAL] = 1.0
        advantages = []
        for t in reversed(range(LIMIT)):
            flat = after[t + 1][:, :, None, :]
            q = np.take_along_axis(np.broadcast_to(flat, (batches, tasks, STATES, STATES + 2)), self.moves, -1)
            after[t, :, :, :STATES] = (self.policy * q).sum(-1)
            advantages.insert(0, self.policy * (q - after[t, :, :, :STATES, None]))
        self.success = after[0, :, :, 0]
        self.gradient, self.visits = np.zeros(self.policy.shape), np.zeros((batches, tasks, STATES))
        here = np.zeros((batches, tasks, STATES + 2))
        here[:, :, 0] = 1.0
        for each in advantages:
            now = here[:, :, :STATES]
            self.visits += now
            self.gradient += now[..., None] * each
            following = np.zeros_like(here)
            flow = now[..., None] * self.policy
            for place in range(STATES + 2):
                following[:, :, place] = np.where(self.moves == place, flow, 0.0).sum((-1, -2))
            here = following

    def play(self, rollouts: int, rng: np.random.Generator) -> tuple[pl.DataFrame, NDArray[np.int64]]:
        """Return a step table of groups of rollouts, and the number of each step's (batch, task, state, action)."""
        batches, tasks = self.moves.shape[:2]
        batch, task, rollout = (each.ravel() for each in np.indices((batches, tasks, rollouts)))
        state, parts = np.zeros(len(batch), np.int64), []
        running = np.arange(len(batch))
        for t in range(LIMIT):
            b, k, s = batch[running], task[running], state[running]
            cumulated = self.policy[b, k, s].cumsum(-1)
            action = (rng.random(len(running))[:, None] > cumulated[:, :-1]).sum(-1)
            after = self.moves[b, k, s, action]
            parts.append((running, np.full(len(running), t), s, action, after))
            state[running] = after
            running = running[after < STATES]
        who, step, s, action, after = (np.concatenate(each) for each in zip(*parts, strict=True))
        order = np.lexsort([step, who])
        who, step, s, action, after = (each[order] for each in (who, step, s, action, after))
        last = np.append(np.diff(who) != 0, True)
        values, defined = chain_columns(mix(s.astype(np.uint64)).view(np.int64), step == 0, 4)
        table = pl.DataFrame(
            {
                "run": batch[who],
                "task_id": task[who],
                "trajectory": who,
                "step": step,
                "reward": (after == GOAL).astype(np.float64),
                "won": after == GOAL,
                "terminated": after >= STATES,
                "truncated": last & (after < STATES),
                "action_valid": np.ones(len(who), np.bool_),
            }
        ).with_columns(pl.col("run", "task_id", "trajectory").cast(pl.String).str.zfill(8))
        table = table.with_columns(
            pl.when(pl.Series(each)).then(pl.Series(values[k])).alias(f"history_hash_{k}") for k, each in enumerate(defined)
        )
        return table, np.ravel_multi_index((batch[who], task[who], s, action), self.policy.shape)

    def gradients(self, table: pl.DataFrame, number: NDArray[np.int64], shared: bool) -> RowGradients:
        """Return the gradients of the steps; with `shared`, tasks share the logits."""
        batches, tasks = self.moves.shape[:2]
        size = (1 if shared else tasks) * STATES * ACTIONS
        which, rows = np.unique(number, return_inverse=True)
        sketches = np.zeros((len(which), size), np.float32)
        every = np.zeros((len(which), ACTIONS, size), np.float32)
        b, k, s, a = np.unravel_index(which, self.policy.shape)
        first = ((0 if shared else k) * STATES + s) * ACTIONS
        p = self.policy[b, k, s]
        index = np.arange(len(which))
        for action in range(ACTIONS):
            for other in range(ACTIONS):
                every[index, action, first + other] = (action == other) - p[:, other]
        sketches = every[index, a]

        def fisher(x):
            along = (every.reshape(-1, size) @ x.T).reshape(len(which), ACTIONS, -1)
            return (along**2 * p[:, :, None]).sum(1).T

        keys = table.select("trajectory", "step").with_columns(sketch=pl.Series(rows.astype(np.int64)))
        return RowGradients(keys, sketches, size, 0.0, fisher)
