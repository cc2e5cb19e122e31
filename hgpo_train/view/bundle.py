"""The files of the built page, which the wheel contains; `viewer/README.md` says how they are built."""

from __future__ import annotations

from importlib.resources import files


def static_file(name: str) -> bytes:
    """Return a file of the built page."""
    return (files("hgpo_train.view") / "static" / name).read_bytes()
