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
RESAMPLES: Final = 2000


def correlations(
    steps: pl.LazyFrame, truth: pl.LazyFrame, variants: Sequence[Variant], *, seed: int = 0
) -> pl.DataFrame:
    """Compare estimators with the true advantages of a run's steps.

    Args:
        steps: A step table.
        truth: The truth table of this run (`hgpo truth`).
        variants: The estimators (`hgpo_train.advantages.variants.read_variants`).
        seed: Seed of the resamples of tasks.

    Returns:
        One row per estimator, the highest correlation first: `estimator`, `correlation` with its 95% interval `low`
        and `high`, `sign` with `sign_low` and `sign_high`, and the numbers of `steps` and `tasks`. Null where there is
        none.

    Raises:
        InputError: A column is missing, a step is twice in the truth table, a trajectory is in two runs, or no step of
            the run has a truth.
    """
    if missing := [name for name in (*KEYS, *TRUTH) if name not in truth.collect_schema()]:
        raise InputError(f"the truth table has no {listed(missing)}; write it with hgpo truth")
    exact = truth.select(*KEYS, pl.col(TRUTH).name.prefix("true_")).collect()
    if exact.select(KEYS).is_duplicated().any():
        raise InputError("the truth table has several rows for one step; expected one row per trajectory and step")
    groups = group_keys(steps.collect_schema())
    estimators = [variant.estimator for variant in variants]
    columns = [estimator.column for estimator in estimators]
    table = compute_many(steps, estimators).select(*groups, *KEYS, *columns).collect()
    if table.select(*groups, "trajectory").unique()["trajectory"].is_duplicated().any():
        raise InputError("expected names of trajectories that are unique in all runs; compare one run at a time")
    # Aborted rollouts have no advantage, and some steps no truth.
    joined = table.drop_nulls(columns).join(exact.cast({"step": table["step"].dtype}), on=KEYS)
    joined = joined.filter(pl.all_horizontal(pl.col(f"true_{name}").is_finite() for name in TRUTH))
    if joined.is_empty():
        raise InputError("no step of the run is in the truth table; expected the truth of this run")

    task = [name for name in groups if name in {"env_id", "task_id", "task"}]
    tasks = joined.n_unique(task)
    weights = task_weights(tasks, RESAMPLES, seed)
    rows = []
    for name, column in zip([variant.name for variant in variants], columns, strict=True):
        sums = joined.group_by(task).agg(**_terms(pl.col(column))).sort(task).drop(task).to_numpy()
        values, variances = _measures(sums.sum(0))
        draws, noise = _measures(weights @ sums)
        if (variances <= 2 * noise.std(0)).any():
            values[0] = np.nan
        bounds = np.stack([values, *percentile_bounds(values, draws, tasks)], axis=1)
        rows.append([name, *bounds.ravel().tolist(), joined.height, tasks])
    names = ["estimator", "correlation", "low", "high", "sign", "sign_low", "sign_high", "steps", "tasks"]
    found = pl.DataFrame(rows, names, orient="row").with_columns(pl.col(pl.Float64).fill_nan(None))
    return found.sort("correlation", descending=True, nulls_last=True, maintain_order=True)


def _terms(estimate: pl.Expr) -> dict[str, pl.Expr]:
    """Return what is summed over the steps of a task, in the order of `_measures`."""
    first = pl.col("true_advantage_first")
    second = pl.col("true_advantage_second")
    truth = pl.col("true_advantage")
    is_sure = truth.abs() > 2 * pl.col("true_advantage_error")
    is_right = pl.when(estimate == 0).then(0.5).otherwise(estimate.sign() == truth.sign())
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
    e, first, second, ee, ea, aa, right = np.moveaxis(sums[..., 1:-1] / n[..., None], -1, 0)
    variances = np.stack([ee - e**2, aa - first * second], axis=-1)
    # An estimate of a variance can be negative by noise, and has no root then.
    with np.errstate(divide="ignore", invalid="ignore"):
        deviations = np.sqrt(np.where(variances > 0, variances, np.nan)).prod(-1)
        correlation = (ea - e * (first + second) / 2) / deviations
        sign = right * n / sure
    return np.stack([correlation, sign], axis=-1), variances
