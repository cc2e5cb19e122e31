"""Policies: prompts in; responses, token ids, log-probabilities and finish reasons out. One file a policy."""
