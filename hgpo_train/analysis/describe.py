"""What the statistics of a run say, in plain sentences and in tables."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import polars as pl

from hgpo_envs.wording import counted, listed
from hgpo_train.analysis.chunk_sums import ORACLE
from hgpo_train.analysis.definitions import DEFINITIONS, Definition
from hgpo_train.resampling import FEWEST_TASKS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hgpo_train.analysis.statistics import Statistics

    Row = dict[str, Any]

# what masking numbers must add to the share of steps with a group to be mentioned
_MUCH: Final = 0.1
_LARGE: Final = 0.2  # the share of pairs at one state or of one task that is mentioned
# the share of steps that reply to an action that changed nothing below which they are not
_FEW: Final = 0.05
# no shares
_NUMBERS: Final = (
    "mean_size",
    "step_size",
    "variance",
    "weight",
    "bias",
    "mean_length",
    "mean_return",
)
_OF_ABORTED: Final = ("aborted", "success_if_aborted_lost", "success_if_aborted_won")
"""The statistics that tables show if a rollout was aborted."""
_STATES: Final = 3
"""The number of states in a table."""
# what a sum of weights may lack of 1, because of the estimator's epsilon
_ROUNDING: Final = 1e-5


def describe(found: Statistics, changed: Statistics | None = None) -> list[str]:
    """Return sentences about statistics that were not split by any column.

    Args:
        found: The statistics; with permutations, the sentences compare them with chance.
        changed: Those of the same table with `without_unchanged`.

    >>> import polars as pl
    >>> from hgpo_train.analysis.statistics import statistics
    >>> table = pl.DataFrame({"task": "a", "trajectory": ["x", "x", "y", "y"], "step": [0, 1, 0, 1], "reward": 0.0,
    ...                       "state": ["hall", "kitchen", "hall", "cellar"], "action_valid": True, "won": False})
    >>> print(describe(statistics(table, history_length=1))[0])
    4 steps of 2 rollouts in 1 group; none of the rollouts won (95%: none to 79%).
    """
    run = found.summary.row(0, named=True)
    if not run["trajectories"]:
        return [
            f"Every rollout was aborted ({run['aborted']:,}), so there is nothing to compare."
        ]
    if run["unchanged"] < _FEW:
        changed = None
    levels = _levels(found)
    masked = _masking(run["shared_masked"], levels[0]["shared"])
    if not levels[0]["shared"]:
        alone = "No two steps of a group are at the same state, so that HGPO's advantages are all 0."
        return [*_outcomes(run), alone, *masked]
    return [
        *_outcomes(run),
        *_contexts(levels, found),
        *_largest_task(found),
        *_states(found),
        *([] if changed is None else _unchanged(run, changed)),
        *_explained(found, "The"),
        *(
            []
            if changed is None
            else _explained(
                changed, "Without replies to actions that changed nothing, the"
            )
        ),
        *_signs(levels, found),
        *_zeros(levels),
        *masked,
    ]


def _levels(found: Statistics) -> list[Row]:
    """Return the rows of `levels` without the oracle's."""
    return found.levels.filter(found.levels["level"] != ORACLE).to_dicts()


def _outcomes(run: Row) -> list[str]:
    parts = [
        counted(run["steps"], "step"),
        counted(run["trajectories"], "rollout"),
        counted(run["groups"], "group"),
    ]
    won = "it is not stored which of them won"
    if run["success"] is not None:
        interval = (
            f"95%: {share(run['success_95_low'])} to {share(run['success_95_high'])}"
        )
        won = f"{share(run['success'])} of the rollouts won ({interval})"
    sentences = [f"{parts[0]} of {parts[1]} in {parts[2]}; {won}."]
    if run["aborted"]:
        were = "rollout was" if run["aborted"] == 1 else "rollouts were"
        line = f"{run['aborted']:,} more {were} aborted and not counted"
        if run["success"] is not None:
            bounds = (
                share(run["success_if_aborted_lost"]),
                share(run["success_if_aborted_won"]),
            )
            line += f"; {bounds[0]} won if they are lost, {bounds[1]} if they are won"
        sentences.append(f"{line}.")
    if run["flat_groups"]:
        equal = f"In {share(run['flat_groups'])} of the groups all rollouts have the same return"
        sentences.append(
            f"{equal}: from them, episode advantages (GRPO) learn only to avoid invalid actions."
        )
    return sentences


def _contexts(levels: list[Row], found: Statistics) -> list[str]:
    first = share(levels[0]["shared"]).capitalize()
    shared = f"{first} of the steps share their state with another step of their group"
    if len(levels) == 1:
        return [f"{shared}."]
    last = levels[-1]
    before = (
        "the state before it"
        if last["level"] == "1"
        else f"the {last['level']} states before it"
    )
    return [
        f"{shared}, {share(last['shared'])} also {before}.",
        f"Context inconsistency: of the pairs of steps at the same state, {_differ(found)}.",
    ]


