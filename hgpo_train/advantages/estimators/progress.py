"""Progress advantage: how much more likely the policy makes a response than its reference (arXiv 2606.26080).

As described by secondary sources; compare with the paper before citing:

    A(t) = mean_j (log π(y_j) - log π_ref(y_j))    over the tokens y_j of the step's response

For a policy that was trained to its optimum with a KL penalty against the reference, this is the advantage of the
action, up to the penalty's factor and the number of tokens. It reads the scores `logprobs` and `reference_logprobs` and
no returns: it measures what a trained policy has learned, and as the only signal of training it reinforces that.

The reference of `hgpo train` is the model that the run started from, which is kept if `update.kl_weight` is above 0;
without one, training is refused. In a saved run, it is the model of `hgpo score --reference`.

Special cases: a policy that equals its reference has advantages of exactly 0, whatever the returns; so has a response
without tokens.
"""

from __future__ import annotations

from typing import Unpack

import polars as pl

from hgpo_train.advantages.parameters import SharedOptions  # noqa: TC001 - evaluated annotations
from hgpo_train.advantages.registry import estimator


@estimator(
    reads=(),
    scores=("logprobs", "reference_logprobs"),
    details=("logprob", "reference_logprob"),
)
def progress(steps: pl.LazyFrame, **_: Unpack[SharedOptions]) -> pl.LazyFrame:
    """Compare each response's log-probability with that of a reference model."""
    tokens = pl.List(pl.Float64)
    steps = steps.with_columns(
        logprob=pl.col("logprobs").cast(tokens).list.mean(),
        reference_logprob=pl.col("reference_logprobs").cast(tokens).list.mean(),
    )
    ratio = pl.col("logprob") - pl.col("reference_logprob")
    return steps.with_columns(advantage=ratio.fill_null(0.0))
