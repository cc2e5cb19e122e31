"""The progress line of a collection: rollouts, steps and tokens per second, success so far, remaining time."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hgpo_train.rollout.collector import Tally


@contextmanager
def live_progress(expected: int, *, shown: bool = True) -> Iterator[Callable[[Tally], None]]:
    """Show a progress line within the block, if standard error is a terminal.

    Args:
        expected: Number of rollouts that will be played.
        shown: Whether to show the line at all.

    Yields:
        A function that updates the line from a tally.
    """
    if not shown or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # slow to import
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("rollouts"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[summary]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("rollouts", total=max(0, expected), summary="")

        def show(tally: Tally) -> None:
            done = tally.trajectories
            bar.update(task, completed=done, total=max(expected, done), summary=format_tally(tally))

        yield show


def format_tally(tally: Tally) -> str:
    """Format a tally as one line."""
    seconds = max(tally.seconds, 1e-9)
    parts = [f"{tally.steps / seconds:,.0f} steps/s"]
    if tally.tokens:
        parts.append(f"{tally.tokens / seconds:,.0f} tokens/s")
    if (success := tally.success) is not None:
        parts.append(f"{success:.0%} solved")
    if tally.aborted:
        parts.append(f"{tally.aborted} failed")
    return " · ".join(parts)
