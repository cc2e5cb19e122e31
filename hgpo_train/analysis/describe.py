"""What the statistics of a run say, in plain sentences; for the terminal and the notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.wording import counted, listed
from hgpo_train.analysis.statistics import ORACLE

if TYPE_CHECKING:
    from hgpo_train.analysis.statistics import Statistics


def describe(found: Statistics) -> list[str]:
    """Return sentences about statistics that were not split by any column.

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
    sentences = [_run(whole), *_equal_returns(whole)]
    if not rows[0]["shared"]:
        line = "No two steps of a group are at the same state. Every step is a singleton group at every level"
        return [*sentences, f"{line}, and HGPO's advantages are all 0."]
    return [
        *sentences,
        _shared_contexts(rows),
        *_inconsistency(rows, oracle),
        *_bias(rows),
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


def _shared_contexts(rows: list[dict[str, Any]]) -> str:
    line = (
        f"{_share(rows[0]['shared']).capitalize()} of the steps share their state with another step of their group, "
        f"{_share(rows[0]['cross'])} with a step of another rollout."
    )
    deeper = [f"{_share(row['shared'])} for k = {row['level']}" for row in rows[1:] if row["shared"]]
    alone = [row["level"] for row in rows if not row["shared"]]
    if alone:
        deeper.append(f"none for k {'≥' if len(alone) > 1 else '='} {alone[0]}")
    return f"{line} Together with the k states before it: {listed(deeper)}." if deeper else line


def _inconsistency(rows: list[dict[str, Any]], oracle: dict[str, Any] | None) -> list[str]:
    if len(rows) < 2:
        return []
    parts = [f"{_share(rows[1]['differing'])} differ in the state before"]
    if len(rows) > 2:
        parts.append(f"{_share(rows[-1]['differing'])} within the last {rows[-1]['level']} states")
    if oracle is not None:
        parts.append(f"{_share(oracle['differing'])} somewhere in their whole histories")
    line = f"Context inconsistency: of the pairs of steps at the same state, {listed(parts)}."
    if oracle is not None:
        line += f" {_share(oracle['shared']).capitalize()} of the steps share their whole history with another step."
    return [line]


def _bias(rows: list[dict[str, Any]]) -> list[str]:
    first, last = rows[0], rows[-1]
    if len(rows) < 2 or not last["compared"]:
        return []
    share = "shares" if last["compared"] == 1 else "share"
    history = "state" if last["level"] == "1" else f"{last['level']} states"
    line = (
        f"{counted(last['compared'], 'step')} {share} both the state and the {history} before it with another step. "
        f"There, grouping by state alone changes the advantage by {first['bias']:.2f} on average, and its sign for "
        f"{_share(first['sign_disagreement'])} of these steps."
    )
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


def _weight(value: float) -> str:
    return f"{value:.2f}" if value >= 0.005 else "less than 0.01"
