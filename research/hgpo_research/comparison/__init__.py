"""The comparison of estimators with true advantages: `compare_estimators(steps, truth, variants)`.

    inputs           a run and its truth table → arrays of steps, for each redraw of the groups
    measures         steps → sums per task; sums → bias, error, correlation … (defined in that module's docstring)
    contexts         steps → numbers of visible contexts and actions
    comparison       the tables of all estimators, group sizes and parts
    report           the tables → a page of HTML; `pictures` draws its pictures
    row_gradients    a language model and a run → sketches of the gradient of log π of each step; feature_gradients
    logit_table      a policy with known probabilities and a run → the gradients of a table of logits (known_steps)
    open_gradients   the policy that a run names → its gradients
    gain             a run and such gradients → the gain of estimators, without truth

Intervals are those of `families`. docs/estimator_comparison.md describes how to use it and how to
read the result.
"""

from __future__ import annotations

from hgpo_research.comparison.comparison import (
    Comparison,
    compare_estimators,
)
from hgpo_train.advantages.variants import Variant, read_variants

__all__ = ["Comparison", "Variant", "compare_estimators", "read_variants"]
