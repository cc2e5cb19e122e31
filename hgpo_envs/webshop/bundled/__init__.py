"""The bundled catalogue: synthetic products with synthetic and human-style goals."""

from __future__ import annotations

from pathlib import Path


def bundled_folder() -> Path:
    """Return the catalogue's folder."""
    return Path(__file__).parent / "catalogue"
