"""The progress line of a collection: rollouts, steps and tokens per second, success so far, remaining time."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hgpo_train.rollout.tally import Tally

INTERVAL_S: Final = 30.0
"""The seconds between two lines in a file."""


@contextmanager
def live_progress(
    expected: int, shown: bool | Callable[[Tally], None] = True
) -> Iterator[Callable[[Tally], None]]:
    """Show a progress line of the expected number of rollouts within the block; in a file, a new line now and then.

    Args:
        expected: The number of rollouts.
        shown: Whether there is a line, or a function of one's own.

    Yields:
        A function that updates the line from a tally.
    """
    if callable(shown):
        yield shown
        return
    if not shown:
        yield lambda _: None
        return
    if not sys.stderr.isatty():
        printed_at = monotonic()

        def print_line(tally: Tally) -> None:
            nonlocal printed_at
            if monotonic() - printed_at >= INTERVAL_S:
                printed_at = monotonic()
                done = tally.trajectories
                print(
                    f"{done:,} of {max(expected, done):,} rollouts, {tally.describe()}",
                    file=sys.stderr,
                    flush=True,
                )

        yield print_line
        return
    from rich.console import Console  # slow to import
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    summary = TextColumn("{task.fields[summary]}")
    columns = (
        TextColumn("rollouts"),
        BarColumn(),
        MofNCompleteColumn(),
        summary,
        TimeRemainingColumn(),
    )
    # The stream of the command line cleans texts of others; these columns contain none.
    stream: Any = sys.stderr
    if hasattr(stream, "styled"):
        stream = replace(stream, styled=True)
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        line = bar.add_task("", total=max(0, expected), summary="")
        yield lambda tally: bar.update(
            line,
            completed=tally.trajectories,
            total=max(expected, tally.trajectories),
            summary=tally.describe(),
        )
