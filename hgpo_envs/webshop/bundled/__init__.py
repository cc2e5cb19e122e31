"""The catalogue that comes with the package: synthetic products with synthetic and human-style goals."""

from __future__ import annotations

from pathlib import Path


def bundled_folder() -> Path:
    """Where the catalogue lies."""
    return Path(__file__).parent / "catalogue"
