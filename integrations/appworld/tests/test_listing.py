"""`hgpo envs` lists AppWorld with the data that it finds; it starts no process for that."""

from pathlib import Path

import pytest

from hgpo_envs.listing import list_environments


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root with the lists of two splits and no tasks."""
    (tmp_path / "data" / "tasks").mkdir(parents=True)
    (tmp_path / "data" / "datasets").mkdir()
    (tmp_path / "data" / "datasets" / "train.txt").write_text(
        "a_1\na_2:tagged\n\na_1\n"
    )
    (tmp_path / "data" / "datasets" / "dev.txt").write_text("b_1\n")
    return tmp_path


def test_splits_that_the_data_lacks_are_empty(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("APPWORLD_ROOT", str(root))
    monkeypatch.setenv("HGPO_APPWORLD_PYTHON", "python3")
    monkeypatch.chdir(tmp_path)
    (listed,) = [one for one in list_environments() if one.id == "HGPO/AppWorld-v0"]
    (found,) = listed.data
    assert found.path == str(root)
    assert found.splits == {"train": 2, "dev": 1, "test_normal": 0, "test_challenge": 0}
    assert not found.error


def test_without_data_there_is_only_the_place_where_it_was_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("APPWORLD_ROOT", raising=False)
    monkeypatch.chdir(tmp_path)
    (listed,) = [one for one in list_environments() if one.id == "HGPO/AppWorld-v0"]
    assert listed.data == ()
    assert listed.looked == ("appworld",)
    assert not listed.error
