"""Injected faults: a failing disk, a killed process or a Ctrl-C at the n-th call or line."""

import errno
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Self

CALLS = ("fsync", "write", "open", "mkdir", "replace", "rename", "ftruncate", "unlink", "rmdir")


class Fault:
    """Makes the n-th call raise OSError (`error`), or kills the process before or after it.

    `calls` contains the names of the calls so far, in order.
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


class Interrupt:
    """Raises KeyboardInterrupt at the n-th line executed in some files, and counts the lines."""

    def __init__(self, at: int, files: tuple[str, ...]) -> None:
        self.at, self.files, self.count = at, files, 0

    def __enter__(self) -> Self:
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: Any, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.endswith(self.files):
            return None
        if event == "line":
            self.count += 1
            if self.count == self.at:
                raise KeyboardInterrupt
        return self._trace
