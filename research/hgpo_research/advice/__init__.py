"""Advice for a saved run: which estimator to train with, or that nothing separates them (`hgpo advise`)."""
