"""Task sources that a process shares: opened once, a bounded number, by any thread, and again when data change."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("change", ["content", "time", "replaced"])
def test_a_changed_file_and_a_changed_list_of_files_are_noticed(tmp_path: Path, change: str) -> None:
    folder, file = tmp_path / "data", tmp_path / "data" / "file"
    folder.mkdir()
    file.write_text("text")
    before = counted(str(folder)), counted(str(file))
    assert counted(str(folder)) is before[0]
    status = file.stat()
    if change == "replaced":
        file.rename(tmp_path / "old")  # its inode is kept, so that the new file has another
    file.write_text("more text" if change == "content" else "text")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + (change == "time")))
    assert counted(str(file)) is not before[1]
    assert (counted(str(folder)) is before[0]) == (change != "replaced")
