"""Pictures of a comparison as SVG text, without a drawing library: dots with intervals, and lines over group sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#4d4d4d")
"""Okabe and Ito's colours, which colour-blind readers can tell apart, with two more; they repeat after eight."""

_GREY: Final = "#e3e3e3"
_LINE: Final = "#9a9a9a"
_TEXT: Final = 'font-family="system-ui, sans-serif" font-size="12" fill="#222"'
_CHARACTER: Final = 7.4
"""Mean width of a character in pixels."""


@dataclass(frozen=True)
class Dot:
    """A number with an interval, and the range that chance gives. Bounds are None where they are unknown."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None
    chance: tuple[float, float] | None = None
    colour: str = COLOURS[0]


def dots(title: str, rows: Sequence[Dot], *, mark: float | None = None, width: int = 640) -> str:
    """Draw one row per number: a dot, its interval as a line, and the range of chance as a grey bar.

    Args:
        title: The text above the picture.
        rows: The numbers, from top to bottom.
        mark: Position of a dashed line, such as the value of a perfect estimator.
        width: Width in pixels.
    """
    if not rows:
        return ""
    left = min(width // 2, 16 + int(_CHARACTER * max(len(row.label) for row in rows)))
    ends = [end for row in rows for end in (row.value, row.low, row.high, *(row.chance or ())) if end is not None]
    scale = _Scale([*ends, 0.0] if mark is None else [*ends, 0.0, mark], left, width - 24)
    height = 52 + 24 * len(rows)
    made = [_head(title, width, height), *scale.axis(34, height - 22)]
    if mark is not None:
        made.append(_line(scale(mark), 30, scale(mark), height - 22, "#444", 'stroke-dasharray="4 3"'))
    for number, row in enumerate(rows):
        y = 46 + 24 * number
        if row.chance is not None:
            low, high = (scale(end) for end in row.chance)
            made.append(
                f'<rect x="{low:.1f}" y="{y - 9}" width="{max(high - low, 1):.1f}" height="18" fill="{_GREY}"/>'
            )
        if row.low is not None and row.high is not None:
            made.append(_line(scale(row.low), y, scale(row.high), y, row.colour, 'stroke-width="2"'))
        made.append(f'<circle cx="{scale(row.value):.1f}" cy="{y}" r="4" fill="{row.colour}"/>')
        made.append(f'<text x="{left - 10}" y="{y + 4}" text-anchor="end" {_TEXT}>{escape(row.label)}</text>')
    return "\n".join([*made, "</svg>"])


@dataclass(frozen=True)
class Series:
    """A line: positions by name, each with a number and its interval."""

    label: str
    points: dict[str, tuple[float, float | None, float | None]]
    colour: str = COLOURS[0]


def lines(title: str, under: str, series: Sequence[Series], *, width: int = 640, height: int = 300) -> str:
    """Draw numbers over named positions, such as group sizes, one line with intervals per series.

    Args:
        title: The text above the picture.
        under: The text below the positions.
        series: The lines.
        width: Width in pixels.
        height: Height in pixels, without the legend.
    """
    positions = list(dict.fromkeys(position for each in series for position in each.points))
    if not positions:
        return ""
    ends = [end for each in series for point in each.points.values() for end in point if end is not None]
    scale = _Scale([*ends, 0.0], height - 48, 36)
    step = (width - 90) / len(positions)
    total = height + 20 * len(series)
    made = [_head(title, width, total)]
    for tick in scale.ticks:
        made.append(_line(52, scale(tick), width - 20, scale(tick), _LINE if tick == 0 else "#ececec"))
        made.append(f'<text x="46" y="{scale(tick) + 4:.1f}" text-anchor="end" {_TEXT}>{tick:g}</text>')
    for number, position in enumerate(positions):
        x = 60 + step * (number + 0.5)
        made.append(f'<text x="{x:.1f}" y="{height - 28}" text-anchor="middle" {_TEXT}>{escape(position)}</text>')
    made.append(f'<text x="{60 + (width - 90) / 2:.1f}" y="{height - 10}" text-anchor="middle" {_TEXT}>{under}</text>')
    for place, each in enumerate(series):
        shift = (place - (len(series) - 1) / 2) * min(step / (len(series) + 1), 12)
        known = [(60 + step * (n + 0.5) + shift, each.points[p]) for n, p in enumerate(positions) if p in each.points]
        path = " ".join(f"{x:.1f},{scale(value):.1f}" for x, (value, _, _) in known)
        made.append(f'<polyline points="{path}" fill="none" stroke="{each.colour}" stroke-width="1.5" opacity="0.5"/>')
        for x, (value, low, high) in known:
            if low is not None and high is not None:
                made.append(_line(x, scale(low), x, scale(high), each.colour, 'stroke-width="2"'))
            made.append(f'<circle cx="{x:.1f}" cy="{scale(value):.1f}" r="3.5" fill="{each.colour}"/>')
        y = height + 6 + 20 * place
        made.append(f'<rect x="60" y="{y - 9}" width="12" height="12" fill="{each.colour}"/>')
        made.append(f'<text x="78" y="{y + 2}" {_TEXT}>{escape(each.label)}</text>')
    return "\n".join([*made, "</svg>"])


class _Scale:
    """A linear scale from numbers to pixels, with round ticks."""

    def __init__(self, numbers: Sequence[float], start: float, end: float) -> None:
        low, high = min(numbers), max(numbers)
        span = (high - low) or 1.0
        power = 10.0 ** math.floor(math.log10(span / 4))
        step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if span / (power * factor) <= 6)
        first, last = math.floor(low / step), math.ceil(high / step)
        self.ticks = [round(number * step, 12) for number in range(first, last + 1)]
        self._low, self._high, self._start, self._end = first * step, last * step, start, end

    def __call__(self, number: float) -> float:
        share = (number - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def axis(self, top: float, bottom: float) -> list[str]:
        """Return vertical lines with labels below them."""
        made = []
        for tick in self.ticks:
            made.append(_line(self(tick), top, self(tick), bottom, _LINE if tick == 0 else "#ececec"))
            label = f'<text x="{self(tick):.1f}" y="{bottom + 15}" text-anchor="middle" {_TEXT}>{tick:g}</text>'
            made.append(label)
        return made


def _head(title: str, width: int, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height:.0f}" '
        f'viewBox="0 0 {width} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f'<rect width="{width}" height="{height:.0f}" fill="white"/>'
        f'<text x="8" y="18" {_TEXT} font-weight="600">{escape(title)}</text>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" {more}/>'
