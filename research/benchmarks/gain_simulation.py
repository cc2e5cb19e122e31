"""Bias and coverage of the cross-validated gain, by simulation: python -m research.benchmarks.gain_simulation [--keep].

Random tasks (`Worlds`) are played by a softmax policy whose success, gradient and Fisher information are computed by
dynamic programming. Each batch has tasks of its own. The exact gain is that of the gradients that the folds give; what
is estimated is its mean over batches, and so what intervals should contain. Protocol and results are on
research/docs/estimator_comparison.md.
"""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from benchmarks.readme import figures
from benchmarks.runner import make_parser, store
from hgpo_envs.hashing import chain_columns, mix
from hgpo_research.comparison.gain import held_out, summed
from hgpo_research.comparison.row_gradients import RowGradients
from hgpo_research.tabular.report import markdown_table
from hgpo_train.advantages.variants import read_variants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_research.arrays import Floats, Integers
    from hgpo_research.comparison.gain import HeldOut

STATES: Final = 5
ACTIONS: Final = 3
LIMIT: Final = 8
GOAL: Final = STATES
PIT: Final = STATES + 1
ESTIMATORS: Final = ("grpo:cross_steps=false", "shrinkage_gae", "hgpo")
SUCCESS: Final = (0.02, 0.3, 0.96)
SIZES: Final = ((6, 8), (24, 8), (24, 16))
"""Tasks and rollouts of each."""

BATCHES: Final = 300
CHUNK: Final = 50
KL: Final = 0.01
WAYS: Final = {"sampled": "unknown", "exact": "known"}
"""Whether the policy's probabilities are known, from which lengths are computed, and titles."""


