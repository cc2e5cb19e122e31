"""Progress bars of long local work, one per stage."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import TaskID


@contextmanager
def stage_progress() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function that updates a stage's bar from the stage's name, the amount done and the total amount.

    Nothing is printed before its first call, so that wrong input is one line.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    bars: dict[str, TaskID] = {}
    progress = Progress(*columns, console=Console(stderr=True))

    def tell(stage: str, done: int, total: int) -> None:
        if not bars:
            progress.start()
        if stage not in bars:
            bars[stage] = progress.add_task(stage)
        progress.update(bars[stage], completed=done, total=total)

    try:
        yield tell
    finally:
        if bars:
            progress.stop()
