"""Errors for bad input: one line with the expected value, the received value, and the fix."""

from __future__ import annotations

import difflib
import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable


_COMPARED: Final = 100_000
"""The largest number of known names that are compared with an unknown one."""


class InputError(ValueError):
    """Invalid input. The message is one line; the command line prints it and exits with status 2."""


class UnknownTask(InputError, KeyError):  # noqa: N818 (a public name)
    """There is no task with this id."""

    __str__ = Exception.__str__  # KeyError.__str__ would quote the message


class ProcessError(RuntimeError):
    """Processes ended before their work did. The message is one line; the command line exits with status 1."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is closest to a misspelt one; None if none is close.

    >>> nearest("AlfWorld", ["AppWorld", "ALFWorld"])
    'ALFWorld'
    """
    # "AlfWorld" means ALFWorld, not AppWorld
    by_letters = {known_name.casefold(): known_name for known_name in known}
    near = difflib.get_close_matches(name.casefold(), by_letters, n=1)
    return by_letters[near[0]] if near else None


def nearest_path(path: str | os.PathLike[str]) -> str:
    """Return what an error line about a path that does not exist ends with: the closest existing one, if there is one.

    The first part of the path that does not exist is compared with what its folder has.
    """
    whole = Path(path)
    for missing in (*reversed(whole.parents), whole):
        if os.path.lexists(missing):
            continue
        try:
            inside = [each.name for each in islice(missing.parent.iterdir(), _COMPARED)]
        except OSError:  # a file, or a folder that may not be listed
            return ""
        near = nearest(missing.name, inside)
        if near is None:
            return ""
        found = missing.with_name(near)
        rest = found / whole.relative_to(missing)
        meant = one_line(rest if rest.exists() else found, 1000)
        return f"; did you mean {meant}?"
    return ""


def unknown(
    kind: str,
    name: object,
    known: Iterable[str],
    *,
    limit: int = 12,
    meant: str | None = None,
) -> str:
    """Return the error line for an unknown name, with the closest known name and a list of known names.

    Args:
        kind: What the name denotes, for example ``"split"``.
        name: The unknown name.
        known: The known names.
        limit: The maximum number of known names in the line.
        meant: The known name that is probably meant. Default: the `nearest`.

    >>> unknown("estimator", "hpgo", ["hgpo", "gigpo", "grpo"])
    "unknown estimator 'hpgo'; did you mean 'hgpo'? Known: hgpo, gigpo, grpo"
    """
    names = list(islice(known, _COMPARED))  # the ids of tasks may be too many
    near = meant or nearest(str(name), names)
    hint = f"; did you mean {near!r}?" if near else "."
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"unknown {kind} {name!r}{hint} Known: {', '.join(names[:limit]) or 'none'}{rest}"


def check_known(
    kind: str, value: object, known: Iterable[object], *, limit: int = 12
) -> None:
    """Raise InputError with the line of `unknown` unless a value is a known one. 1 is not True."""
    names = list(known)
    # Only names of the value's type are compared with it: an array compares its elements, and 1 equals True.
    if not any(isinstance(value, type(name)) and value == name for name in names):
        raise InputError(unknown(kind, value, map(str, names), limit=limit))


def one_line(text: object, most: int = 100) -> str:
    r"""Return a text for use in an error line: truncated, without line breaks and control characters.

    Args:
        text: Any value, usually an exception of another library.
        most: The maximum length in characters.

    >>> one_line(ValueError("no such\n\tthing"))
    'no such thing'
    """
    line = " ".join(str(text).split())
    return "".join(
        [letter if letter.isprintable() else "\ufffd" for letter in line[:most]]
    )
