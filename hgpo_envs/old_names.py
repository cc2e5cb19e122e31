"""Aliases for module and class names of version 0.1, so that its pickled environments and sources can be loaded.

A pickle refers to classes by module and name, and a `SharedSource` refers to its factory in the same way. Each module
of 0.1 that was renamed can still be imported under its old name, with the names of the current module.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

MODULES: Final = {
    "hgpo_envs.sampling": "hgpo_envs.task_sampling",
    "hgpo_envs.alfworld.source": "hgpo_envs.alfworld.data.source",
    "hgpo_envs.alfworld.pack": "hgpo_envs.alfworld.data.pack",
    "hgpo_envs.alfworld.folder": "hgpo_envs.alfworld.data.game_folder",
    "hgpo_envs.alfworld.original": "hgpo_envs.alfworld.reference.original",
    "hgpo_envs.webshop.source": "hgpo_envs.webshop.data.source",
    "hgpo_envs.webshop.original": "hgpo_envs.webshop.reference.original",
}
NAMES: Final = {("hgpo_envs.sampling", "Draws"): "TaskSampler"}


class _OldModules(MetaPathFinder, Loader):
    """A finder and loader for the old names in `MODULES`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        return ModuleSpec(fullname, self) if fullname in MODULES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = ModuleType(spec.name, f"The name of `{MODULES[spec.name]}` in version 0.1.")

        def current(name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(f"module {spec.name!r} has no attribute {name!r}")
            return getattr(import_module(MODULES[spec.name]), NAMES.get((spec.name, name), name))

        module.__dict__["__getattr__"] = current
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: attributes are resolved on access."""


def register_old_names() -> None:
    """Make the module names of version 0.1 importable. Further calls have no effect."""
    if not any(isinstance(finder, _OldModules) for finder in sys.meta_path):
        sys.meta_path.append(_OldModules())
