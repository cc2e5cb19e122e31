"""Import from and export to other libraries.

docs/interchange.md also covers DuckDB, pandas and Polars, docs/bring_your_own_rollouts.md the formats of `rollouts`.
"""
