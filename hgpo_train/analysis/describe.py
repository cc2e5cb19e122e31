"""What the statistics of a run say, in plain sentences; for the terminal and the notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hgpo_train.analysis.statistics import ORACLE

if TYPE_CHECKING:
    from hgpo_train.analysis.statistics import Statistics


def describe(found: Statistics) -> list[str]:
    """A reading of statistics that were not split by any column.

    >>> import polars as pl
    >>> from hgpo_train.analysis.statistics import statistics
    >>> table = pl.DataFrame({"task": "a", "trajectory": ["x", "x", "y", "y"], "step": [0, 1, 0, 1], "reward": 0.0,
    ...                       "state": ["hall", "kitchen", "hall", "cellar"], "action_valid": True})
    >>> print(describe(statistics(table, history_length=1))[0])
    4 steps of 2 rollouts in 1 group (2.0 steps a rollout); 0% of the rollouts earned something.
    """
    whole = found.summary.row(0, named=True)
    by_level = {row["level"]: row for row in found.levels.iter_rows(named=True)}
    oracle = by_level.pop(ORACLE, None)
    rows = list(by_level.values())
    sentences = [_about_the_run(whole), *_about_equal_returns(whole)]
    sentences += (
        _about_shared_contexts(rows) + _about_inconsistency(rows, oracle) + _about_bias(rows) + _about_weights(rows)
    )
    return sentences


def _about_the_run(whole: dict[str, Any]) -> str:
    broken = f" {whole['aborted']} more were aborted and are left out." if whole["aborted"] else ""
    return (
        f"{whole['steps']:,} {_plural('step', whole['steps'])} of {whole['trajectories']:,} rollouts in "
        f"{whole['groups']:,} {_plural('group', whole['groups'])} ({whole['mean_length']:.1f} steps a rollout); "
        f"{whole['success']:.0%} of the rollouts earned something.{broken}"
    )


def _plural(noun: str, number: int) -> str:
    return noun if number == 1 else f"{noun}s"


def _about_equal_returns(whole: dict[str, Any]) -> list[str]:
    if not whole["flat_groups"]:
        return []
    line = (
        f"In {whole['flat_groups']:.0%} of the groups all rollouts have the same return: episode advantages (GRPO) "
        "learn nothing from those but from invalid actions."
    )
    return [line]


def _about_shared_contexts(rows: list[dict[str, Any]]) -> list[str]:
    line = (
        f"{rows[0]['shared']:.0%} of the steps are at a state where another step of their group was too, "
        f"{rows[0]['cross']:.0%} together with another rollout."
    )
    if len(rows) > 1:
        deeper = ", ".join(f"{row['shared']:.0%} with {row['level']}" for row in rows[1:])
        line += f" Asking for the same states before it as well leaves {deeper}."
    return [line]


def _about_inconsistency(rows: list[dict[str, Any]], oracle: dict[str, Any] | None) -> list[str]:
    if len(rows) < 2 or rows[1]["differing"] is None:
        return []
    line = f"Context inconsistency: of the pairs of steps at the same state, {_share(rows[1]['differing'])} came there"
    line += " from different states"
    if len(rows) > 2:
        line += f", and {_share(rows[-1]['differing'])} differ within the last {rows[-1]['level']} steps"
    if oracle is not None:
        line += (
            f"; {_share(oracle['differing'])} differ somewhere in their whole histories, "
            f"which {_share(oracle['shared'])} of the steps share with another one"
        )
    return [f"{line}."]


def _share(value: float) -> str:
    """A share in whole percent; 99.5% and more is not rounded to 100%."""
    return "more than 99%" if 0.995 <= value < 1 else f"{value:.0%}"


def _about_bias(rows: list[dict[str, Any]]) -> list[str]:
    first, last = rows[0], rows[-1]
    if len(rows) < 2 or not last["compared"]:
        return []
    line = (
        f"{last['compared']:,} steps share both their state and their last {last['level']} states: "
        f"their advantage among the one differs from that among the other by {first['bias']:.2f} on average, "
        f"and in {_share(first['sign_disagreement'])} by its sign. Grouping by state alone would credit them so."
    )
    return [line]


def _about_weights(rows: list[dict[str, Any]]) -> list[str]:
    shares = " : ".join(f"{row['weight']:.2f}" for row in rows)
    without = 1 - sum(row["weight"] for row in rows)
    flat = next((row for row in rows if row["flat"]), None)
    sentences = [
        f"HGPO's sum rests on levels 0 … {rows[-1]['level']} as {shares}; {without:.0%} of the steps have no advantage."
    ]
    if flat is not None:
        sentences.append(
            f"In {rows[0]['flat'] or 0:.0%} of the groups at equal states all returns are equal; "
            f"in {rows[-1]['flat'] or 0:.0%} at the deepest level."
        )
    return sentences
