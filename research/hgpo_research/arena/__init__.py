"""The arena: estimators in many worlds, with truth, gain and tabular learning."""
