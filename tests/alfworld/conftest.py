"""Games for tests: the bundled ones, and the recorded and official ones where available."""

import pytest
from unusual import unpacked

from hgpo_envs.alfworld.data.source import ALFWorldSource


@pytest.fixture(scope="session")
def bundled():
    """Return a source of the bundled games."""
    return ALFWorldSource(keep=1000)


@pytest.fixture(scope="session")
def golden_games(shared, tmp_path_factory):
    """Return the folder of 30 recorded games, generated from the alfworld package's layouts and rules."""
    return unpacked(
        shared / "golden/alfworld/generated-games.tar.xz",
        tmp_path_factory.mktemp("golden") / "games",
    )


@pytest.fixture(scope="session")
def official(shared, tmp_path_factory):
    """Return the folder of all official games."""
    archive = shared / "data/alfworld/official-games.tar.xz"
    if not archive.exists():
        pytest.skip("no official games")
    return unpacked(archive, tmp_path_factory.mktemp("official") / "games")
