"""Rollouts and advantages of other trainers."""
