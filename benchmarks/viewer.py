"""Measure how fast `hgpo view` opens runs and answers, for runs of 10,000 to 1,000,000 steps.

    python -m benchmarks viewer
    python -m benchmarks viewer --steps 10000 100000

The run is collected from the bundled ALFWorld games with a mixture of the expert and a random policy, with prompts and
responses, and repeated under other task names until it has as many steps. Each time is the CPU time of a request
through the whole application, without the network: the median, and the 95th percentile in parentheses. `open` includes
the index and the table of all rollouts, and starts with the import of the viewer in a new process; groups and rollouts
are drawn at random from the whole run.
"""

from __future__ import annotations

import base64
import random
import statistics
import subprocess
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from benchmarks.runner import ROOT, Row, quantity, seconds
from hgpo_datasets import StepWriter, schema
from hgpo_train.rollout import collect

if TYPE_CHECKING:
    from collections.abc import Iterator

GIVEN = [
    column.name
    for column in schema.columns()
    if not column.derived and column.name != "run"
]
RENAMED = ("task_id", "trajectory", "prompt", "response")
"""Columns that differ in each repetition, so that files do not contain the same long texts many times."""
PROBE = r"""
import sys, time
from starlette.testclient import TestClient
from hgpo_train.view.app import make_app
from hgpo_train.view.sources import open_sources
import warnings
warnings.simplefilter("ignore")
app = make_app(open_sources([sys.argv[1]]), "t")
client = TestClient(app, base_url="http://127.0.0.1")
client.get("/t/api/runs/0/rollouts").raise_for_status()
opened = time.process_time()
from benchmarks.runner import memory_mb
print(opened, memory_mb("VmHWM"))
"""


def repeated(rows: pl.DataFrame, folder: Path, steps: int) -> Path:
    """Write a run of at least as many steps: the groups again and again, each time under other names."""
    groups = rows.partition_by("task_id", maintain_order=True)
    with StepWriter(folder) as writer:
        for turn in range(-(-steps // rows.height)):
            named = (pl.lit(f"{turn:04d}/") + pl.col(RENAMED)).name.keep()
            for group in groups:
                writer.add_group(group.with_columns(named))
    return folder


def opened(run: Path) -> tuple[float, float]:
    """Return the CPU seconds of opening a run in a new process, and its memory in MB: medians of three."""
    found = []
    for _ in range(3):
        command = [sys.executable, "-c", PROBE, str(run)]
        printed = subprocess.run(
            command, capture_output=True, check=True, cwd=ROOT
        ).stdout
        found.append([float(word) for word in printed.split()])
    cpu, memory = map(statistics.median, zip(*found, strict=True))
    return cpu, memory


def measured(run: Path, count: int) -> Iterator[Row]:
    """Measure opening a run, and requests."""
    from starlette.testclient import TestClient

    from hgpo_train.view.app import make_app
    from hgpo_train.view.sources import open_sources

    warnings.simplefilter("ignore")
    sources = open_sources([str(run)])
    client = TestClient(make_app(sources, "t"), base_url="http://127.0.0.1")
    index = sources[0].index()
    draw = random.Random(0)
    groups = [draw.randrange(index.groups.height) for _ in range(count)]
    drawn = [draw.randrange(index.episodes.height) for _ in range(count)]
    rollouts = index.episodes[drawn].to_dicts()
    every_other = b"\x55" * (index.episodes.height // 8)
    requests = {
        "rollouts": ["rollouts"],
        "advantages": ["estimates"],
        "results": [f"results?rows={base64.urlsafe_b64encode(every_other).decode()}"],
        "group": [f"groups/{group}" for group in groups],
        "transcript": [
            f"steps/{one['row']}/{min(50, one['length'])}" for one in rollouts
        ],
        "HGPO": [
            f"groups/{group}/estimates?estimator=hgpo&set=history_length=4"
            for group in groups
        ],
        "compare": ["against/0"],
        "search": ["search?text=a desk lamp 1"],
        "contexts": ["levels"],
    }

    def get(path: str) -> None:
        client.get(f"/t/api/runs/0/{path}").raise_for_status()

    case = f"{index.rows:,}"
    cpu, memory = opened(run)
    yield Row("open", cpu, "s", case=case)
    yield Row("memory", memory, "MB", case=case)
    get("groups/0/estimates")  # the estimators' imports
    for what, paths in requests.items():
        times = sorted(seconds(partial(get, path)) for path in paths)
        rare = times[int(0.95 * (len(times) - 1))]
        note = quantity(rare, "s") if len(times) > 1 else ""
        yield Row(what, statistics.median(times), "s", note=note, case=case)


def run(
    steps: tuple[int, ...] = (10_000, 100_000, 1_000_000), requests: int = 50
) -> Iterator[Row]:
    """Measure runs of these numbers of steps, by `requests` random groups and rollouts."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        played = collect(
            "HGPO/ALFWorld-v0",
            "mixture:expert=0.6,random=0.4",
            folder / "rollout",
            tasks=64,
            group_size=8,
            seed=1,
            progress=False,
            action_format="response",
            max_steps=30,
        )
        rows = played.steps.select(GIVEN).collect()
        for number in steps:
            yield from measured(
                repeated(rows, folder / f"run-{number}", number), requests
            )
