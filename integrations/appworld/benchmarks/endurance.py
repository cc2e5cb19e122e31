"""Roll out for a while with hostile programs in a tenth of the rollouts, and report what that did to the others.

    python integrations/appworld/benchmarks/endurance.py --data appworld --minutes 20 --slots 64

All other rollouts play the solutions of their tasks, and must be won. Memory (of this process and of the server of all
worlds), open files, processes, files in the scratch folder, and System V segments are sampled; the report has their
medians in the first and in the last third of the time. The exit status is 1 if a rollout was harmed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections import Counter
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import polars as pl

from hgpo_appworld.environment import open_source
from hgpo_appworld.players.expert import split_solution
from hgpo_datasets import scan_steps, verify
from hgpo_train.rollout import collect

if TYPE_CHECKING:
    from hgpo_train.policies.base import Request

MARK = "# hostile"
ONE_IN = 10
_MODULES = f"{MARK}\nimport os\nposix, gc = (os.sys.modules[name] for name in ('posix', 'gc'))\n"
_CTYPES = (
    "ctypes = os.sys.modules.get('ctypes')\ncall = ctypes.CDLL(None).syscall if ctypes else print\n"
    "parent = os.getppid()\n"
)
_SAVED = (
    "for one in gc.get_objects():\n"
    "    if type(one).__name__ == 'DBChangesTracker': one.changes.append(({sql!r}, [], False))\n"
    "apis.supervisor.complete_task()"
)
_ENDLESS = (
    "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) "
    "INSERT INTO sqlite_sequence SELECT 1, x FROM c"
)
_TABLES = ", ".join(f"sqlite_master t{n}" for n in range(9))
_JOIN = f"INSERT INTO sqlite_sequence SELECT 1, 1 FROM {_TABLES}"  # noqa: S608
_ANSWER = (
    "for number in range(3, 99):\n"
    "    try: posix.write(number, len(DATA).to_bytes(4, 'big') + DATA)\n"
    "    except OSError: pass"
)
PROGRAMS = {
    "loop": "while True: sum(range(99))",
    "loop that catches": "while True:\n    try: sum(range(999))\n    except BaseException: pass",
    "memory": "x = []\nwhile True: x.append('a' * 10**6)",
    "output": "print('a' * 15_700_000)",
    "nested folders": "fd = posix.open('.', 0)\nfor _ in range(3000):\n"
    "    posix.mkdir('a', dir_fd=fd); new = posix.open('a', 0, dir_fd=fd); posix.close(fd); fd = new",
    "many files": "for n in range(20_000): posix.close(posix.open(f'f{n}', 65))",
    "closed folders": "for n in range(2000): posix.mkdir(str(n), 0)",
    "abort": "posix.abort()",
    "exit": "posix._exit(0)",
    "fork": "while True: posix.fork()",
    "signals": "for number in (1, 9, 15): posix.kill(os.getppid(), number)",
    "closed sockets": "posix.closerange(0, 256)\nwhile True: pass",
    "open files": "x = [posix.pipe() for _ in range(100_000)]",
    "nonsense": "DATA = b'\\xff' * 99\n" + _ANSWER,
    "too many calls": "DATA = b'{\"is\": \"executed\", \"calls\": [' + b'1,' * 4_000_000 + b'1]}'\n"
    + _ANSWER,
    "completed: no": 'DATA = b\'{"is": "executed", "output": "", "failed": false, "completed": "no"}\'\n'
    + _ANSWER,
    "endless recursion": _SAVED.format(sql=_ENDLESS),
    "endless join": _SAVED.format(sql=_JOIN),
    "other database": _SAVED.format(sql="ATTACH '/tmp/other.db' AS other"),
    "shared memory": f"{_CTYPES}for key in range(200):\n"
    "    call(29, key, 1 << 23, 0o1666); call(68, key, 0o1666); call(240, b'/q', 66, 0o666, 0)",
    "memory files": f"{_CTYPES}for n in range(200): call(319, b'x', 0)\nposix.memfd_create('x')",
    "scheduling": f"{_CTYPES}call(203, parent, 8, bytes([1] + [0] * 7)); call(141, 0, parent, 19)\n"
    "posix.sched_setaffinity(0, [0])",
    "queued signals": f"{_CTYPES}call(129, parent, 9, bytes(128)); call(297, parent, parent, 9, bytes(128))",
    "broken library": "os.sys.modules['json'].dumps = None",
    "a thread that runs on": "def run():\n    while True: pass\nos.sys.modules['_thread'].start_new_thread(run, ())",
}
"""What the hostile rollouts execute, after a tenth of them has played a step."""


class Players:
    """The solution of each task; in some rollouts, hostile programs instead.

    Args:
        hostile: One rollout in so many is hostile.
    """

    def __init__(self, one_in: int) -> None:
        self._one_in = one_in
        self._hostile: dict[int, bool] = {}

    def __call__(self, request: Request) -> str:
        """Return the program of a step."""
        if request.step == 0:
            self._hostile[request.slot] = request.rng.randrange(self._one_in) == 0
        if self._hostile[request.slot]:
            if request.step == 3:
                return f"{MARK}\napis.supervisor.complete_task()"
            return _MODULES + PROGRAMS[request.rng.choice(list(PROGRAMS))]
        steps = split_solution(request.engine.ground_truth_solution(), request.task.id)  # type: ignore[union-attr]
        return (
            steps[request.step]
            if request.step < len(steps)
            else "apis.supervisor.complete_task()"
        )


class Sampler(threading.Thread):
    """Samples what this process and those that it started use.

    Args:
        seconds: The time between two samples.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(daemon=True)
        self._seconds = seconds
        self._ended = threading.Event()
        self._before = segments()
        self.samples: list[dict[str, float]] = []

    def run(self) -> None:
        """Sample until the end."""
        while not self._ended.wait(self._seconds):
            try:
                self.samples.append(self._sample())
            except OSError:  # a process has ended while it was looked at
                continue

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        self.join()

    def _sample(self) -> dict[str, float]:
        (server,) = children(os.getpid())
        scratch = Path(f"/proc/{server}/cwd").readlink() / "experiments" / "outputs"
        return {
            "memory of this process, MB": resident(os.getpid()),
            "memory of the server, MB": resident(server),
            "open files of this process": opened(os.getpid()),
            "open files of the server": opened(server),
            "threads of this process": threading.active_count(),
            "worlds and evaluations": len(children(server)),
            "folders of rollouts": len(list(scratch.iterdir())),
            "System V segments, queues and semaphores": segments() - self._before,
        }


