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
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from hgpo_train.measures import TASK, Estimate, measure
from hgpo_train.proportions import wilson_interval

if TYPE_CHECKING:
    from collections.abc import Callable

_ABORTED: Final = pl.col("aborted")
_WON: Final = pl.col("won").cast(pl.Float64)
_UNKNOWN: Final = _ABORTED | _WON.is_null()


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


def _counted(rollouts: pl.DataFrame, outcome: pl.Expr) -> Counted:
    """Return the mean of an outcome in [0, 1]; a rollout whose outcome is null does not count."""
    # `measure` leaves aborted rollouts out: the outcome says itself what they count.
    table = rollouts.with_columns(success=outcome, aborted=False)
    found = measure(table, ["success"])[None]["success"]
    if found is None:
        return Counted(None, None, None, 0)
    return Counted(*found, table["success"].count())


def aborted_lost(rollouts: pl.DataFrame) -> Counted:
    """Count rollouts that aborted, or whose result is unknown, as lost: the lower bound of success.

    Args:
        rollouts: One row per rollout (`hgpo_train.rollout.outcomes.rollout_table`,
            `hgpo_train.evaluation.report.episode_table`), of which `env_id`, `task_id`, `won` and `aborted` are read.
    """
    return _counted(rollouts, pl.when(_UNKNOWN).then(0.0).otherwise(_WON))


def aborted_dropped(rollouts: pl.DataFrame) -> Counted:
    """Leave out rollouts that aborted, or whose result is unknown. Arguments are those of `aborted_lost`."""
    return _counted(rollouts, pl.when(~_ABORTED).then(_WON))


def aborted_won(rollouts: pl.DataFrame) -> Counted:
    """Count rollouts that aborted, or whose result is unknown, as won: the upper bound of success.

    Arguments are those of `aborted_lost`.
    """
    return _counted(rollouts, pl.when(_UNKNOWN).then(1.0).otherwise(_WON))


def limit_lost(rollouts: pl.DataFrame) -> Counted:
    """Count rollouts that the step limit ended as lost, and leave out those that aborted.

    Arguments are those of `aborted_lost`; the column `truncated` is read, too.
    """
    return _counted(rollouts, pl.when(~_ABORTED).then(pl.when("truncated").then(0.0).otherwise(_WON)))


def limit_won(rollouts: pl.DataFrame) -> Counted:
    """Count rollouts that the step limit ended as won, and leave out those that aborted.

    Arguments are those of `limit_lost`.
    """
    return _counted(rollouts, pl.when(~_ABORTED).then(pl.when("truncated").then(1.0).otherwise(_WON)))


def best(rollouts: pl.DataFrame) -> Counted:
    """Report the seed, or the evaluation, with the highest success; of equal ones the first.

    Args:
        rollouts: As of `aborted_lost`, with `seed`: the seed of an evaluation, or an evaluation's iteration.
    """
    found = by_seed(rollouts)
    if not found:
        return Counted(None, None, None, 0)
    highest = max(found, key=lambda seed: found[seed].value)
    return aborted_dropped(rollouts.filter(pl.col("seed") == highest))


def last(rollouts: pl.DataFrame) -> Counted:
    """Report the seed, or the evaluation, with the highest number. Arguments are those of `best`."""
    return aborted_dropped(rollouts.filter(pl.col("seed") == pl.col("seed").max()))


def mean(rollouts: pl.DataFrame) -> Counted:
    """Report the mean over seeds, or evaluations, each with equal weight. Arguments are those of `best`."""
    found = by_seed(rollouts)
    if not found:
        return Counted(None, None, None, 0)
    value = fmean(estimate.value for estimate in found.values())
    known = rollouts.filter(~_UNKNOWN)
    # Seeds play the same tasks, so that the tasks are the trials, not the episodes.
    low, high = wilson_interval(value, known.select(pl.struct(TASK).n_unique()).item())
    return Counted(value, low, high, len(known))


def by_seed(rollouts: pl.DataFrame) -> dict[int, Estimate]:
    """Return the success of each seed or evaluation of which it is known, by its number, in order."""
    found = measure(rollouts.with_columns(success=_WON), ["success"], by="seed")
    known: dict[int, Estimate] = {}
    for seed in sorted(found):
        estimate = found[seed]["success"]
        if estimate is not None:
            known[seed] = estimate
    return known


MEANT: Final = "aborted dropped"
"""The rule of `hgpo eval` and of every other figure of this project that names none."""

RULES: Final[dict[str, tuple[str, Callable[[pl.DataFrame], Counted]]]] = {
    "aborted lost": ("Rollouts that failed count as lost.", aborted_lost),
    MEANT: ("Rollouts that failed are left out.", aborted_dropped),
    "aborted won": ("Rollouts that failed count as won.", aborted_won),
    "limit lost": ("Rollouts that the step limit ended count as lost; failed ones are left out.", limit_lost),
    "limit won": ("Rollouts that the step limit ended count as won; failed ones are left out.", limit_won),
    "best": ("The best seed or evaluation; chosen for that, it is too high.", best),
    "last": ("The last seed or evaluation.", last),
    "mean": ("The mean over seeds or evaluations.", mean),
}
"""The rules by name: a sentence, and the function. The last three need the column `seed`."""

CHOICES: Final = ("best", "last", "mean")
"""The rules that choose among seeds or evaluations."""


def success_by_rule(rollouts: pl.DataFrame, evaluations: pl.DataFrame | None = None) -> dict[str, Counted]:
    """Return the success of a run under every rule of `RULES`, by the rule's name.

    Args:
        rollouts: One row per rollout, with env_id, task_id, seed, won, aborted and truncated
            (`hgpo_train.evaluation.report.episode_table`).
        evaluations: The rollouts of several evaluations, with their iteration as `seed`, among which the rules of
            `CHOICES` choose. Default: `rollouts`.

    >>> seeds = {"seed": [1, 1, 2, 2], "won": [True, None, False, False], "aborted": [False, True, False, False]}
    >>> table = pl.DataFrame({"env_id": "e", "task_id": ["a", "b", "a", "b"], "truncated": False} | seeds)
    >>> found = success_by_rule(table)
    >>> [found[rule].success for rule in ("aborted lost", "aborted dropped", "best", "mean")]
    [0.25, 0.3333333333333333, 1.0, 0.5]
    """
    chosen_from = rollouts if evaluations is None else evaluations
    return {name: count(chosen_from if name in CHOICES else rollouts) for name, (_, count) in RULES.items()}
