"""Measure how fast `hgpo view` opens runs and answers, for runs of 10,000 to 1,000,000 steps.

    python benchmarks/viewer.py
    python benchmarks/viewer.py --steps 10000 100000

The run is collected from the bundled ALFWorld games with a mixture of the expert and a random policy, with prompts and
responses, and repeated under other task names until it has as many steps. Each time is that of a request through the
whole application, without the network. `open` includes the index and the first page of tasks, and starts with the
import of the viewer in a new process; groups and rollouts are drawn at random from the whole run.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from record import make_parser, print_table, store

from hgpo_datasets import StepWriter, scan_steps, schema
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.rollout.env_handle import open_env
from hgpo_train.rollout.plan import RolloutSpec
from hgpo_train.rollout.run import collect_groups

if TYPE_CHECKING:
    from collections.abc import Callable

GIVEN = [column.name for column in schema.columns() if not column.derived and column.name != "run"]
RENAMED = ("task_id", "trajectory", "prompt", "response")
"""Columns that differ in each repetition, so that files do not contain the same long texts many times."""
REQUESTS = ("group", "transcript", "estimate", "tasks", "rollouts", "compare", "search", "levels")
PROBE = r"""
import json, re, sys, time
from pathlib import Path
began = time.perf_counter()
from starlette.testclient import TestClient
from hgpo_train.view.app import make_app
from hgpo_train.view.sources import open_sources
import warnings
warnings.simplefilter("ignore")
app = make_app(open_sources([sys.argv[1]]), "t")
client = TestClient(app, base_url="http://127.0.0.1")
answer = client.get("/t/api/runs/0/tasks")
answer.raise_for_status()
opened = time.perf_counter() - began
used = int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1]) / 1024
print(json.dumps({"open_s": opened, "open_cpu_s": time.process_time(), "memory_mb": used}))
"""


def collected(folder: Path) -> pl.DataFrame:
    """Return the rows of a rollout of some tasks."""
    handle = open_env("HGPO/ALFWorld-v0", action_format="response", max_steps=30)
    policy: Any = make_policy("mixture:expert=0.6,random=0.4", PolicyContext("ALFWorld", "response", {}))
    with StepWriter(folder) as writer:
        collect_groups(handle, policy, writer, RolloutSpec(tasks=64, group_size=8, seed=1))
    return scan_steps(folder).select(GIVEN).collect()


def repeated(rows: pl.DataFrame, folder: Path, steps: int) -> Path:
    """Write a run of at least as many steps: the groups again and again, each time under other names."""
    groups = rows.partition_by("task_id", maintain_order=True)
    with StepWriter(folder) as writer:
        written, turn = 0, 0
        while written < steps:
            for group in groups:
                named = ((pl.lit(f"{turn:04d}/") + pl.col(name)).alias(name) for name in RENAMED)
                writer.add_group(group.with_columns(named))
                written += group.height
            turn += 1
    return folder


def timed(calls: list[Callable[[], Any]]) -> dict[str, float]:
    """Return the median and the 95th percentile of the calls' durations and of their CPU times, in milliseconds."""
    durations, times, found = list[float](), list[float](), {}
    for call in calls:
        began, began_cpu = time.perf_counter(), time.process_time()
        call()
        durations.append(1000 * (time.perf_counter() - began))
        times.append(1000 * (time.process_time() - began_cpu))
    for name, values in (("", sorted(durations)), ("cpu_", sorted(times))):
        found[f"{name}median_ms"] = statistics.median(values)
        found[f"{name}p95_ms"] = values[int(0.95 * (len(values) - 1))]
    return found


def measured(run: Path, count: int) -> dict[str, Any]:
    """Return the durations of opening a run, and of requests."""
    import warnings

    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

    from hgpo_train.view.app import make_app
    from hgpo_train.view.sources import open_sources

    opened = [
        json.loads(subprocess.run([sys.executable, "-c", PROBE, str(run)], capture_output=True, check=True).stdout)
        for _ in range(3)
    ]
    sources = open_sources([str(run)])
    client = TestClient(make_app(sources, "t"), base_url="http://127.0.0.1")
    index = sources[0].index()
    draw = random.Random(0)

    def get(path: str) -> Callable[[], Any]:
        return lambda: client.get(f"/t/api/runs/0/{path}").raise_for_status()

    groups = [draw.randrange(index.groups.height) for _ in range(count)]
    rollouts = [index.episodes.row(draw.randrange(index.episodes.height), named=True) for _ in range(count)]
    get("groups/0/estimates")()  # the estimators' imports
    return {
        "steps": index.rows,
        "groups": index.groups.height,
        **{name: statistics.median(one[name] for one in opened) for name in ("open_s", "open_cpu_s", "memory_mb")},
        "group": timed([get(f"groups/{group}") for group in groups]),
        "transcript": timed([get(f"steps/{one['row']}?steps={min(50, one['length'])}") for one in rollouts]),
        "estimate": timed([get(f"groups/{group}/estimates?estimator=hgpo&set=history_length=4") for group in groups]),
        "tasks": timed([get(f"tasks?sort=success&outcome=partly&offset={50 * place}") for place in range(10)]),
        "rollouts": timed([get(f"trajectories?outcome=lost&sort=length&offset={50 * place}") for place in range(10)]),
        "compare": timed([get("against/0")]),
        "search": timed([get("search?text=a desk lamp 1")]),
        "levels": timed([get("levels")]),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--steps", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--requests", type=int, default=50, help="random groups and steps of each run")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rows = collected(folder / "rollout")
        runs = (repeated(rows, folder / f"run-{steps}", steps) for steps in given.steps)
        figures = [measured(run, given.requests) for run in runs]
    columns = {"steps": "{steps:,}", "open s": "{open_s:.2f}", "CPU s": "{open_cpu_s:.2f}", "MB": "{memory_mb:.0f}"}
    cell = "{{{0}[median_ms]:.0f}} / {{{0}[cpu_median_ms]:.0f}} ({{{0}[cpu_p95_ms]:.0f}})"
    columns |= {name: cell.format(name) for name in REQUESTS}
    print_table(figures, columns, "Milliseconds of a request: median duration / median CPU time (its 95th percentile)")
    print(store("viewer", {"runs": figures}, keep=given.keep))


if __name__ == "__main__":
    main()
