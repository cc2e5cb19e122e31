"""The report of a comparison: one page of HTML with tables and pictures, without scripts or other files."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from hgpo_envs.wording import counted
from hgpo_research.comparison.inputs import REFERENCE
from hgpo_research.comparison.model_gradients import MODEL_MEASURES
from hgpo_research.comparison.pictures import COLOURS, Dot, Series, dots, lines

if TYPE_CHECKING:
    from hgpo_research.comparison.comparison import Comparison

LABELS: Final = {
    "correlation": "correlation",
    "affine_error": "error, best scale",
    "sign": "same sign",
    "gradient": "gradient cosine",
    "gradient_limit": "… of many groups",
    "bias": "bias",
    "slope": "slope",
    "error": "error (MSE)",
    "squared_bias": "squared bias",
    "variance": "variance",
    "model_gradient": "model gradient",
    "model_gradient_within": "model gradient within tasks",
    "model_gradient_limit": "model gradient of many tasks",
}
"""Names of the measures, as in the heads of tables."""

MEANINGS: Final = {
    "correlation": "with the true advantage, the truth's noise taken out; 1 is perfect, chance is about 0",
    "affine_error": "1 - correlation²: the error after the best scale and shift; 0 is perfect, 1 is useless",
    "sign": "share of the steps with the true sign, of those whose true sign is known; an advantage of 0 counts a half",
    "gradient": "cosine with the true gradient of the same steps, one group per task, a table of logits as policy",
    "gradient_limit": "cosine of the expected gradients, the limit of many groups; 1 for every unbiased estimator",
    "bias": "mean estimate minus mean true advantage, in the unit of rewards",
    "slope": "of the estimate on the true advantage; 1 for an unbiased estimator, less for a shrunk one",
    "error": "mean squared error, 1 for an advantage of 0 everywhere; depends on the estimator's scale",
    "squared_bias": "the part of the error that many groups would not remove, at a fixed context and action",
    "variance": "the part of the error that differs between redrawn groups, at a fixed context and action",
    "model_gradient": "cosine with the true gradient of the same steps, all parameters of the language model",
    "model_gradient_within": "the same without products of the gradients of different tasks",
    "model_gradient_limit": "cosine of the expected gradients of all parameters, the limit of many tasks",
}
"""One line for each measure."""

PERFECT: Final = {
    "bias": 0.0,
    **dict.fromkeys(("correlation", "sign", "gradient", "gradient_limit", "slope", *MODEL_MEASURES), 1.0),
}
_PICTURED: Final = ("correlation", "gradient", "gradient_limit", *MODEL_MEASURES, "slope")
_COMPARED: Final = ("correlation", "affine_error", "gradient", "gradient_limit", *MODEL_MEASURES)

_ABOUT_DIFFERENCES: Final = (
    "<p>Row minus column, with intervals that hold for all pairs and group sizes of the measure (max-t over resampled "
    "tasks). <span class='clear'>Bold</span>: adjusted p below 0.05.</p>"
)
_ABOUT_REFERENCE: Final = (
    "the step's return minus the true value of its state: a perfect baseline, with the noise of a single return"
)

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1040px; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: 1em 0; font-size: 13px }
th, td { padding: 4px 10px; border-bottom: 1px solid #e3e3e3; text-align: right; vertical-align: top }
th:first-child, td:first-child { text-align: left }
td small { display: block; color: #777 } .clear { font-weight: 600 }
dt { font-weight: 600 } dd { margin: 0 0 .4em 1em } svg { margin: .5em 0; max-width: 100%; height: auto }
"""


def main_size(found: Comparison) -> int:
    """Return the group size that is shown in detail: the largest with disjoint redrawn groups."""
    sizes: list[int] = found.details["group_sizes"]
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
    method = (
        f"Intervals of 95%: {d['resamples']:,} resamples of the tasks. Chance: {permutations} of the estimates within "
        "their groups."
    )
    texts = [found_in, signal, method]
    if "model" in d:
        texts.append(
            f"The model has {d['model']['parameters']:,} parameters. Its gradients are sketches of "
            f"{d['model']['sketch']:,} numbers, which alone give a cosine of 0 a standard error of "
            f"{d['model']['sketch'] ** -0.5:.3f}."
        )
    left = {
        "steps without truth": d["without_truth"],
        "aborted rollouts": d["aborted"],
        "steps without action probabilities (not in gradients)": d["without_probabilities"],
        "steps without tokens (not in the model's gradients)": d.get("without_model_gradient", 0),
    }
    if any(left.values()):
        texts.append(f"Left out: {', '.join(f'{count:,} {what}' for what, count in left.items() if count)}.")
    if d["tasks"] < 10:
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
    """Return the page.

    Args:
        found: The comparison.
        title: Its heading, such as the name of the run.
    """
    size = main_size(found)
    rows = rows_of(found, size)
    named = [*found.details["estimators"], REFERENCE]
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(named)}
    parts = [
        f"<h1>{escape(title)}</h1>",
        *(f"<p>{escape(line)}</p>" for line in sentences(found)),
        f"<h2>Groups of {size}</h2>",
        _table(rows),
        *(_forest(measure, rows, colours) for measure in _PICTURED if measure in rows[0]),
        "<h2>By group size</h2>" if len(found.details["group_sizes"]) > 1 else "",
        *(_by_size(found, measure, colours) for measure in ("correlation", "gradient")),
        f"<h2>By part of the steps, groups of {size}</h2>",
        *(_by_part(found, size, dimension, colours) for dimension in ("shared", "level", "position")),
        f"<h2>Differences, groups of {size}</h2>",
        _ABOUT_DIFFERENCES,
        *(_difference_table(found, measure, [row["estimator"] for row in rows], size) for measure in _COMPARED),
        "<h2>Measures</h2><dl>",
        *(
            f"<dt>{escape(LABELS[name])}</dt><dd>{escape(text)}</dd>"
            for name, text in MEANINGS.items()
            if name in rows[0]
        ),
        f"<dt>{escape(REFERENCE)}</dt><dd>{_ABOUT_REFERENCE}</dd></dl>",
        "<h2>Parameters</h2>",
        *(f"<p><b>{escape(name)}</b>: {escape(_parameters(spec))}</p>" for name, spec in _specs(found)),
    ]
    head = f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
    body = "\n".join(part for part in parts if part)
    return f"{head}<style>{_STYLE}</style></head><body>\n{body}\n</body></html>\n"


