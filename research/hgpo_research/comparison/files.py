"""The folder of a comparison: tables of all figures, their settings, and the report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from hgpo_envs.files.atomic import new_folder
from hgpo_research.comparison.report import report

if TYPE_CHECKING:
    from pathlib import Path

    from hgpo_research.comparison.comparison import Comparison
    from hgpo_research.comparison.gain import Gains

DETAILS: Final = "comparison.json"
FILES: Final = ("estimates.parquet", "differences.parquet", "sums.parquet", DETAILS, "report.html")
GAIN_FILES: Final = ("gains.parquet", "differences.parquet", DETAILS)
"""The files of a comparison by gain."""

_MADE_BY: Final = "hgpo compare-estimators"


def write_comparison(found: Comparison, out: Path, *, title: str, sources: dict[str, Any], overwrite: bool) -> None:
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
    with new_folder(out, replace=is_comparison if overwrite else None) as folder:
        found.estimates.write_parquet(folder / "estimates.parquet")
        found.differences.write_parquet(folder / "differences.parquet")
        found.sums.write_parquet(folder / "sums.parquet")
        details = {"made_by": _MADE_BY, **sources, **found.details}
        (folder / DETAILS).write_bytes(orjson.dumps(details, option=orjson.OPT_INDENT_2))
        (folder / "report.html").write_text(report(found, title), "utf-8")


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
    with new_folder(out, replace=is_comparison if overwrite else None) as folder:
        found.gains.write_parquet(folder / "gains.parquet")
        found.differences.write_parquet(folder / "differences.parquet")
        details = {"made_by": _MADE_BY, **details, "batches": found.batches, "groups": found.groups}
        (folder / DETAILS).write_bytes(orjson.dumps(details, option=orjson.OPT_INDENT_2))


def is_comparison(folder: Path) -> bool:
    """Return whether a folder contains a comparison, of any measure, and nothing else."""
    try:
        names = {path.name for path in folder.iterdir()}
        return names <= {*FILES, *GAIN_FILES} and orjson.loads((folder / DETAILS).read_bytes())["made_by"] == _MADE_BY
    except (OSError, ValueError, KeyError, TypeError):
        return False
