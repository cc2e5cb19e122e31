"""Progress bars of downloads and unpacking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

if TYPE_CHECKING:
    from hgpo_envs.files.download import Progress as Report


class DownloadProgress:
    """A progress display of downloads and unpacked files. On Ctrl-C it prints how to resume, and exits with 130."""

    def __init__(self) -> None:
        columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        self._bars = Progress(*columns, console=console, disable=not console.is_terminal)
        self._files = Progress(
            TextColumn("unpacked {task.completed} files"), console=console, disable=self._bars.disable
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bars.stop()
        self._files.stop()
        if kind is KeyboardInterrupt:
            typer.echo("\ninterrupted; finished parts are kept, run the same command again to resume", err=True)
            raise typer.Exit(130)

    def downloading(self, name: str) -> Report:
        """Add a progress bar for a download, and return its update function."""
        bar = self._bars.add_task(name, total=None)
        return lambda done, total: self._bars.update(bar, completed=done, total=total)

    def unpacking(self, files: int) -> None:
        """Show the number of files unpacked so far."""
        self._bars.stop()
        self._files.start()
        if not self._files.tasks:
            self._files.add_task("", total=None)
        self._files.update(self._files.task_ids[0], completed=files)
