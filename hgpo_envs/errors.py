"""How bad input is reported: one line that says what was expected, what was received, and how to fix it."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class InputError(ValueError):
    """Something a user gave cannot be used. The message is one line; the command line prints it and exits with 2."""


class UnknownTask(InputError, KeyError):  # noqa: N818 (named for what it says)
    """No task has this identifier."""

    __str__ = Exception.__str__  # KeyError would print its line in quotes


def unknown(kind: str, name: object, known: Iterable[str], *, limit: int = 12) -> str:
    """The line for a name that is not known: with the nearest known one, and the choice.

    >>> unknown("estimator", "hpgo", ["hgpo", "gigpo", "grpo"])
    "unknown estimator 'hpgo'; did you mean 'hgpo'? Known: hgpo, gigpo, grpo"
    """
    names = list(known)
    near = difflib.get_close_matches(str(name), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"unknown {kind} {name!r}{hint} Known: {', '.join(names[:limit]) or 'none'}{rest}"


def one_line(text: object, most: int = 100) -> str:
    r"""What somebody else's error says, for an error line: without line breaks and control characters, not too long.

    >>> one_line(ValueError("no such\n\tthing"))
    'no such thing'
    """
    line = " ".join(str(text).split())
    return "".join([letter if letter.isprintable() else "\ufffd" for letter in line[:most]])
