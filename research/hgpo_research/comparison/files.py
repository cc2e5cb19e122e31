"""The folder of a comparison: its tables, and their settings as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from hgpo_envs.files.atomic import new_folder

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

DETAILS: Final = "comparison.json"
FILES: Final = {"gains.parquet", "differences.parquet", "correlations.parquet", DETAILS}
"""The files that a comparison may have."""

_MADE_BY: Final = "hgpo compare-estimators"


def write_comparison(
    tables: dict[str, pl.DataFrame],
    out: Path,
    *,
    details: dict[str, Any],
    overwrite: bool,
) -> None:
    """Write a comparison's folder atomically.

    Args:
        tables: Its tables by name.
        out: The folder. It must not exist, or be empty, or be a comparison with `overwrite`.
        details: What was compared, and how.
        overwrite: Whether an existing comparison is replaced.

    Raises:
        InputError: The folder exists and may not be replaced.
    """
    with new_folder(out, replace=is_comparison if overwrite else None) as folder:
        for name, table in tables.items():
            table.write_parquet(folder / f"{name}.parquet")
        described = {"made_by": _MADE_BY, **details}
        (folder / DETAILS).write_bytes(
            orjson.dumps(described, option=orjson.OPT_INDENT_2)
        )


def is_comparison(folder: Path) -> bool:
    """Return whether a folder contains a comparison and nothing else."""
    # A folder with anything else is a user's own, and is never replaced.
    try:
        names = {path.name for path in folder.iterdir()}
        return (
            names <= FILES
            and orjson.loads((folder / DETAILS).read_bytes())["made_by"] == _MADE_BY
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False
