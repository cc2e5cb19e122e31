"""Modules and names that are imported when a test first uses them, so that collecting tests does not import torch."""

from importlib import import_module
from typing import Any


class Lazy:
    """A module, or with `module:name` a function or class, that is imported at its first use."""

    def __init__(self, path: str) -> None:
        self._module, _, self._name = path.partition(":")

    def _target(self) -> Any:
        module = import_module(self._module)
        return getattr(module, self._name) if self._name else module

    def __getattr__(self, name: str) -> Any:
        # what pytest asks of every object
        if name.startswith(("__", "_mock", "_pytest", "pytest")):
            raise AttributeError(name)
        return getattr(self._target(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._target()(*args, **kwargs)


def lazily(module: str, names: str) -> list[Lazy]:
    """Return several names of a module, as `namedtuple` takes them."""
    return [Lazy(f"{module}:{name}") for name in names.split()]
