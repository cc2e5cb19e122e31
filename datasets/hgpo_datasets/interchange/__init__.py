"""Neighbours: one file each. What needs no file of its own (DuckDB, pandas, Polars) is shown in docs/interchange.md."""
