"""Cross-validated gain of estimators on a saved run: what an update along their gradients is worth, without truth.

The rollouts of each group are divided into folds. For each batch of the run and each fold f,

    ĝ_f = Σ_t A_t ∇ log π(a_t | s_t)                    over the rollouts of the other folds, A from these alone
    h_f = Σ_t (S_i - mean of the others' S) ∇ log π     over the rollouts i of fold f; S is success, undiscounted
    L_f = √(ĝ_fᵀ F ĝ_f)                                  F is the mean Fisher information per step

h_f / n is an unbiased part of the gradient of success, n the number of the batch's rollouts, and does not depend on the
actions in ĝ_f. An update along ĝ_f with the mean divergence δ per step then improves success by

    gain = √(2δ) Σ_f ĝ_f · h_f / (n L_f)

to first order, in expectation. It is that of a batch without one fold. With a truth table of undiscounted success, h is
Σ_t A_true ∇ log π instead, whose noise is less, and the true advantages themselves are compared as `TRUTH`: their
first halves are multiplied with the second ones, because estimates of one task share their errors.

*Lengths.* Where the policy's probabilities are known, F is exact at the states of ĝ_f's own rollouts, so that L_f and
h_f are independent. Else only the held-out actions can tell it. A length from few of them would go up and down with h_f
and bias the ratio, so lengths relative to |ĝ_f| are the root of one mean square over all folds of the batch.

*Intervals* are the wider one of two. One is Student's t over groups (a batch's gain is the sum of its groups' parts),
so that it contains the differences between tasks; its degrees of freedom are the groups with both outcomes, as the
parts of the others are 0. The other bounds the chance of rollouts: the parts of steps are martingale differences, whose
squares have the mean m² ĝᵀ F ĝ at most, m being the largest |S - mean| that the group can show. It holds where the
actions that decide are too rare to be in a sample. There are none with fewer than `FEWEST_GROUPS` groups with both
outcomes. Those of differences hold for all pairs at once (Bonferroni). `research.benchmarks.gain_simulation` measures
their coverage.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError
from hgpo_research.comparison.row_gradients import RowGradients, fisher_of
from hgpo_research.random_numbers import subkey
from hgpo_train.advantages.input_columns import (
    BATCH_KEYS,
    group_keys,
    prepare,
    row_keys,
)
from hgpo_train.advantages.parameters import Parameters
from hgpo_train.advantages.registry import compute_many
from hgpo_train.resampling import LEVEL, student_quantile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hgpo_research.arrays import Booleans, Floats, Integers
    from hgpo_research.comparison.logit_table import Gradients
    from hgpo_train.advantages.variants import Variant

TRUTH: Final = "true advantages"
"""The name of the true advantages among those of estimators."""

SUCCESS: Final = Parameters(
    reward="success",
    reward_scale=1.0,
    gamma=1.0,
    invalid_action_penalty=0.0,
)
"""Undiscounted success."""

_TRUTHS: Final = {
    "(truth)": "advantage",
    "(truth, first)": "advantage_first",
    "(truth, second)": "advantage_second",
}
"""The columns of a truth table that are read, under the names that they get."""

_MANY: Final = 1_000_000
"""The largest number of batches that is printed."""

FEWEST_GROUPS: Final = 5
"""The fewest groups with both outcomes for an interval."""

FEWEST_ROLLOUTS: Final = 200
"""The rollouts of a batch below which a sentence says that its gain may be biased."""

_BUCKETS: Final = 1 << 12
"""The size of sketches of tables of logits."""


@dataclass(frozen=True)
class Gains:
    """Gains of estimators on a run.

    Attributes:
        gains: One row per estimator, the largest gain first: `estimator`, `gain`, and its 95% interval `low`, `high`;
            null if there is none.
        differences: One row per pair, `first` before `second` in that order: `value`, its interval `low`, `high`, and
            `batches`: how many batches would tell them apart if the difference seen is the true one; null if it is
            significant already, or without intervals.
        batches: The number of batches.
        groups: The number of groups in all batches.
        informative: The number of those whose rollouts have both outcomes.
        rollouts: The mean number of rollouts of a batch.
        kl: δ.
    """

    gains: pl.DataFrame
    differences: pl.DataFrame
    batches: int
    groups: int
    informative: int
    rollouts: float
    kl: float


def cross_validated_gain(
    steps: pl.LazyFrame,
    variants: Sequence[Variant],
    gradients: Gradients,
    *,
    truth: pl.LazyFrame | None = None,
    folds: int = 4,
    kl: float = 0.01,
) -> Gains:
    """Measure the gains of estimators on a run.

    Args:
        steps: A step table with `won`.
        variants: The estimators.
        gradients: The gradients of the policy's log-probabilities (`row_gradients`, `feature_gradients`,
            `table_gradients`). Steps without one do not count.
        truth: A truth table of undiscounted success.
        folds: The number of folds, at least 2 and at most half of a group's rollouts.
        kl: δ.

    Raises:
        InputError: A column is missing, or groups are too small.
    """
    held = held_out(
        steps,
        variants,
        gradients,
        truth=truth,
        folds=folds,
    )
    names = [
        *(variant.name for variant in variants),
        *([TRUTH] if truth is not None else []),
    ]
    return summed(held, names, kl)


def summed(held: Sequence[HeldOut], names: Sequence[str], kl: float) -> Gains:
    """Return the gains of held-out parts; see `cross_validated_gain`."""
    groups, bound = by_group(held, kl)
    # Each batch is counted once a fold.
    rollouts = sum(part.rollouts for part in held) / len(held)
    return compared(names, groups, bound, held[-1].batch + 1, rollouts, kl)


def by_group(held: Sequence[HeldOut], kl: float) -> tuple[Floats, Floats]:
    """Return the parts of gains that groups have, of shape (estimators, groups), and their bound; see `compared`.

    Args:
        held: The held-out parts of all folds of one or several batches.
        kl: δ.
    """
    count = 1 + max(
        (int(part.group.max()) for part in held if len(part.group)), default=-1
    )
    names = len(held[0].bound)
    groups = np.zeros((names, count))
    bound = np.zeros((names, names))
    # A group's parts of all folds are one number: the folds of a group are not independent. Their bounds are added
    # nevertheless: with given directions, parts of different rollouts are all but uncorrelated.
    for part in held:
        np.add.at(groups.T, part.group, part.slopes * part.against / part.rollouts)
        bound += part.bound / part.rollouts**2
    return np.sqrt(2 * kl) * groups, 2 * kl * bound


@dataclass(frozen=True)
class HeldOut:
    """The steps of a fold of one batch, and the gradients of estimators from the batch's other folds.

    Attributes:
        batch: The number of the batch.
        rollouts: The number of the batch's rollouts.
        directions: ĝ, of shape (estimators, size of sketches).
        lengths: L, of shape (estimators,).
        group: The number of each step's group, of shape (steps,).
        slopes: ĝ · ∇ log π(a_t | s_t) / L, of shape (steps, estimators); 0 where ĝ is 0.
        against: S_i minus the mean of the others' S, or the true advantage, of shape (steps, 1 or estimators).
        products: The sums over steps of the squares and products of slopes, of shape (estimators, estimators).
        bound: The same with the weights m², which are 0 with a truth.
    """

    batch: int
    rollouts: int
    directions: Floats
    lengths: Floats
    group: Integers
    slopes: Floats
    against: Floats
    products: Floats
    bound: Floats


def held_out(
    steps: pl.LazyFrame,
    variants: Sequence[Variant],
    gradients: Gradients,
    *,
    truth: pl.LazyFrame | None = None,
    folds: int = 4,
) -> list[HeldOut]:
    """Return the held-out steps of each fold and batch; the last estimator is the truth, if there is one.

    See `cross_validated_gain` for arguments and errors.
    """
    table, success = _read(steps, variants, gradients, truth)
    keys = group_keys(table.columns)
    batches = [name for name in BATCH_KEYS if name in table.columns]
    least = int(
        str(
            table.group_by(keys)
            .agg(pl.col("trajectory").n_unique())["trajectory"]
            .min()
        )
    )
    if folds < 2 or least < 2 * folds:
        raise InputError(
            f"--folds: expected 2 to half of a group's {least} rollouts, received {folds}"
        )
    # The rollouts of a group go to the folds in turn.
    place = pl.col("trajectory").rank("dense").over(keys).cast(pl.Int64) - 1
    numbers = table.select(
        fold=place % folds,
        group=ranks(keys),
        batch=ranks(batches) if batches else pl.lit(0, pl.Int64),
        rollout=ranks([*keys, "trajectory"]),
        sketch="(sketch)",
    )
    fold, group, batch, rollout, sketch = (column.to_numpy() for column in numbers)
    found = []
    for held in range(folds):
        kept = fold != held

        # 1. The estimators see the other folds alone.
        weights = np.zeros((len(variants) + (truth is not None), table.height))
        weights[: len(variants), kept] = _estimates(
            table.filter(pl.Series(kept)), variants
        )

        # 2. What the held-out steps are worth: success minus that of the others, or the true advantage.
        if truth is None:
            base = _means(group, rollout, success, kept)
            against = (success - base)[:, None]
            # Success is 0 or 1: no rollout of the group can be farther from the mean.
            most = np.maximum(base, 1.0 - base) ** 2
        else:
            both, first, second = (table[name].to_numpy() for name in _TRUTHS)
            against = np.stack([*[both] * len(variants), second], axis=1)
            most = np.zeros(table.height)
            weights[-1] = np.where(kept, first, 0.0)

        # 3. The gradient of each batch's other folds, and the slopes of the held-out steps along it.
        for number in range(int(batch.max()) + 1):
            inside = (batch == number) & (sketch >= 0)
            rows = np.flatnonzero(inside & kept)
            tested = np.flatnonzero(inside & ~kept)
            directions = gradients.summed(weights[:, rows], sketch[rows])
            # Without exact information, |ĝ| is the unit until all folds are known (`_pooled`).
            lengths = np.linalg.norm(directions, axis=1).astype(np.float64)
            if gradients.exact and len(rows):
                products = gradients.products(
                    directions,
                    sketch[rows],
                    np.full(len(rows), 1 / len(rows)),
                )
                lengths = np.sqrt(products.diagonal())
            units = (directions / _or_infinity(lengths)[:, None]).astype(np.float32)
            part = HeldOut(
                batch=number,
                rollouts=len(np.unique(rollout[batch == number])),
                directions=directions,
                lengths=lengths,
                group=group[tested],
                slopes=gradients.slopes(units, sketch[tested]),
                against=against[tested],
                products=gradients.products(
                    units, sketch[tested], np.ones(len(tested))
                ),
                bound=gradients.products(units, sketch[tested], most[tested]),
            )
            found.append(part)
    return found if gradients.exact else _pooled(found)


def _pooled(found: Sequence[HeldOut]) -> list[HeldOut]:
    """Return the parts with the lengths of their batches: |ĝ| times the root mean square of the batch's slopes."""
    pooled = []
    for part in found:
        folds = [each for each in found if each.batch == part.batch]
        square = sum(each.products.diagonal() for each in folds)
        steps = sum((each.lengths > 0) * len(each.group) for each in folds)
        factor = np.sqrt(square / np.maximum(steps, 1))
        safe = _or_infinity(factor)
        both = np.outer(safe, safe)
        scaled = replace(
            part,
            lengths=part.lengths * factor,
            slopes=part.slopes / safe,
            products=part.products / both,
            bound=part.bound / both,
        )
        pooled.append(scaled)
    return pooled


