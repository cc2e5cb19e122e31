"""`hgpo --version`: the versions of this package, of Python and of the libraries that results depend on."""

from __future__ import annotations

import platform
from typing import Final

import typer

LIBRARIES: Final = (
    "gymnasium", "numpy", "polars", "pyarrow", "torch", "transformers", "tokenizers", "peft", "vllm", "aiohttp"
)  # fmt: skip


def show_version(wanted: bool) -> None:
    """Print the versions and exit, if wanted. No library is imported: the versions are those of the distributions.

    Raises:
        typer.Exit: The versions were printed.
    """
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version  # slow to import, and help needs none of it

    for name in ("hgpo", "Python", *LIBRARIES):
        try:
            number = platform.python_version() if name == "Python" else version(name)
        except PackageNotFoundError:
            number = "(not installed)"
        typer.echo(f"{name} {number}" + (f", {platform.system()} {platform.machine()}" if name == "Python" else ""))
    raise typer.Exit