def _differ(found: Statistics) -> str:
    levels = _levels(found)
    differ = [
        f"{_with_interval(found, 'differing', levels[1])} differ in the state before"
    ]
    if len(levels) > 2:
        differ.append(
            f"{_with_interval(found, 'differing', levels[-1])} within the last {levels[-1]['level']} states"
        )
    return listed(differ)


def _with_interval(found: Statistics, statistic: str, level: Row) -> str:
    """Return a share with its interval, or with the reason why there is none; below six tasks, the share alone."""
    row = found.intervals.filter(statistic=statistic, level=level["level"]).row(
        0, named=True
    )
    if row["low"] is not None:
        return (
            f"{share(row['value'])} ({percent(row['low'])} to {percent(row['high'])})"
        )
    reason = (
        " (no interval: too few tasks decide it)"
        if row["tasks"] >= FEWEST_TASKS
        else ""
    )
    return f"{share(row['value'])}{reason}"


def _largest_task(found: Statistics) -> list[str]:
    """Name the task that decides context inconsistency."""
    run = found.summary.row(0, named=True)
    if found.intervals["tasks"][0] < FEWEST_TASKS or run["largest_pairs"] <= _LARGE:
        return []
    held = f"The task “{beginning(run['largest_task'])}” holds {share(run['largest_pairs'])} of these pairs"
    return [f"{held}: other tasks can give another figure."]


def _states(found: Statistics) -> list[str]:
    """Name the states that carry many pairs."""
    return [
        f"The state “{beginning(row['state'])}” makes up {share(row['pairs'])} of these pairs and "
        f"{share(row['steps'])} of the steps."
        for row in found.states.iter_rows(named=True)
        if row["pairs"] >= _LARGE
    ]


def _unchanged(run: Row, changed: Statistics) -> list[str]:
    """Say how many histories differ without replies to actions that changed nothing."""
    levels = _levels(changed)
    if len(levels) < 2 or levels[1]["differing"] is None:
        return []
    replies = f"{share(run['unchanged']).capitalize()} of the steps reply to an action that changed nothing"
    return [f"{replies}. Without them, {_differ(changed)}."]


def _explained(found: Statistics, opening: str) -> list[str]:
    """Say whether histories explain more of the variance of returns than chance does, and more than nothing."""
    intervals = found.intervals.filter(found.intervals["statistic"] == "explained")
    rows = intervals.drop_nulls(["low", "chance"]).iter_rows(named=True)
    known = [row for row in rows if row["level"] not in ("0", ORACLE)]
    if not known:
        return []
    last = known[-1]
    before = (
        "state before a step explains"
        if last["level"] == "1"
        else f"{last['level']} states before a step explain"
    )
    line = (
        f"{opening} {before} {share(last['value'])} of the variance of returns at its state "
        f"({percent(last['low'])} to {percent(last['high'])}; by chance {share(last['chance'])})"
    )
    beyond = [row["level"] for row in known if row["low"] > max(row["chance"], 0.0)]
    if not beyond:
        return [f"{line}: not more than chance."]
    only = "" if len(beyond) == len(known) else f" for k = {listed(beyond)} only"
    return [f"{line}: more than chance{only}."]


def _signs(levels: list[Row], found: Statistics) -> list[str]:
    last = levels[-1]
    if len(levels) < 2 or not last["compared"]:
        return []
    differ = _with_interval(found, "sign_disagreement", levels[0])
    compared = f"Of the {counted(last['compared'], 'step')} with a group at k = {last['level']}"
    line = f"{compared}, {differ} have an advantage of another sign among equal states alone"
    chance = found.intervals.filter(level="0", statistic="sign_disagreement")[
        "chance"
    ].item()
    return [
        f"{line}."
        if chance is None
        else f"{line}; by chance it would be {share(chance)}."
    ]


def _zeros(levels: list[Row]) -> list[str]:
    zero = 1 - sum(row["weight"] for row in levels)
    if zero < _ROUNDING:
        return []
    if zero == 1:
        return [
            "Steps that share a state in a group have equal returns: HGPO's advantages are all 0."
        ]
    reason = "at every level, they are alone or the returns of their group are equal"
    return [
        f"{share(zero).capitalize()} of the steps have an advantage of 0: {reason}."
    ]


def _masking(masked: float | None, shared: float) -> list[str]:
    if masked is None or masked - shared < _MUCH:
        return []
    line = f"With all numbers in states masked, {share(masked)} instead of {share(shared)} of the steps would share"
    return [f"{line} their state: see --state-key mask-numbers."]


