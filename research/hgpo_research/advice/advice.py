"""Advice on the estimator to train with, from a saved run: `advise`.

Estimators are ranked by cross-validated gain (`hgpo_research.comparison.gain`), one batch of the run after the other,
so that memory is that of a batch. A rank is an interval of ranks: those above an estimator are the ones whose
difference from it has an interval above 0. These intervals hold for all differences of one estimator at once
(Bonferroni over the others), so that each interval of ranks contains the true rank with 95%, and the best estimator is
among `best` with 97.5% (J. C. Hsu, Multiple Comparisons: Theory and Methods, 1996, chapter 4: comparisons with the
best). Two controls show what chance gives:

- *A/A*: half of the difference between the gains of the first estimator on two random halves of the groups, which has
  the error of its gain;
- *chance*: the gain of advantages that are permuted among the steps of each group.

**How much more.** With δ and s the mean and the standard deviation of a group's part of a difference, n groups find it
at the level of its interval with a power of 80% if n ≥ s² (t + t)² / δ² (`hgpo_research.power.pairs_needed`). This
assumes that the difference seen is the true one.

**Where two estimators differ.** Advantages are divided by the root of their mean square in the batch. Of the steps of
groups with both outcomes, *sign* is the share where the two have not the same sign (0 is a sign of its own), *size*
that where the sign is the same and one is more than twice the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import wraps
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError
from hgpo_research.comparison.gain import (
    FEWEST_GROUPS,
    by_group,
    compared,
    complete_rollouts,
    held_out,
)
from hgpo_research.comparison.known_steps import COLUMNS
from hgpo_research.comparison.row_gradients import TOKENS
from hgpo_research.power import pairs_needed
from hgpo_train.advantages.input_columns import (
    BATCH_KEYS,
    group_keys,
    row_keys,
)
from hgpo_train.advantages.registry import compute_many
from hgpo_train.resampling import LEVEL, student_quantile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hgpo_research.arrays import Floats
    from hgpo_research.comparison.gain import Gains
    from hgpo_research.comparison.logit_table import Gradients
    from hgpo_train.advantages.variants import Variant

FOLDS: Final = 4
"""The parts of a group's rollouts, of which one is held out in turn; two where groups have less than eight rollouts."""

FEWEST_ROLLOUTS: Final = 4
"""The fewest rollouts of a group: smaller ones cannot be divided into two parts that have a baseline."""

POWER: Final = 0.8
MANY: Final = 1_000_000
"""The largest number of groups that is computed."""


@dataclass(frozen=True)
class Advice:
    """What a run says about estimators.

    Attributes:
        ranks: One row per estimator, the largest gain first: `estimator`, `rank_low` and `rank_high`, its interval of
            ranks, `gain` with its 95% interval `low` and `high`, and `difference`, what it is below the first, with
            the interval `difference_low` and `difference_high` that holds for all of these. Without intervals, all but
            `estimator`, `gain` and `difference` are null.
        controls: The rows `A/A` and `chance`: `control`, `gain`, `low`, `high`; null where there are
            too few groups.
        differences: One row per pair, `first` above `second`: `value` and its interval `low`, `high`; `groups`, with
            how many groups in all the difference is found (null if it is, or without intervals); `sign` and `size`,
            the shares of steps on which the two differ.
        gains: The gains, with the numbers of batches and groups.
        left_out: The number of groups with fewer than `FEWEST_ROLLOUTS` rollouts.
    """

    ranks: pl.DataFrame
    controls: pl.DataFrame
    differences: pl.DataFrame
    gains: Gains
    left_out: int

    @property
    def known(self) -> bool:
        """Whether there are intervals: enough groups have both outcomes."""
        return not self.ranks["low"].null_count()

    @property
    def best(self) -> list[str]:
        """The estimators that none is above; empty where no two are separated."""
        if not self.known or not (self.differences["low"] > 0).any():
            return []
        return self.ranks.filter(rank_low=1)["estimator"].to_list()


