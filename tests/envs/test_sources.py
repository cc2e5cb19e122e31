"""Task sources that a process shares: opened once, a bounded number, by any thread, and again when data change."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium
import pytest

from hgpo_envs.alfworld.data.pack import write_pack
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.errors import InputError
from hgpo_envs.sources import KEPT, open_shared

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


def test_the_last_ones_are_kept() -> None:
    for number in [*range(KEPT + 1), KEPT, 1, 0]:
        counted(number)
    assert opened == [*range(KEPT + 1), 0]


def test_a_failure_is_not_kept_and_equal_arguments_of_other_types_are_others() -> None:
    for _ in range(2):
        with pytest.raises(InputError, match="broken"):
            counted("broken")
    assert opened == ["broken", "broken"]
    assert len({id(source) for source in [counted(number) for number in (1, True, 1.0, "1")]}) == 4


@pytest.mark.parametrize("change", ["content", "time", "removed", "replaced"])
def test_a_change_of_a_file_or_in_a_folder_is_noticed(tmp_path: Path, change: str) -> None:
    folder, file = tmp_path / "data", tmp_path / "data" / "file"
    folder.mkdir()
    file.write_text("text")
    before = counted(str(folder)), counted(str(file))
    assert counted(str(folder)) is before[0]
    status = file.stat()
    if change in ("removed", "replaced"):
        file.rename(tmp_path / "old")  # its inode is kept, so that the new file has another
    if change in ("content", "replaced"):
        file.write_text("text" if change == "replaced" else "more text")
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif change == "time":
        os.utime(file, ns=(1, status.st_mtime_ns + 1))
    assert counted(str(folder)) is not before[0]
    assert counted(str(file)) is not before[1]


def pack(path: Path, games: int) -> Path:
    source = ALFWorldSource()
    ids = source.ids("all")[:games]
    write_pack(path, ((task_id, source.read(task_id), None) for task_id in ids))
    return path


def test_environments_share_a_source_and_a_new_one_sees_new_data(tmp_path: Path) -> None:
    data = pack(tmp_path / "data", 3)
    first, second = (gymnasium.make("HGPO/ALFWorld-v0", data=str(data), split="all") for _ in range(2))
    assert first.unwrapped.shared.source is second.unwrapped.shared.source
    pack(data, 2)
    third = gymnasium.make("HGPO/ALFWorld-v0", data=str(data), split="all")
    for env, games in ((first, 3), (third, 2)):
        env.reset(seed=0)
        assert len(env.unwrapped.shared.source.ids("all")) == games
