"""The questions that were planned before the runs, each with its verdict. The protocol is in docs/arena.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from hgpo_envs.errors import InputError
from hgpo_research.arena.prediction import pairs, prediction, shown
from hgpo_research.arena.ranking import (
    CONTROLS,
    REFERENCE,
    contrasts,
    differences,
    sample,
)
from hgpo_train.resampling import FEWEST_TASKS

if TYPE_CHECKING:
    from collections.abc import Callable


Verdict = tuple[str, str]
"""One of `yes`, `no` and `open`, and the numbers in a sentence."""

DEVELOPED: Final = ("textworld", "alfworld", "webshop")
"""The beginnings of the names of worlds on which gain was found to predict."""


class Answer(NamedTuple):
    """A planned question with its verdict: `yes`, `no`, `open` (not separated) or `missing` (no results)."""

    question: str
    verdict: str
    numbers: str


def points(value: float, low: float | None, high: float | None) -> str:
    """Return a difference of shares in points, with half of its interval where it is known.

    >>> points(0.021, 0.011, 0.031)
    '+2.1 ± 1.0'
    """
    half = "" if low is None or high is None else f" ± {50 * (high - low):.1f}"
    return f"{100 * value:+.1f}{half}"


def above_discounted(results: pl.DataFrame) -> Verdict:
    """Is any estimator above `discounted_grpo`? Over seeds and, with six of them, over worlds, for all at once."""
    found = sample(results, "shared", "area").without(CONTROLS)
    table = differences(found, "discounted_grpo").sort("difference", descending=True)
    table = table.filter(pl.col("estimator") != "discounted_grpo")
    above = table.filter(pl.col("low_all") > 0)
    also = above.filter(pl.col("low_all_worlds") > 0)
    listed = [
        f"{row['estimator']} {points(row['difference'], row['low_all'], row['high_all'])}"
        for row in (above if above.height else table.head(1)).iter_rows(named=True)
    ]
    where = f"over seeds, {len(found.worlds)} worlds: {', '.join(listed)}"
    if not above.height:
        return "no", f"the highest {where}"
    if len(found.worlds) < FEWEST_TASKS:
        return "yes", f"above {where}"
    names = ", ".join(also["estimator"]) or "none"
    return "yes" if also.height else "open", f"above {where}; also over worlds: {names}"


def gain_predicts(results: pl.DataFrame) -> Verdict:
    """Does the gain of one batch predict area in worlds where this was not found first?"""
    worlds = [
        name for name in results["world"].unique() if not name.startswith(DEVELOPED)
    ]
    # Gains are those of policies with separate logits, so these are asked; Adam is description.
    found = {
        setting: pairs(results, "gain", None, setting, "area", worlds)
        for setting in ("separate", "adam")
    }
    rows = {setting: prediction(each) for setting, each in found.items()}
    value = rows["separate"]["correlation"]
    first = found["separate"]
    counts = f"{len(first.worlds)} worlds, {len(first.estimators)} estimators"
    text = f"{shown(rows['separate'])}, {counts}; with Adam {shown(rows['adam'])}"
    if value is None:
        return "missing", text
    # The claim was about the number, so the number decides; its interval says how certain that is.
    return "yes" if value > 0.5 else "no", text


def gagpo_on_webshop(results: pl.DataFrame) -> Verdict:
    """Is `gagpo` below GRPO where pages hide what was chosen, and above it where they show it?"""
    shops = results.filter(pl.col("world").str.starts_with("webshop"))
    table = contrasts(shops, "separate", "area", "gagpo", REFERENCE)
    below = table.filter(pl.col("high_all") < 0, world="webshop-text").height
    above = table.filter(pl.col("low_all") > 0, world="webshop-text-rich").height
    if table.height < 2:
        return "missing", _by_world(table)
    return "yes" if below and above else "no", _by_world(table)


def history_matters(results: pl.DataFrame) -> Verdict:
    """Does HGPO with K = 4 differ from K = 1 in any world?"""
    table = contrasts(
        results, "separate", "area", "hgpo:history_length=4", "hgpo:history_length=1"
    )
    apart = table.filter((pl.col("low_all") > 0) | (pl.col("high_all") < 0))
    nearest = table.sort(pl.col("difference").abs(), descending=True).head(1)
    return "yes" if apart.height else "no", _by_world(
        apart if apart.height else nearest
    )


def adaptive_on_two_ways(results: pl.DataFrame) -> Verdict:
    """Is `adaptive` below GRPO where the longer way wins more often?"""
    table = contrasts(
        results.filter(world="two-ways"), "separate", "area", "adaptive", REFERENCE
    )
    return "yes" if table.filter(pl.col("high_all") < 0).height else "no", _by_world(
        table
    )


def _by_world(table: pl.DataFrame) -> str:
    rows = table.iter_rows(named=True)
    return ", ".join(
        f"{row['world']} {points(row['difference'], row['low_all'], row['high_all'])}"
        for row in rows
    )


QUESTIONS: Final[dict[str, Callable[[pl.DataFrame], Verdict]]] = {
    "Is any estimator above discounted_grpo in area, with shared parameters, over worlds?": above_discounted,
    "Does gain predict area (rank correlation above 0.5) outside TextWorld, ALFWorld and WebShop?": gain_predicts,
    "Is gagpo below GRPO on WebShop's text and above it on text_rich?": gagpo_on_webshop,
    "Does HGPO with K = 4 differ from K = 1 in any world?": history_matters,
    "Is adaptive with three partners below GRPO on two ways?": adaptive_on_two_ways,
}


def answers(results: pl.DataFrame) -> list[Answer]:
    """Return the planned questions with their verdicts."""
    found = []
    for question, ask in QUESTIONS.items():
        try:
            verdict, numbers = ask(results)
        except InputError as error:
            verdict = "missing"
            numbers = str(error)
        found.append(Answer(question, verdict, numbers))
    return found
