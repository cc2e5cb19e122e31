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

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_research.mixture import FOLDS
from hgpo_research.tabular.adaptive import Adaptive
from hgpo_research.tabular.cross_validation import cross_validated_slopes
from hgpo_research.tabular.methods import Oracle, TableEstimator
from hgpo_research.tabular.policy import Visits
from hgpo_research.tabular.report import half_width, with_halves
from hgpo_research.tabular.rollouts import rollouts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import altair as alt

    from hgpo_research.arrays import Floats
    from hgpo_research.tabular.learning import Learning
    from hgpo_research.tabular.methods import Method
    from hgpo_research.tabular.policy import TabularPolicy


GAINS: Final = ("one_batch", "expected", "relative", "cross_validated")
"""The numbers of `gains`."""

SAMPLES: Final = 16
"""Number of rollouts of each of the true values, where they are not exact."""

_COLUMNS: Final = (
    "one_batch",
    "one_batch_error",
    "expected",
    "relative",
    "cross_validated",
    "cross_validated_error",
)


def gains(
    policy: TabularPolicy,
    position: int,
    named: Mapping[str, Callable[[], Method]],
    how: Learning,
    copies: int,
    stream: Sequence[int],
    truth: Sequence[Floats] | None = None,
) -> pl.DataFrame:
    """Measure the gains of estimators at one policy.

    Args:
        policy: Policies.
        position: The position of the seed whose policy it is.
        named: Methods by name; those that are no functions of a batch alone are left out.
        how: The group size and the divergence of an update.
        copies: Number of redrawn batches, at least 4.
        stream: What the random numbers depend on, besides the seed.
        truth: The true advantages of each task's rows of `batches` with the same arguments, if they are known.

    Returns:
        Rows of `estimator`, `one_batch`, its standard error `one_batch_error`, `expected` (null if it is not measurable
        from so few copies), `relative`: `one_batch` divided by `expected` of the true advantages, and of estimators
        `cross_validated`, the mean of the batches' cross-validated gains, with `cross_validated_error`. Shares of 1.
    """
    same, visits = batches(policy, position, how, copies, stream)
    if truth is None:
        truth = Oracle(SAMPLES)(same, visits, (*stream, 1))
    true = visits.gradient(truth)
    true_dense = visits.dense(true)
    # The gradient of success from the other copies' rollouts: its noise is independent of a copy's own.
    others = (true_dense.sum(0) - true_dense) / (copies - 1)
    true_even, true_odd = _halves(true_dense)

    def measured(gradient: Floats) -> tuple[Floats, float | None]:
        """Return the gain of each batch, and that of the expected gradient."""
        dense = visits.dense(gradient)
        square = visits.products(gradient, gradient)
        rate = np.sqrt(2 * how.kl / np.where(square > 0, square, np.inf))
        one = rate * (dense * others).sum(1)
        even, odd = _halves(dense)
        # Even and odd copies are independent, so that the product has no noise of a square.
        length = visits.products(visits.sparse(even), visits.sparse(odd)).mean()
        # The means are repeated for all copies, of which one is enough.
        slope = (even * true_odd + odd * true_even)[0].sum() / 2
        return one, np.sqrt(2 * how.kl / length) * slope if length > 0 else None

    def summarised(name: str, values: Floats) -> dict[str, Any]:
        return {
            name: values.mean(),
            f"{name}_error": values.std(ddof=1) / copies**0.5,
        }

    # The largest gain that there is, by which relative gains are divided.
    _, unit = measured(true)
    rows = []
    for name, new in named.items():
        method = new()
        if isinstance(method, Adaptive):
            continue
        # The oracle's gradient is known already.
        gradient = (
            true
            if isinstance(method, Oracle)
            else visits.gradient(method(same, visits, stream))
        )
        one, expected = measured(gradient)
        row = {
            "estimator": name,
            "expected": expected,
            "relative": one.mean() / unit if unit else None,
        }
        row |= summarised("one_batch", one)
        if isinstance(method, TableEstimator):
            (slopes,) = cross_validated_slopes(same, visits, [method.estimator], FOLDS)
            row |= summarised("cross_validated", np.sqrt(2 * how.kl) * slopes)
        rows.append(row)
    return pl.DataFrame(
        rows,
        schema={"estimator": pl.String} | dict.fromkeys(_COLUMNS, pl.Float64),
    )


def batches(
    policy: TabularPolicy,
    position: int,
    how: Learning,
    copies: int,
    stream: Sequence[int],
) -> tuple[TabularPolicy, Visits]:
    """Return copies of a policy, and a batch of each of them; arguments are those of `gains`."""
    same = policy.copies(position, copies)
    return same, Visits(same, rollouts(same, how.group_size, stream))


def gains_of(
    policies: TabularPolicy,
    count: int,
    named: Mapping[str, Callable[[], Method]],
    how: Learning,
    copies: int,
    iteration: int,
) -> pl.DataFrame:
    """Return `gains` at the policies of the first `count` seeds, with the columns `iteration` and `seed`."""
    parts = []
    for position, seed in enumerate(policies.seeds[:count].tolist()):
        rows = gains(policies, position, named, how, copies, (iteration,))
        parts.append(
            rows.select(
                pl.lit(iteration).alias("iteration"),
                pl.lit(seed).alias("seed"),
                pl.all(),
            )
        )
    return pl.concat(parts)


def gains_summary(table: pl.DataFrame) -> pl.DataFrame:
    """Return the mean gains of each iteration over policies, with half of their 95% intervals (`<name>_half`)."""
    width = half_width(table["seed"].n_unique())
    return table.group_by("iteration", "estimator", maintain_order=True).agg(
        *with_halves(GAINS, width)
    )


def gains_chart(table: pl.DataFrame, summary: pl.DataFrame) -> alt.TopLevelMixin:
    """Return a chart of final success (of `report.summary`) by the gain of one batch, one for each iteration."""
    import altair as alt

    rows = gains_summary(table).join(
        summary.select("estimator", "final"),
        on="estimator",
        maintain_order="left",
    )
    percent = alt.Axis(format=".1%")
    base = alt.Chart(alt.InlineData(values=rows.to_dicts())).encode(
        x=alt.X("one_batch:Q", title="gain of one batch", axis=percent),
        y=alt.Y(
            "final:Q",
            title="final success",
            axis=percent,
            scale=alt.Scale(zero=False),
        ),
    )
    layers = alt.layer(
        base.mark_point(filled=True),
        base.mark_text(dx=4, align="left").encode(text="estimator:N"),
    )
    return layers.properties(width=320, height=260).facet(
        column=alt.Column("iteration:Q", title="updates")
    )


def _halves(gradient: Floats) -> list[Floats]:
    """Return the means of the even and of the odd copies, each repeated for all copies."""
    return [
        np.broadcast_to(gradient[start::2].mean(0), gradient.shape) for start in (0, 1)
    ]
