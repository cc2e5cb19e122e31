"""Import from and export to other libraries. docs/interchange.md also covers DuckDB, pandas and Polars."""
