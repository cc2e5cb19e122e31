"""What commands print: styled text, tables and progress bars."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import orjson
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import Progress, TaskID, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from hgpo_train.cli.redaction import CONTROL, RedactedStream, printable
from hgpo_train.rollout.progress_line import INTERVAL_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_GAP: Final = 2
_LABEL: Final = 24
"""The width below which no column of texts falls, unless its texts are shorter."""


class _CleanConsole(Console):
    """A console that replaces control characters in texts, but not those of its styles."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render an object, as `rich.console.Console.render` does."""
        for segment in super().render(renderable, options):
            yield (
                segment
                if segment.control
                else Segment(printable(segment.text), segment.style)
            )


def terminal(*, stderr: bool = False, **options: Any) -> Console:
    """Return a console for standard output or standard error (`hgpo_train.cli.redaction`).

    Args:
        stderr: Whether it writes to standard error.
        **options: Further arguments of `rich.console.Console`.
    """
    stream: Any = sys.stderr if stderr else sys.stdout
    if isinstance(stream, RedactedStream):
        stream = replace(stream, styled=True)
    return _CleanConsole(file=stream, **options)


def shown(value: float | None, form: str, unknown: str = "–") -> str:
    """Return a number in a form of `format`, or what stands for one that is not known."""
    return unknown if value is None else format(value, form)


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    texts: int = 1,
    console: Console | None = None,
) -> None:
    """Print a table. If its numbers do not fit beside its texts, they follow in further tables of the same rows.

    Args:
        columns: The titles of the columns; with empty ones, no titles are printed.
        rows: The cells. No markup is read in them.
        title: The title of the table. No markup is read in it.
        texts: The number of columns, the first ones, that are texts. The others are numbers, aligned at the right.
        console: The console; by default standard output.
    """
    console = console or terminal()
    # no markup in them
    cells = [[Text(printable(cell)) for cell in row] for row in rows]
    widths = [
        max(cell_len(line) for line in name.splitlines() or [""]) for name in columns
    ]
    widths = [
        max([width, *(row[place].cell_len for row in cells)])
        for place, width in enumerate(widths)
    ]
    labels = [min(width, _LABEL) for width in widths[:texts]]
    parts: list[list[int]] = [[]]
    for place in range(texts, len(columns)):
        if (
            parts[-1]
            and sum(widths[each] + _GAP for each in (*parts[-1], place)) + sum(labels)
            > console.width
        ):
            parts.append([])
        parts[-1].append(place)
    if title:
        # A title of the table itself would be broken at the width of its columns.
        console.print(Text(f"\n{title}", style="table.title"))
    for part in parts:
        table = Table(box=None, pad_edge=False)
        table.show_header = any(columns)
        table.padding = (0, _GAP, 0, 0)
        for name, width in zip(columns, labels, strict=False):
            table.add_column(name, overflow="fold", min_width=width)
        for place in part:
            table.add_column(columns[place], justify="right", no_wrap=True)
        room = console.width - sum([widths[place] + _GAP for place in part])
        for row in cells:
            shown_texts = row[:texts]
            if texts == 1:
                shown_texts = [Text(_lines(row[0].plain, max(room, labels[0])))]
            table.add_row(*shown_texts, *(row[place] for place in part))
        console.print(table)


def _lines(text: str, width: int) -> str:
    """Return a text in lines of at most a width, broken after a space, ``_``, ``/`` or ``-`` where there is one."""
    lines = [""]
    for piece in re.split(r"(?<=[ _/-])", text):
        if lines[-1] and cell_len(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def print_json(document: object) -> None:
    """Print a document of JSON values, indented. Control characters are escaped, also those that JSON allows."""
    text = orjson.dumps(
        document, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    ).decode()
    print(CONTROL.sub(lambda letter: f"\\u{ord(letter[0]):04x}", text))


class ProgressBars(Progress):
    """Progress bars on standard error; in a file, a line now and then."""

    def __init__(self) -> None:
        console = terminal(stderr=True)
        columns = (*Progress.get_default_columns(), TimeElapsedColumn())
        super().__init__(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._bars: dict[str, TaskID] = {}
        self._printed_at = monotonic()

    def show(self, stage: str, done: int, total: int | None = None) -> None:
        """Show how much of a stage is done, such as a download."""
        if self.disable:
            if monotonic() - self._printed_at >= INTERVAL_S:
                self._printed_at = monotonic()
                of = f" of {total:,}" if total else ""
                print(f"{stage}: {done:,}{of}", file=sys.stderr, flush=True)
            return
        if stage not in self._bars:
            self._bars[stage] = self.add_task(stage)
        self.update(self._bars[stage], completed=done, total=total)
