"""What is shown while a collection runs: rollouts, steps and tokens a second, success so far, time left."""

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
    """A progress line for the time of the block.

    Args:
        console: Where to draw; nothing is drawn where it is not a terminal.
        expected: Rollouts that will be played.

    Yields:
        A function that takes the tally, as often as one likes.
    """
    columns = (
        TextColumn("rollouts"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[summary]}"),
        TimeRemainingColumn(),
    )
    last = 0.0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
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
    """One line about a tally."""
    seconds = max(tally.seconds, 1e-9)
    parts = [f"{tally.steps / seconds:,.0f} steps/s"]
    if tally.tokens:
        parts.append(f"{tally.tokens / seconds:,.0f} tokens/s")
    if tally.trajectories > tally.aborted:
        parts.append(f"{tally.success:.0%} solved")
    if tally.aborted:
        parts.append(f"{tally.aborted} failed")
    return " · ".join(parts)
