"""Progress display of a training run: one line per iteration, and what happens now.

On a terminal, that is a line below the others. Elsewhere, it is a line for each stage that takes more than a second,
with its rate, and another every half minute while it lasts.
"""

from __future__ import annotations

import math
import time
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from hgpo_envs.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rich.console import Console

    from hgpo_train.rollout.tally import Tally

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
_EVERY_S: Final = 0.2  # between two updates of the status line
_LINES_S: Final = 30.0  # between two lines about a stage, off a terminal
_SHORT_S: Final = 1.0  # stages that end earlier have no line


class Display:
    """Progress display of a run.

    Args:
        console: The console to write to.
        iterations: Total number of iterations, or of epochs in supervised training; 0 if it is not known.

    Attributes:
        live: Shows the status line while its block runs, on a terminal.
    """

    def __init__(self, console: Console, iterations: int) -> None:
        self._console = console
        self._iterations = iterations
        self._stage = ""
        self._progress = ""
        self._begin = 0.0  # of the stage
        self._last = 0.0  # when its progress was shown
        self._status = console.status("") if console.is_terminal else None
        self.live: AbstractContextManager[object] = self._status or nullcontext()

    @contextmanager
    def stage(
        self, name: str, seconds: dict[str, float] | None = None, metric: str = ""
    ) -> Iterator[None]:
        """Show the name of a stage while the block runs, and off a terminal its duration at the end.

        Args:
            name: The name.
            seconds: Where the duration is stored in seconds, if at all.
            metric: Its name there.
        """
        before = self._stage
        begin = time.perf_counter()
        self._stage = name
        self._progress = ""
        self._begin = begin
        # The status line shows a stage at once; off a terminal it is shown when it has lasted for a while.
        self._last = 0.0 if self._status is not None else begin
        self._show("")
        yield
        duration = time.perf_counter() - begin
        if seconds is not None:
            seconds[metric] = duration
        if self._status is None and duration >= _SHORT_S:
            self.show(f"   {name}: {self._progress}{duration:,.0f} s")
        self._stage = before

    def show(self, text: str) -> None:
        """Print lines above the status line."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def tally(self, tally: Tally, expected: int = 0) -> None:
        """Show the progress of a collection of rollouts, of how many if that is known."""
        rollouts = counted(tally.trajectories, "rollout")
        if expected:
            rollouts = f"{tally.trajectories:,} of {expected:,} rollouts"
        self._show(f"{rollouts} · {tally.describe()}")

    def progress(
        self,
        done: int,
        of: int,
        what: str = "optimiser steps",
    ) -> None:
        """Show the progress of a stage: `done` of `of` optimiser steps, and their rate."""
        rate = done / max(time.perf_counter() - self._begin, 1e-9)
        speed = f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
        self._show(f"{done:,} of {of:,} {what} · {speed}/s")

    def row(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Print an iteration's metrics as a line."""
        parts = []
        for title, name, form in _COLUMNS:
            value = metrics.get(name, math.nan)
            if math.isnan(value):
                continue
            part = f"{title} {form.format(value)}"
            # the 95% interval of a success rate
            bounds = name.replace("success_rate", "success_95")
            if f"{bounds}_low" in metrics:
                low = metrics[f"{bounds}_low"]
                high = metrics[f"{bounds}_high"]
                part += f" ({low:.1%} to {high:.1%})"
            parts.append(part)
        if metrics.get("actor/optimiser_steps") == 0:
            parts.append("no informative groups: no update")
        of = f"/{self._iterations}" if self._iterations else ""
        self.show(f"{iteration}{of}  " + "  ".join(parts))

    def _show(self, progress: str) -> None:
        self._progress = f"{progress} · " if progress else ""
        pause = _LINES_S if self._status is None else _EVERY_S
        if time.perf_counter() - self._last < pause:
            return
        self._last = time.perf_counter()
        if self._status is None:
            self.show(f"   {self._stage}: {progress}")
        else:
            self._status.update(f"{self._stage}  {progress}")
