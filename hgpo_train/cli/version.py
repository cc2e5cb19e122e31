"""`hgpo --version`: the versions of this package, of Python and of the libraries that results depend on."""

from __future__ import annotations

import platform
from typing import Final

import typer

LIBRARIES: Final = (
    "gymnasium", "numpy", "polars", "pyarrow", "torch", "transformers", "tokenizers", "peft", "vllm", "openai"
)  # fmt: skip


def show_version(wanted: bool) -> None:
    """Print the versions and exit, if wanted. No library is imported: the versions are those of the distributions.

    Raises:
        typer.Exit: The versions were printed.
    """
    if not wanted:
        return
    found = {name: _version(name) for name in LIBRARIES}
    typer.echo(f"hgpo {_version('hgpo') or '(not installed)'}")
    typer.echo(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    for name, number in found.items():
        typer.echo(f"{name} {number or '(not installed)'}")
    raise typer.Exit


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and help needs none of it

    try:
        return version(name)
    except PackageNotFoundError:
        return ""
