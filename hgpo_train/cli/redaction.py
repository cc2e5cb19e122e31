"""All printed text passes here: secrets are removed, and control characters, which a terminal would interpret.

Texts of servers, tables and models may contain escape sequences that move the cursor, hide lines or change the title of
the window. Only consoles of `hgpo_train.cli.display.terminal` write such sequences, which are rich's own: there the
text is cleaned before it is rendered. Imports are delayed: help needs neither Gymnasium nor NumPy, which `hgpo_envs`
imports.
"""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Final

CONTROL: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters other than tabs and line breaks, marks of the direction of text, and lone surrogates."""

_BAR: Final = re.compile(rf"\r(?:(?!{CONTROL.pattern}).)*|\n*(?:\x1b\[A)*")
"""What progress bars of other libraries write: a line over the present one, and moves to the lines above."""


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


printable: Final = partial(CONTROL.sub, "\ufffd")
"""Replaces control characters of a text by U+FFFD."""


@dataclass(eq=False)
class RedactedStream:
    """A text stream that cleans each text written to it. Other attributes are those of the wrapped stream.

    Attributes:
        stream: The stream.
        styled: Whether control characters are kept, because the text contains only those of rich.
    """

    stream: IO[str]
    styled: bool = False

    def write(self, text: str) -> int:
        """Write the cleaned text. Returns the length of the text before, as callers expect."""
        from hgpo_envs.files.secrets import redact

        shown = redact(text)
        self.stream.write(
            shown if self.styled or _BAR.fullmatch(shown) else printable(shown)
        )
        return len(text)

    def writelines(self, lines: Any) -> None:  # noqa: ANN401 (any iterable of texts)
        """Write each line."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (any attribute of the stream)
        return getattr(self.stream, name)