def _or_infinity(lengths: Floats) -> Floats:
    """Return lengths by which to divide: what is divided by a length of 0 is 0."""
    return np.where(lengths > 0, lengths, np.inf)


def table_gradients(truth: pl.LazyFrame) -> RowGradients:
    """Return sketches of the gradients of a table of logits, one row for each prompt, at the steps of a truth table.

    Args:
        truth: A truth table with `prompt_hash`, `choice` and `probabilities`.

    Raises:
        InputError: It is of a run without prompts.
    """
    known = truth.filter(pl.col("choice").is_not_null()).collect()
    if known["prompt_hash"].has_nulls():
        raise InputError(
            "the gradients of a table of logits need the prompts, which the run does not store; use --model, or "
            "collect a run with prompts"
        )
    sketches = np.zeros((known.height, _BUCKETS), np.float32)
    places = []
    read = known.select("prompt_hash", "choice", "probabilities").iter_rows()
    for sketch, (prompt, choice, probabilities) in zip(sketches, read, strict=True):
        shares = np.array(probabilities)
        numbers = np.arange(len(shares))
        # A parameter is a prompt and an action: its hash is its bucket and its sign.
        hashes = subkey(np.full(len(shares), prompt, np.int64), numbers).view(np.uint64)
        signs = np.where(hashes >> np.uint64(63), 1.0, -1.0)
        buckets = hashes % np.uint64(_BUCKETS)
        np.add.at(sketch, buckets, signs * ((numbers == choice) - shares))
        places.append((shares, buckets, signs))

    def changes(directions: Any, number: int) -> tuple[Floats, Floats]:  # noqa: ANN401 - an array
        shares, buckets, signs = places[number]
        return shares, (signs * directions[:, buckets]).T

    rows = known.select("trajectory", "step", sketch=pl.int_range(pl.len()))
    return RowGradients(rows, sketches, _BUCKETS, 0.0, fisher_of(changes))


