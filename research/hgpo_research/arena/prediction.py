"""Which measure of advantages predicts what policies learn from them?

Over the estimators of a world, the rank correlation (Spearman) of a measure with learning; its mean over worlds. The
interval resamples worlds and estimators at once (A. B. Owen, The pigeonhole bootstrap, Annals of Applied Statistics 1,
2007); with fewer than six worlds, estimators alone. Chance is the mean if estimators have the measures of others, the
same ones in all worlds, because an estimator is alike in all of them. The controls are left out: that truth has a
large gain and learns most is no finding.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from hgpo_research.arena.ranking import CONTROLS, SETTINGS
from hgpo_research.resampling import percentile_bounds
from hgpo_train.resampling import FEWEST_TASKS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hgpo_research.arrays import Floats

MEASURES: Final = {
    "gain": "gain of one batch",
    "expected_gain": "gain of the expected gradient",
    "cross_validated_gain": "cross-validated gain",
    "correlation": "correlation with truth",
    "sign_agreement": "sign agreement",
    "variance": "variance",
}
TARGETS: Final = ("area", "final")
RESAMPLES: Final = 1000
FEWEST: Final = 4
"""The fewest estimators with a correlation."""


class Pairs(NamedTuple):
    """A measure and what was learned, means over seeds, of the estimators that every world has.

    Attributes:
        worlds: Names, in alphabetical order.
        estimators: Names, in alphabetical order.
        measured: Of shape (worlds, estimators).
        learned: Of shape (worlds, estimators).
    """

    worlds: list[str]
    estimators: list[str]
    measured: Floats
    learned: Floats


def pairs(
    results: pl.DataFrame,
    measure: str,
    stage: int | None,
    setting: str,
    target: str,
    worlds: Collection[str] | None = None,
) -> Pairs:
    """Return a measure beside learning; without `stage`, the mean over stages; without `worlds`, in all of them."""
    chosen = results.filter(~pl.col("estimator").is_in(CONTROLS))
    if worlds is not None:
        chosen = chosen.filter(pl.col("world").is_in(list(worlds)))
    measured = chosen.filter(measure=measure)
    if stage is not None:
        measured = measured.filter(stage=stage)
    # Every stage counts equally, however many policies it has.
    keys = ["world", "estimator"]
    by_stage = measured.group_by(*keys, "stage").agg(pl.col("value").mean())
    first = by_stage.group_by(keys).agg(measured=pl.col("value").mean())
    learned = chosen.filter(setting=setting, measure=target)
    second = learned.group_by(keys).agg(learned=pl.col("value").mean())
    both = first.join(second, on=keys).drop_nulls().drop_nans()
    # Sums in another order differ in their last bits, which would make ranks of equal values.
    both = both.with_columns(pl.col("measured", "learned").round(12))
    known = sorted(both["world"].unique())
    everywhere = pl.col("world").n_unique().over("estimator") == len(known)
    both = both.filter(everywhere).sort(keys)
    names = sorted(both["estimator"].unique())
    shape = (len(known), len(names))
    arrays = [both[name].to_numpy().reshape(shape) for name in ("measured", "learned")]
    return Pairs(known, names, *arrays)


def midranks(values: Floats) -> Floats:
    """Return ranks along the last axis, equal values at their mean rank.

    >>> midranks(np.array([3.0, 1.0, 3.0]))
    array([1.5, 0. , 1.5])
    """
    below = values[..., :, None] > values[..., None, :]
    equal = values[..., :, None] == values[..., None, :]
    ranks: Floats = below.sum(-1) + (equal.sum(-1) - 1) / 2
    return ranks


def spearman(first: Floats, second: Floats) -> Floats:
    """Return rank correlations along the last axis; NaN where all values are equal."""
    x = midranks(first)
    x = x - x.mean(-1, keepdims=True)
    y = midranks(second)
    y = y - y.mean(-1, keepdims=True)
    lengths = np.sqrt((x**2).sum(-1) * (y**2).sum(-1))
    with np.errstate(invalid="ignore"):
        found: Floats = (x * y).sum(-1) / lengths
    return found


def prediction(found: Pairs) -> dict[str, float | None]:
    """Return the mean rank correlation over worlds.

    Returns:
        `correlation`, its interval (`low`, `high`), the range of 95% of chance (`chance_low`, `chance_high`) and the
        two-sided p-value (`p`); None where unknown.
    """
    worlds = len(found.worlds)
    estimators = len(found.estimators)
    names = ("correlation", "low", "high", "chance_low", "chance_high", "p")
    if estimators < FEWEST:
        return dict.fromkeys(names)
    each = spearman(found.measured, found.learned)
    if np.isnan(each).any():
        return dict.fromkeys(names)
    value = each.mean()
    rng = np.random.default_rng([worlds, estimators])
    # Two-way: a world is drawn with all of its estimators, an estimator with all of its worlds.
    columns = rng.integers(estimators, size=(RESAMPLES, 1, estimators))
    rows = np.arange(worlds).reshape(1, worlds, 1)
    units = estimators
    if worlds >= FEWEST_TASKS:
        rows = rng.integers(worlds, size=(RESAMPLES, worlds, 1))
        # The interval is widened for the kind of units of which there are fewer.
        units = min(worlds, estimators)
    drawn = spearman(found.measured[rows, columns], found.learned[rows, columns])
    # A world in which all drawn estimators are one has no correlation.
    drawn_means = np.ma.masked_invalid(drawn).mean(1).filled(np.nan)
    low, high = percentile_bounds(value, drawn_means, units)
    # Chance: one order of the estimators for all worlds.
    orders = np.tile(np.arange(estimators), (RESAMPLES, 1))
    order = rng.permuted(orders, axis=1)
    chance = spearman(found.measured[:, order], found.learned[:, None]).mean(0)
    chance_low, chance_high = np.quantile(chance, [0.025, 0.975])
    # Rounding must not make the order that was seen less extreme than itself; it counts as one more draw.
    extreme = np.abs(chance) >= abs(value) - 1e-12
    p = (1 + extreme.sum()) / (1 + RESAMPLES)
    numbers = (value, low, high, chance_low, chance_high, p)
    known = [None if np.isnan(number) else float(number) for number in numbers]
    return dict(zip(names, known, strict=True))


def predictions(
    results: pl.DataFrame, worlds: Collection[str] | None = None
) -> pl.DataFrame:
    """Return how well every measure predicts learning in every setting.

    Returns:
        `measure`, `stage` (null: the mean over stages), `setting`, `target`, numbers of `worlds` and `estimators`, and
        the columns of `prediction`.
    """
    learning = results.filter(pl.col("measure").is_in(TARGETS))
    settings = [name for name in SETTINGS if name in learning["setting"]]
    measures = [name for name in MEASURES if name in results["measure"]]
    stages = sorted(results["stage"].drop_nulls().unique())
    rows = []
    for measure, stage, setting, target in product(
        measures, [None, *stages], settings, TARGETS
    ):
        found = pairs(results, measure, stage, setting, target, worlds)
        keys = {
            "measure": measure,
            "stage": stage,
            "setting": setting,
            "target": target,
            "worlds": len(found.worlds),
            "estimators": len(found.estimators),
        }
        rows.append(keys | prediction(found))
    return pl.DataFrame(rows, infer_schema_length=None)


def verdict(found: pl.DataFrame) -> str:
    """Return in a sentence whether the gain of one batch predicts area."""
    rows = (
        []
        if found.is_empty()
        else found.filter(
            pl.col("stage").is_null(), measure="gain", target="area"
        ).to_dicts()
    )
    known = [row for row in rows if row["low"] is not None]
    if not known:
        return "Whether gain predicts learning is not known: too few estimators have both in all worlds."
    clear = [row["low"] > 0 and row["p"] < 0.05 for row in known]
    says = "predicts learning in part"
    if all(clear):
        says = "predicts learning"
    elif not any(clear):
        says = "does not predict learning beyond chance"
    parts = [
        f"{shown(row)}, {SETTINGS[row['setting']]}, {row['worlds']} worlds"
        for row in known
    ]
    return (
        f"The gain of one batch {says}. Rank correlation with area: {'; '.join(parts)}."
    )


def shown(row: Mapping[str, Any]) -> str:
    """Return a rank correlation with its interval."""
    if row["correlation"] is None:
        return "not known"
    bounds = "" if row["low"] is None else f" ({row['low']:+.2f} to {row['high']:+.2f})"
    return f"{row['correlation']:+.2f}{bounds}"