def number(value: float | None) -> str:
    """Return a number with three decimals, or a dash."""
    return "–" if value is None else f"{value:.3f}".replace("-0.000", "0.000")


def _table(rows: list[dict[str, Any]]) -> str:
    measures = [measure for measure in LABELS if measure in rows[0]]
    heads = "".join(f"<th>{escape(LABELS[measure])}</th>" for measure in measures)
    texts = [f"<table><tr><th></th>{heads}</tr>"]
    for row in rows:
        cells = []
        for measure in measures:
            here = row[measure]
            interval = "" if here["low"] is None else f"<small>{number(here['low'])} … {number(here['high'])}</small>"
            cells.append(f"<td>{number(here['value'])}{interval}</td>")
        texts.append(f"<tr><td>{escape(row['estimator'])}</td>{''.join(cells)}</tr>")
    return "\n".join([*texts, "</table>"])


def _forest(measure: str, rows: list[dict[str, Any]], colours: dict[str, str]) -> str:
    made = []
    for row in rows:
        here = row[measure]
        if here["value"] is None:
            continue
        chance = None if here["chance_low"] is None else (here["chance_low"], here["chance_high"])
        name = row["estimator"]
        made.append(Dot(name, here["value"], here["low"], here["high"], chance, colours[name]))
    grey = " (grey: chance)" if any(dot.chance for dot in made) else ""
    return dots(f"{LABELS[measure].replace('… ', 'gradient cosine ')}{grey}", made, mark=PERFECT.get(measure))


def _by_size(found: Comparison, measure: str, colours: dict[str, str]) -> str:
    table = found.estimates.filter(dimension="all", measure=measure)
    if table["group_size"].n_unique() < 2:
        return ""
    return lines(f"{LABELS[measure]} by group size", "rollouts per group", _series(table, "group_size", colours))


def _by_part(found: Comparison, size: int, dimension: str, colours: dict[str, str]) -> str:
    table = found.estimates.filter(group_size=size, dimension=dimension, measure="correlation")
    under = {"shared": "context alone in its group, or shared", "level": "past states of the deepest shared context",
             "position": "position in the episode"}[dimension]  # fmt: skip
    steps = table.group_by("part", maintain_order=True).agg(pl.col("steps").first())
    share = {part: count / max(steps["steps"].sum(), 1) for part, count in steps.iter_rows()}
    if not share:
        return ""
    label = pl.col("part").replace_strict({part: f"{part} ({count:.0%})" for part, count in share.items()})
    return lines("correlation", f"{under} (share of these steps)", _series(table.with_columns(label), "part", colours))


def _series(table: pl.DataFrame, by: str, colours: dict[str, str]) -> list[Series]:
    made = []
    for (name,), part in table.group_by("estimator", maintain_order=True):
        points = {
            str(row[by]): (row["value"], row["low"], row["high"])
            for row in part.iter_rows(named=True)
            if row["value"] is not None
        }
        made.append(Series(str(name), points, colours[str(name)]))
    return made


def _difference_table(found: Comparison, measure: str, names: list[str], size: int) -> str:
    table = found.differences.filter(group_size=size, dimension="all", measure=measure)
    known = {(row["first"], row["second"]): row for row in table.iter_rows(named=True) if row["value"] is not None}
    if not known:
        return ""
    texts = [
        f"<h3>{escape(LABELS[measure])}</h3><table><tr><th></th>{''.join(f'<th>{escape(n)}</th>' for n in names)}</tr>"
    ]
    for one in names:
        cells = []
        for other in names:
            row, sign = known.get((one, other)), 1.0
            if row is None:
                row, sign = known.get((other, one)), -1.0
            if row is None:
                cells.append("<td></td>")
                continue
            ends = sorted(sign * end for end in (row["low_all"], row["high_all"]) if end is not None)
            interval = f"<small>{number(ends[0])} … {number(ends[1])}</small>" if len(ends) == 2 else ""
            kind = ' class="clear"' if row["p"] is not None and row["p"] < 0.05 else ""
            cells.append(f"<td{kind}>{number(sign * row['value'])}{interval}</td>")
        texts.append(f"<tr><td>{escape(one)}</td>{''.join(cells)}</tr>")
    return "\n".join([*texts, "</table>"])


def _specs(found: Comparison) -> list[tuple[str, dict[str, Any]]]:
    return list(found.details["estimators"].items())


def _parameters(spec: dict[str, Any]) -> str:
    return f"{spec['estimator']}, " + ", ".join(f"{name}={value}" for name, value in spec["parameters"].items())
