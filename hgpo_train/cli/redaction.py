"""All printed text passes here: secrets are removed, and control characters, which a terminal would interpret.

Texts of servers, tables and models may contain escape sequences that move the cursor, hide lines or change the title of
the window. Only consoles of `hgpo_train.cli.display.terminal` write such sequences, which are rich's own: there the
text is cleaned before it is rendered. Imports are delayed: help needs neither Gymnasium nor NumPy, which `hgpo_envs`
imports.
"""

from __future__ import annotations

import io
import os
import re
import sys
from typing import IO, Any, Final

CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters other than tabs and line breaks, marks of the direction of text, and lone surrogates."""

_BAR: Final = re.compile(rf"\r(?:(?!{CONTROL.pattern}).)*|\n*(?:\x1b\[A)*")
"""What progress bars of other libraries write: a line over the present one, and moves to the lines above."""


def redact_output() -> None:
    """Clean both standard streams and redact all logging of this process; further calls change nothing."""
    from hgpo_envs.files.secrets import redact_logging

    for name in ("stdout", "stderr"):
        if not isinstance(stream := getattr(sys, name), RedactedStream):
            setattr(sys, name, RedactedStream(stream))
    redact_logging()


def open_streams() -> None:
    """Make both standard streams usable: a closed one discards its text, and others print what they can encode.

    They print each line at once, also into a pipe: a program that starts `hgpo view` waits for its address.
    """
    for name in ("stdout", "stderr"):
        stream: Any = getattr(sys, name)
        if stream is None:  # `>&-`; a file that is opened later must not take its place
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - for the whole process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace", line_buffering=True)


def flush_streams() -> OSError | None:
    """Write what is buffered, and discard what cannot be written, so that the interpreter's end does not fail.

    Returns:
        Why standard output cannot be written; None if it was.
    """
    failed = None
    for stream in (sys.stderr, sys.stdout):
        try:
            stream.flush()
        except OSError as error:
            failed = error if stream is sys.stdout else None
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    return failed


def printable(text: str) -> str:
    """Replace control characters by U+FFFD.

    >>> printable("a" + chr(27) + "[2Jb")
    'a�[2Jb'
    """
    return CONTROL.sub("�", text)


class RedactedStream:
    """A text stream that cleans each text written to it. Other attributes are those of the wrapped stream.

    Args:
        stream: The stream.
        styled: Whether control characters are kept, because the text contains only those of rich.
    """

    def __init__(self, stream: IO[str], *, styled: bool = False) -> None:
        self._stream = stream
        self._styled = styled

    def write(self, text: str) -> int:
        """Write the cleaned text. Returns the length of the text before, as callers expect."""
        from hgpo_envs.files.secrets import redact

        shown = redact(text)
        self._stream.write(
            shown if self._styled or _BAR.fullmatch(shown) else printable(shown)
        )
        return len(text)

    def writelines(self, lines: Any) -> None:  # noqa: ANN401 (any iterable of texts)
        """Write each line."""
        for line in lines:
            self.write(line)

    def styled(self) -> RedactedStream:
        """Return the same stream for rich."""
        return RedactedStream(self._stream, styled=True)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (any attribute of the stream)
        return getattr(self._stream, name)
