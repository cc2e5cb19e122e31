"""The comparison of estimators on a saved run.

    correlation      a run and its truth table → correlations with true advantages
    gain             a run and the gradients of its policy → the gain of estimators, without truth
    row_gradients    a language model and a run → sketches of the gradient of log π of each step; feature_gradients
    logit_table      a policy with known probabilities and a run → the gradients of a table of logits (known_steps)
    open_gradients   the policy that a run names → its gradients

docs/estimator_comparison.md describes how to use it and how to read the result.
"""