def ranking(found: Gains) -> list[str]:
    """Return in words what the gains are worth: bias, intervals, and which differences are significant."""
    sentences = []
    if found.rollouts < FEWEST_ROLLOUTS:
        sentences.append(
            f"Batches of {found.rollouts:.0f} rollouts: below about {FEWEST_ROLLOUTS}, gains can be biased by up to "
            "45% (near 0% and 100% success)."
        )
    if found.gains["low"].null_count():
        sentences.append(
            f"No intervals and no ranking: {found.informative} of {found.groups} groups have both outcomes, and "
            f"intervals need {FEWEST_GROUPS}. More tasks or larger groups have more."
        )
        return sentences
    for row in found.differences.iter_rows(named=True):
        pair = f"{row['first']} and {row['second']}"
        ends = f"{_points(row['low'])} to {_points(row['high'])} points"
        if row["batches"] is None:
            sentences.append(f"{row['first']} is above {row['second']}: {ends}.")
        else:
            needed = (
                f"about {row['batches']:,} batches"
                if row["batches"] < _MANY
                else "a million batches or more"
            )
            have = f"{found.batches:,} here"
            sentences.append(
                f"{pair} are not ranked: {ends}. If the difference seen is true, {needed} ({have})."
            )
    return sentences


def _points(value: float) -> str:
    return f"{100 * value:+.2f}"


