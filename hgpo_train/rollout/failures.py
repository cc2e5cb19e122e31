"""How much of a collection failed, why, and whether that is too much."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    import polars as pl

    from hgpo_train.policies.base import Failure
    from hgpo_train.rollout.collector import Tally

MAX_FAILED: Final = 0.1
"""The share of failed rollouts from which a collection counts as failed, unless another is given.

A few failures do no harm: a group's advantages are computed from the members that are left, and the same command plays
the failed ones again. Failures are seldom spread evenly, though: long prompts time out, hard tasks break engines.
Beyond a tenth, what is left is too likely another distribution than the one that was asked for.
"""

_NUMBER: Final = re.compile(r"\d+")
_DISTINCT: Final = 1_000


class RolloutError(RuntimeError):
    """Too many rollouts fail. The message is one line; the command line prints it and exits with 1."""


class FailureReasons:
    """Counts reasons for failures. Reasons that differ only in numbers count as one, shown by the first of them."""

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()
        self._shown: dict[str, str] = {}

    def add(self, reason: Failure | str, times: int = 1) -> None:
        """Counts a reason; beyond a thousand different ones, new ones are counted together."""
        line = str(reason)
        kind = _NUMBER.sub("0", line)
        if kind not in self._shown and len(self._shown) >= _DISTINCT:
            kind = line = "other reasons"
        self._shown.setdefault(kind, line)
        self._times[kind] += times

    def commonest(self) -> tuple[str, int]:
        """The commonest reason and how often it was met; ``("", 0)`` where there is none."""
        for kind, times in self._times.most_common(1):
            return self._shown[kind], times
        return "", 0


@dataclass(frozen=True, slots=True)
class FailedGroup:
    """A committed group some of whose rollouts failed, and are to be played again.

    Attributes:
        trajectories: The failed rollouts.
        outcomes: The outcomes of the others.
    """

    trajectories: frozenset[str]
    outcomes: Sequence[float | bool] = ()


@dataclass(frozen=True, slots=True)
class FailureSummary:
    """How much of a set of rollouts failed.

    Attributes:
        rollouts: How many rollouts there are.
        failed: How many of them failed.
        reason: The commonest reason.
        times: How many failed for it.
    """

    rollouts: int
    failed: int
    reason: str = ""
    times: int = 0

    @property
    def share(self) -> float:
        """The share that failed, in [0, 1]; 0 where there are no rollouts."""
        return self.failed / self.rollouts if self.rollouts else 0.0

    def __str__(self) -> str:
        return (
            f"{self.failed} of {self.rollouts} rollouts failed ({self.share:.0%}), "
            f"{self.times} of them with {self.reason.rstrip('.')}"
        )


def failures_of_tally(tally: Tally) -> FailureSummary:
    """What failed of the rollouts that were played now for the first time."""
    return FailureSummary(
        tally.trajectories - tally.retried, tally.aborted - tally.retries_failed, *tally.reasons.commonest()
    )


def failures_of_run(run: str | os.PathLike[str]) -> FailureSummary:
    """What failed of the rollouts that a run's step table holds; none where it holds no rows."""
    from hgpo_datasets import scan_steps
    from hgpo_envs.errors import InputError

    try:
        return failures_of_steps(scan_steps(run))
    except InputError:
        return FailureSummary(0, 0)


def failures_of_steps(steps: pl.LazyFrame) -> FailureSummary:
    """What failed of the rollouts that a step table holds."""
    import polars as pl

    last = steps.group_by("run", "trajectory").agg(pl.col("aborted").any(), pl.col("error").drop_nulls().first())
    failed = last.filter("aborted").group_by("error").len().sort("len", "error", descending=[True, False])
    rollouts, aborted = last.select(pl.len(), pl.col("aborted").sum()).collect().row(0)
    reasons = FailureReasons()
    for error, times in failed.collect().iter_rows():
        reasons.add(error or "no reason is stored", times)
    reason, times = reasons.commonest()
    return FailureSummary(rollouts, aborted, reason, times)


def raise_if_too_many(failures: FailureSummary, most: float = MAX_FAILED, advice: str = "") -> None:
    """Raises where more than a share failed, or all.

    Args:
        failures: What failed.
        most: The largest share that is allowed, in [0, 1].
        advice: Said after the reason.

    Raises:
        RolloutError: More failed; its line holds the counts and the commonest reason.
    """
    if failures.failed and (failures.share > most or failures.failed == failures.rollouts):
        raise RolloutError(f"{failures}. {advice}".rstrip())