class Worlds:
    """Random tasks: a chain of states where one action leads on, and the others back, nowhere or to the end.

    Args:
        skill: The logit of the right action.
        batches: The number of batches; each has its own tasks.
        tasks: The number of tasks of each.
        rng: Draws the tasks.
    """

    def __init__(
        self,
        skill: float,
        batches: int,
        tasks: int,
        rng: np.random.Generator,
    ) -> None:
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
            q = np.take_along_axis(
                np.broadcast_to(flat, (batches, tasks, STATES, STATES + 2)),
                self.moves,
                -1,
            )
            after[t, :, :, :STATES] = (self.policy * q).sum(-1)
            advantages.insert(0, self.policy * (q - after[t, :, :, :STATES, None]))
        self.success = after[0, :, :, 0]
        self.gradient = np.zeros(self.policy.shape)
        self.visits = np.zeros((batches, tasks, STATES))
        here = np.zeros((batches, tasks, STATES + 2))
        here[:, :, 0] = 1.0
        for each in advantages:
            now = here[:, :, :STATES]
            self.visits += now
            self.gradient += now[..., None] * each
            following = np.zeros_like(here)
            flow = now[..., None] * self.policy
            for place in range(STATES + 2):
                following[:, :, place] = np.where(self.moves == place, flow, 0.0).sum(
                    (-1, -2)
                )
            here = following

    def play(
        self, rollouts: int, rng: np.random.Generator
    ) -> tuple[pl.DataFrame, Integers]:
        """Return a step table of groups of rollouts, and the number of each step's (batch, task, state, action)."""
        batches, tasks = self.moves.shape[:2]
        batch, task, _ = (
            each.ravel() for each in np.indices((batches, tasks, rollouts))
        )
        state = np.zeros(len(batch), np.int64)
        parts = []
        running = np.arange(len(batch))
        for t in range(LIMIT):
            b = batch[running]
            k = task[running]
            s = state[running]
            cumulated = self.policy[b, k, s].cumsum(-1)
            drawn = rng.random(len(running))
            action = (drawn[:, None] > cumulated[:, :-1]).sum(-1)
            after = self.moves[b, k, s, action]
            parts.append((running, np.full(len(running), t), s, action, after))
            state[running] = after
            running = running[after < STATES]
        who, step, s, action, after = (
            np.concatenate(each) for each in zip(*parts, strict=True)
        )
        order = np.lexsort([step, who])
        who, step, s, action, after = (
            each[order] for each in (who, step, s, action, after)
        )
        last = np.append(np.diff(who) != 0, True)
        values, defined = chain_columns(
            mix(s.astype(np.uint64)).view(np.int64), step == 0, 4
        )
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
        ).with_columns(
            pl.col("run", "task_id", "trajectory").cast(pl.String).str.zfill(8)
        )
        table = table.with_columns(
            pl.when(pl.Series(each))
            .then(pl.Series(values[k]))
            .alias(f"history_hash_{k}")
            for k, each in enumerate(defined)
        )
        return table, np.ravel_multi_index(
            (batch[who], task[who], s, action), self.policy.shape
        )

    def gradients(
        self, table: pl.DataFrame, number: Integers, shared: bool
    ) -> RowGradients:
        """Return the gradients of the steps with respect to logits, which tasks may share."""
        tasks = self.moves.shape[1]
        size = (1 if shared else tasks) * STATES * ACTIONS
        which, rows = np.unique(number, return_inverse=True)
        batch, task, state, action = np.unravel_index(which, self.policy.shape)
        policy = self.policy[batch, task, state]
        first = ((0 if shared else task) * STATES + state) * ACTIONS
        places = first[:, None] + np.arange(ACTIONS)
        sketches = np.zeros((len(which), size), np.float32)
        np.put_along_axis(
            sketches,
            places,
            (np.arange(ACTIONS) == action[:, None]) - policy,
            1,
        )

        def fisher(directions: Any, numbers: Any, weights: Floats) -> Floats:  # noqa: ANN401 - arrays
            change = directions[:, places[numbers]]
            change = change - (change * policy[numbers]).sum(-1, keepdims=True)
            found: Floats = np.einsum(
                "jsa,ksa,sa->jk",
                change,
                change,
                policy[numbers] * weights[:, None],
            )
            return found

        keys = table.select("trajectory", "step").with_columns(
            sketch=pl.Series(rows.astype(np.int64))
        )
        return RowGradients(keys, sketches, size, 0.0, fisher)

    def gain(self, part: HeldOut) -> Floats:
        """Return the exact gains along the directions of a part."""
        tasks = self.moves.shape[1]
        shape = len(part.directions), -1, STATES, ACTIONS
        along = np.broadcast_to(
            part.directions.astype(np.float64).reshape(shape),
            (shape[0], tasks, STATES, ACTIONS),
        )
        policy = self.policy[part.batch]
        visits = self.visits[part.batch]
        slope = (along * self.gradient[part.batch]).sum((1, 2, 3)) / tasks
        variance = (along**2 * policy).sum(-1) - (along * policy).sum(-1) ** 2
        length = np.sqrt((variance * visits).sum((1, 2)) / visits.sum())
        return np.sqrt(2 * KL) * slope / np.where(length > 0, length, np.inf)


def skill_of(success: float) -> float:
    """Return the skill of the policies that have a mean success, by bisection."""
    low = -4.0
    high = 8.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        below = (
            Worlds(middle, 1, 4000, np.random.default_rng(0)).success.mean() < success
        )
        low, high = (middle, high) if below else (low, middle)
    return low


