"""Atomic writes of files and folders, locks, and the removal of scratch folders of killed processes."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from planted import KINDS, content, plant
from refusals import refused

from hgpo_envs.files.atomic import (
    FolderLock,
    make_folder,
    making_folder,
    new_folder,
    new_path,
    remove_abandoned,
    remove_folder,
    scratch_folders,
    seems_locked,
    write_file,
)

HELD = """
import sys, time
from pathlib import Path
from hgpo_envs.files.atomic import FolderLock
lock = FolderLock(Path(sys.argv[1]), "training")
print("held", flush=True)
time.sleep(600)
"""

WRITING = """
import os, signal, sys
from pathlib import Path
from hgpo_envs.files import atomic
folder = Path(sys.argv[1])
with atomic.new_folder(folder / "data", replace=lambda _: True) as made:
    (made / "new").write_bytes(b"x" * 100_000)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def tree(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


def test_a_failed_block_leaves_the_target_unchanged(tmp_path):
    write_file(tmp_path / "file", b"old")
    (tmp_path / "folder").mkdir()
    before = tree(tmp_path)
    with pytest.raises(ZeroDivisionError), new_path(tmp_path / "file") as content:
        content.write_bytes(b"%d" % (1 // 0))
    with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "folder") as made:
        (made / "inside").write_bytes(b"%d" % (1 // (len(made.name) * 0)))
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "here", ["file", "folder with a file", "link to nowhere", "link to a folder"]
)
def test_new_folder_does_not_replace_existing_files(tmp_path, here):
    target = tmp_path / "data"
    if here == "file":
        target.write_bytes(b"1")
    elif here == "folder with a file":
        target.mkdir()
        (target / "precious").write_bytes(b"1")
    else:
        (tmp_path / "other").mkdir()
        target.symlink_to(
            tmp_path / ("other" if here == "link to a folder" else "missing")
        )
    before = tree(tmp_path)
    for replace in (None, lambda _: False):
        with (
            refused(r"already exists|not created by"),
            new_folder(target, replace=replace),
        ):
            pytest.fail("the block must not run")
    assert tree(tmp_path) == before


def test_a_killed_writer_leaves_the_old_content_and_the_next_writer_removes_its_scratch_folder(
    tmp_path,
):
    with new_folder(tmp_path / "data") as made:
        (made / "old").write_bytes(b"old")
    killed = subprocess.run(
        [sys.executable, "-c", WRITING, str(tmp_path)], check=False, timeout=60
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(scratch_folders(tmp_path)) == 1
    assert (tmp_path / "data" / "old").read_bytes() == b"old"
    write_file(tmp_path / "anything", b"")
    assert scratch_folders(tmp_path) == []
    assert (tmp_path / "data" / "old").read_bytes() == b"old"


def test_a_missing_folder_is_named_and_not_the_scratch_folder(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        write_file(tmp_path / "none" / "file", b"x")
    assert caught.value.filename == str(tmp_path / "none" / "file")


def test_errors_of_the_operating_system_name_the_file_and_leave_nothing(
    tmp_path, monkeypatch
):
    def full(*_):
        raise OSError(28, "No space left on device")

    for name in ("fsync", "write"):  # of the file, of the lock's note
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with pytest.raises(OSError, match="No space") as caught:
                write_file(tmp_path / "file", b"x")
            assert caught.value.filename == str(tmp_path / "file")
            assert tree(tmp_path) == {}
            if name == "fsync":
                with pytest.raises(OSError, match="No space"):
                    make_folder(tmp_path / "a" / "b")
                assert tree(tmp_path) == {}


def test_folders_are_removed_and_replaced(tmp_path, old):
    with new_folder(
        tmp_path / "data", replace=lambda folder: (folder / "old").exists()
    ) as made:
        (made / "new").write_bytes(b"new")
    assert tree(tmp_path) == {"data": None, "data/new": b"new"} != old
    remove_folder(tmp_path / "data")
    with pytest.raises(FileNotFoundError):
        remove_folder(tmp_path / "data")
    assert tree(tmp_path) == {}


def test_new_folder_does_not_replace_files_that_appear_during_the_block(tmp_path):
    def meanwhile():
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "theirs").write_bytes(b"2")

    with (
        refused("already exists"),
        new_folder(tmp_path / "data"),
    ):
        meanwhile()
    assert tree(tmp_path) == {"data": None, "data/theirs": b"2"}


@pytest.fixture
def old(tmp_path):
    """Make a folder to replace."""
    with new_folder(tmp_path / "data") as made:
        (made / "old").write_bytes(b"old")
    return tree(tmp_path)


@pytest.mark.parametrize("failing", [{".content"}, {".content", "data"}])
def test_a_replacement_whose_second_rename_fails_restores_the_old_folder(
    tmp_path, old, monkeypatch, failing
):
    """At once, or by the next writer if that fails, too."""
    rename = Path.rename

    def fail(self, target):
        if self.name in failing and self.parent != tmp_path:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with (
            pytest.raises(OSError, match="Input/output"),
            new_folder(tmp_path / "data", replace=lambda _: True) as made,
        ):
            (made / "new").write_bytes(b"new")
    remove_abandoned(tmp_path)
    assert tree(tmp_path) == old


def test_the_scratch_folder_of_a_living_process_is_kept(tmp_path):
    with new_path(tmp_path / "slow") as content:
        content.write_bytes(b"x")
        remove_abandoned(tmp_path)
        write_file(tmp_path / "quick", b"y")
        assert content.read_bytes() == b"x"
    assert tree(tmp_path) == {"slow": b"x", "quick": b"y"}


def test_a_lock_names_its_process_and_ends_with_it(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HELD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        assert seems_locked(tmp_path)
        with refused(rf"is in use: process {holder.pid} on \S+ is training there"):
            FolderLock(tmp_path, "training")
    finally:
        holder.kill()
        holder.communicate()
    assert not seems_locked(tmp_path)
    FolderLock(tmp_path, "training").release()
    for note in (b"", b"nonsense", b" {}", b' {"process": "1"}', b" [1]"):
        (tmp_path / ".lock").write_bytes(note)
        assert not seems_locked(tmp_path)


@pytest.mark.parametrize("path", ["new", "new/deeper/still", "there/new"])
def test_a_failed_block_removes_the_folders_created_for_it(tmp_path, path):
    (tmp_path / "there" / "mine").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    with (
        pytest.raises(KeyboardInterrupt),
        making_folder(tmp_path / path),
        new_path(tmp_path / path / "file"),
    ):
        raise KeyboardInterrupt
    with pytest.raises(ValueError, match="wrong"), new_folder(tmp_path / path / "made"):
        raise ValueError("wrong")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("kind", KINDS)
def test_scratch_folders_and_files_of_others_are_not_followed(tmp_path, kind):
    """A link with the name of a scratch folder, at each write beside it; and links in the place of what is written."""
    outside = tmp_path / "outside"
    run = tmp_path / "run"
    outside.mkdir()
    run.mkdir()
    for name in ("precious.txt", "config.toml"):
        (outside / name).write_text("mine")
    before = content(outside)
    plant(run / ".hgpo-0123456789abcdef.tmp", kind, outside)
    scratch = run / ".hgpo-0123456789abcdee.tmp"
    scratch.mkdir()
    plant(scratch / ".lock", kind, outside)
    plant(scratch / "moved", kind, outside)
    plant(run / "config.toml", kind, outside)
    with contextlib.suppress(IsADirectoryError):
        write_file(run / "config.toml", b"ours")
        assert not (run / "config.toml").is_symlink()
        assert (run / "config.toml").read_bytes() == b"ours"
    write_file(run / "other", b"ours")
    with new_folder(run / "made", replace=lambda _: True) as made:
        (made / "inside").touch()
    remove_folder(run / "made")
    assert content(outside) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_is_a_regular_file_with_one_name(tmp_path, kind):
    outside = tmp_path / "outside"
    run = tmp_path / "run"
    outside.mkdir()
    run.mkdir()
    (outside / "precious.txt").write_text("mine")
    plant(run / ".lock", kind, outside)
    assert not seems_locked(run)
    with refused(r"^.*\.lock: expected a file with one name, .*; remove it$"):
        FolderLock(run, "writing")
    assert content(outside) == {"precious.txt": b"mine"}
