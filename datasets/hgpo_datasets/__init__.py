"""Rollouts at rest: step tables in Parquet, crash-safe, readable by any tool."""
