"""Progress display of a training run: a live table on a terminal, one line per iteration elsewhere."""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from hgpo_envs.wording import counted
from hgpo_train.rollout.progress_line import format_tally

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console, RenderableType

    from hgpo_train.rollout.collector import Tally

_COLUMNS: Final = (
    ("success", "episode/success_rate", "{:.1%}"),
    ("held out", "val/success_rate", "{:.1%}"),
    ("score", "episode/score/mean", "{:.3f}"),
    ("steps", "episode/length/mean", "{:.1f}"),
    ("valid", "episode/valid_action_ratio", "{:.0%}"),
    ("loss", "train/loss", "{:.3f}"),
    ("held-out loss", "val/loss", "{:.3f}"),
    ("entropy", "actor/entropy", "{:.3f}"),
    ("kl", "actor/kl_loss", "{:.4f}"),
    ("clip", "actor/clip_fraction", "{:.1%}"),
    ("grad", "actor/grad_norm", "{:.2f}"),
    ("gap", "training/rollout_logprobs_abs_diff_mean", "{:.4f}"),
    ("s", "timing_s/step", "{:.0f}"),
    ("env steps", "training/environment_steps", "{:,.0f}"),
)
_SHOWN: Final = 15
"""Number of rows in the live table."""
_EVERY_S: Final = 0.2
"""Minimum time between two updates of the live table, in seconds."""


class Display:
    """Progress display of a run.

    Args:
        console: The console to write to.
        iterations: Total number of iterations, or of epochs in supervised training.
    """

    def __init__(self, console: Console, iterations: int) -> None:
        self._console, self._iterations = console, iterations
        self._rows: list[tuple[int, Mapping[str, float]]] = []
        self._stage = ""
        self._progress = ""
        self._last = 0.0
        self._live: Live | None = None

    @contextmanager
    def live(self) -> Iterator[None]:
        """Show the live table while the block runs; has no effect if the console is not a terminal."""
        if not self._console.is_terminal:
            yield
            return
        with Live(self._render(), console=self._console, refresh_per_second=4) as self._live:
            yield
        self._live = None

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Show the name of a stage while the block runs."""
        before, self._stage, self._progress = self._stage, name, ""
        self._refresh(force=True)
        yield
        self._stage, self._progress = before, ""

    def show(self, content: RenderableType) -> None:
        """Print something above the table."""
        self._console.print(content, highlight=False, soft_wrap=True)

    def tally(self, tally: Tally) -> None:
        """Show the progress of a collection of rollouts."""
        self._progress = f"{counted(tally.trajectories, 'rollout')} · {format_tally(tally)}"
        self._refresh()

    def progress(self, done: int, of: int) -> None:
        """Show the progress of an update: `done` of `of` optimiser steps."""
        self._progress = f"{done} of {of} optimiser steps"
        self._refresh()

    def row(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Add an iteration's metrics to the table, or print them as a line."""
        self._rows.append((iteration, metrics))
        if self._live is None:
            parts = [f"{title} {text}" for title, name, form in _COLUMNS if (text := _cell(metrics, name, form))]
            self._console.print(f"{iteration}/{self._iterations}  " + "  ".join(parts), highlight=False, soft_wrap=True)
        self._refresh(force=True)

    def _refresh(self, *, force: bool = False) -> None:
        if self._live is not None and (force or time.perf_counter() - self._last > _EVERY_S):
            self._last = time.perf_counter()
            self._live.update(self._render())

    def _render(self) -> Group:
        table = Table(box=None, pad_edge=False)
        table.add_column("iteration", justify="right")
        shown = self._rows[-_SHOWN:]
        columns = [column for column in _COLUMNS if any(_cell(row, *column[1:]) for _, row in shown)]
        for title, _, _ in columns:
            table.add_column(title, justify="right")
        for iteration, row in shown:
            table.add_row(f"{iteration}/{self._iterations}", *(_cell(row, name, form) for _, name, form in columns))
        return Group(table, Text(f"{self._stage}  {self._progress}", style="dim"))


def _cell(metrics: Mapping[str, float], name: str, form: str) -> str:
    value = metrics.get(name)
    return "" if value is None or math.isnan(value) else form.format(value)
