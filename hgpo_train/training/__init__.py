"""Training: the loop, its configuration, checkpoints, supervised warm starts and the policy update."""
