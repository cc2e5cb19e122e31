"""Names of a package that are imported from their modules on first use, so that the package itself imports quickly.

A package lists them once, where type checkers read them, too: as ``from module import name as name`` under
``if TYPE_CHECKING``, the form that marks a name as exported (PEP 484).
"""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_EXPORT: Final = re.compile(r"^    from (\S+) import (\w+) as \2$", re.MULTILINE)


def lazy_names(
    package: str, file: str
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return the `__getattr__`, the `__dir__` and the `__all__` of a package, from the imports in its file."""
    exports = _EXPORT.findall(Path(file).read_text(encoding="utf-8"))
    module_of = {name: module for module, name in exports}

    def get(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module_of[name]), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *module_of})

    return get, names, sorted(module_of)
