"""Task sources that a process shares: opened once, a bounded number, by any thread, and again when data change."""

import gc
import os
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium
import pytest

from hgpo_envs.alfworld.data.pack import write_pack
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.errors import InputError
from hgpo_envs.sources import KEPT, file_version, open_shared

opened: list[object] = []


class Counted:
    """A source that counts how often it is opened."""

    def __init__(self, number: object) -> None:
        opened.append(number)
        if number == "broken":
            raise InputError("broken")


def counted(number: object):
    return open_shared(f"{__name__}:Counted", number=number)


@pytest.fixture(autouse=True)
def nothing_opened() -> None:
    """Forget the sources of other tests, which are kept."""
    for number in range(KEPT):
        counted(("other", number))
    opened.clear()


def test_threads_open_a_source_once() -> None:
    together = threading.Barrier(16)

    def open_both(number: int):
        together.wait()
        return [counted(f"shared {order}") for order in ((0, 1) if number % 2 else (1, 0))]

    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(open_both, range(16)))
    assert sorted(opened) == ["shared 0", "shared 1"]
    assert len({id(source) for both in found for source in both}) == 2


def test_as_many_are_kept_as_are_said() -> None:
    used = counted("used")
    unused = [weakref.ref(counted(number)) for number in range(KEPT + 3)]
    gc.collect()
    assert [reference() is not None for reference in unused] == [False] * 3 + [True] * KEPT
    assert counted("used") is used, "a source that is in use is shared although others were opened later"
    assert opened.count("used") == 1
    counted(KEPT + 2)
    assert opened.count(KEPT + 2) == 1
    counted(0)
    assert opened.count(0) == 2


def test_a_failure_is_not_kept() -> None:
    for _ in range(2):
        with pytest.raises(InputError, match="broken"):
            counted("broken")
    assert opened == ["broken", "broken"]


def test_equal_arguments_of_other_types_are_others() -> None:
    sources = [counted(number) for number in (1, True, 1.0, "1")]
    assert len({id(source) for source in sources}) == 4


def write_anew(path: Path) -> None:
    """Replace a file by another of the same size, name and modification time."""
    content, status = path.read_bytes(), path.stat()
    path.rename(path.with_suffix(".old"))
    path.write_bytes(content)
    path.with_suffix(".old").unlink()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def append(path: Path) -> None:
    """Change the content alone: not the times of the file, nor those of its folder."""
    status = path.stat()
    with path.open("ab") as file:
        file.write(b"\n")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def touch(path: Path) -> None:
    """Change the time alone."""
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))


@pytest.mark.parametrize("change", [append, touch, Path.unlink])
def test_a_change_in_a_folder_is_noticed(tmp_path: Path, change) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    before = counted(str(tmp_path))
    assert counted(str(tmp_path)) is before
    change(tmp_path / "two")
    assert counted(str(tmp_path)) is not before


def test_a_replaced_file_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("one")
    before = counted(str(tmp_path / "data"))
    (tmp_path / "keep").hardlink_to(tmp_path / "data")  # so that its inode is not given to the new file
    write_anew(tmp_path / "data")
    assert counted(str(tmp_path / "data")) is not before


def test_what_is_no_path_has_no_version() -> None:
    assert [file_version(value) for value in (None, 3, "", "no such file", "nul\0byte", "x" * 10_000)] == [None] * 6


def pack(path: Path, games: int) -> Path:
    source = ALFWorldSource()
    ids = source.ids("all")[:games]
    write_pack(path, ((task_id, source.read(task_id), None) for task_id in ids))
    return path


def source_of(env: gymnasium.Env):
    return env.unwrapped.shared.source


def test_environments_share_a_source_and_a_new_one_sees_new_data(tmp_path: Path) -> None:
    data = pack(tmp_path / "data", 3)
    first, second = (gymnasium.make("HGPO/ALFWorld-v0", data=str(data), split="all") for _ in range(2))
    assert source_of(first) is source_of(second)
    pack(data, 2)
    third = gymnasium.make("HGPO/ALFWorld-v0", data=str(data), split="all")
    for env, games in ((first, 3), (third, 2)):
        env.reset(seed=0)
        assert len(source_of(env).ids("all")) == games
