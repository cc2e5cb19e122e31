"""Failed rollouts of a collection: reasons, counts, and the share from which the collection fails.

Commands read the defaults here, so nothing heavy is imported at the top.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

MAX_FAILED: Final = 0.1
"""Default of the largest share of failed rollouts with which a collection still counts as successful.

A few failures do no harm: a group's advantages are computed from the remaining members, and the same command retries
the failed ones. But failures are rarely uniform: long prompts time out, and hard tasks crash engines. With more than a
tenth, the distribution of the remaining rollouts probably differs from the requested one.
"""

_NUMBER: Final = re.compile(r"\d+")
_SHOWN: Final = 3


class RolloutError(RuntimeError):
    """Too many rollouts failed. The message is one line, which the command line prints before it exits with 1.

    Attributes:
        run: The collected run (`hgpo_train.rollout.collect`), if it was played to its end; None if it was stopped.
    """

    run: object = None


@dataclass(frozen=True, slots=True)
class FailureSummary:
    """Counts of failures in a set of rollouts.

    Attributes:
        rollouts: Number of rollouts.
        failed: Number of failed rollouts.
        errors: Number of rollouts that failed, by error.

    >>> FailureSummary(102, 12, {"timed out": 9, "HTTP 500": 3}).describe()
    '12 of 102 rollouts failed (12%): 9 × timed out; 3 × HTTP 500'
    """

    rollouts: int
    failed: int
    errors: Mapping[str, int]

    @property
    def reasons(self) -> tuple[tuple[str, int], ...]:
        """Each reason with its count, the most frequent first. Errors that differ only in numbers are the first one.

        >>> FailureSummary(9, 4, {"no disk": 1, "no answer within 3 s": 1, "no answer within 20 s": 2}).reasons
        (('no answer within 3 s', 3), ('no disk', 1))
        """
        merged: dict[str, tuple[str, int]] = {}
        for error, times in self.errors.items():
            shown, before = merged.get(_NUMBER.sub("0", error), (error, 0))
            merged[_NUMBER.sub("0", error)] = (shown, before + times)
        return tuple(sorted(merged.values(), key=lambda counted: -counted[1]))

    def describe(self) -> str:
        """Return the counts and the most frequent reasons in one line."""
        reasons = self.reasons
        shown = [
            f"{times} × {reason.rstrip('.')}" for reason, times in reasons[:_SHOWN]
        ]
        if others := sum(times for _, times in reasons[_SHOWN:]):
            shown.append(f"{others} × other reasons")
        share = self.failed / self.rollouts if self.rollouts else 0.0
        return f"{self.failed} of {self.rollouts} rollouts failed ({share:.0%}): {'; '.join(shown)}"


def allowed_in_a_row(rollouts: int, most: float = MAX_FAILED) -> int:
    """Return the number of rollouts in a row whose failure stops a collection of so many.

    It is the smallest number above the share `most`, with which the collection fails in any case; but at least 3, so
    that an isolated failure never stops a small collection, and at most 64.

    >>> [allowed_in_a_row(rollouts) for rollouts in (1, 5, 36, 108, 10_000)]
    [3, 3, 4, 11, 64]
    """
    return min(64, max(3, int(rollouts * most) + 1))


def failures_of(rollouts: pl.DataFrame) -> FailureSummary:
    """Summarize the failures in a table of rollouts, of which the columns `aborted` and `error` are read."""
    failed = rollouts.filter("aborted")
    counts = (
        failed["error"]
        .fill_null("no reason is stored")
        .value_counts(name="times")
        .sort("times", "error")[::-1]
    )
    return FailureSummary(len(rollouts), len(failed), dict(counts.iter_rows()))


def raise_if_too_many(
    failures: FailureSummary, most: float = MAX_FAILED, advice: str = ""
) -> None:
    """Raise if more than the share `most` of rollouts failed, or all of them.

    Raises:
        RolloutError: More failed. The message contains the counts, the most frequent reasons and the advice.
    """
    failed = failures.failed
    rollouts = failures.rollouts
    if failed and (failed > most * rollouts or failed == rollouts):
        raise RolloutError(f"{failures.describe()}. {advice}".rstrip())


def raise_if_too_long(steps: pl.DataFrame) -> None:
    """Raise if a prompt was too long, for `rollout.overflow = "error"`.

    Raises:
        InputError: A rollout failed for that reason.
    """
    import polars as pl

    from hgpo_envs.errors import InputError
    from hgpo_train.policies.generation import PROMPT_TOO_LONG

    errors = steps.filter(pl.col("error").str.starts_with(PROMPT_TOO_LONG))["error"]
    if len(errors):
        raise InputError(
            f'{errors[0]}, and rollout.overflow is "error"; increase rollout.max_prompt_tokens, or set overflow to '
            "left or history, in a new run"
        )
