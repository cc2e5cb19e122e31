"""Texts of a run for the terminal. They are data: no markup in them is read, and no control character is sent."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from textual.content import Content

if TYPE_CHECKING:
    from hgpo_train.view.documents import Text

MOST: Final = 20_000
"""Characters of a text that a screen contains."""

_HIDDEN: Final = re.compile(
    "([\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff"
    "\ufeff\ufffe\uffff\U000e0000-\U000e007f])"
)
"""Characters that cannot be seen, that control a terminal, or that turn the direction of a line."""


def visible(text: str, style: str = "") -> Content:
    """Return a text in which hidden characters are replaced by their codes, such as U+001B.

    >>> visible("a" + chr(27) + "[31m").plain
    'aU+001B[31m'
    """
    shown = _HIDDEN.sub(lambda found: f"U+{ord(found[0]):04X}", text)
    return Content.styled(shown, style).expand_tabs(4)


def line(text: Text, most: int = 200, style: str = "") -> Content:
    """Return the beginning of a text as one line."""
    whole = text["cut"] if isinstance(text, dict) else text or ""
    words = " ".join(whole[: 4 * most].split())
    return visible(words if len(words) <= most else f"{words[: most - 1]}…", style)


def block(text: Text) -> Content:
    """Return a text with its line breaks, and how much of it is left out."""
    if not text:
        return Content.styled("not stored" if text is None else "empty", "dim italic")
    whole = text["cut"] if isinstance(text, dict) else text
    length = text["length"] if isinstance(text, dict) else len(text)
    more = f"\n{length - MOST:,} more characters" if length > MOST else ""
    return visible(whole[:MOST]) + Content.styled(more, "dim italic")


def number(value: float | None, digits: int = 2) -> str:
    """Return a number, or a dash for null.

    >>> number(None), number(3.0), number(0.5)
    ('–', '3', '0.50')
    """
    if value is None:
        return "–"
    is_whole = float(value).is_integer() and abs(value) < 1e15
    return f"{value:,.0f}" if is_whole else f"{value:.{digits}f}"


def signed(value: float | None, digits: int = 2) -> Content:
    """Return a number with its sign, such as an advantage, in a colour."""
    if value is None:
        return Content("–")
    text = f"{value:+.{digits}f}"
    if float(text) == 0:
        return Content(text[1:])
    return Content.styled(text, "$text-success" if value > 0 else "$text-error")


def outcome(trajectory: dict[str, Any]) -> Content:
    """Return a word for how a trajectory ended."""
    if trajectory["aborted"]:
        return Content.styled("aborted", "$text-warning")
    if trajectory["won"] is None:
        return Content.styled("unknown", "$text-warning")
    if trajectory["won"]:
        return Content.styled("won", "$text-success")
    return Content.styled(
        "cut off" if trajectory["truncated"] else "lost", "$text-error"
    )
