"""Policies: map prompts to responses with token ids, log-probabilities and finish reasons. One module per policy."""
