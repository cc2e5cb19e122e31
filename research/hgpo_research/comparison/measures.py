"""The measures of an estimator against true advantages, as functions of sums per task.

For a step, A is the true advantage, A₁ and A₂ are its two halves, independent and unbiased, e is the estimate, in the
unit of rewards, and E is the mean over the steps of all redraws. Products of the two halves have no noise of the truth
in expectation, E A₁A₂ = E A², also where the halves are equal because the truth is exact:

    square           E A₁A₂                                            (the scale of the next four)
    bias             E (e - A)                                         in the unit of rewards
    error            E (e - A₁)(e - A₂) / square                       MSE; 1 is that of an advantage of 0
    squared_bias     E d₁ d₂' / square                                 at a fixed context and action, see below
    variance         (E (e - A₁)(e - A₂) - E d₁ d₂') / square          at a fixed context and action
    slope            cov(e, A) / var A                                 1 if the expected estimate is A
    correlation      cov(e, A) / √(var e · var A)                      var A = E A₁A₂ - E A₁ · E A₂
    affine_error     1 - correlation²                                  error after the best scale and shift, / var A
    sign             share of the steps with the sign of A             of those whose |A| is above 2 standard errors;
                                                                       an estimate of 0 counts a half

*At a fixed context and action.* d = e - A of a step, d' that of a step of another, disjoint subgroup of the same
redraw, with the same visible context (`prompt_hash`) and action. Groups of different rollouts are independent, so
E d d' is the squared mean of d at that context and action. Only steps with such a partner count, also for the error
from which it is subtracted. The groups as they were played have no partners, unless a task has several.

*Undefined measures.* Products of halves estimate squares without bias, so with few tasks they may be near 0 or
negative, and a ratio with such a denominator may be any number: a "correlation" of 4. A measure is null where a factor
of its denominator (`denominators`) is within two standard errors of 0, over resampled tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hgpo_research.comparison.contexts import summed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hgpo_research.arrays import Booleans, Floats, Integers
    from hgpo_research.comparison.inputs import Draw

    Sums = Mapping[str, Floats]

MEASURES: Final = (
    "correlation",
    "affine_error",
    "sign",
    "bias",
    "slope",
    "error",
    "squared_bias",
    "variance",
)


def row_sums(found: Draw, estimate: tuple[Floats, Floats]) -> dict[str, Floats]:
    """Return what is summed over steps, one array per sum and one entry per step.

    Args:
        found: The steps.
        estimate: The two halves of the estimate, equal unless it contains those of the truth.
    """
    one, two = estimate
    first = found.first
    second = found.second
    # Each factor has another half of the truth: the product has none of its noise in expectation.
    error = (one - first) * (two - second)
    signs = np.where(
        one + two == 0,
        0.5,
        np.sign(one + two) == np.sign(first + second),
    )
    cross, paired = _partners(found, one - first, two - second)
    return {
        "n": np.ones(len(first)),
        "e": (one + two) / 2,
        "first": first,
        "second": second,
        "ee": one * two,
        "ea": (one * second + two * first) / 2,
        "aa": first * second,
        "error": error,
        "sure": found.sure.astype(np.float64),
        "sign": np.where(found.sure, signs, 0.0),
        "cross": cross,
        "paired_error": np.where(paired, error, 0.0),
        "paired_aa": np.where(paired, first * second, 0.0),
        "paired": paired.astype(np.float64),
    }


def _partners(found: Draw, first: Floats, second: Floats) -> tuple[Floats, Booleans]:
    """Return each step's error times the mean error of its partners in other subgroups, and whether it has partners."""
    usable, own, cell = found.contexts

    def of_partners(values: Floats) -> Floats:
        """Return the sum of the values of each step's partners: those of its redraw but for its own subgroup."""
        total: Floats = summed(cell, values, 0)[cell] - summed(own, values, 0)[own]
        return total

    # The number of partners, then the sum of their errors, both ways between the halves.
    others = of_partners(np.ones(len(cell)))
    product = np.zeros(len(cell))
    for here, there in (
        (first[usable], second[usable]),
        (second[usable], first[usable]),
    ):
        product += here * of_partners(there) / np.maximum(others, 1) / 2
    cross = np.zeros(len(first))
    cross[usable] = np.where(others > 0, product, 0.0)
    paired = np.zeros(len(first), np.bool_)
    paired[usable] = others > 0
    return cross, paired


def task_sums(
    rows: Sums,
    task: Integers,
    tasks: int,
    part: Booleans | None = None,
) -> dict[str, Floats]:
    """Return the sums of each task, arrays of shape (tasks,).

    Args:
        rows: The sums' terms (`row_sums`).
        task: Number of each step's task.
        tasks: Number of tasks.
        part: The steps that count; None for all.
    """
    if part is not None:
        task = task[part]
        rows = {name: values[part] for name, values in rows.items()}
    return {name: summed(task, values, tasks) for name, values in rows.items()}


def denominators(sums: Sums) -> dict[str, tuple[Floats, ...]]:
    """Return the estimated squares by which each measure is divided, of which noise can make any number.

    Args:
        sums: As of `measured`.
    """
    n = sums["n"]
    spread = sums["aa"] / n - sums["first"] / n * (sums["second"] / n)
    own = sums["ee"] / n - (sums["e"] / n) ** 2
    return {
        "correlation": (own, spread),
        "affine_error": (own, spread),
        "slope": (spread,),
        "error": (sums["aa"],),
        "squared_bias": (sums["paired_aa"],),
        "variance": (sums["paired_aa"],),
    }


def measured(sums: Sums) -> dict[str, Floats]:
    """Return all measures from sums over steps; NaN where a measure is not defined.

    Args:
        sums: Arrays of any shape, such as one entry per resample of the tasks.
    """
    with np.errstate(all="ignore"):
        n = sums["n"]
        mean = {name: values / n for name, values in sums.items()}
        middle = (mean["first"] + mean["second"]) / 2
        covariance = mean["ea"] - mean["e"] * middle
        spread = mean["aa"] - mean["first"] * mean["second"]
        own = mean["ee"] - mean["e"] ** 2
        square = mean["aa"]
        # Estimates of squares can be negative by noise, and have no root then.
        correlation = covariance / np.sqrt(_positive(own) * _positive(spread))
        paired = sums["paired"]
        paired_square = _positive(sums["paired_aa"] / paired)
        squared_bias = sums["cross"] / paired / paired_square
        found = {
            "correlation": correlation,
            "affine_error": 1 - correlation**2,
            "sign": sums["sign"] / sums["sure"],
            "bias": mean["e"] - middle,
            "slope": covariance / _positive(spread),
            "error": mean["error"] / _positive(square),
            "squared_bias": squared_bias,
            "variance": sums["paired_error"] / paired / paired_square - squared_bias,
        }
    return {name: np.where(np.isfinite(values), values, np.nan) for name, values in found.items()}


def _positive(values: Floats) -> Floats:
    """Return values, with NaN for those that are not positive: estimates of squares, which noise can make negative."""
    return np.where(values > 0, values, np.nan)
