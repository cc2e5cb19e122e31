"""Whether the advice of `hgpo advise` agrees with learning.

    python -m research.benchmarks.advise_agreement FOLDER [--keep]

FOLDER has what the commands of research/docs/advise.md write. The areas of learning curves are differences of equal
seeds, with 95% intervals over seeds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
import polars as pl

from benchmarks.readme import figures
from benchmarks.runner import make_parser, store
from hgpo_research.tabular.report import half_width, markdown_table

if TYPE_CHECKING:
    from hgpo_research.arrays import Floats

RUNS: Final = (
    "alfworld-0.5",
    "alfworld-0.65",
    "alfworld-0.8",
    "webshop-0.4",
    "webshop-0.8",
    "webshop-1.4",
)
AGAIN: Final = " (again)"
SHORT: Final = {"grpo:cross_steps=false": "grpo"}


def areas(curves: pl.DataFrame) -> dict[str, Floats]:
    """Return the area of each estimator's curves, of shape (seeds,)."""
    means = (
        curves.group_by("estimator", "seed").agg(pl.col("success").mean()).sort("seed")
    )
    return {
        str(name): rows["success"].to_numpy()
        for (name,), rows in means.group_by("estimator")
    }


def agreement(folder: Path, run: str) -> dict[str, Any]:
    """Return what the advice on a run says and what learning found, one entry for each pair of estimators."""
    advice = orjson.loads((folder / f"{run}.json").read_bytes())
    found = areas(pl.read_parquet(folder / f"learned-{run}/curves.parquet", glob=False))
    gain = {row["estimator"]: row["gain"] for row in advice["estimators"]}
    pairs = []
    for row in advice["differences"]:
        difference = found[row["first"]] - found[row["second"]]
        half = half_width(len(difference)) * difference.std(ddof=1)
        learned = float(difference.mean())
        pairs.append(
            {
                "first": row["first"],
                "second": row["second"],
                "separated": row["low"] is not None and row["low"] > 0,
                "area": learned,
                "half": float(half),
                "told": int(np.sign(learned)) if abs(learned) > half else 0,
            }
        )
    (again,) = [name for name in found if name.endswith(AGAIN)]
    chance = found[again] - found[again.removesuffix(AGAIN)]
    names = list(gain)
    order = [
        np.argsort(np.argsort([values[name] for name in names]))
        for values in (gain, _means(found))
    ]
    return {
        "run": run,
        "groups": advice["groups"],
        "informative": advice["informative_groups"],
        "best": advice["best"],
        "gain": gain,
        "area": _means(found),
        "again": [
            float(chance.mean()),
            float(half_width(len(chance)) * chance.std(ddof=1)),
        ],
        "pairs": pairs,
        "correlation": float(np.corrcoef(*order)[0, 1]),
    }


def _means(found: dict[str, Floats]) -> dict[str, float]:
    return {name: float(values.mean()) for name, values in found.items()}


def table() -> str:
    """Return the kept results as a table of Markdown."""
    heads = [
        "run",
        "decided groups",
        "advice",
        "separated pairs; in area",
        "largest area",
        "pairs that learning tells apart",
        "rank correlation",
        "A/A of area",
    ]
    rows = []
    for each in figures("advise_agreement")["rows"]:
        names = list(each["gain"])
        advised = (
            ", ".join(SHORT.get(name, name) for name in each["best"])
            or "nothing separates them"
        )
        separated = [pair for pair in each["pairs"] if pair["separated"]]
        shown = [
            f"{_pair(pair)} {100 * pair['area']:+.1f} ± {100 * pair['half']:.1f}"
            for pair in separated
        ]
        most = max(names, key=lambda name: each["area"][name])
        told = [pair["told"] for pair in each["pairs"]]
        rows.append(
            [
                each["run"],
                f"{each['informative']} of {each['groups']}",
                advised,
                "; ".join(shown) or "–",
                SHORT.get(most, most),
                f"{told.count(1)} in the order of gain, {told.count(-1)} reversed, of {len(told)}",
                f"{each['correlation']:+.2f}",
                f"{100 * each['again'][0]:+.1f} ± {100 * each['again'][1]:.1f}",
            ]
        )
    return markdown_table(heads, rows)


def _pair(pair: dict[str, Any]) -> str:
    return " − ".join(SHORT.get(pair[end], pair[end]) for end in ("first", "second"))


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    rows = [agreement(given.folder, run) for run in RUNS]
    print(store("advise_agreement", {"rows": rows}, keep=given.keep))
