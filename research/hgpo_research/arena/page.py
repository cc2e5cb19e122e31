"""The arena's page: one file of HTML with the ranking, what predicts learning, and a picture of each world."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jinja2
import numpy as np
import polars as pl

from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import make_folder, write_file
from hgpo_envs.wording import counted
from hgpo_research.arena.prediction import MEASURES, predictions, verdict
from hgpo_research.arena.questions import answers, points
from hgpo_research.arena.ranking import (
    ORACLE,
    REFERENCE,
    SETTINGS,
    differences,
    ranks,
    sample,
)
from hgpo_research.tabular.learning import AGAIN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Cell = dict[str, Any]

MARKS: Final = {
    REFERENCE: "reference",
    REFERENCE + AGAIN: "A/A",
    ORACLE: "truth",
}
MEANS: Final = {
    "gain": ("gain", 100, ".2f"),
    "cross_validated_gain": ("cross-validated gain", 100, ".2f"),
    "correlation": ("correlation with truth", 1, ".2f"),
    "zeros": ("advantage 0, % of steps", 100, ".0f"),
}
"""The measures of the table: title, factor and format."""

COLUMNS: Final = ("world", "estimator", "setting", "measure", "stage", "seed", "value")
TEMPLATE: Final = "page.html.jinja"
AXIS: Final = 75
"""Half of the width of a picture's axis, in its units."""

SHOWN: Final = 0.9
"""The share of the ends of intervals that lie on the axis."""


