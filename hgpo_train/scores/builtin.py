"""The scores of this package: log-probabilities, entropies, and log-probabilities under the reference model.

All are in nats, of the distribution softmax(logits / temperature) that responses are sampled from.
"""

from __future__ import annotations

import polars as pl

from hgpo_train.scores.registry import score
from hgpo_train.scores.rows import TOKENS, ScoredRows


@score("logprobs", columns={"logprobs": TOKENS})
def logprobs(rows: ScoredRows) -> dict[str, pl.Series]:
    """Score each response token by log π(token), as `logprobs`."""
    return {"logprobs": rows.per_token(rows.policy.logprobs)}


@score("entropy", columns={"entropy": pl.Float64()})
def entropy(rows: ScoredRows) -> dict[str, pl.Series]:
    """Score each response by the mean entropy of the distributions of its tokens."""
    return {
        "entropy": rows.per_token(rows.policy.entropies)
        .cast(pl.List(pl.Float64))
        .list.mean()
    }


@score("entropies", columns={"entropies": TOKENS})
def entropies(rows: ScoredRows) -> dict[str, pl.Series]:
    """Score each response token by the entropy of its distribution, as `entropies`."""
    return {"entropies": rows.per_token(rows.policy.entropies)}


@score("reference_logprobs", columns={"reference_logprobs": TOKENS})
def reference_logprobs(rows: ScoredRows) -> dict[str, pl.Series]:
    """Score each response token by its log-probability under the reference model, as `reference_logprobs`."""
    return {"reference_logprobs": rows.per_token(rows.reference.logprobs)}
