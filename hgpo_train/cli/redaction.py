"""Remove secrets from the command line's output. The required imports are delayed until something is printed.

`hgpo_envs.secrets` is part of a package that imports Gymnasium and NumPy. Help needs neither.
"""

from __future__ import annotations

import sys
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hgpo_envs.secrets import RedactedStream


def redact_output() -> None:
    """Redact both standard streams and all logging of this process from now on; further calls change nothing."""
    from hgpo_envs.secrets import RedactedStream, redact_logging

    if not isinstance(sys.stdout, RedactedStream):
        sys.stdout = RedactedStream(sys.stdout)
    if not isinstance(sys.stderr, RedactedStream | LazyRedactedStream):
        sys.stderr = RedactedStream(sys.stderr)
    redact_logging()


class LazyRedactedStream:
    """`hgpo_envs.secrets.RedactedStream` over a text stream, imported at the first write.

    Args:
        stream: Where to write.
    """

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def _redacted(self) -> RedactedStream:
        from hgpo_envs.secrets import RedactedStream

        return RedactedStream(self._stream)

    def write(self, text: str) -> int:
        """Write the redacted text. Returns the length of what was given, as writers expect."""
        return self._redacted().write(text)

    def writelines(self, lines: Any) -> None:  # noqa: ANN401 (any iterable of texts)
        """Write each line."""
        self._redacted().writelines(lines)

    @property
    def buffer(self) -> Any:  # noqa: ANN401 (of the kind that the stream has)
        """The binary stream below, redacted likewise."""
        return self._redacted().buffer

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 (whatever the stream has)
        return getattr(self._stream, name)
