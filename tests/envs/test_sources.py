"""Task sources that a process shares: opened once, a bounded number, by any thread, and again when data change."""

import gc
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from refusals import refused

from hgpo_envs.engine import State, Task
from hgpo_envs.env import TextEnv
from hgpo_envs.errors import InputError
from hgpo_envs.sources import KEPT, open_shared
from hgpo_envs.vector import TextVectorEnv
from hgpo_train.rollout import collect
from hgpo_train.rollout.env_handle import EnvHandle

opened: list[object] = []


class Counted:
    """A source that counts how often it is opened."""

    def __init__(self, number: object) -> None:
        opened.append(number)
        if number == "broken":
            raise InputError("broken")


def counted(number):
    return open_shared(f"{__name__}:Counted", number=number)


@pytest.fixture(autouse=True)
def nothing_opened():
    """Forget the sources of other tests, which are kept."""
    for number in range(KEPT):
        counted(("other", number))
    opened.clear()


def test_threads_open_a_source_once():
    together = threading.Barrier(16)

    def open_both(number: int):
        together.wait()
        return [
            counted(f"shared {order}") for order in ((0, 1) if number % 2 else (1, 0))
        ]

    with ThreadPoolExecutor(16) as threads:
        found = list(threads.map(open_both, range(16)))
    assert sorted(opened) == ["shared 0", "shared 1"]
    assert len({id(source) for both in found for source in both}) == 2


def test_the_last_ones_are_kept():
    for number in [*range(KEPT + 1), KEPT, 1, 0]:
        counted(number)
    assert opened == [*range(KEPT + 1), 0]


def test_a_failure_is_not_kept_and_equal_arguments_of_other_types_are_others():
    for _ in range(2):
        with refused("broken"):
            counted("broken")
    assert opened == ["broken", "broken"]
    assert (
        len(
            {
                id(source)
                for source in [counted(number) for number in (1, True, 1.0, "1")]
            }
        )
        == 4
    )


@pytest.mark.parametrize("change", ["content", "time", "replaced"])
def test_a_changed_file_and_a_changed_list_of_files_are_noticed(tmp_path, change):
    folder = tmp_path / "data"
    file = tmp_path / "data" / "file"
    folder.mkdir()
    file.write_text("text")
    before = counted(str(folder)), counted(str(file))
    assert counted(str(folder)) is before[0]
    status = file.stat()
    if change == "replaced":
        # its inode is kept, so that the new file has another
        file.rename(tmp_path / "old")
    file.write_text("more text" if change == "content" else "text")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + (change == "time")))
    assert counted(str(file)) is not before[1]
    assert (counted(str(folder)) is before[0]) == (change != "replaced")


class Closing:
    """A source that writes a line to a file when it is closed, in whatever process."""

    name = "Closing"

    def __init__(self, log: str) -> None:
        self.log = Path(log)

    def ids(self, _split: str) -> list[str]:
        return ["a", "b"]

    def task(self, task_id: str) -> Task:
        return Task(task_id, "train", "Look.", "")

    def engine(self) -> "Hall":
        return Hall()

    def close(self) -> None:
        with self.log.open("a") as file:
            file.write("closed\n")


class Hall:
    def start(self, _task_id: str) -> State:
        return State("A hall.", ["look"])

    def act(self, _command: str) -> State:
        return State("A hall.", [], terminated=True, won=True, reward=1.0, score=1.0)


class Log:
    """The file of a `Closing`, and its source as a process shares it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "log"

    @property
    def shared(self):
        return open_shared(f"{__name__}:Closing", log=str(self.path))

    @property
    def closed(self) -> int:
        return len(self.path.read_text().splitlines()) if self.path.exists() else 0


@pytest.fixture
def log(tmp_path):
    return Log(tmp_path)


def test_a_source_is_closed_once_after_its_last_environment(log):
    shared = log.shared
    env = TextEnv(shared)
    vector = TextVectorEnv(shared, 2)
    env.reset(seed=1)
    copies = [env.fork(), pickle.loads(pickle.dumps(env))]
    for user in (env, vector, *copies):
        assert log.closed == 0
        assert log.shared is shared
        user.close()
    env.close()
    assert log.closed == 1
    assert log.shared is not shared, "the next user opens it again"


def test_a_source_is_closed_when_the_process_drops_it(log):
    TextEnv(log.shared)  # which is not closed
    for number in range(KEPT):
        counted(("another", number))
    gc.collect()
    assert log.closed == 1


def handle_of(log):
    env = TextEnv(log.shared)
    return EnvHandle("Test/Closing-v0", env.shared, env.episode.settings, env.tasks)


def test_rollouts_leave_a_source_to_whoever_opened_it(log, tmp_path):
    with closing(handle_of(log)) as handle:
        for number in range(2):
            collect(
                handle,
                "random",
                tmp_path / f"run{number}",
                tasks=2,
                group_size=1,
                progress=False,
            )
            assert log.closed == 0
    assert log.closed == 1


@pytest.mark.slow
def test_every_worker_closes_its_source(log, tmp_path):
    with closing(handle_of(log)) as handle:
        collect(
            handle,
            "random",
            tmp_path / "run",
            tasks=2,
            group_size=2,
            slots=2,
            workers=True,
            progress=False,
        )
        assert log.closed == 2
    assert log.closed == 3
