"""Gain: the first-order improvement of success along an estimator's gradient, at a fixed KL divergence.

    gain of one batch               E[ĝ · ∇J / √(ĝᵀFĝ)] · √(2δ)
    gain of the expected gradient     E[ĝ] · ∇J / √(E[ĝ]ᵀ F E[ĝ]) · √(2δ)        that of an infinite batch

ĝ is the policy gradient with the estimator's advantages of one batch, J the undiscounted success, F the mean Fisher
information per visited step, and δ the divergence of an update (`updates.FixedKL`). The expectation is over redrawn
batches of one fixed policy, its *copies*. ∇J is the gradient with true advantages of the other copies' rollouts, so the
noise of a batch is not in both factors; products of expected gradients are those of the even and the odd copies.

The gain of the true advantages' expected gradient is the largest there is along gradients of this kind of policy, and
the unit of relative gains.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from hgpo_research.tabular.learning import advantages
from hgpo_research.tabular.report import half_width
from hgpo_research.tabular.rollouts import rollouts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import altair as alt
    from numpy.typing import NDArray

    from hgpo_research.tabular.learning import Learning
    from hgpo_research.tabular.policy import TabularPolicy
    from hgpo_train.advantages import Estimator

    Floats = NDArray[np.float64]


GAINS: Final = ("one_batch", "expected", "relative")
"""The numbers of `gains`."""


def gains(
    policy: TabularPolicy,
    position: int,
    named: Mapping[str, Estimator | None],
    how: Learning,
    copies: int,
    stream: Sequence[int],
) -> pl.DataFrame:
    """Measure the gains of estimators at one policy.

    Args:
        policy: Policies.
        position: The position of the seed whose policy it is.
        named: Estimators by name; None for the oracle.
        how: The group size, the divergence of an update, and the samples of the oracle's values.
        copies: Number of redrawn batches, at least 4.
        stream: What the random numbers depend on, besides the seed.

    Returns:
        Rows of `estimator`, `one_batch`, its standard error `one_batch_error`, `expected` (null if it is not measurable
        from so few copies) and `relative`: `one_batch` divided by `expected` of the oracle. Gains are shares of 1.
    """
    same = policy.copies(position, copies)
    batch = rollouts(same, how.group_size, stream)
    true = same.gradient(batch, advantages(None, same, batch, how.samples, (*stream, 1)))
    others = [(each.sum(0) - each) / (copies - 1) for each in true]
    true_even, true_odd = _halves(true)
    rows = []
    for estimator in [None, *named.values()]:
        gradient = true if estimator is None else same.gradient(batch, advantages(estimator, same, batch, 0, stream))
        square = same.products(batch, gradient, gradient)
        one = np.sqrt(2 * how.kl / np.where(square > 0, square, np.inf)) * _dot(gradient, others)
        even, odd = _halves(gradient)
        length = same.products(batch, even, odd).mean()
        slope = (_dot(even, true_odd) + _dot(odd, true_even)).mean() / 2
        expected = np.sqrt(2 * how.kl / length) * slope if length > 0 else None
        rows.append({"one_batch": one.mean(), "one_batch_error": one.std(ddof=1) / copies**0.5, "expected": expected})
    unit = rows[0]["expected"]
    table = pl.DataFrame(rows[1:], schema=dict.fromkeys(rows[0], pl.Float64))
    return table.select(
        pl.Series("estimator", list(named)), pl.all(), relative=pl.col("one_batch") / pl.lit(unit, pl.Float64)
    )


def gains_summary(table: pl.DataFrame) -> pl.DataFrame:
    """Return the mean gains of each iteration over policies, with half of their 95% intervals (`<name>_half`)."""
    width = half_width(table["seed"].n_unique())
    means = (pl.col(name).mean() for name in GAINS)
    halves = ((pl.col(name).std() * width).alias(f"{name}_half") for name in GAINS)
    return table.group_by("iteration", "estimator", maintain_order=True).agg(*means, *halves)


def gains_chart(table: pl.DataFrame, summary: pl.DataFrame) -> alt.TopLevelMixin:
    """Return a chart of final success (of `report.summary`) by the gain of one batch, one for each iteration."""
    import altair as alt

    rows = gains_summary(table).join(summary.select("estimator", "final"), on="estimator", maintain_order="left")
    percent = alt.Axis(format=".1%")
    base = alt.Chart(alt.InlineData(values=rows.to_dicts())).encode(
        x=alt.X("one_batch:Q", title="gain of one batch", axis=percent),
        y=alt.Y("final:Q", title="final success", axis=percent, scale=alt.Scale(zero=False)),
    )
    layers = alt.layer(base.mark_point(filled=True), base.mark_text(dx=4, align="left").encode(text="estimator:N"))
    return layers.properties(width=320, height=260).facet(column=alt.Column("iteration:Q", title="updates"))


def _halves(gradient: Sequence[Floats]) -> list[list[Floats]]:
    """Return the means of the even and of the odd copies, each repeated for all copies."""
    return [[np.broadcast_to(each[start::2].mean(0), each.shape) for each in gradient] for start in (0, 1)]


def _dot(first: Sequence[Floats], second: Sequence[Floats]) -> Floats:
    """Return the inner products of each seed's parameters of all tasks."""
    products: Floats = np.sum([(x * y).sum(1) for x, y in zip(first, second, strict=True)], axis=0)
    return products
