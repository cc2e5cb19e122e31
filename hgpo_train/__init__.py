"""Advantages, statistics, rollouts and policy updates on step tables."""
