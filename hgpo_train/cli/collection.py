"""The common parts of `hgpo rollout` and `hgpo eval`: checks of options, and the report of failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from hgpo_train.rollout.collector import Tally

RETRY: Final = "Run the same command again to retry them."


def note(console: Console, line: str) -> None:
    """Print a line of plain text."""
    console.print(line, soft_wrap=True, markup=False, highlight=False)


def default_slots(slots: int | None, *, workers: bool) -> int:
    """Return the number of slots, with a default for None."""
    from hgpo_train.rollout.run import default_slots as default

    return default(workers=workers) if slots is None else slots


def check_max_failed(max_failed: float) -> None:
    """Check that `--max-failed` is in [0, 1].

    Raises:
        InputError: It is not.
    """
    from hgpo_envs.errors import InputError

    if not 0 <= max_failed <= 1:
        raise InputError(f"--max-failed: expected a share from 0 to 1, received {max_failed}")


def check_failures(console: Console, out: Path, tally: Tally | None, max_failed: float, noun: str = "rollouts") -> None:
    """Print how many rollouts of the run failed, and why; raise if too many failed.

    Args:
        console: The console.
        out: The run's folder.
        tally: Counts of the rollouts that were played now, which are checked separately; None skips this check.
        max_failed: The largest allowed share, in [0, 1].
        noun: What the rollouts are called, in the plural.

    Raises:
        RolloutError: More than `max_failed` of the rollouts failed.
    """
    from hgpo_train.rollout.failures import failures_of_run, failures_of_tally, raise_if_too_many

    stored = failures_of_run(out)
    for failures in (stored, *([] if tally is None else [failures_of_tally(tally)])):
        raise_if_too_many(failures, max_failed, RETRY, noun)
    if stored.failed:
        note(console, f"{stored.describe(noun)}. {RETRY}")
