"""The folder of a comparison: tables of all figures, their settings, and the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from hgpo_envs.files.atomic import new_folder
from hgpo_research.comparison.report import report

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl

    from hgpo_research.comparison.comparison import Comparison
    from hgpo_research.comparison.gain import Gains

DETAILS: Final = "comparison.json"
FILES: Final = (
    "estimates.parquet",
    "differences.parquet",
    "sums.parquet",
    DETAILS,
    "report.html",
)
GAIN_FILES: Final = ("gains.parquet", "differences.parquet", DETAILS)
"""The files of a comparison by gain."""

_MADE_BY: Final = "hgpo compare-estimators"


def write_comparison(
    found: Comparison,
    out: Path,
    *,
    title: str,
    sources: dict[str, Any],
    overwrite: bool,
) -> None:
    """Write a comparison's folder atomically: `FILES`.

    Args:
        found: The comparison.
        out: The folder. It must not exist, or be empty, or be a comparison with `overwrite`.
        title: The heading of the report.
        sources: Further details: what was compared.
        overwrite: Whether an existing comparison is replaced.

    Raises:
        InputError: The folder exists and may not be replaced.
    """
    tables = {
        "estimates": found.estimates,
        "differences": found.differences,
        "sums": found.sums,
    }
    _write(
        out,
        tables,
        {**sources, **found.details},
        report(found, title),
        overwrite=overwrite,
    )


def write_gains(found: Gains, out: Path, *, details: dict[str, Any], overwrite: bool) -> None:
    """Write a comparison by gain atomically: `GAIN_FILES`.

    Args:
        found: The gains.
        out: The folder, as of `write_comparison`.
        details: What was compared, and how.
        overwrite: Whether an existing comparison is replaced.

    Raises:
        InputError: The folder exists and may not be replaced.
    """
    details = {**details, "batches": found.batches, "groups": found.groups}
    _write(
        out,
        {"gains": found.gains, "differences": found.differences},
        details,
        overwrite=overwrite,
    )


def _write(
    out: Path,
    tables: dict[str, pl.DataFrame],
    details: dict[str, Any],
    page: str | None = None,
    *,
    overwrite: bool,
) -> None:
    # The folder appears as a whole, or not at all.
    with new_folder(out, replace=is_comparison if overwrite else None) as folder:
        for name, table in tables.items():
            table.write_parquet(folder / f"{name}.parquet")
        described = {"made_by": _MADE_BY, **details}
        (folder / DETAILS).write_bytes(orjson.dumps(described, option=orjson.OPT_INDENT_2))
        if page is not None:
            (folder / "report.html").write_text(page, "utf-8")


def is_comparison(folder: Path) -> bool:
    """Return whether a folder contains a comparison, of any measure, and nothing else."""
    # A folder with anything else is a user's own, and is never replaced.
    try:
        names = {path.name for path in folder.iterdir()}
        return names <= {*FILES, *GAIN_FILES} and orjson.loads((folder / DETAILS).read_bytes())["made_by"] == _MADE_BY
    except (OSError, ValueError, KeyError, TypeError):
        return False
