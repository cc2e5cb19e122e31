"""Panels by name, by file and from other packages: ``alfworld-unseen@1``, ``own.toml``, each with overrides.

Another package adds a panel by an entry point of the group ``hgpo.panels``, whose object is a `Panel`, the path of its
file, or a function that returns one of these.
"""

from __future__ import annotations

import os
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from hgpo_envs.errors import InputError, unknown
from hgpo_envs.plugins import distribution, installed, load
from hgpo_train.panels.panel import Panel
from hgpo_train.settings import (
    annotation_of,
    build,
    read_assignments,
    read_toml,
    types_of,
)

ENTRY_POINTS: Final = "hgpo.panels"

_OVERRIDE: Final = re.compile(r"\+(?=[a-z_]+=)")
"""Where an override begins; a plus sign inside of a value, as in 1e+5, is none."""


def load_panel(text: str) -> Panel:
    """Return a panel.

    Args:
        text: A name, which selects the newest version, ``name@version``, or the path of a TOML file; each may be
            followed by overrides, such as ``+temperature=0.7+max_steps=30``.

    Raises:
        InputError: There is no such panel, its file is not valid, or an override is not.

    >>> load_panel("alfworld-bundled@1+temperature=0.7").title
    'alfworld-bundled@1+temperature=0.7'
    """
    if not isinstance(text, str):
        raise InputError(
            f"panel: expected a name or the path of a file, received {text!r}"
        )
    place, *assignments = _OVERRIDE.split(text)
    panel = _read(Path(place)) if place.endswith(".toml") else _named(place)
    annotations = {name: annotation_of(Panel, name) for name in types_of(Panel)}
    overrides = read_assignments(f"panel {place}", assignments, annotations)
    return panel.with_overrides(overrides) if overrides else panel


def list_panels() -> list[Panel]:
    """Return the panels of this package and of other packages, sorted by name and version.

    Raises:
        InputError: A panel of another package cannot be loaded.
    """
    panels = [*_bundled(), *map(_plugin, installed(ENTRY_POINTS))]
    return sorted(panels, key=lambda panel: (panel.name, panel.version))


@cache
def _bundled() -> tuple[Panel, ...]:
    folder = Path(str(files("hgpo_train.panels") / "bundled"))
    return tuple([_read(path) for path in sorted(folder.glob("*.toml"))])


def _plugin(name: str) -> Panel:
    point = installed(ENTRY_POINTS)[name]
    found = load(point)
    if callable(found):
        found = found()
    if isinstance(found, str | os.PathLike):
        found = _read(Path(found))
    if not isinstance(found, Panel):
        origin = f"{ENTRY_POINTS} {name!r} of the distribution {distribution(point)}"
        raise InputError(
            f"{origin}: expected a Panel or the path of its file, received {type(found).__name__}"
        )
    return found


def _named(name: str) -> Panel:
    known = {panel.id: panel for panel in list_panels()}
    # versions are sorted, so the last one stays
    newest = {panel.name: panel for panel in known.values()}
    found = known.get(name) or newest.get(name)
    if found is None:
        raise InputError(unknown("panel", name, known))
    return found


def _read(path: Path) -> Panel:
    try:
        return build(Panel, read_toml(path), noun="panel setting")
    except InputError as error:
        prefix = "" if str(path) in str(error) else f"{path}: "
        raise InputError(f"{prefix}{error}") from None
