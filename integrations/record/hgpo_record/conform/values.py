"""Checks of a group's advantages by themselves: finite, of the right signs and sizes, and what a call leaves alone."""

from __future__ import annotations

import numpy as np
import polars as pl

from hgpo_record.conform.adapters import CallError
from hgpo_record.conform.rollouts import PLAIN, table
from hgpo_record.conform.verdicts import NOISE, Estimate, Note, unless_equal


def finite(estimate: Estimate) -> str | None:
    """One finite number for each step, in whatever order groups and lengths come."""
    lengths = [[0.0, 0.5, 0.0, 1.0], [0.0], [0.0, 0.0, 0.0], [1.0, 1.0]]
    steps = table({**PLAIN, "long": lengths})
    values = estimate(steps).values
    bad = int((~np.isfinite(values)).sum())
    return f"{bad} of {len(values)} advantages are NaN or infinite" if bad else None


def mask(estimate: Estimate) -> str | None:
    """Each sequence's own mask (SkyRL #1492: the last step's mask was used for all)."""
    steps = table(
        {
            "a": [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
            "b": [[0.0, 0.0, 1.0], *[[0.0] * 3] * 2],
        }
    )
    found = estimate(steps)
    if found.outside > NOISE:
        return f"advantages outside the response mask, up to {found.outside:.3g}; multiply by each sequence's own mask"
    if found.uneven:
        return "the tokens of one step have different advantages"
    lost = int((np.abs(found.values) < NOISE).sum())
    return (
        f"{lost} of {len(found.values)} steps have advantage 0 where their rollouts' returns differ"
        if lost
        else None
    )


def equal(estimate: Estimate) -> str | None:
    """Equal returns give 0, not the noise of their mean divided by its own size (verl-agent; many forks)."""
    rewards = {
        f"all {value:.4g}": [[0.0, value]] * size
        for value, size in ((0.1, 3), (1 / 3, 7), (10.0, 6), (0.7, 5))
    }
    for name, rollouts in rewards.items():
        values = estimate(table({name: rollouts})).values
        if not np.abs(values).max() <= 10 * NOISE:  # NaN, too
            worst = values[np.argmax(np.abs(np.nan_to_num(values, nan=np.inf)))]
            equal = f"{len(rollouts)} equal returns of {rollouts[0][-1]:.4g}"
            return f"{equal} have an advantage of {worst:.3g}, expected 0"
    return None


def alone(estimate: Estimate) -> str | None:
    """A group of one rollout has no baseline (rLLM #776: every group was one)."""
    values = estimate(table({"only": [[0.0, 1.0]]})).values
    if not np.isfinite(values).all():
        return "a group of one rollout has NaN; its standard deviation is not defined, expected 0"
    if np.abs(values).max() > NOISE:
        return Note(
            f"a group of one rollout has the advantage {values[0]:.3g}: its return, without a baseline"
        )
    return None


def sign(estimate: Estimate) -> str | None:
    """The better rollout of a group has the larger advantage, above 0; the worse one is below 0."""
    for high, low in ((1.0, 0.0), (0.0, -1.0), (1000.1, 1000.0), (0.02, 0.01)):
        values = estimate(table({"pair": [[high], [low], [low], [high]]})).values
        if not (values[0] > NOISE and values[1] < -NOISE):
            shown = f"{values[0]:.3g} and {values[1]:.3g}"
            return f"returns of {high:g} and {low:g} have the advantages {shown}; expected above and below 0"
    return None


def shift(estimate: Estimate) -> str | None:
    """The same reward added to all rollouts of a task changes nothing."""
    before = estimate(table(PLAIN)).values
    more = {
        name: [[*rewards[:-1], rewards[-1] + 3.0] for rewards in rollouts]
        for name, rollouts in PLAIN.items()
    }
    won = table(PLAIN)["won"]  # as before: some estimators read it
    after = estimate(table(more).with_columns(won)).values
    return unless_equal(
        after, before, "3 more in every return changes advantages", most=10 * NOISE
    )


def scale(estimate: Estimate) -> str | None:
    """Larger rewards do not give smaller advantages, as a division by the variance does."""
    before = estimate(table(PLAIN)).values
    more = {
        name: [[8 * reward for reward in rollout] for rollout in rollouts]
        for name, rollouts in PLAIN.items()
    }
    after = estimate(table(more)).values
    ratio = np.abs(after).max() / max(np.abs(before).max(), NOISE)
    if ratio > 0.5:  # by the variance, 1/8
        return None
    return f"8 times the rewards give advantages of {ratio:.3g} times the size; divide by the standard deviation"


def centred(estimate: Estimate) -> str | None:
    """Whether the advantages of a task's rollouts sum to 0: the baseline is the mean of all their returns."""
    values = estimate(table({"a": [[1.0], [0.0], [0.0], [0.5]]})).values
    if abs(values.sum()) <= 0.01 * np.abs(values).sum():
        return None
    return Note(
        f"the advantages of four rollouts sum to {values.sum():.3g}: the baseline is not their mean return"
    )


def nan(estimate: Estimate) -> str | None:
    """A reward that is NaN is an error or stays one; it is never counted as a number."""
    steps = table({"broken": [[0.0, float("nan")], [0.0, 1.0], [0.0, 0.0]]})
    try:
        values = estimate(steps).values
    except CallError:
        return None
    if np.isnan(values[1]):
        return None
    return f"a reward of NaN has the advantage {values[1]:.3g}: it was counted as a number; raise an error"


def untouched(estimate: Estimate) -> str | None:
    """The arguments are not modified: the caller still needs them."""
    changed = estimate(table(PLAIN)).changed
    return f"it modifies {', '.join(changed)} in place; copy first" if changed else None


def repeated(estimate: Estimate) -> str | None:
    """Two calls give the same advantages."""
    steps = table(PLAIN)
    first = estimate(steps).values
    second = estimate(steps).values
    return unless_equal(first, second, "two calls with the same rows differ", most=0)


def has_effect(estimate: Estimate, without: Estimate, shown: str) -> str | None:
    """Whether a setting changes anything, on rows that differ in all that a setting can be about."""
    long = [
        [0.2, 0.0, 0.0, 1.0],
        [0.0, 0.3, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.5],
        [0.0, 0.1, 0.0, 0.0],
    ]
    steps = table({"long": long, **PLAIN}).with_columns(
        action_valid=pl.col("step") != 1,
        state=pl.format("{} at {}", "task_id", pl.col("step") // 2),
    )
    difference = np.abs(estimate(steps).values - without(steps).values).max()
    if difference == 0:
        return f"{shown} changes no advantage; it is ignored, or it is the default"
    return None
