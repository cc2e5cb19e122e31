"""A disk that fails, or a process that dies, at the n-th call that changes the disk."""

import errno
import os
import signal
from collections.abc import Callable
from typing import Any

CALLS = ("fsync", "write", "open", "replace", "ftruncate", "unlink")


class Fault:
    """Lets the n-th call raise OSError (`error`), or kills the process before or after it.

    `calls` names those that were seen, in order.
    """

    def __init__(self, at: int, how: str) -> None:
        self.at, self.how = at, how
        self.calls: list[str] = []

    def install(self, patch: Callable[[Any, str, Any], None] = setattr) -> None:
        for name in CALLS:
            patch(os, name, self.wrap(name, getattr(os, name)))

    def wrap(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> Any:
            self.calls.append(name)
            here = len(self.calls) == self.at
            if here and self.how == "error":
                raise OSError(errno.EIO, "injected")
            if here and self.how == "kill before":
                os.kill(os.getpid(), signal.SIGKILL)
            value = call(*arguments, **options)
            if here and self.how == "kill after":
                os.kill(os.getpid(), signal.SIGKILL)
            return value

        return wrapped
