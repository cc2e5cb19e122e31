"""Export the notebooks, executed, as pages of the documentation site that need no other site.

`marimo export html` writes pages whose scripts, styles and fonts come from a content delivery network, and has no
option against it. marimo's wheel contains the same files, so they become part of the site, and the pages refer to them
there. They take 28 MB, of which a browser loads what a page uses.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
NOTEBOOKS: Final = ROOT / "notebooks"
ASSETS: Final = "marimo"
"""The folder of marimo's files, beside the pages."""

_NETWORK: Final = re.compile(
    r"https://cdn\.jsdelivr\.net/npm/@marimo-team/frontend@[^/\"]+/dist"
)


def pages() -> dict[str, str]:
    """Return the name of every notebook's page by the path of the notebook in the repository."""
    return {
        f"notebooks/{path.name}": f"notebooks/{path.stem}.html"
        for path in sorted(NOTEBOOKS.glob("*.py"))
    }


def write(folder: Path) -> None:
    """Run every notebook, and write its page and marimo's files below a folder.

    Args:
        folder: The folder of the site's sources.

    Raises:
        RuntimeError: A notebook failed, or its page still refers to the network.
    """
    target = folder / "notebooks"
    target.mkdir(parents=True, exist_ok=True)
    for notebook, page in pages().items():
        (folder / page).write_text(exported(ROOT / notebook), "utf-8")
    found = find_spec("marimo")
    if found is None or found.origin is None:
        raise RuntimeError(
            "marimo: expected the extra notebooks; install it with pip install -e '.[docs]'"
        )
    shutil.copytree(
        Path(found.origin).parent / "_static",
        target / ASSETS,
        ignore=shutil.ignore_patterns("*.md"),
    )


def exported(notebook: Path) -> str:
    """Run a notebook and return its page.

    Raises:
        RuntimeError: A cell failed, or the page still refers to the network.
    """
    command = [sys.executable, "-m", "marimo", "export", "html", str(notebook)]
    done = subprocess.run(  # noqa: S603
        command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False
    )
    if done.returncode:
        raise RuntimeError(
            f"{notebook.name}: expected it to run; {done.stderr.strip()}"
        )
    page = _NETWORK.sub(ASSETS, done.stdout)
    if loaded := re.findall(r'\s(?:src|href)="(https?://[^"]+)', page):
        raise RuntimeError(
            f"{notebook.name}: expected a page without a network, received {loaded[0]}"
        )
    return page
