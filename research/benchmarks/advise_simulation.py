"""How often `hgpo advise` is wrong, by simulation: python -m research.benchmarks.advise_simulation [--keep].

The tasks and their exact gains are those of `gain_simulation`. Protocol and results are on research/docs/advise.md.
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
from hgpo_research.advice.advice import concluded, permuted
from hgpo_research.comparison.gain import by_group, held_out
from hgpo_research.tabular.report import markdown_table
from hgpo_train.advantages.variants import read_variants
from research.benchmarks.gain_simulation import KL, SUCCESS, Worlds, skill_of

if TYPE_CHECKING:
    from hgpo_research.advice.advice import Advice
    from hgpo_research.arrays import Floats
    from hgpo_research.comparison.gain import HeldOut

ESTIMATORS: Final = (
    "grpo:cross_steps=false",
    "gigpo",
    "hgpo",
    "discounted_grpo",
    "shrinkage_gae",
)
ROLLOUTS: Final = 8
BATCHES: Final = {6: 200, 25: 200, 100: 100}
"""The number of batches of each number of tasks."""

STEPS: Final = 1250
"""The number of tasks that are played at once."""


def simulate(success: float, tasks: int) -> tuple[list[Advice], Floats]:
    """Return the advice of each batch, and the mean exact gains over batches."""
    skill = skill_of(success)
    settings = {"reward": "success", "reward_scale": 1.0, "invalid_action_penalty": 0.0}
    variants = read_variants(ESTIMATORS, settings)
    measured = [*variants, permuted(variants[0], 0)]
    names = [variant.name for variant in variants]
    apart = np.zeros((3, len(names), len(names)))
    advices: list[Advice] = []
    gains: list[Floats] = []
    while len(advices) < BATCHES[tasks]:
        count = min(STEPS // tasks, BATCHES[tasks] - len(advices))
        rng = np.random.default_rng([2, len(advices), tasks, round(100 * success)])
        worlds = Worlds(skill, count, tasks, rng)
        table, number = worlds.play(ROLLOUTS, rng)
        held = held_out(
            table.lazy(), measured, worlds.gradients(table, number, shared=False)
        )
        for batch in range(count):
            own = [part for part in held if part.batch == batch]
            gains.append(np.mean([worlds.gain(part)[:-1] for part in own], 0))
            parts, bound = by_group([_alone(part, batch * tasks) for part in own], KL)
            # The seed of the halves is the batch's: those of all batches are independent.
            seed = len(advices)
            advices.append(
                concluded(
                    names,
                    parts,
                    bound,
                    apart,
                    batches=1,
                    rollouts=own[0].rollouts,
                    kl=KL,
                    seed=seed,
                )
            )
    return advices, np.mean(gains, 0)


def _alone(part: HeldOut, first: int) -> HeldOut:
    """Return a part of a batch, as if there was no other."""
    return replace(part, batch=0, group=part.group - first)


def cell(labels: tuple[float, int]) -> dict[str, Any]:
    """Return the shares of a cell."""
    success, tasks = labels
    advices, exact = simulate(success, tasks)
    true = dict(zip(ESTIMATORS, exact.tolist(), strict=True))
    known = [advice for advice in advices if advice.known]
    wrong = []
    excluded = []
    alone = []
    covered = []
    controls: dict[str, list[bool]] = {"A/A": [], "chance": []}
    best = max(true, key=lambda name: true[name])
    for advice in known:
        excluded.append(best not in (advice.best or ESTIMATORS))
        pairs = (
            advice.differences.filter(pl.col("low") > 0)
            .select("first", "second")
            .rows()
        )
        wrong.append(any(true[first] < true[second] for first, second in pairs))
        alone.append(len(advice.best) == 1)
        covered += [
            low <= true[name] <= high
            for name, low, high in advice.ranks.select(
                "estimator", "low", "high"
            ).rows()
        ]
        for name, _, low, high in advice.controls.iter_rows():
            controls[name].append(low > 0 or high < 0)
    return {
        "success": success,
        "tasks": tasks,
        "batches": len(advices),
        "printed": len(known) / len(advices),
        "wrong": sum(wrong) / len(advices),
        "separated": sum(bool(advice.best) for advice in advices) / len(advices),
        "alone": sum(alone) / len(advices),
        "excluded": sum(excluded) / len(advices),
        "covered": _mean(covered),
        "aa": _mean(controls["A/A"]),
        "chance": _mean(controls["chance"]),
        "exact": true,
    }


def _mean(values: list[bool]) -> float | None:
    return sum(values) / len(values) if values else None


def table() -> str:
    """Return the kept results as a table of Markdown."""
    heads = [
        "success",
        "tasks × rollouts",
        "printed",
        "a pair in the wrong order",
        "the best excluded",
        "anything separated",
        "one recommended",
        "coverage of gains",
        "A/A misses 0",
        "chance misses 0",
    ]
    rows = []
    for each in figures("advise_simulation")["rows"]:
        shares = [
            each[name]
            for name in (
                "printed",
                "wrong",
                "excluded",
                "separated",
                "alone",
                "covered",
                "aa",
                "chance",
            )
        ]
        shown = ["–" if share is None else f"{share:.1%}" for share in shares]
        rows.append([f"{each['success']:.0%}", f"{each['tasks']} × {ROLLOUTS}", *shown])
    return markdown_table(heads, rows)


if __name__ == "__main__":
    given = make_parser(__doc__).parse_args()
    cells = list(product(SUCCESS, BATCHES))
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        rows = list(pool.map(cell, cells))
    print(store("advise_simulation", {"rows": rows}, keep=given.keep))