def simulate(success: float, tasks: int, size: int, shared: bool) -> pl.DataFrame:
    """Return the gains of batches: `way` (of `WAYS`), `estimator`, `exact`, `gain`, `low` and `high`."""
    skill = skill_of(success)
    found = []
    settings = {
        "reward": "success",
        "reward_scale": 1.0,
        "invalid_action_penalty": 0.0,
    }
    variants = read_variants(ESTIMATORS, settings)
    for chunk in range(BATCHES // CHUNK):
        rng = np.random.default_rng([chunk, tasks, size, round(100 * success), shared])
        worlds = Worlds(skill, CHUNK, tasks, rng)
        table, number = worlds.play(size, rng)
        exact = worlds.gradients(table, number, shared)
        sides = {"exact": exact, "sampled": replace(exact, fisher=None)}
        held = {
            way: held_out(table.lazy(), variants, each) for way, each in sides.items()
        }
        gains = [(part.batch, worlds.gain(part)) for part in held["exact"]]
        for batch in range(CHUNK):
            truth = np.mean([gain for other, gain in gains if other == batch], 0)
            true = pl.DataFrame({"estimator": ESTIMATORS, "exact": truth})
            alone = {way: _alone(parts, batch, tasks) for way, parts in held.items()}
            tables = {
                way: summed(parts, ESTIMATORS, KL).gains for way, parts in alone.items()
            }
            for way, rows in tables.items():
                measured = rows.select("estimator", "gain", "low", "high")
                joined = true.join(measured, on="estimator", maintain_order="left")
                found.append(joined.with_columns(way=pl.lit(way)))
    return pl.concat(found)


def _alone(parts: Sequence[HeldOut], batch: int, tasks: int) -> list[HeldOut]:
    """Return the parts of a batch, as if there was no other."""
    return [
        replace(part, batch=0, group=part.group - batch * tasks)
        for part in parts
        if part.batch == batch
    ]


def cell(labels: tuple[bool, tuple[int, int], float]) -> pl.DataFrame:
    """Return the means of a cell, one row for each way and estimator."""
    shared, (tasks, size), success = labels
    rows = simulate(success, tasks, size, shared)
    mean = pl.col("exact").mean().over("estimator")
    inside = pl.col("low").le(mean) & pl.col("high").ge(mean)
    measured = (
        rows.with_columns(inside=inside)
        .group_by("way", "estimator", maintain_order=True)
        .agg(
            pl.col("exact", "gain").mean(),
            gain_error=pl.col("gain").std() / BATCHES**0.5,
            printed=pl.col("low").is_not_null().mean(),
            covered=pl.col("inside").mean(),
            width=(pl.col("high") - pl.col("low")).mean(),
        )
    )
    named = {
        "shared": shared,
        "tasks": tasks,
        "size": size,
        "success": success,
    }
    return measured.select(
        *(pl.lit(value).alias(name) for name, value in named.items()),
        pl.all(),
    )


def table() -> str:
    """Return the kept results as a table of Markdown: the ranges over estimators, and shared and separate logits."""
    kept = pl.DataFrame(figures("gain_simulation")["rows"]).filter(
        pl.col("way").is_in(list(WAYS))
    )
    ratio = pl.col("gain") / pl.col("exact")
    ranges = kept.group_by("tasks", "size", "success", "way", maintain_order=True).agg(
        pl.format("{} to {}", ratio.min().round(2), ratio.max().round(2)).alias(
            "ratio"
        ),
        pl.format(
            "{} to {}",
            pl.col("covered").min().round(2),
            pl.col("covered").max().round(2),
        ).alias("covered"),
        pl.col("printed").mean(),
    )
    heads = [
        "tasks × rollouts",
        "success",
        "probabilities",
        "gain / exact gain",
        "coverage",
        "printed",
    ]
    rows = []
    for row in ranges.iter_rows(named=True):
        size = f"{row['tasks']} × {row['size']}"
        shares = [
            f"{row['success']:.0%}",
            WAYS[row["way"]],
            row["ratio"],
            row["covered"] or "–",
        ]
        rows.append([size, *shares, f"{row['printed']:.0%}"])
    return markdown_table(heads, rows)


if __name__ == "__main__":
    given = make_parser(__doc__).parse_args()
    cells = list(product((True, False), SIZES, SUCCESS))
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        rows = pl.concat(pool.map(cell, cells)).to_dicts()
    print(store("gain_simulation", {"rows": rows}, keep=given.keep))