def share(value: float) -> str:
    """Return a share in whole percent. Only 0 and less is called "none", and only 1 "all".

    >>> [share(value) for value in (-0.048, 0.003, 0.5, 0.998, 1.0)]
    ['none', 'less than 1%', '50%', 'more than 99%', 'all']
    """
    if value <= 0:
        return "none"
    if value < 0.005:
        return "less than 1%"
    if value < 0.995:
        return f"{value:.0%}"
    return "more than 99%" if value < 1 else "all"


def percent(value: float, digits: int = 0) -> str:
    """Return a share in percent, without a minus sign before 0.

    >>> percent(-0.0001, 1), percent(-0.048, 1)
    ('0.0%', '-4.8%')
    """
    return f"{value:z.{digits}%}"


def beginning(text: str, most: int = 60) -> str:
    """Return the beginning of a text as one line."""
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def cell(name: str, value: object) -> str:
    """Return a statistic as tables show it: a share in percent, another number with three digits, – for none.

    >>> cell("shared", 0.25), cell("mean_size", 2.5), cell("steps", 1200), cell("success", None)
    ('25.0%', '2.500', '1,200', '–')
    """
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.3f}" if name in _NUMBERS else percent(value, 1)
    return (
        f"{value:,}"
        if isinstance(value, int) and name != "iteration"
        else beginning(str(value))
    )


Cell: TypeAlias = str | Definition
"""A text, or a statistic, which is named by its definition."""


class Table(NamedTuple):
    """A table: its title, the heads of its columns, its rows, and the number of columns that are texts."""

    title: str
    head: list[Cell]
    rows: list[list[Cell]]
    texts: int = 1


def tables(found: Statistics, changed: Statistics | None = None) -> list[Table]:
    """Return the tables of statistics: rollouts, levels of context, and states.

    Args:
        found: The statistics.
        changed: Those of the same table with `without_unchanged`, whose levels follow.
    """
    by = found.by
    has_aborted = bool(found.summary["aborted"].sum())
    columns = {
        name: of
        for name, of in DEFINITIONS["summary"].items()
        if has_aborted or name not in _OF_ABORTED
    }
    if by:
        shown = [_from_frame("Rollouts", found.summary, by, columns)]
    else:
        run = found.summary.row(0, named=True)
        rows: list[list[Cell]] = [
            [of, cell(name, run[name])] for name, of in columns.items()
        ]
        shown = [Table("", ["", ""], rows)]
    if has_aborted:
        title = "Rollouts by their number of steps"
        lengths = dict(DEFINITIONS["lengths"])
        del lengths["steps"]
        shown.append(_from_frame(title, found.lengths, [*by, "steps"], lengths))
    if not found.summary["trajectories"].sum():
        return shown

    # The levels are columns of a table of their own for each value that the statistics are split by.
    title = "Levels of context"
    for result in (found, changed):
        levels = [] if result is None else [result.levels]
        if by and result is not None:
            levels = result.levels.partition_by(by, maintain_order=True)
        for part in levels:
            values = [f"{name} {part[name][0]}" for name in by]
            rows = [
                [words, *(cell(name, value) for value in part[name])]
                for name, words in DEFINITIONS["levels"].items()
            ]
            shown.append(
                Table(", ".join([title, *values]), ["k", *part["level"]], rows)
            )
        title += ", without replies to actions that changed nothing"

    first = pl.int_range(pl.len()).over(by) if by else pl.int_range(pl.len())
    states = found.states.filter(first < _STATES)
    title = "States with most pairs of steps at the same state"
    shown.append(_from_frame(title, states, [*by, "state"], DEFINITIONS["states"]))
    return shown


def _from_frame(
    title: str,
    frame: pl.DataFrame,
    texts: Sequence[str],
    columns: Mapping[str, Definition],
) -> Table:
    """Return columns of a frame, the texts before those that are defined."""
    names = [*texts, *columns]
    rows: list[list[Cell]] = [
        [cell(name, row[name]) for name in names] for row in frame.iter_rows(named=True)
    ]
    heads = [name.replace("_", " ") for name in texts]
    return Table(title, [*heads, *columns.values()], rows, len(texts))


def html_tables(found: Statistics) -> str:
    """Return sentences and tables as HTML, with the definition of each statistic on hover."""
    parts = [] if found.by else [f"<p>{'<br>'.join(map(escape, describe(found)))}</p>"]
    for table in tables(found):
        lines = [f"<tr><th>{'</th><th>'.join(map(_html, table.head))}</th></tr>"]
        lines += [
            f"<tr><td>{'</td><td>'.join(map(_html, row))}</td></tr>"
            for row in table.rows
        ]
        caption = f"<caption>{escape(table.title)}</caption>"
        parts.append(f"<table>{caption}{''.join(lines)}</table>")
    return "\n".join(parts)


def _html(part: Cell) -> str:
    if isinstance(part, str):
        return escape(part)
    return f'<span title="{escape(part.text)}">{escape(part.label)}</span>'
