"""Policies whose action probabilities are known."""
