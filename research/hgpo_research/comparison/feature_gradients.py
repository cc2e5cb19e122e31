"""The gradient of log π of each step of a run, with respect to the weights of the policy `softmax`.

Its logits are Σ_f w_f φ_f, so the gradient of log π(a) with respect to w is φ(a) - Σ_b π(b) φ(b). Unlike a table of
logits, these parameters are shared by all states and tasks, as a language model's are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from hgpo_research.comparison.known_steps import known_steps
from hgpo_research.comparison.row_gradients import RowGradients, fisher_of

if TYPE_CHECKING:
    from hgpo_research.arrays import Floats
    from hgpo_research.comparison.row_gradients import Sketches
    from hgpo_research.policies.softmax import SoftmaxPolicy


def feature_gradients(
    steps: pl.LazyFrame, policy: SoftmaxPolicy, history_length: int
) -> RowGradients:
    """Compute the gradients of a run's steps; those whose response the policy never gives are left out.

    Args:
        steps: A step table with the columns `known_steps.COLUMNS`.
        policy: The policy that played the run.
        history_length: The number of past steps that the prompts show.
    """
    rows: list[tuple[str, int, int]] = []
    vectors: list[Floats] = []
    # probabilities and features of the responses
    choices: list[tuple[Floats, Floats]] = []
    for known in known_steps(steps, policy, history_length):
        features = policy.features(known.request)
        probabilities = known.distribution.probabilities
        rows.append((known.trajectory, known.step, len(rows)))
        vectors.append(features[known.choice] - probabilities @ features)
        choices.append((probabilities, features))

    def changes(directions: Sketches, number: int) -> tuple[Floats, Floats]:
        probabilities, features = choices[number]
        return probabilities, features @ directions.T

    gradients = np.array(vectors, np.float32)
    keys = pl.DataFrame(rows, ["trajectory", "step", "sketch"], orient="row")
    keys = keys.with_columns(pl.col("step").cast(steps.collect_schema()["step"]))
    return RowGradients(keys, gradients, gradients.shape[1], 0.0, fisher_of(changes))
