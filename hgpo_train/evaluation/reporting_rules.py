"""Success of the same rollouts under the rules by which it is reported.

Whether a rollout that failed (a server's error, a time limit) counts, whether one that reached the step limit is lost,
and which of several seeds or checkpoints is shown changes a published number by tens of points without changing the
policy. A run is therefore shown under every rule, and the card names the one that is meant.

Sources: Rollout Cards (arXiv 2605.12131), where failed rollouts, counted or dropped, move a success by up to 20.9
points; the public issues RAGEN #138 (done at the step limit counted as success) and SkillRL #62 (the best checkpoint on
the test set).
"""

from __future__ import annotations

from statistics import fmean
from typing import Final, NamedTuple

import polars as pl

from hgpo_train.measures import TASK, Estimate, measure
from hgpo_train.proportions import NO_OUTCOME, wilson_interval

_WON: Final = pl.col("won").cast(pl.Float64)
DROPPED: Final = pl.when(~pl.col("aborted")).then(_WON)
"""What a rollout counts, in [0, 1]; null, which leaves it out, if it aborted or its result is unknown."""

_IS_TOLD: Final = (pl.col("aborted") | pl.col("won").is_not_null()).any()
"""Whether the environment tells outcomes, without which no rollout is lost or won."""

_AT_LIMIT: Final = pl.col("truncated") & ~pl.col("aborted")

MEANT: Final = "aborted dropped"
"""The rule of `hgpo eval` and of every other figure of this project that names none."""

OUTCOMES: Final[dict[str, tuple[str, pl.Expr]]] = {
    "aborted lost": (
        "Rollouts that failed count as lost.",
        pl.when(_IS_TOLD).then(DROPPED.fill_null(0.0)),
    ),
    MEANT: ("Rollouts that failed are left out.", DROPPED),
    "aborted won": (
        "Rollouts that failed count as won.",
        pl.when(_IS_TOLD).then(DROPPED.fill_null(1.0)),
    ),
    "limit lost": (
        "Rollouts that the step limit ended count as lost; failed ones are left out.",
        pl.when(_AT_LIMIT).then(0.0).otherwise(DROPPED),
    ),
    "limit won": (
        "Rollouts that the step limit ended count as won; failed ones are left out.",
        pl.when(_AT_LIMIT).then(1.0).otherwise(DROPPED),
    ),
}
"""Rules that count every rollout: a sentence, and what a rollout counts. The first and third bound the success."""

RULES: Final = {name: sentence for name, (sentence, _) in OUTCOMES.items()} | {
    "best": "The best seed or evaluation; chosen for that, it is too high.",
    "last": "The last seed or evaluation.",
    "mean": "The mean over seeds or evaluations.",
}
"""The sentences of all rules by name. The last three choose among seeds or evaluations."""


class Counted(NamedTuple):
    """Success as a rule counts it.

    Attributes:
        success: Share of solved tasks, in [0, 1]; None if the rule counts no rollout.
        low: Lower bound of its 95% interval, Wilson's with tasks as trials; None without a share.
        high: Upper bound of this interval.
        episodes: Number of rollouts that the rule counts.
    """

    success: float | None
    low: float | None
    high: float | None
    episodes: int


def count(rollouts: pl.DataFrame, outcome: pl.Expr = DROPPED) -> Counted:
    """Return the success of rollouts.

    Args:
        rollouts: One row per rollout (`hgpo_train.rollout.outcomes.rollout_table`,
            `hgpo_train.evaluation.report.episode_table`), of which `env_id`, `task_id`, `won`, `aborted` and
            `truncated` are read.
        outcome: What a rollout counts (`OUTCOMES`).
    """
    # `measure` leaves aborted rollouts out: the outcome says itself what they count.
    table = rollouts.with_columns(success=outcome, aborted=False)
    found = measure(table, ["success"])[None]["success"]
    if found is None:
        return Counted(None, None, None, 0)
    return Counted(*found, table["success"].count())


def by_seed(rollouts: pl.DataFrame) -> dict[int, Estimate]:
    """Return the success of each seed or evaluation of which it is known, by its number, in order."""
    found = measure(rollouts.with_columns(success=_WON), ["success"], by="seed")
    known: dict[int, Estimate] = {}
    for seed in sorted(found):
        estimate = found[seed]["success"]
        if estimate is not None:
            known[seed] = estimate
    return known


def success_by_rule(
    rollouts: pl.DataFrame, evaluations: pl.DataFrame | None = None
) -> dict[str, Counted]:
    """Return the success of a run under every rule of `RULES`, by the rule's name.

    Args:
        rollouts: One row per rollout, as of `count`, with `seed`: the seed of an evaluation, or its iteration.
        evaluations: The rollouts of several evaluations, among which best, last and mean choose. Default: `rollouts`.

    >>> seeds = {"seed": [1, 1, 2, 2], "won": [True, None, False, False], "aborted": [False, True, False, False]}
    >>> table = pl.DataFrame({"env_id": "e", "task_id": ["a", "b", "a", "b"], "truncated": False} | seeds)
    >>> found = success_by_rule(table)
    >>> [found[rule].success for rule in ("aborted lost", "aborted dropped", "best", "mean")]
    [0.25, 0.3333333333333333, 1.0, 0.5]
    """
    reported = {
        name: count(rollouts, outcome) for name, (_, outcome) in OUTCOMES.items()
    }
    nothing = Counted(None, None, None, 0)
    if rollouts.select(NO_OUTCOME).item():
        reported |= dict.fromkeys(("aborted lost", "aborted won"), nothing)
    chosen_from = rollouts if evaluations is None else evaluations
    seeds = by_seed(chosen_from)
    if not seeds:
        return reported | dict.fromkeys(["best", "last", "mean"], nothing)

    # Of equal seeds, the first one is the best.
    chosen = {
        "best": max(seeds, key=lambda seed: seeds[seed].value),
        "last": chosen_from["seed"].max(),
    }
    reported |= {
        name: count(chosen_from.filter(pl.col("seed") == seed))
        for name, seed in chosen.items()
    }

    # Each seed has equal weight. Seeds play the same tasks, so that the tasks are the trials, not the episodes.
    value = fmean(estimate.value for estimate in seeds.values())
    known = chosen_from.filter(DROPPED.is_not_null())
    tasks = known.select(pl.struct(TASK).n_unique()).item()
    reported["mean"] = Counted(value, *wilson_interval(value, tasks), len(known))
    return reported