def write_page(
    results: pl.DataFrame, costs: pl.DataFrame, file: Path, worlds_folder: Path
) -> None:
    """Write the page.

    Args:
        results: Rows of `COLUMNS`.
        costs: Rows of `world`, `estimator` and `ms_per_10k_steps`.
        file: The page, which is replaced.
        worlds_folder: The step tables; the results' files lie beside it, in `results/WORLD/`.

    Raises:
        InputError: Columns are missing, or no world has both the reference and another estimator.
    """
    missing = [name for name in COLUMNS if name not in results.columns]
    if missing:
        raise InputError(
            f"expected results with the columns {', '.join(COLUMNS)}, received none of {missing[0]!r}"
        )
    if results.select(COLUMNS[:-1]).is_duplicated().any():
        raise InputError(
            "expected one row of each result, received two: is a world in two files?"
        )
    results = results.filter(pl.col("value").is_finite())
    folder = worlds_folder.parent / "results"
    link = Path(os.path.relpath(folder, file.parent)).as_posix()

    def query(**filters: str) -> str:
        """Return the line of Polars that reads the rows of a figure."""
        arguments = ", ".join(
            f"{name}={json.dumps(value)}" for name, value in filters.items()
        )
        return (
            f"pl.read_parquet({json.dumps(link + '/*/*.parquet')}).filter({arguments})"
        )

    predicted = predictions(results)
    gaps = gaps_of(results)
    context = {
        "verdict": verdict(predicted),
        "answers": [each for each in answers(results) if each.verdict != "missing"],
        "settings": {setting: SETTINGS[setting] for setting in gaps},
        "titles": titles(results, gaps),
        "main": main_of(results, gaps),
        "rows": table(results, costs, gaps),
        "predicted": prediction_rows(predicted),
        "worlds": pictures(results, gaps, folder),
        "query": query,
        "folder": link,
        "reference": REFERENCE,
        "counts": [results[name].n_unique() for name in ("estimator", "world")],
        "axis": AXIS,
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template(TEMPLATE).render(context)
    make_folder(file.parent)
    write_file(file, text.encode())


def gaps_of(results: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the differences in area from the reference in each setting, the best estimator first."""
    found = {setting: _gaps(results, setting) for setting in SETTINGS}
    known = {setting: rows for setting, rows in found.items() if rows.height}
    if not known:
        raise InputError(
            f"expected results of {REFERENCE!r} and another estimator in all worlds, received none"
        )
    return known


def _gaps(results: pl.DataFrame, setting: str) -> pl.DataFrame:
    """Return the differences in area; empty if the reference was not run in this setting."""
    try:
        found = differences(sample(results, setting, "area"))
    except InputError:
        return pl.DataFrame()
    return found.sort("difference", "estimator", descending=[True, False])


def titles(results: pl.DataFrame, settings: Iterable[str]) -> list[str]:
    """Return the titles of the columns of `table`."""
    found = ["estimator"]
    for setting in settings:
        where = f"{SETTINGS[setting]}, {counted(worlds_of(results, setting), 'world')}"
        found += [f"rank: {where}", f"area: {where}"]
    measures = [title for title, *_ in MEANS.values()]
    return [*found, "final success, %", *measures, "ms per 10k steps"]


def worlds_of(results: pl.DataFrame, setting: str) -> int:
    """Return the number of worlds with a setting."""
    return results.filter(setting=setting)["world"].n_unique()


def main_of(results: pl.DataFrame, settings: Iterable[str]) -> str:
    """Return the setting that has the most worlds, which orders the rows."""
    return max(settings, key=lambda setting: worlds_of(results, setting))


def table(
    results: pl.DataFrame, costs: pl.DataFrame, gaps: Mapping[str, pl.DataFrame]
) -> list[dict[str, Any]]:
    """Return the rows of the ranking: `estimator`, `mark`, and `cells` in the order of `titles`."""
    main = main_of(results, gaps)
    places = {
        setting: by_estimator(ranks(sample(results, setting, "area")))
        for setting in gaps
    }
    areas = {setting: by_estimator(found) for setting, found in gaps.items()}
    final = means(results.filter(setting=main, measure="final"), "value")
    cost = means(costs, "ms_per_10k_steps")
    measured = {name: means(results.filter(measure=name), "value") for name in MEANS}
    rows = []
    # Estimators that some world lacks come last, without a rank.
    others = sorted(results["estimator"].unique())
    for name in dict.fromkeys([*gaps[main]["estimator"], *others]):
        cells = []
        for setting in gaps:
            cells.append(rank(places[setting].get(name)))
            cell = difference(areas[setting].get(name))
            cells.append(cell | {"rows": {"setting": setting, "measure": "area"}})
        cell = number(final.get(name), 100, ".1f")
        cells.append(cell | {"rows": {"setting": main, "measure": "final"}})
        for measure, (_, factor, form) in MEANS.items():
            cell = number(measured[measure].get(name), factor, form)
            cells.append(cell | {"rows": {"measure": measure}})
        cells.append(number(cost.get(name), 1, ".0f"))
        rows.append({"estimator": name, "mark": MARKS.get(name), "cells": cells})
    return rows


def by_estimator(rows: pl.DataFrame) -> dict[str, dict[str, Any]]:
    """Return the rows of estimators by their names."""
    return {row["estimator"]: row for row in rows.iter_rows(named=True)}


def means(rows: pl.DataFrame, name: str) -> dict[str, float]:
    """Return the means of estimators: every world counts equally."""
    by_world = rows.group_by("estimator", "world").agg(pl.col(name).mean())
    return dict(by_world.group_by("estimator").agg(pl.col(name).mean()).iter_rows())


def rank(row: Mapping[str, Any] | None) -> Cell:
    """Return the interval of a rank as a cell."""
    if row is None:
        return {}
    cell = {
        "text": ends(row["low"], row["high"]),
        "order": -row["low"] - row["high"] / 1000,
    }
    if row["low_worlds"] is not None:
        cell["note"] = f"worlds {ends(row['low_worlds'], row['high_worlds'])}"
    return cell


def ends(low: int, high: int) -> str:
    """Return an interval of integers."""
    return f"{low}" if low == high else f"{low}–{high}"


def number(value: float | None, factor: float, form: str) -> Cell:
    """Return a mean as a cell."""
    return (
        {} if value is None else {"text": format(factor * value, form), "order": value}
    )


def difference(row: Mapping[str, Any] | None) -> Cell:
    """Return a difference as a cell, in points, with the interval that holds for all estimators at once."""
    if row is None:
        return {}
    if row["estimator"] == REFERENCE:
        return {"text": "0", "order": 0.0}
    value = row["difference"]
    low = row["low_all"]
    high = row["high_all"]
    cell = {"text": points(value, low, high), "order": value, "sign": 0}
    if low is not None:
        cell["sign"] = int(low > 0) - int(high < 0)
    if row["low_all_worlds"] is not None:
        half = 50 * (row["high_all_worlds"] - row["low_all_worlds"])
        cell["note"] = f"worlds ± {half:.1f}"
    return cell


def prediction_rows(predicted: pl.DataFrame) -> list[dict[str, Any]]:
    """Return one row for each measure and stage: `measure`, `stage`, and `cells` of the area in each setting."""
    rows: list[dict[str, Any]] = []
    if predicted.is_empty():
        return rows
    found = predicted.filter(target="area")
    for (measure, stage), part in found.group_by(
        "measure", "stage", maintain_order=True
    ):
        cells = []
        for row in part.iter_rows(named=True):
            cell = number(row["correlation"], 1, "+.2f")
            if row["low"] is not None:
                known = row["p"] < 0.05 and row["low"] * row["high"] > 0
                cell["sign"] = int(np.sign(row["correlation"])) if known else 0
                cell["text"] += f" ({row['low']:+.2f} to {row['high']:+.2f})"
                cell["note"] = (
                    f"chance {row['chance_low']:+.2f} to {row['chance_high']:+.2f}"
                )
            cells.append(cell)
        rows.append({"measure": MEASURES[str(measure)], "stage": stage, "cells": cells})
    return rows


def pictures(
    results: pl.DataFrame, gaps: Iterable[str], folder: Path
) -> dict[str, dict[str, Any]]:
    """Return for each world its `files`, and its `pictures` by setting: `limit` of the axis, and `dots`.

    Dots are the differences in area from the reference; their positions `x`, `low` and `high` are from -AXIS to AXIS,
    on one scale for all worlds of a setting.
    """
    worlds: dict[str, dict[str, Any]] = {}
    for name in sorted(results["world"].unique()):
        files = [path.name for path in sorted((folder / name).glob("*.parquet"))]
        worlds[name] = {"files": files, "pictures": {}}
    for setting in gaps:
        found = {world: _gaps(results.filter(world=world), setting) for world in worlds}
        found = {world: rows for world, rows in found.items() if rows.height}
        # A few lose ten times as much as others win: they lie at the edge. The truth stands in the text.
        shown = pl.concat(found.values()).filter(pl.col("estimator") != ORACLE)
        sizes = pl.concat(
            [shown[name].abs() for name in ("difference", "low_all", "high_all")]
        ).drop_nulls()
        limit = max(0.01, float(np.quantile(sizes.to_numpy(), SHOWN)))
        for world, rows in found.items():
            ends = {"x": "difference", "low": "low_all", "high": "high_all"}
            scaled = rows.with_columns(
                (pl.col(column) * AXIS / limit).clip(-AXIS, AXIS).alias(name)
                for name, column in ends.items()
            )
            dots = [
                row | difference(row) | {"mark": MARKS.get(row["estimator"])}
                for row in scaled.iter_rows(named=True)
            ]
            worlds[world]["pictures"][setting] = {
                "limit": f"{100 * limit:.0f}",
                "dots": dots,
            }
    return worlds