def resident(pid: int) -> float:
    """Return a process's resident memory in MB."""
    return (
        int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
        * os.sysconf("SC_PAGESIZE")
        / 2**20
    )


def opened(pid: int) -> int:
    """Return the number of a process's open files."""
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def children(pid: int) -> list[int]:
    """Return the process ids of a process's children, of all its threads."""
    found = [
        path.read_text("ascii").split()
        for path in Path(f"/proc/{pid}/task").glob("*/children")
    ]
    return [int(child) for part in found for child in part]


def segments() -> int:
    """Return the number of System V segments, queues and semaphores of this machine."""
    return sum(
        len(Path("/proc/sysvipc", name).read_text("ascii").splitlines()) - 1
        for name in ("shm", "msg", "sem")
    )


def harm(run: Path) -> dict[str, int]:
    """Return how many rollouts of a run there were, and how many were harmed."""
    rollouts = (
        scan_steps(run)
        .group_by("task_id", "group", "trajectory")
        .agg(
            pl.col("action").str.contains(MARK, literal=True).any().alias("hostile"),
            pl.col("won").max(),
            pl.col("aborted").any(),
            pl.col("error").is_not_null().any().alias("lost"),
            pl.col("error").drop_nulls().first(),
            pl.col("state")
            .filter(pl.col("state").str.starts_with("Execution failed"))
            .first()
            .alias("failure"),
        )
        .collect()
    )
    hostile = rollouts.filter("hostile")
    others = rollouts.filter(~pl.col("hostile"))
    for rollout in others.filter(~pl.col("won").fill_null(value=False)).iter_rows(
        named=True
    ):
        sys.stdout.write(f"harmed: {rollout}\n")
    return {
        "hostile rollouts": len(hostile),
        "hostile, lost": int(hostile["lost"].sum()),
        "hostile, won": int(hostile["won"].sum()),
        "hostile, aborted": int(hostile["aborted"].sum()),
        "other rollouts": len(others),
        "others that were not won": len(others)
        - int((others["won"].fill_null(value=False)).sum()),
        "others that were lost or aborted": int(
            (others["lost"] | others["aborted"]).sum()
        ),
    }


def main() -> None:
    """Play and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="AppWorld's root")
    parser.add_argument(
        "--python",
        default=os.environ.get("HGPO_APPWORLD_PYTHON"),
        help="AppWorld's interpreter",
    )
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument(
        "--sample", type=float, default=5, help="seconds between two samples"
    )
    given = parser.parse_args()
    options: dict[str, Any] = {"data": given.data, "python": given.python}
    source: Any = open_source(**options)
    tasks = source.ids("all")
    server = source.server(tasks[0])  # kept, so that all runs have the same
    rounds = partial(
        collect,
        "HGPO/AppWorld-v0",
        group_size=given.group_size,
        split="all",
        slots=given.slots,
        max_failed=1.0,
        **options,
    )
    totals: Counter[str] = Counter()
    with TemporaryDirectory() as folder:
        warm_up = Path(folder, "warm-up")  # what is imported on first use is no growth
        rounds(Players(ONE_IN), warm_up, tasks=4, seed=0)
        harm(warm_up)
        verify(warm_up)
        sampler = Sampler(given.sample)
        sampler.start()
        until = time.monotonic() + 60 * given.minutes
        for seed in count(1):
            run = Path(folder, str(seed))
            rounds(Players(ONE_IN), run, tasks=len(tasks), seed=seed)
            totals.update(
                harm(run) | {"runs": 1, "runs that verify": int(verify(run).ok)}
            )
            sys.stdout.write(f"{json.dumps(totals)} {resident(os.getpid()):,.0f} MB\n")
            sys.stdout.flush()
            if time.monotonic() > until:
                break
    sampler.stop()
    third = max(len(sampler.samples) // 3, 1)
    for name in sampler.samples[0]:
        values = [sample[name] for sample in sampler.samples]
        first = statistics.median(values[:third])
        last = statistics.median(values[-third:])
        sys.stdout.write(
            f"{name}: {first:,.0f} in the first third, {last:,.0f} in the last, {max(values):,.0f} at most\n"
        )
    sys.stdout.write(f"the same server to the end: {server.running}\n")
    sys.exit(bool(totals["others that were not won"] or not server.running))


if __name__ == "__main__":
    main()
