"""Collecting rollouts: any policy in any environment, every step into the step table."""
