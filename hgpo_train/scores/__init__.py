"""Scores: numbers that a model gives to steps, such as the log-probability or the entropy of a response.

`hgpo train` computes the scores that its estimator and its loss read, and `hgpo score RUN --model MODEL` those of any
saved run with token ids. They are stored in `RUN/scores`, beside the step table, and estimators read them as columns.
"""

from __future__ import annotations

import hgpo_train.scores.builtin
import hgpo_train.scores.hindsight  # noqa: F401 - both register the scores of this package
from hgpo_train.scores.registry import Score, get, names, score
from hgpo_train.scores.rows import ScoredRows, Scorer, TokenScores

__all__ = ["Score", "ScoredRows", "Scorer", "TokenScores", "get", "names", "score"]