def _read(
    steps: pl.LazyFrame,
    variants: Sequence[Variant],
    gradients: Gradients,
    truth: pl.LazyFrame | None,
) -> tuple[pl.DataFrame, Floats]:
    """Return the steps of complete rollouts with `(sketch)` and `(truth)`, and the success of each step's rollout."""
    schema = steps.collect_schema()
    if "won" not in schema:
        raise InputError(
            "gain is the improvement of success: expected a run with the column won, received one without"
        )
    read = {"won", "aborted", *row_keys(schema)}.union(
        *(each.estimator.columns(schema) for each in variants)
    )
    table = complete_rollouts(
        steps.select(name for name in schema if name in read).collect()
    )
    # Success as estimators read it: of the last step, for every step of the rollout.
    success = (
        prepare(table, SUCCESS, ())
        .select("episode_return")
        .collect()
        .to_series()
        .to_numpy()
    )

    def joined(table: pl.DataFrame, other: pl.DataFrame) -> pl.DataFrame:
        other = other.with_columns(pl.col("step").cast(schema["step"]))
        return table.join(
            other,
            on=["trajectory", "step"],
            how="left",
            maintain_order="left",
        )

    # A step without a gradient, or with a truth table without a truth, has no sketch (-1) and does not count.
    table = joined(table, gradients.rows.rename({"sketch": "(sketch)"})).with_columns(
        pl.col("(sketch)").fill_null(-1)
    )
    if truth is None:
        return table, success
    table = joined(table, truth.select("trajectory", "step", **_TRUTHS).collect())
    table = table.with_columns(
        pl.when(pl.col("(truth)").is_null())
        .then(-1)
        .otherwise("(sketch)")
        .alias("(sketch)")
    )
    return table.with_columns(pl.col(*_TRUTHS).fill_null(0.0)), success


