"""Remove secrets from the command line's output. The required imports are delayed until something is printed.

`hgpo_envs.files.secrets` is part of a package that imports Gymnasium and NumPy. Help needs neither.
"""

from __future__ import annotations

import sys
from typing import IO, Any


def redact_output() -> None:
    """Redact both standard streams and all logging of this process from now on; further calls change nothing."""
    from hgpo_envs.files.secrets import redact_logging

    if not isinstance(sys.stdout, RedactedStream):
        sys.stdout = RedactedStream(sys.stdout)
    if not isinstance(sys.stderr, RedactedStream):
        sys.stderr = RedactedStream(sys.stderr)
    redact_logging()


def _redact(text: str) -> str:
    from hgpo_envs.files.secrets import redact

    return redact(text)


class RedactedStream:
    """A text stream that redacts each text written to it. Other attributes are those of the wrapped stream.

    Args:
        stream: The stream to write to, for example `sys.stderr`.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write the redacted text. Returns the length of the text before redaction, as callers expect."""
        self._stream.write(_redact(text))
        return len(text)

    def writelines(self, lines: Any) -> None:  # noqa: ANN401 (any iterable of texts)
        """Write each line."""
        for line in lines:
            self.write(line)

    @property
    def buffer(self) -> RedactedBuffer:
        """The underlying binary stream, with redaction."""
        return RedactedBuffer(self._stream.buffer)  # type: ignore[attr-defined]  # only some text streams have one

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (any attribute of the stream)
        return getattr(self._stream, name)


class RedactedBuffer:
    """A binary stream that redacts the bytes written to it.

    Args:
        stream: The stream to write to.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def write(self, data: bytes) -> int:
        """Write the redacted bytes. Returns the number of bytes before redaction."""
        text = bytes(data).decode("utf-8", "surrogateescape")
        self._stream.write(_redact(text).encode("utf-8", "surrogateescape"))
        return len(data)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (any attribute of the stream)
        return getattr(self._stream, name)
