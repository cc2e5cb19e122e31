"""The report of a comparison: one page of HTML with tables and pictures, without scripts or other files."""

from __future__ import annotations

from html import escape
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.wording import counted
from hgpo_research.comparison.inputs import REFERENCE
from hgpo_train.resampling import FEWEST_TASKS

if TYPE_CHECKING:
    import polars as pl

    from hgpo_research.comparison.comparison import Comparison

LABELS: Final = {
    "correlation": "correlation",
    "affine_error": "error, best scale",
    "sign": "same sign",
    "bias": "bias",
    "slope": "slope",
    "error": "error (MSE)",
    "squared_bias": "squared bias",
    "variance": "variance",
}
"""Names of the measures, as in the heads of tables."""

MEANINGS: Final = {
    "correlation": "with the true advantage, the truth's noise taken out; 1 is perfect, chance is about 0",
    "affine_error": "1 - correlation²: the error after the best scale and shift; 0 is perfect, 1 is useless",
    "sign": "share of the steps with the true sign, of those whose true sign is known; an advantage of 0 counts a half",
    "bias": "mean estimate minus mean true advantage, in the unit of rewards",
    "slope": "of the estimate on the true advantage; 1 for an unbiased estimator, less for a shrunk one",
    "error": "mean squared error, 1 for an advantage of 0 everywhere; depends on the estimator's scale",
    "squared_bias": "the part of the error that many groups would not remove, at a fixed context and action",
    "variance": "the part of the error that differs between redrawn groups, at a fixed context and action",
}
"""One line for each measure."""

_ABOUT_REFERENCE: Final = (
    "the step's return minus the true value of its state: a perfect baseline, with the noise of a single return"
)

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1040px; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0; font-size: 13px }
th, td { padding: 4px 10px; border-bottom: 1px solid #e3e3e3; text-align: right; vertical-align: top }
th:first-child, td:first-child { text-align: left }
dt { font-weight: 600 } dd { margin: 0 0 .4em 1em } svg { margin: .5em 0; max-width: 100%; height: auto }
"""


def main_size(found: Comparison) -> int:
    """Return the group size that is shown in detail: the largest with disjoint redrawn groups."""
    sizes: list[int] = found.details["group_sizes"]
    # Squared bias and variance need two disjoint groups of the size.
    several = [size for size in sizes if 2 * size <= found.details["group_size"]]
    return max(several) if several else sizes[-1]


def sentences(found: Comparison) -> list[str]:
    """Return what was compared, and what was left out, in words."""
    d = found.details
    steps, rollouts, groups, tasks = (counted(d[f"{word}s"], word) for word in ("step", "rollout", "group", "task"))
    permutations = counted(d["permutations"], "permutation")
    found_in = (
        f"{steps} of {rollouts} in {groups} of up to {d['group_size']}, {tasks}. "
        f"True advantages with γ = {d['rewards']['gamma']:g}."
    )
    signal = (
        f"Signal is {d['reliability_of_truth']:.0%} of the truth's variance, the rest is its own noise, which the "
        f"measures leave out. The sign of the true advantage is known for {d['steps_of_known_sign']:.0%} of the steps."
    )
    intervals = f"Intervals of 95%: {d['resamples']:,} resamples of the tasks."
    if d["tasks"] < FEWEST_TASKS:
        intervals = f"No intervals: expected at least {FEWEST_TASKS} tasks."
    method = f"{intervals} Chance: {permutations} of the estimates within their groups."
    # What a reader must know of every comparison, then what is special in this one.
    texts = [found_in, signal, method]
    left = {
        "steps without truth": d["without_truth"],
        "aborted rollouts": d["aborted"],
        "steps without action probabilities (not in squared bias and variance)": d["without_probabilities"],
    }
    if any(left.values()):
        texts.append(f"Left out: {', '.join(f'{count:,} {what}' for what, count in left.items() if count)}.")
    if FEWEST_TASKS <= d["tasks"] < 10:
        texts.append(f"Intervals from {counted(d['tasks'], 'task')} are unreliable; compare at least 20.")
    return texts


def rows_of(found: Comparison, size: int) -> list[dict[str, Any]]:
    """Return one row per estimator, by correlation: `estimator`, and each measure's row of `Comparison.estimates`."""
    table = found.estimates.filter(group_size=size, dimension="all")
    rows: dict[str, dict[str, Any]] = {}
    for row in table.iter_rows(named=True):
        rows.setdefault(row["estimator"], {"estimator": row["estimator"]})[row["measure"]] = row
    return sorted(rows.values(), key=lambda row: -(row["correlation"]["value"] or 0.0))


def report(found: Comparison, title: str) -> str:
    """Return a comparison as a page of HTML."""
    size = main_size(found)
    rows = rows_of(found, size)
    differences = found.differences.filter(group_size=size, dimension="all", measure="correlation")
    # Only differences beyond chance, for all pairs at once.
    clear = [
        [
            row["first"],
            row["second"],
            number(row["value"]),
            f"{number(row['low_all'])} … {number(row['high_all'])}",
        ]
        for row in differences.iter_rows(named=True)
        if row["p"] is not None and row["p"] < 0.05
    ]
    specs = found.details["estimators"].items()
    parts = [
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in sentences(found)),
        f"<h2>Groups of {size}</h2>",
        _table(
            ["", *LABELS.values()],
            [
                [
                    row["estimator"],
                    *(_interval(row[measure]) for measure in LABELS),
                ]
                for row in rows
            ],
        ),
        *pictures(found, size),
        "<h2>Differences of correlations beyond chance</h2>",
        "<p>With intervals that hold for all pairs of estimators (max-t over resampled tasks).</p>",
        _table(["first", "second", "first - second", "interval"], clear),
        "<h2>Measures</h2><dl>",
        *(f"<dt>{escape(label)}</dt><dd>{escape(MEANINGS[name])}</dd>" for name, label in LABELS.items()),
        f"<dt>{escape(REFERENCE)}</dt><dd>{_ABOUT_REFERENCE}</dd></dl>",
        "<h2>Parameters</h2>",
        _table(
            ["estimator", "parameters"],
            [[name, _parameters(spec)] for name, spec in specs],
        ),
    ]
    head = f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
    body = "\n".join(parts)
    return f"{head}<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"


