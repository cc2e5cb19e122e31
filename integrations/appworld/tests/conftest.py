"""Sources and an engine of the generated world, for tests marked `original`. Without hgpo-appworld, no test runs."""

from __future__ import annotations

import os
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from filelock import FileLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hgpo_appworld.engine.engine import AppWorldEngine
    from hgpo_appworld.engine.source import AppWorldSource

collect_ignore_glob = [] if find_spec("hgpo_appworld") else ["*"]


@pytest.fixture(scope="session")
def appworld_python() -> str:
    """Return an interpreter with AppWorld, named by HGPO_APPWORLD_PYTHON."""
    python = os.environ.get("HGPO_APPWORLD_PYTHON", "")
    if (
        not python
        or subprocess.run(
            [python, "-c", "import appworld.apps"], capture_output=True
        ).returncode
    ):
        pytest.skip("needs HGPO_APPWORLD_PYTHON, set to a Python that has appworld")
    return python


@pytest.fixture(scope="session")
def appworld_root(
    appworld_python: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return the root of a generated world, or the one in HGPO_APPWORLD_ROOT."""
    if given := os.environ.get("HGPO_APPWORLD_ROOT"):
        return Path(given)
    from hgpo_appworld.generation.root import write_root

    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # shared by the workers, of which one makes the world
    root = folder / "appworld"
    with FileLock(folder / "appworld.lock"):
        if not root.exists():
            write_root(root, appworld_python)
    return root


@pytest.fixture(scope="session")
def opened(appworld_python: str, appworld_root: Path) -> Callable[..., AppWorldSource]:
    """Return a function that opens the world with further arguments. Sources share one process per kind of limits."""
    from hgpo_appworld.engine.source import AppWorldSource
    from hgpo_appworld.environment import open_source

    kept = []

    def open_world(**arguments: Any) -> AppWorldSource:
        source = open_source(
            data=str(appworld_root), python=appworld_python, **arguments
        )
        assert isinstance(source, AppWorldSource)
        kept.append(source)
        return source

    return open_world


@pytest.fixture
def engine(opened: Callable[..., AppWorldSource]) -> Iterator[AppWorldEngine]:
    """Return an engine in the first task of the world."""
    source = opened()
    engine = source.engine()
    engine.start(source.ids("all")[0])
    yield engine
    engine.close()
