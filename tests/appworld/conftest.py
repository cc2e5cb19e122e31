"""Sources and an engine of the generated world, for tests marked `original`."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hgpo_envs.appworld.engine.engine import AppWorldEngine
from hgpo_envs.appworld.engine.source import AppWorldSource
from hgpo_envs.appworld.environment import open_source


@pytest.fixture(scope="session")
def opened(appworld_python: str, appworld_root: Path) -> Callable[..., AppWorldSource]:
    """Return a function that opens the world with further arguments. Sources share one process per kind of limits."""
    kept = []

    def open_world(**arguments: Any) -> AppWorldSource:
        source = open_source(data=str(appworld_root), python=appworld_python, **arguments)
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
