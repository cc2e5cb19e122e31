"""Names of a package that are imported from their modules on first use, so that the package itself imports quickly."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_names(
    package: str, modules: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the `__getattr__` and `__dir__` of a package, from the names that each of its modules provides."""
    module_of = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module_of[name]), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return get, names
