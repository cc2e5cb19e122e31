"""The policy update: trains a policy on step rows with advantages."""
