"""Write the tables of research/docs/ from the kept results: python -m research.benchmarks.tables."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from benchmarks.readme import ROOT, WORLDS, figures, rewrite
from hgpo_research.tabular.report import markdown, markdown_table, summary
from research.benchmarks import (
    advise_agreement,
    advise_simulation,
    arena,
    branch_training,
    branches,
    gagpo,
    gain_simulation,
)
from research.benchmarks.what_learns import GRPO, earlier, history

if TYPE_CHECKING:
    from collections.abc import Callable

COMMAND: Final = "python -m research.benchmarks.tables"
EVERY: Final = 5
"""The updates between the evaluations of language models."""


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


def models(runs: str) -> str:
    """Return what small language models learned, by seeds, as Markdown: the area, and success on fresh tasks.

    Args:
        runs: The end of the kept result's name, `learning_<world>_<name>`.
    """
    kept = figures(f"learning_{runs}")
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
        [
            (name, seed, value)
            for name in names
            for seed, value in enumerate(kept["fresh"][name]["seeds"])
        ],
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
    "research/docs/branch_study.md": {
        **{name: partial(branches.table, name) for name in ("gain", "cost")},
        "training": branch_training.table,
    },
    "research/docs/estimator_comparison.md": {"simulation": gain_simulation.table},
    "research/docs/gagpo.md": {
        "verdicts": gagpo.verdicts,
        "areas": gagpo.areas,
        "language model": partial(models, "webshop_gagpo"),
    },
    "research/docs/study.md": {
        "ranking": arena.ranking,
        "prediction": arena.prediction,
        "questions": arena.questions,
        "earlier": earlier,
        "history": history,
        **{
            f"models {world}": partial(models, f"{world}_models")
            for world in ("alfworld", "webshop")
        },
    },
}


if __name__ == "__main__":
    for name in PAGES:
        (ROOT / name).write_text(rewrite(name, PAGES, COMMAND), "utf-8")