def complete_rollouts(table: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a step table without aborted rollouts."""
    if "aborted" not in table.columns:
        return table
    return table.filter(
        ~pl.col("aborted")
        .cast(pl.Boolean)
        .fill_null(value=False)
        .any()
        .over("trajectory")
    )


def ranks(names: Iterable[str]) -> pl.Expr:
    """Return the number of each row's combination of values, in their order, from 0: int64."""
    return pl.struct(names).rank("dense").cast(pl.Int64) - 1


def _estimates(table: pl.DataFrame, variants: Sequence[Variant]) -> Any:  # noqa: ANN401 - an array of float64
    """Return the advantages of all estimators, of shape (estimators, steps)."""
    given = table.select(name for name in table.columns if not name.startswith("("))
    estimated = compute_many(given, [variant.estimator for variant in variants])
    return (
        estimated.select(variant.estimator.column for variant in variants)
        .collect()
        .to_numpy()
        .T
    )


def _means(
    group: Integers, rollout: Integers, success: Floats, kept: Booleans
) -> Floats:
    """Return, for each step, the mean success of its group's kept rollouts."""
    # One row of each rollout: long rollouts count no more than short ones.
    _, first = np.unique(rollout, return_index=True)
    first = first[kept[first]]
    count = int(group.max()) + 1
    means: Floats = np.bincount(group[first], success[first], count) / np.bincount(
        group[first], minlength=count
    )
    return means[group]


def compared(
    names: Sequence[str],
    parts: Floats,
    bound: Floats,
    batches: int,
    rollouts: float,
    kl: float,
    family: int | None = None,
) -> Gains:
    """Return gains and their differences, with intervals.

    Args:
        names: The estimators.
        parts: The groups' parts, of shape (estimators, groups): their sum is the gain times the number of batches.
        bound: The largest variances and covariances of that sum by the chance of rollouts alone.
        batches: The number of batches.
        rollouts: The mean number of rollouts of a batch.
        kl: δ.
        family: The number of differences whose intervals hold at once; all pairs by default.
    """
    informative = int(np.any(parts != 0, 0).sum())
    pairs = family or max(1, len(names) * (len(names) - 1) // 2)

    def measured(contrast: Floats, family: int) -> tuple[float, float | None]:
        """Return a combination of gains, and half of its interval in a family of some size."""
        values = contrast @ parts
        gain = float(values.sum() / batches)
        if informative < FEWEST_GROUPS:
            return gain, None
        level = 1 - (1 - LEVEL) / 2 / family
        # The error of a sum over n groups is s √n. Groups without both outcomes have a part of 0, and tell nothing
        # about the differences between groups: they are no degrees of freedom.
        between = (
            student_quantile(level, informative - 1)
            * values.std(ddof=1)
            * parts.shape[1] ** 0.5
        )
        # A bound is not estimated from few groups: its quantile is the normal one.
        chance = (
            student_quantile(level, 10**6)
            * max(0.0, float(contrast @ bound @ contrast)) ** 0.5
        )
        return gain, float(max(between, chance) / batches)

    unit = np.eye(len(names))
    order = np.argsort(-parts.sum(1), kind="stable")
    # less is the noise of rounding
    least = 1e-6 * float(np.abs(parts.sum(1)).max()) / batches
    rows = []
    differences = []
    for place, number in enumerate(order):
        gain, half = measured(unit[number], 1)
        rows.append((names[number], gain, *_ends(gain, half)))
        for other in order[place + 1 :]:
            value, half = measured(unit[number] - unit[other], pairs)
            value = value if value > least else 0.0
            needed = None
            if half is not None and value <= half:
                # The half shrinks with the root of the number of batches.
                needed = (
                    ceil(min(_MANY, batches * (half / value) ** 2)) if value else _MANY
                )
            differences.append(
                (
                    names[number],
                    names[other],
                    value,
                    *_ends(value, half),
                    needed,
                )
            )
    ends = {"low": pl.Float64, "high": pl.Float64}
    between = {
        "first": pl.String,
        "second": pl.String,
        "value": pl.Float64,
        **ends,
        "batches": pl.Int64,
    }
    gains = pl.DataFrame(
        rows,
        {"estimator": pl.String, "gain": pl.Float64, **ends},
        orient="row",
    )
    return Gains(
        gains,
        pl.DataFrame(differences, between, orient="row"),
        batches,
        parts.shape[1],
        informative,
        rollouts,
        kl,
    )


def _ends(value: float, half: float | None) -> tuple[float | None, float | None]:
    return (None, None) if half is None else (value - half, value + half)
