"""The progress line of a collection: rollouts, steps and tokens per second, success so far, remaining time."""

from __future__ import annotations

from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

    from hgpo_train.rollout.collector import Tally

_EVERY_S = 0.2


@contextmanager
def live_progress(console: Console, expected: int) -> Iterator[Callable[[Tally], None]]:
    """Show a progress line within the block.

    Args:
        console: The console; nothing is shown if it is not a terminal.
        expected: Number of rollouts that will be played.

    Yields:
        A function that updates the line from a tally. It limits the rate of updates itself.
    """
    if not console.is_terminal:  # some versions of rich would print an empty line
        yield lambda _: None
        return
    columns = (
        TextColumn("rollouts"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[summary]}"),
        TimeRemainingColumn(),
    )
    last = 0.0
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("rollouts", total=expected, summary="")

        def show(tally: Tally) -> None:
            nonlocal last
            if perf_counter() - last < _EVERY_S:
                return
            last = perf_counter()
            bar.update(
                task, completed=tally.trajectories, total=max(expected, tally.trajectories), summary=format_tally(tally)
            )

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
