"""Modules that are imported when a test first uses them: collecting tests imports neither torch nor Transformers."""

from importlib import import_module
from typing import Any


class Lazy:
    """A module that is imported at the first use of one of its names."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)
