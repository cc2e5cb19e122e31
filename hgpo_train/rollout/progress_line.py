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
    """Show a progress line of the expected number of rollouts within the block, if standard error is a terminal.

    Yields:
        A function that updates the line from a tally.
    """
    if not shown or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console  # slow to import
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    summary = TextColumn("{task.fields[summary]}")
    columns = (TextColumn("rollouts"), BarColumn(), MofNCompleteColumn(), summary, TimeRemainingColumn())
    # The stream of the command line cleans texts of others; these columns contain none.
    stream = sys.stderr.styled() if hasattr(sys.stderr, "styled") else sys.stderr
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        line = bar.add_task("", total=max(0, expected), summary="")
        yield lambda tally: bar.update(
            line,
            completed=tally.trajectories,
            total=max(expected, tally.trajectories),
            summary=tally.describe(),
        )