def advise(
    steps: pl.LazyFrame,
    variants: Sequence[Variant],
    gradients: Callable[[pl.LazyFrame], Gradients],
    *,
    kl: float = 0.01,
    seed: int = 0,
    progress: Callable[[int, int], object] = lambda _done, _total: None,
) -> Advice:
    """Rank estimators by their gain on a saved run.

    Args:
        steps: A step table with `won`.
        variants: The estimators, at least two.
        gradients: Returns the gradients of the policy's log-probabilities at the steps of a batch.
        kl: δ, the divergence per step of the update whose gain is measured.
        seed: Seed of the controls.
        progress: Called with the number of finished batches and of all batches.

    Raises:
        InputError: A column is missing, an estimator refuses the run, or no group has enough rollouts.
    """
    if len(variants) < 2:
        raise InputError(
            f"expected at least two estimators to compare, received {variants[0].name}"
        )
    measured = [*variants, permuted(variants[0], seed)]
    schema = steps.collect_schema()
    needed = {"won", "aborted", *row_keys(schema), *COLUMNS, *TOKENS}
    needed = needed.union(*(variant.estimator.columns(schema) for variant in variants))
    steps = steps.select(name for name in schema if name in needed)
    keys = [name for name in BATCH_KEYS if name in schema]
    batches = (
        steps.select(keys).unique().sort(keys).collect().to_dicts() if keys else [{}]
    )
    groups: list[Floats] = []
    bound = np.zeros((len(measured), len(measured)))
    apart = np.zeros((3, len(variants), len(variants)))
    rollouts = 0
    left_out = 0
    for number, batch in enumerate(batches):
        progress(number, len(batches))
        rows = steps
        for name, value in batch.items():
            rows = rows.filter(pl.col(name).eq_missing(value))
        table, size, few = _usable(rows.collect())
        left_out += few
        if table.is_empty():
            continue

        # 1. The gains of the batch, by group.
        held = held_out(
            table.lazy(),
            measured,
            gradients(table.lazy()),
            folds=min(FOLDS, size // 2),
        )
        parts, most = by_group(held, kl)
        groups.append(parts)
        bound += most
        rollouts += held[0].rollouts

        # 2. Where the advantages of all rollouts differ.
        apart += steps_apart(table, variants)
    progress(len(batches), len(batches))
    if not groups:
        wanted = f"groups of at least {FEWEST_ROLLOUTS} complete rollouts"
        raise InputError(f"expected {wanted}, received {left_out} smaller groups")

    # 3. All batches together.
    names = [variant.name for variant in variants]
    return concluded(
        names,
        np.concatenate(groups, 1),
        bound,
        apart,
        batches=len(groups),
        rollouts=rollouts / len(groups),
        kl=kl,
        seed=seed,
        left_out=left_out,
    )


def concluded(
    names: Sequence[str],
    parts: Floats,
    bound: Floats,
    apart: Floats,
    *,
    batches: int,
    rollouts: float,
    kl: float,
    seed: int = 0,
    left_out: int = 0,
) -> Advice:
    """Return the advice of all batches.

    Args:
        names: The estimators.
        parts: The groups' parts of gains (`by_group`) of these and of `chance`, of shape (estimators + 1, groups).
        bound: Their bound.
        apart: As of `steps_apart`.
        batches: The number of batches.
        rollouts: The mean number of rollouts of a batch.
        kl: δ.
        seed: Seed of the halves.
        left_out: The number of groups with too few rollouts.
    """
    # The controls are no part of the family of differences.
    family = len(names) - 1
    found = compared(names, parts[:-1], bound[:-1, :-1], batches, rollouts, kl, family)
    chance = compared(["chance"], parts[-1:], bound[-1:, -1:], batches, rollouts, kl)
    first = names.index(found.gains["estimator"][0])
    half = halves(parts[first], batches, np.random.default_rng(seed))
    controls = pl.DataFrame(
        [("A/A", *half), chance.gains.row(0)],
        {"control": pl.String, **dict.fromkeys(("gain", "low", "high"), pl.Float64)},
        orient="row",
    )
    return Advice(
        _ranks(found),
        controls,
        _differences(found, names, apart),
        found,
        left_out,
    )


def permuted(variant: Variant, seed: int) -> Variant:
    """Return an estimator whose advantages are permuted among the steps of each group."""
    function = variant.estimator.function

    @wraps(function)
    def chance(steps: pl.LazyFrame, **options: Any) -> pl.LazyFrame:
        return function(steps, **options).with_columns(
            pl.col("advantage").shuffle(seed).over("task_key")
        )

    changed = replace(
        variant.estimator,
        function=chance,
        column="(estimate chance)",
    )
    return variant._replace(name="chance", estimator=changed)


def halves(
    parts: Floats,
    batches: int,
    rng: np.random.Generator,
) -> tuple[float | None, float | None, float | None]:
    """Return half of the difference of a gain between random halves of the groups, and its interval.

    Only groups with both outcomes count. The interval is that of a t test of two samples with equal variances. With
    fewer than `FEWEST_GROUPS`, all are None.

    Args:
        parts: The groups' parts, of shape (groups,): their sum is the gain times the number of batches.
        batches: The number of batches.
        rng: Draws the halves.
    """
    drawn = rng.permutation(parts[parts != 0])
    count = len(drawn)
    if count < FEWEST_GROUPS:
        return None, None, None
    one, other = np.array_split(drawn, 2)
    # Half of the difference has the same error as the gain.
    scale = count / batches / 2
    difference = scale * float(one.mean() - other.mean())
    squares = one.var() * len(one) + other.var() * len(other)
    variance = squares / (count - 2) * (1 / len(one) + 1 / len(other))
    quantile = student_quantile((1 + LEVEL) / 2, count - 2)
    half = quantile * scale * float(variance**0.5)
    return difference, difference - half, difference + half


def _usable(table: pl.DataFrame) -> tuple[pl.DataFrame, int, int]:
    """Return the complete rollouts of groups that are large enough, the smallest size, and the number of others."""
    keys = group_keys(table.columns)
    table = complete_rollouts(table)
    sizes = table.group_by(keys).agg(size=pl.col("trajectory").n_unique())
    large = sizes.filter(pl.col("size") >= FEWEST_ROLLOUTS)
    kept = table.join(
        large,
        on=keys,
        how="semi",
        maintain_order="left",
        nulls_equal=True,
    )
    smallest = min(large["size"], default=0)
    return kept, smallest, sizes.height - large.height


def steps_apart(table: pl.DataFrame, variants: Sequence[Variant]) -> Floats:
    """Return on how many steps of groups with both outcomes estimators differ, of shape (3, estimators, estimators).

    Args:
        table: A step table.
        variants: The estimators.

    Returns:
        For all pairs, the numbers of steps that differ in sign, of those that differ in size, and of all.
    """
    # 1. The rollouts of a group without both outcomes have no advantage that matters.
    won = table.group_by(*group_keys(table.columns), "trajectory").agg(
        pl.col("won").cast(pl.Boolean).any()
    )
    keys = group_keys(table.columns)
    mixed = won.group_by(keys).agg(pl.col("won").n_unique()).filter(won=2)
    estimators = [variant.estimator for variant in variants]
    estimated = compute_many(table.lazy(), estimators).collect()
    kept = estimated.join(mixed, on=keys, how="semi", nulls_equal=True)
    values = kept.select(each.column for each in estimators).to_numpy().T

    # 2. Signs, and sizes in units of each estimator's own.
    found = np.zeros((3, len(variants), len(variants)))
    signs = np.sign(values)
    # All estimators have the same steps, so that sums of squares compare like means.
    scales = np.sqrt((values**2).sum(1, keepdims=True))
    units = np.abs(values) / np.where(scales > 0, scales, 1.0)
    for one, other in product(range(len(variants)), repeat=2):
        equal = signs[one] == signs[other]
        large = np.maximum(units[one], units[other])
        small = np.minimum(units[one], units[other])
        found[0, one, other] = np.count_nonzero(~equal)
        found[1, one, other] = np.count_nonzero(equal & (large > 2 * small))
        found[2, one, other] = len(equal)
    return found


def _differences(found: Gains, names: Sequence[str], apart: Floats) -> pl.DataFrame:
    """Return the table `Advice.differences`."""
    rows = []
    for row in found.differences.iter_rows(named=True):
        one = names.index(row["first"])
        other = names.index(row["second"])
        sign, size, steps = apart[:, one, other]
        groups = None
        if row["batches"] is not None:
            half = row["high"] - row["value"]
            groups = _groups_needed(row["value"], half, found, len(names) - 1)
        rows.append(
            {
                **row,
                "groups": groups,
                "sign": sign / steps if steps else None,
                "size": size / steps if steps else None,
            }
        )
    shares = dict.fromkeys(("sign", "size"), pl.Float64)
    schema: dict[str, Any] = {**found.differences.schema, "groups": pl.Int64, **shares}
    return pl.DataFrame(rows, schema).drop("batches")


def _groups_needed(value: float, half: float, found: Gains, family: int) -> int:
    """Return how many groups find a difference whose interval, in a family, has a half-width."""
    level = (1 - LEVEL) / family
    quantile = student_quantile(1 - level / 2, found.informative - 1)
    # The deviation of the groups, as of numbers whose mean is the difference.
    deviation = half / quantile * found.groups**0.5
    # More groups than are computed, as both quantiles together are above 1; also a difference of 0.
    if value * MANY**0.5 <= deviation:
        return MANY
    needed = pairs_needed(value, deviation, level, POWER)
    return min(MANY, max(found.groups + 1, needed))


def _ranks(found: Gains) -> pl.DataFrame:
    """Return the table `Advice.ranks`."""
    known = not found.gains["low"].null_count()
    significant = found.differences.filter(pl.col("low") > 0)
    first = found.gains["estimator"][0]
    to_first = {
        row["second"]: row for row in found.differences.filter(first=first).to_dicts()
    }
    rows = []
    for row in found.gains.to_dicts():
        name = row["estimator"]
        above = significant.filter(second=name).height
        below = significant.filter(first=name).height
        difference = to_first.get(name, {"value": 0.0, "low": None, "high": None})
        has_ends = difference["low"] is not None
        rows.append(
            {
                **row,
                "rank_low": 1 + above if known else None,
                "rank_high": found.gains.height - below if known else None,
                # Not -x, which is -0.0 for the first estimator.
                "difference": 0.0 - difference["value"],
                "difference_low": -difference["high"] if has_ends else None,
                "difference_high": -difference["low"] if has_ends else None,
            }
        )
    ranks: dict[str, Any] = dict.fromkeys(("rank_low", "rank_high"), pl.Int64)
    numbers = dict.fromkeys(
        ("difference", "difference_low", "difference_high"), pl.Float64
    )
    return pl.DataFrame(rows, {**found.gains.schema, **ranks, **numbers})
