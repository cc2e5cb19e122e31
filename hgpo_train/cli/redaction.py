"""Remove secrets from the command line's output. The required imports are delayed until something is printed.

`hgpo_envs.files.secrets` is part of a package that imports Gymnasium and NumPy. Help needs neither.
"""

from __future__ import annotations

import sys
from typing import IO, Any


def redact_output() -> None:
    """Redact both standard streams and all logging of this process from now on; further calls change nothing."""
    from hgpo_envs.files.secrets import redact_logging

    for name in ("stdout", "stderr"):
        if not isinstance(stream := getattr(sys, name), RedactedStream):
            setattr(sys, name, RedactedStream(stream))
    redact_logging()


class RedactedStream:
    """A text stream that redacts each text written to it. Other attributes are those of the wrapped stream."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the redacted text. Returns the length of the text before redaction, as callers expect."""
        from hgpo_envs.files.secrets import redact

        self._stream.write(redact(text))
        return len(text)

    def writelines(self, lines: Any) -> None:  # noqa: ANN401 (any iterable of texts)
        """Write each line."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (any attribute of the stream)
        return getattr(self._stream, name)
