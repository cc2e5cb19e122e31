"""Measure AppWorld's worlds beside one server of the original for each rollout, as G2PO's training uses it.

    python integrations/appworld/benchmarks/appworld.py --data appworld
    python integrations/appworld/benchmarks/appworld.py --data appworld --worlds 1,4 --servers 1

CPU is that of the processes that run AppWorld, from /proc, so Linux is needed. Memory is the proportional set size
(PSS) of all processes together, in which pages that processes share count once, and the private memory of one. A start
is that of a task when everything has been imported.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from benchmarks.runner import Row, add_keep, store
from hgpo_appworld.environment import open_source
from hgpo_appworld.reference.compare import original_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hgpo_appworld.engine.source import AppWorldSource
    from hgpo_appworld.reference.compare import Call

PROGRAMS = {
    "step": "x = 1 + 1",
    "step, one API call": "x = apis.supervisor.show_profile()",
}
STEPS = 20
_TICK = os.sysconf("SC_CLK_TCK")


def cpu(pid: int, *, ended: bool = False) -> float:
    """Return the CPU seconds of a process, or those of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    first = 13 if ended else 11
    return (int(fields[first]) + int(fields[first + 1])) / _TICK


def memory(pids: list[int]) -> tuple[float, float]:
    """Return the PSS of processes together, and the median of their private memory, in MB."""
    total = 0
    private = []
    for pid in pids:
        lines = [
            line.split()
            for line in Path(f"/proc/{pid}/smaps_rollup")
            .read_text("ascii")
            .splitlines()[1:]
        ]
        found = {line[0].rstrip(":"): int(line[1]) for line in lines}
        total += found["Pss"]
        private.append(found["Private_Clean"] + found["Private_Dirty"])
    return total / 1024, statistics.median(private) / 1024


def children(pid: int) -> list[int]:
    """Return the process ids of a process's children."""
    return [
        int(one)
        for one in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    ]


def worlds(source: AppWorldSource, count: int) -> dict[str, float]:
    """Return the figures of worlds that are open at the same time."""
    ids = source.ids("all")
    server = source.server(ids[0])
    engines = [source.engine() for _ in range(count)]
    known: set[int] = set()
    figures: dict[str, list[float]] = {"start, wall": [], "start": []}
    pids = []
    for number, engine in enumerate(engines):
        before = cpu(server.pid)
        began = time.perf_counter()
        engine.start(ids[number % len(ids)])
        figures["start, wall"].append(time.perf_counter() - began)
        (pid,) = set(children(server.pid)) - known
        known.add(pid)
        pids.append(pid)
        figures["start"].append(cpu(pid) + cpu(server.pid) - before)
    for name, program in PROGRAMS.items():
        for engine, pid in zip(engines, pids, strict=True):
            engine.act(program)
            before = cpu(pid)
            for _ in range(STEPS):
                engine.act(program)
            figures.setdefault(name, []).append((cpu(pid) - before) / STEPS)
    total, private = memory([server.pid, *pids])
    before = cpu(server.pid, ended=True)
    for engine, pid in zip(engines, pids, strict=True):
        spent = cpu(pid)
        engine.act("apis.supervisor.complete_task()")
        now = cpu(server.pid, ended=True)
        figures.setdefault("end and evaluation", []).append(now - before - spent)
        before = now
    return summarized(figures) | {
        "memory, MB": round(total),
        "private, MB": round(private),
    }


def servers(python: str, data: str, ids: list[str], count: int) -> dict[str, float]:
    """Return the figures of servers of the original, one for each rollout."""
    figures: dict[str, list[float]] = {}
    pids = []
    with ExitStack() as stack:
        for number in range(count):
            pid, call = stack.enter_context(original_server(Path(data), python))
            pids.append(pid)
            figures.setdefault("server until it answers", []).append(cpu(pid))
            one_server(call, pid, ids[number % len(ids)], f"rollout-{number}", figures)
        total, private = memory(pids)
    return summarized(figures) | {
        "memory, MB": round(total),
        "private, MB": round(private),
    }


def one_server(
    call: Call, pid: int, task: str, rollout: str, figures: dict[str, list[float]]
) -> None:
    """Play a task on a server twice: the first start imports and computes what later ones find."""

    def timed(name: str | None, times: int, method: str, **given: str | bool) -> None:
        before = cpu(pid)
        for _ in range(times):
            call(method, {"task_id": task, **given})
        if name:
            figures.setdefault(name, []).append((cpu(pid) - before) / times)

    for again in (False, True):
        timed(
            "start" if again else "first start",
            1,
            "initialize",
            experiment_name=rollout,
        )
        for name, program in PROGRAMS.items():
            timed(None, 1, "execute", code=program)
            timed(name if again else None, STEPS, "execute", code=program)
        timed(
            "end and evaluation" if again else None, 1, "evaluate", suppress_errors=True
        )


def summarized(figures: dict[str, list[float]]) -> dict[str, float]:
    """Return medians, in ms."""
    return {
        f"{name}, ms": round(1000 * statistics.median(values), 1)
        for name, values in figures.items()
    }


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="AppWorld's root")
    parser.add_argument(
        "--python",
        default=os.environ.get("HGPO_APPWORLD_PYTHON"),
        help="AppWorld's interpreter",
    )
    parser.add_argument("--worlds", default="1,16,64")
    parser.add_argument("--servers", default="1,4")
    add_keep(parser)
    given = parser.parse_args()
    source: Any = open_source(data=given.data, python=given.python)
    ids = source.ids("all")
    began = time.perf_counter()
    server = source.server(ids[0])
    figures: dict[str, Any] = {
        "appworld": server.version,
        "server": {
            "wall, s": round(time.perf_counter() - began, 1),
            "CPU, s": round(cpu(server.pid), 1),
        },
        "worlds": {
            number: worlds(source, int(number)) for number in given.worlds.split(",")
        },
    }
    python = source._launch.python  # noqa: SLF001
    figures["servers"] = {
        number: servers(python, given.data, ids, int(number))
        for number in given.servers.split(",")
    }
    columns = {f"{n} worlds": found for n, found in figures["worlds"].items()}
    columns |= {f"{n} servers": found for n, found in figures["servers"].items()}
    table = Table("CPU of one, median", *columns, title="AppWorld")
    for name in dict.fromkeys(name for found in columns.values() for name in found):
        table.add_row(
            name,
            *(
                f"{found[name]:,}" if name in found else ""
                for found in columns.values()
            ),
        )
    console = Console()
    console.print(table)
    console.print(store("appworld", figures, rows(figures), keep=given.keep))


def rows(figures: dict[str, Any]) -> Iterator[Row]:
    """Return the rows of the documentation's tables: the most worlds beside one server of the original."""
    most = max(figures["worlds"], key=int)
    ours = figures["worlds"][most]
    theirs = figures["servers"]["1"]
    new_server = theirs["server until it answers, ms"] + theirs["first start, ms"]
    yield Row(
        f"AppWorld: memory of {most} worlds at the same time, with the process that forks them",
        ours["memory, MB"],
        "MB",
        note=f"original {theirs['memory, MB']:,.0f} MB for one server",
        shown="page",
    )
    started = ours["start, ms"] / 1000
    yield Row(
        "AppWorld: CPU of a start of a task",
        started,
        "s",
        rival=("new server", new_server / 1000),
        shown="page",
    )


if __name__ == "__main__":
    main()
