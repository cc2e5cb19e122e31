"""What commands print: tables, progress bars, and errors that leave something to resume."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self, TypeVar

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.status import Status
from rich.table import Table
from rich.text import Text

from hgpo_envs.unicode_text import clean_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.progress import TaskID

T = TypeVar("T")


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    texts: int = 1,
    console: Console | None = None,
) -> None:
    """Print a table.

    Args:
        columns: The titles of the columns; with empty ones, no titles are printed.
        rows: The cells. No markup is read in them.
        title: The title of the table. No markup is read in it.
        texts: The number of columns, the first ones, that are texts. The others are numbers, aligned at the right.
        console: The console; by default standard output.
    """
    shown = Text(f"\n{_printable(title)}", style="table.title") if title else None  # no markup in it
    table = Table(title=shown, title_justify="left", box=None, pad_edge=False)
    table.show_header, table.padding = any(columns), (0, 2, 0, 0)
    for position, name in enumerate(columns):
        text = position < texts
        table.add_column(name, justify="left" if text else "right", overflow="fold", no_wrap=not text)
    for row in rows:
        table.add_row(*(Text(_printable(cell)) for cell in row))
    (console or Console()).print(table)


def _printable(text: str) -> str:
    """Replace control characters in a text from a file, which a terminal would interpret."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "�" for letter in clean_text(text))


class ProgressBars:
    """Progress bars on standard error, one per stage. Nothing is printed before the first one, or to a file."""

    def __init__(self) -> None:
        console = Console(stderr=True)
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._bars: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def update(self, stage: str, done: int, total: int | None) -> None:
        """Show how much of a stage is done."""
        if stage not in self._bars:
            self._progress.start()
            self._bars[stage] = self._progress.add_task(stage)
        self._progress.update(self._bars[stage], completed=done, total=total)

    def adding(self, stage: str, total: int | None) -> Callable[[int], None]:
        """Return a function that is called with how much more of a stage is done."""
        self.update(stage, 0, total)
        return lambda more: self._progress.advance(self._bars[stage], more)

    def over(self, items: Sequence[T], stage: str) -> Iterator[T]:
        """Yield the items, and show how many of them were taken."""
        for number, item in enumerate(items):
            self.update(stage, number, len(items))
            yield item


class DownloadBars:
    """Progress bars of downloads, and the number of files that were unpacked."""

    def __init__(self) -> None:
        columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        self._bars = Progress(*columns, console=console, disable=not console.is_terminal)
        self._unpacked = Status("", console=console)

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()
        self._unpacked.stop()

    def downloading(self, name: str) -> Callable[[int, int | None], None]:
        """Add a bar for a download, and return its update function."""
        bar = self._bars.add_task(name, total=None)
        return lambda done, total: self._bars.update(bar, completed=done, total=total)

    def unpacking(self, files: int) -> None:
        """Show the number of files unpacked so far."""
        self._bars.stop()
        self._unpacked.update(f"unpacked {files:,} files")
        self._unpacked.start()


@contextmanager
def resumable(advice: str) -> Iterator[None]:
    """Print warnings as one line each, and say after Ctrl-C, failed rollouts or an error of the disk how to go on.

    Args:
        advice: What is kept, and how to go on.

    Raises:
        typer.Exit: After Ctrl-C, with 130.
    """
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: typer.echo(f"warning: {message}", err=True)
            yield
    except KeyboardInterrupt:
        typer.echo(f"Interrupted. {advice}", err=True)
        raise typer.Exit(130) from None
    except (RuntimeError, OSError) as error:
        error.add_note(advice)
        raise
