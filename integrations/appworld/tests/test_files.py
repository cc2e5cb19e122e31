"""Folders that programs have filled are removed, whatever is in them."""

import os
import sys
from pathlib import Path

import pytest

from hgpo_appworld.engine.worker.files import remove_folder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="worlds need Linux")


def nest(folder: Path, depth: int, name: str, mode: int = 0o700) -> None:
    """Make folders in one another, as a program does: with relative paths."""
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(folder)
        for _ in range(depth):
            Path(name).mkdir()
            os.chdir(name)
            Path("file").touch()
        if mode != 0o700:
            Path("closed").mkdir(mode=mode)
    finally:
        os.fchdir(here)
        os.close(here)


@pytest.mark.parametrize(("depth", "name"), [(3_000, "a"), (100, "b" * 255)])
def test_nested_folders_are_removed(tmp_path: Path, depth: int, name: str) -> None:
    (tmp_path / "folder").mkdir()
    nest(tmp_path / "folder", depth, name)
    remove_folder(tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []


def test_links_are_not_followed_and_modes_do_not_matter(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "kept")
    nest(folder, 2, "c", mode=0)
    (folder / "closed").mkdir()
    nest(folder / "closed", 3, "d")
    (folder / "closed").chmod(0)
    remove_folder(folder)
    assert [path.name for path in tmp_path.rglob("*")] == ["kept", "file"]


def test_a_folder_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    remove_folder(tmp_path / "nothing")