def pictures(found: Comparison, size: int) -> list[str]:
    """Return the pictures as SVG texts; none without the extra `report` (altair)."""
    if not (find_spec("altair") and find_spec("vl_convert")):
        return ["<p>For pictures, install hgpo-research[report] and compare again.</p>"]
    import altair as alt
    import vl_convert

    order = [*found.details["estimators"], REFERENCE]

    def drawn(table: pl.DataFrame, title: str) -> str:
        rows = table.select("estimator", "part", "value", "low", "high").drop_nulls("value").to_dicts()
        data = alt.Data(values=rows)  # type: ignore[no-untyped-call]
        base = alt.Chart(data).encode(y=alt.Y("estimator:N", sort=order, title=None))
        # The interval as a line, the value as a point on it.
        chart = base.mark_rule().encode(x="low:Q", x2="high:Q") + base.mark_point(filled=True, size=50).encode(
            x=alt.X("value:Q", title=title)
        )
        if table["part"].n_unique() > 1:
            chart = chart.facet(
                column=alt.Column(
                    "part:N",
                    title=None,
                    sort=table["part"].unique(maintain_order=True).to_list(),
                )
            )
        return vl_convert.vegalite_to_svg(chart.to_dict())

    table = found.estimates.filter(group_size=size)
    whole = table.filter(dimension="all")
    return [
        drawn(whole.filter(measure="correlation"), "correlation"),
        *(
            drawn(
                table.filter(dimension=dimension, measure="correlation"),
                f"correlation by {words}",
            )
            for dimension, words in (
                ("level", "past states of the deepest shared context"),
                ("position", "position"),
            )
        ),
    ]


def number(value: float | None) -> str:
    """Return a number with three decimals, or a dash."""
    return "–" if value is None else f"{value:.3f}".replace("-0.000", "0.000")


def _interval(measure: dict[str, Any]) -> str:
    if measure["low"] is None:
        return number(measure["value"])
    return f"{number(measure['value'])} ({number(measure['low'])} … {number(measure['high'])})"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"<tr>{''.join(f'<th>{escape(cell)}</th>' for cell in head)}</tr>"]
    lines += [f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows]
    return "\n".join(["<table>", *lines, "</table>"])


def _parameters(spec: dict[str, Any]) -> str:
    return f"{spec['estimator']}, " + ", ".join(f"{name}={value}" for name, value in spec["parameters"].items())
