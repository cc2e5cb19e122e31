"""What the statistics of a run say, in plain sentences; for the terminal and notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.wording import counted, listed
from hgpo_train.analysis.statistics import ORACLE

if TYPE_CHECKING:
    import polars as pl

    from hgpo_train.analysis.statistics import Statistics

    Bounds = dict[tuple[str, str], dict[str, Any]]
    """Intervals and chance by level and statistic."""


def describe(found: Statistics, intervals: pl.DataFrame | None = None) -> list[str]:
    """Return sentences about statistics that were not split by any column.

    Args:
        found: The statistics.
        intervals: The same run's `uncertainty`. With it, sentences contain 95% intervals and what chance gives.

    >>> import polars as pl
    >>> from hgpo_train.analysis.statistics import statistics
    >>> table = pl.DataFrame({"task": "a", "trajectory": ["x", "x", "y", "y"], "step": [0, 1, 0, 1], "reward": 0.0,
    ...                       "state": ["hall", "kitchen", "hall", "cellar"], "action_valid": True})
    >>> print(describe(statistics(table, history_length=1))[0])
    4 steps of 2 rollouts in 1 group, 2.0 steps per rollout; none of the rollouts have a positive return.
    """
    whole = found.summary.row(0, named=True)
    if not whole["trajectories"]:
        return [f"Every rollout was aborted ({whole['aborted']:,}), so there is nothing to compare."]
    by_level = {row["level"]: row for row in found.levels.iter_rows(named=True)}
    oracle = by_level.pop(ORACLE, None)
    rows = list(by_level.values())
    bounds = (
        {(row["level"], row["statistic"]): row for row in intervals.iter_rows(named=True)}
        if intervals is not None
        else {}
    )
    sentences = [_run(whole), *_equal_returns(whole)]
    if not rows[0]["shared"]:
        line = "No two steps of a group are at the same state. Every step is a singleton group at every level"
        return [*sentences, f"{line}, and HGPO's advantages are all 0."]
    return [
        *sentences,
        _shared_contexts(rows, bounds),
        *_inconsistency(rows, oracle, bounds),
        *_explained(rows, bounds),
        *_bias(rows, bounds),
        _weights(rows),
        *_equal_groups(rows),
    ]


def _run(whole: dict[str, Any]) -> str:
    line = (
        f"{counted(whole['steps'], 'step')} of {counted(whole['trajectories'], 'rollout')} in "
        f"{counted(whole['groups'], 'group')}, {whole['mean_length']:.1f} steps per rollout; "
        f"{_share(whole['success'])} of the rollouts have a positive return."
    )
    if not whole["aborted"]:
        return line
    were = "was" if whole["aborted"] == 1 else "were"
    return f"{line} {counted(whole['aborted'], 'more rollout')} {were} aborted and not counted."


def _equal_returns(whole: dict[str, Any]) -> list[str]:
    if not whole["flat_groups"]:
        return []
    line = (
        f"In {_share(whole['flat_groups'])} of the groups all rollouts have the same return. From these, episode "
        "advantages (GRPO) learn nothing except to avoid invalid actions."
    )
    return [line]


def _shared_contexts(rows: list[dict[str, Any]], bounds: Bounds) -> str:
    line = (
        f"{_with_interval(rows[0], 'shared', bounds).capitalize()} of the steps share their state with another step of "
        f"their group, {_with_interval(rows[0], 'cross', bounds)} with a step of another rollout."
    )
    deeper = [f"{_with_interval(row, 'shared', bounds)} for k = {row['level']}" for row in rows[1:] if row["shared"]]
    alone = [row["level"] for row in rows if not row["shared"]]
    if alone:
        deeper.append(f"none for k {'≥' if len(alone) > 1 else '='} {alone[0]}")
    return f"{line} Together with the k states before it: {listed(deeper)}." if deeper else line


def _inconsistency(rows: list[dict[str, Any]], oracle: dict[str, Any] | None, bounds: Bounds) -> list[str]:
    if len(rows) < 2:
        return []
    parts = [f"{_with_interval(rows[1], 'differing', bounds)} differ in the state before"]
    if len(rows) > 2:
        parts.append(f"{_with_interval(rows[-1], 'differing', bounds)} within the last {rows[-1]['level']} states")
    if oracle is not None:
        parts.append(f"{_with_interval(oracle, 'differing', bounds)} somewhere in their whole histories")
    line = f"Context inconsistency: of the pairs of steps at the same state, {listed(parts)}."
    if oracle is not None:
        line += f" {_share(oracle['shared']).capitalize()} of the steps share their whole history with another step."
    return [line]


def _explained(rows: list[dict[str, Any]], bounds: Bounds) -> list[str]:
    """Say whether histories explain more of the variance of returns than chance does."""
    known = [
        (row["level"], bounds[row["level"], "explained"])
        for row in rows[1:]
        if bounds.get((row["level"], "explained"), {}).get("low") is not None
    ]
    known = [(level, of) for level, of in known if of["chance"] is not None]
    if not known:
        return []
    parts = [
        f"{of['value']:.1%} ({of['low']:.1%} to {of['high']:.1%}; chance {of['chance']:.1%}) for k = {level}"
        for level, of in known
    ]
    line = f"Of the variance of returns at the same state, the k states before it explain {listed(parts)}."
    beyond = [level for level, of in known if of["low"] > of["chance"]]
    if not beyond:
        return [f"{line} That is not more than chance: this run does not show that histories matter."]
    if len(beyond) == len(known):
        return [f"{line} That is more than chance: histories matter in this run."]
    return [f"{line} That is more than chance for k = {listed(beyond)} only."]


def _bias(rows: list[dict[str, Any]], bounds: Bounds) -> list[str]:
    first, last = rows[0], rows[-1]
    if len(rows) < 2 or not last["compared"]:
        return []
    share = "shares" if last["compared"] == 1 else "share"
    history = "state" if last["level"] == "1" else f"{last['level']} states"
    line = (
        f"{counted(last['compared'], 'step')} {share} both the state and the {history} before it with another step. "
        f"There, grouping by state alone changes the advantage by {first['bias']:.2f} on average, and its sign for "
        f"{_with_interval(first, 'sign_disagreement', bounds)} of these steps."
    )
    chance = bounds.get((first["level"], "sign_disagreement"), {}).get("chance")
    if chance is not None:
        line += f" By chance alone, the sign would change for {_share(chance)}."
    if first["in_pairs"]:
        are = f"{_share(first['in_pairs']).capitalize()} of these steps are in a group of two"
        line += f" {are}, where any two different returns become advantages of 1 and -1."
    return [line]


def _weights(rows: list[dict[str, Any]]) -> str:
    total = sum(row["weight"] for row in rows)
    if not total:
        return "Steps that share a state in a group have equal returns: HGPO's advantages are all 0."
    parts = [f"{_weight(row['weight'])} for k = {row['level']}" for row in rows if row["weight"]]
    line = f"HGPO's weights of the levels, averaged over the steps, are {listed(parts)}."
    zero = 1 - total
    if zero < _ROUNDING:
        return line
    reason = "at every level, they are alone or the returns of their group are equal"
    return f"{line} {_share(zero).capitalize()} of the steps have an advantage of 0: {reason}."


_ROUNDING: Final = 1e-5
"""What a sum of weights may lack of 1, because the estimator adds its epsilon to what it divides by."""


def _equal_groups(rows: list[dict[str, Any]]) -> list[str]:
    shared = [row for row in rows if row["flat"] is not None]
    if not any(row["flat"] for row in shared):
        return []
    line = f"{_share(shared[0]['flat']).capitalize()} of the groups of two or more steps at k = 0 have equal returns"
    if len(shared) > 1:
        line += f", and {_share(shared[-1]['flat'])} of those at k = {shared[-1]['level']}"
    return [f"{line}."]


def _share(value: float) -> str:
    """Return a share in whole percent. Only 0 is called "none", and only 1 "all"."""
    if value <= 0:
        return "none"
    if value < 0.005:
        return "less than 1%"
    if value < 0.995:
        return f"{value:.0%}"
    return "more than 99%" if value < 1 else "all"


def _with_interval(row: dict[str, Any], name: str, bounds: Bounds) -> str:
    """Return a share with its interval, if it has one."""
    share, found = _share(row[name]), bounds.get((row["level"], name), {})
    if found.get("low") is None or row[name] in (0, 1):
        return share
    return f"{share} ({100 * found['low']:.0f}–{100 * found['high']:.0f}%)"


def _weight(value: float) -> str:
    return f"{value:.2f}" if value >= 0.005 else "less than 0.01"
