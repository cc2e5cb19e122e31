"""Write the tables of research/docs/ from the kept results: python -m research.benchmarks.tables."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING, Final

import polars as pl

from benchmarks.readme import ESTIMATORS, ROOT, WORLDS, figures, rewrite
from hgpo_research.power import pooled_deviation, seeds_needed
from hgpo_research.tabular.report import markdown, markdown_table, summary
from research.benchmarks import advise_agreement, advise_simulation, branches, gain_simulation
from research.benchmarks.what_learns import (
    GRPO,
    comparison,
    further,
    history,
    third,
    weights,
)

if TYPE_CHECKING:
    from collections.abc import Callable

COMMAND: Final = "python -m research.benchmarks.tables"
EVERY: Final = 5
"""The updates between the evaluations of language models."""


def power(world: str) -> str:
    """Return the table of the seeds that would tell the estimators apart, as Markdown."""
    kept = figures(f"learning_{world}")
    found = {name: kept["fresh"][name] for name in ESTIMATORS if name in kept["fresh"]}
    seeds = len({row["seed"] for row in kept["curves"]})
    deviation, *bounds = pooled_deviation([each["std"] for each in found.values()], len(found) * (seeds - 1))
    sentence = (
        f"Between the seeds of one estimator, success on fresh tasks has a standard deviation of {100 * deviation:.1f} "
        f"points (95% interval {100 * bounds[0]:.1f} to {100 * bounds[1]:.1f}; {len(found)} estimators, {seeds} seeds "
        f"each). At most {50 / kept['fresh']['tasks'] ** 0.5:.1f} points are the chance of playing "
        f"{kept['fresh']['tasks']} tasks once."
    )
    titles = (
        "estimators",
        "difference seen",
        "seeds each, if it is the true one",
        "at the bounds of the deviation",
    )
    rows = []
    for first, second in combinations(found, 2):
        difference = found[first]["mean"] - found[second]["mean"]
        needed = [f"{seeds_needed(difference, value):,}" for value in (deviation, *bounds)]
        pair = f"{ESTIMATORS[first]} − {ESTIMATORS[second]}"
        rows.append(
            [
                pair,
                f"{100 * difference:+.1f} points",
                needed[0],
                f"{needed[1]} to {needed[2]}",
            ]
        )
    return f"{sentence}\n\n{markdown_table(titles, rows)}"


def truth_speed() -> str:
    """Return the table of the speed of truths as Markdown."""
    heads = (
        "policy `softmax`, memory 2",
        "mean reward",
        "10,000 truths",
        "error of A",
        "known",
        "separate rollouts, at that error",
        "ratio",
        "steps of rollouts a second",
    )
    rows = []
    for name, found in figures("truth").items():
        env, _, options = name.partition(" ")
        world = WORLDS[env.removeprefix("HGPO/").removesuffix("-v0").lower()]
        values = (
            f"{world}, {options.replace('=', ' ')}",
            f"{found['mean reward']:.2f}",
            f"{found['10k truths, s']:.0f} s",
            f"{found['error']:.3f}",
            f"{found['known']:.2f}",
            f"{found['at that error, s']:,.0f} s",
            f"{found['ratio']:.0f}",
            f"{found['steps/s']:,}",
        )
        rows.append(values)
    return markdown_table(heads, rows, "|---|---|---:|---|---|---:|---:|---:|")


def models(world: str) -> str:
    """Return what small language models learned, by seeds, as Markdown: the area, and success on fresh tasks."""
    kept = figures(f"learning_{world}_models")
    names = sorted(
        {row["estimator"] for row in kept["curves"]},
        key=lambda name: (not name.startswith(GRPO), name),
    )
    order = pl.col("estimator").cast(pl.Enum(names))
    iteration = pl.col("iteration")
    last = iteration.max().over("estimator", "seed")
    # A run that spent its steps before the second evaluation has its last one instead.
    counted = (iteration % EVERY == 0) | ((iteration == last) & (last < 2 * EVERY))
    evaluated = pl.DataFrame(kept["curves"]).filter(iteration > 0, counted)
    fresh = pl.DataFrame(
        [(name, seed, value) for name in names for seed, value in enumerate(kept["fresh"][name]["seeds"])],
        schema=["estimator", "seed", "held_out"],
        orient="row",
    )
    table = summary(evaluated.join(fresh, on=["estimator", "seed"]).sort(order, "seed"))
    return markdown(
        table,
        ["estimator"],
        ["area", "area_difference", "held_out", "held_out_difference"],
    )


PAGES: Final[dict[str, dict[str, Callable[[], str]]]] = {
    "research/docs/truth.md": {"speed": truth_speed},
    "research/docs/advise.md": {
        "ranking": advise_simulation.table,
        "agreement": advise_agreement.table,
    },
    "research/docs/branch_study.md": {name: partial(branches.table, name) for name in ("gain", "cost")},
    "research/docs/estimator_comparison.md": {"simulation": gain_simulation.table},
    "research/docs/learning_tabular.md": {"third": third},
    "research/docs/learning_models.md": {world: partial(models, world) for world in ("alfworld", "webshop")},
    "research/docs/study.md": {
        "comparison": comparison,
        "further": further,
        "weights": weights,
        "history": history,
        "power": partial(power, "alfworld"),
    },
}


if __name__ == "__main__":
    for name in PAGES:
        (ROOT / name).write_text(rewrite(name, PAGES, COMMAND), "utf-8")
