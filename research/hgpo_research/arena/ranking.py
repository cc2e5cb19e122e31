"""Differences of estimators by seed, their means over worlds, and ranks as intervals.

A result is one row of `world`, `estimator`, `setting`, `measure`, `stage`, `seed` and `value`. Estimators of one world
share seeds, so differences are paired; every world counts equally in a mean over worlds. There are two intervals of
such a mean: over seeds, for the worlds at hand, and over worlds, for worlds like them.

**Ranks.** The rank of an estimator is one plus the number of better ones. Its interval runs from one plus the number of
estimators that are significantly better, to the number of estimators that are not significantly worse, and all
intervals hold at once with 95% (M. Mogstad, J. P. Romano, A. M. Shaikh, D. Wilhelm, Inference for Ranks, Review of
Economic Studies 91, 2024, section 3: stepwise tests of all ordered pairs by the largest studentised difference).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError
from hgpo_research.comparison.families import intervals
from hgpo_research.resampling import task_weights
from hgpo_research.tabular.learning import AGAIN
from hgpo_train.resampling import FEWEST_TASKS, LEVEL, student_value

if TYPE_CHECKING:
    from hgpo_research.arrays import Floats, Integers

REFERENCE: Final = "grpo:cross_steps=false"
ORACLE: Final = "oracle"
CONTROLS: Final = (REFERENCE + AGAIN, ORACLE)
"""What learns beside the estimators, without a rank: the reference with other random numbers, and the truth."""

SETTINGS: Final = {
    "shared": "shared parameters",
    "adam": "Adam",
    "separate": "separate logits",
}
"""The settings of learning and their titles, the one that ranks first."""

RESAMPLES: Final = 2000
ROUNDING: Final = 1e-12
"""The largest difference of means that is taken for 0."""


class Sample(NamedTuple):
    """One measure of all estimators that every world has.

    Attributes:
        worlds: Names, in alphabetical order.
        estimators: Names, in alphabetical order.
        values: The values of each world, of shape (seeds, estimators).
    """

    worlds: list[str]
    estimators: list[str]
    values: list[Floats]

    def means(self) -> Floats:
        """Return the means over seeds, of shape (worlds, estimators)."""
        return np.stack([values.mean(0) for values in self.values])

    def draws(self) -> Floats:
        """Return these means in resamples of the seeds, of shape (resamples, worlds, estimators)."""
        # Seeds of different worlds are independent, so each world has a number of its own.
        drawn = [
            task_weights(len(values), RESAMPLES, number) @ values / len(values)
            for number, values in enumerate(self.values)
        ]
        return np.stack(drawn, axis=1)

    def without(self, names: tuple[str, ...]) -> Sample:
        """Return the sample without some estimators."""
        kept = [
            number for number, name in enumerate(self.estimators) if name not in names
        ]
        estimators = [self.estimators[number] for number in kept]
        return Sample(
            self.worlds, estimators, [values[:, kept] for values in self.values]
        )


def sample(results: pl.DataFrame, setting: str, measure: str) -> Sample:
    """Return a measure of learning of all estimators that every world has, by the seeds that all of them have.

    Raises:
        InputError: There is no such result.
    """
    rows = results.filter(setting=setting, measure=measure)
    worlds = sorted(rows["world"].unique())
    counts = rows.group_by("estimator").agg(pl.col("world").n_unique())
    names = sorted(counts.filter(world=len(worlds))["estimator"])
    if not names:
        raise InputError(
            f"expected results of {measure!r} with {setting!r} of an estimator in all worlds, received none"
        )
    values = []
    for world in worlds:
        here = rows.filter(pl.col("estimator").is_in(names), world=world)
        table = (
            here.pivot("estimator", index="seed", values="value")
            .drop_nulls()
            .sort("seed")
        )
        values.append(table.select(names).to_numpy())
    return Sample(worlds, names, values)


def differences(found: Sample, reference: str = REFERENCE) -> pl.DataFrame:
    """Return the differences of means over worlds from the reference.

    Returns:
        `estimator`, `difference`, its interval over seeds by itself (`low`, `high`) and for all estimators at once
        (`low_all`, `high_all`), the adjusted p-value (`p`), and the same over worlds (`low_worlds`, …, `p_worlds`),
        null with fewer than six.
    """
    if reference not in found.estimators:
        raise InputError(
            f"expected results of the reference {reference!r} in all worlds, received none"
        )
    base = found.estimators.index(reference)
    means = found.means()
    means = means - means[:, [base]]
    draws = found.draws().mean(1)
    draws = draws - draws[:, [base]]
    # The fewest seeds of a world stand for the degrees of freedom, which is on the safe side.
    seeds = intervals(means.mean(0), draws, min(map(len, found.values)))
    worlds = intervals(means.mean(0), over_worlds(means), len(means))
    columns = {
        "estimator": found.estimators,
        "difference": means.mean(0),
    } | seeds._asdict()
    columns |= {f"{name}_worlds": values for name, values in worlds._asdict().items()}
    return pl.DataFrame(columns).fill_nan(None)


def contrasts(
    results: pl.DataFrame, setting: str, measure: str, first: str, second: str
) -> pl.DataFrame:
    """Return the difference of two estimators in each world that has both: `world`, and columns as of `differences`.

    The intervals `low_all` to `high_all` hold for all worlds at once.
    """
    chosen = results.filter(
        pl.col("estimator").is_in([first, second]), setting=setting, measure=measure
    )
    both = pl.col("estimator").n_unique().over("world") == 2
    found = sample(chosen.filter(both), setting, measure)
    signs = [1.0 if name == first else -1.0 for name in found.estimators]
    gaps = found.means() @ signs
    draws = found.draws() @ signs
    bounds = intervals(gaps, draws, min(map(len, found.values)))
    return pl.DataFrame(
        {"world": found.worlds, "difference": gaps} | bounds._asdict()
    ).fill_nan(None)


def over_worlds(means: Floats) -> Floats:
    """Return means over worlds in resamples of the worlds; `means` are of shape (worlds, estimators)."""
    return task_weights(len(means), RESAMPLES, 0) @ means / len(means)


def ranks(found: Sample) -> pl.DataFrame:
    """Return the ranks of estimators by their means over worlds, the highest first.

    Returns:
        `estimator`, `mean`, the interval of the rank over seeds (`low`, `high`) and over worlds (`low_worlds`,
        `high_worlds`; null with fewer than six). The controls have no rank.
    """
    found = found.without(CONTROLS)
    means = found.means()
    mean = means.mean(0)
    seeds = min(map(len, found.values))
    low, high = rank_intervals(mean, found.draws().mean(1), seeds)
    low_worlds: Integers | None = None
    high_worlds: Integers | None = None
    if len(means) >= FEWEST_TASKS:
        low_worlds, high_worlds = rank_intervals(mean, over_worlds(means), len(means))
    columns = {"estimator": found.estimators, "mean": mean, "low": low, "high": high}
    columns |= {"low_worlds": low_worlds, "high_worlds": high_worlds}
    return pl.DataFrame(columns).sort("mean", "estimator", descending=[True, False])


def rank_intervals(
    values: Floats, draws: Floats, units: int
) -> tuple[Integers, Integers]:
    """Return the lowest and the highest rank of each number, 95% for all at once; 1 is the largest number's.

    Args:
        values: The numbers, of shape (numbers,).
        draws: The same numbers of every resample, of shape (resamples, numbers).
        units: Number of independent units, such as seeds. With one, nothing is known.

    >>> draws = np.random.default_rng(0).normal([0.0, 0.1, 9.0], 1.0, (1000, 3))
    >>> rank_intervals(np.array([0.0, 0.1, 9.0]), draws, 100)
    (array([2, 2, 1]), array([3, 3, 1]))
    """
    size = len(values)
    better = np.zeros((size, size), bool)
    left = ~np.eye(size, dtype=bool)
    if units > 1:
        # t of each ordered pair, "the first is better", and the same of each resample if no pair differed.
        noise = draws - values
        noise = noise[:, :, None] - noise[:, None, :]
        # Equal estimators have neither noise nor a gap: t is 0, and not 0 / 0.
        error = np.maximum(noise.std(0), ROUNDING)
        gap = values[:, None] - values
        t = np.where(np.abs(gap) > ROUNDING, gap, 0.0) / error
        widened = np.sqrt(units / (units - 1))
        while left.any():
            # Pairs that are decided no longer take part: the next limit is lower.
            largest = (noise / error)[:, left].max(1)
            limit = np.quantile(student_value(largest, units - 1) * widened, LEVEL)
            new = left & (t > limit)
            if not new.any():
                break
            better |= new
            left &= ~new
    return 1 + better.sum(0), size - better.sum(1)
