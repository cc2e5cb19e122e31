"""The correlation of estimators with the true advantages of a run's steps, and how often their signs are right.

For a step, A is the true advantage, A₁ and A₂ are its two halves, independent and unbiased, and e is the estimate. The
mean of A₁A₂ has no noise of the truth in expectation, so it stands for that of A²:

    correlation     cov(e, A) / √(var e · var A)      with var A = mean of A₁A₂ - mean of A₁ · mean of A₂
    sign            share of steps with the sign of A, of those whose |A| is above 2 standard errors;
                    an estimate of 0 counts a half

With few tasks the estimate of var A may be near 0 or negative, and the ratio any number. It is null where a variance
is within two standard errors of 0, over resampled tasks. Intervals are percentiles over the same resamples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError
from hgpo_envs.wording import listed
from hgpo_research.resampling import percentile_bounds, task_weights
from hgpo_train.advantages.input_columns import group_keys
from hgpo_train.advantages.registry import compute_many

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_research.arrays import Floats
    from hgpo_train.advantages.variants import Variant

KEYS: Final = ("trajectory", "step")
TRUTH: Final = ("advantage", "advantage_error", "advantage_first", "advantage_second")
"""The columns of a truth table that are read, besides its keys."""
TASK: Final = ("env_id", "task_id", "task")
MEASURES: Final = ("correlation", "sign")
RESAMPLES: Final = 2000


def correlations(
    steps: pl.LazyFrame,
    truth: pl.LazyFrame,
    variants: Sequence[Variant],
    *,
    seed: int = 0,
) -> pl.DataFrame:
    """Compare estimators with the true advantages of a run's steps.

    Args:
        steps: A step table.
        truth: The truth table of this run (`hgpo truth`).
        variants: The estimators (`hgpo_train.advantages.variants.read_variants`).
        seed: Seed of the resamples of tasks.

    Returns:
        One row per estimator, the highest correlation first: `estimator`; `correlation`, with its 95% interval
        `correlation_low` and `correlation_high`; `sign`, `sign_low` and `sign_high`; and the numbers of `steps` and
        `tasks`. Null where there is none.

    Raises:
        InputError: A column is missing, a step is twice in the truth table, a trajectory is in two runs, or no step of
            the run has a truth.
    """
    groups = group_keys(steps.collect_schema())
    joined = _joined(steps, truth, variants, groups)

    # All estimators are measured in the same resamples of the tasks.
    task = [name for name in groups if name in TASK]
    tasks = joined.n_unique(task)
    weights = task_weights(tasks, RESAMPLES, seed)
    rows = []
    for variant in variants:
        terms = _terms(pl.col(variant.estimator.column))
        by_task = joined.group_by(task).agg(**terms)
        sums = by_task.sort(task).drop(task).to_numpy()
        values, variances = _measures(sums.sum(0))
        draws, noise = _measures(weights @ sums)
        # A variance within two standard errors of 0 can make any number of a correlation.
        if (variances <= 2 * noise.std(0)).any():
            values[0] = np.nan
        low, high = percentile_bounds(values, draws, tasks)
        row: dict[str, object] = {"estimator": variant.name}
        for place, name in enumerate(MEASURES):
            row[name] = values[place]
            row[f"{name}_low"] = low[place]
            row[f"{name}_high"] = high[place]
        rows.append(row | {"steps": joined.height, "tasks": tasks})
    found = pl.DataFrame(rows).with_columns(pl.col(pl.Float64).fill_nan(None))
    return found.sort(
        "correlation",
        descending=True,
        nulls_last=True,
        maintain_order=True,
    )


def _joined(
    steps: pl.LazyFrame,
    truth: pl.LazyFrame,
    variants: Sequence[Variant],
    groups: Sequence[str],
) -> pl.DataFrame:
    """Return the steps that have a truth, with the advantages of all estimators."""
    known = truth.collect_schema()
    missing = [name for name in (*KEYS, *TRUTH) if name not in known]
    if missing:
        raise InputError(
            f"the truth table has no {listed(missing)}; write it with hgpo truth"
        )
    exact = truth.select(
        *KEYS,
        pl.col(TRUTH).cast(pl.Float64, strict=False).name.prefix("true_"),
    ).collect()
    if exact.select(KEYS).is_duplicated().any():
        raise InputError(
            "the truth table has several rows for one step; expected one row per trajectory and step"
        )

    estimators = [variant.estimator for variant in variants]
    columns = [estimator.column for estimator in estimators]
    table = compute_many(steps, estimators).select(*groups, *KEYS, *columns).collect()
    trajectories = table.select(*groups, "trajectory").unique()
    if trajectories["trajectory"].is_duplicated().any():
        raise InputError(
            "expected names of trajectories that are unique in all runs; compare one run at a time"
        )

    # Aborted rollouts have no advantage, and some steps no truth.
    exact = exact.cast({"step": table["step"].dtype}, strict=False)
    joined = table.drop_nulls(columns).join(exact, on=KEYS)
    is_known = pl.all_horizontal(pl.col(f"true_{name}").is_finite() for name in TRUTH)
    joined = joined.filter(is_known)
    if joined.is_empty():
        raise InputError(
            "no step of the run is in the truth table; expected the truth of this run"
        )
    return joined


def _terms(estimate: pl.Expr) -> dict[str, pl.Expr]:
    """Return what is summed over the steps of a task, in the order of `_measures`."""
    first = pl.col("true_advantage_first")
    second = pl.col("true_advantage_second")
    truth = pl.col("true_advantage")
    is_sure = truth.abs() > 2 * pl.col("true_advantage_error")
    is_right = (
        pl.when(estimate == 0).then(0.5).otherwise(estimate.sign() == truth.sign())
    )
    sums = {
        "e": estimate,
        "first": first,
        "second": second,
        "ee": estimate**2,
        "ea": estimate * (first + second) / 2,
        "aa": first * second,
        "right": pl.when(is_sure).then(is_right).otherwise(0.0),
        "sure": is_sure,
    }
    return {"n": pl.len(), **{name: term.sum() for name, term in sums.items()}}


def _measures(sums: Floats) -> tuple[Floats, Floats]:
    """Return correlation and sign, and the variances of estimates and truth, from sums over steps.

    Args:
        sums: Of shape (…, terms); both results have the shape (…, 2). A measure is NaN where it is not defined.
    """
    n = sums[..., 0]
    sure = sums[..., -1]
    means = sums[..., 1:-1] / n[..., None]
    e, first, second, ee, ea, aa, right = np.moveaxis(means, -1, 0)
    of_estimate = ee - e**2
    of_truth = aa - first * second
    variances = np.stack([of_estimate, of_truth], axis=-1)
    # An estimate of a variance can be negative by noise, and has no root then.
    positive = np.where(variances > 0, variances, np.nan)
    covariance = ea - e * (first + second) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = covariance / np.sqrt(positive).prod(-1)
        # `right` is a mean over all steps, and wanted as a share of the sure ones.
        sign = right * n / sure
    return np.stack([correlation, sign], axis=-1), variances
