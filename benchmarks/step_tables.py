"""Measure writing and reading of step tables, compared with JSON lines, pickle and Minari, and as part of a rollout.

    python benchmarks/step_tables.py                     # 1,000 episodes of the bundled ALFWorld games
    python benchmarks/step_tables.py --episodes 200

formats   the same rows, from and to Python dicts or frames: rows per second of CPU time and bytes per row, with and
          without texts and tokens (token ids are hashes of words, so that they repeat like words)
writing   the writer's CPU time as a fraction of a rollout: with a random policy, with a language model of a million
          parameters (random weights, 8 tokens per response, short prompts), and calculated for slower policies or
          engines

Minari stores only states, instruction, actions and rewards; it is compared with a step table of these columns.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import re
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import polars as pl
from record import RESULTS, add_keep, store
from rich.console import Console
from rich.table import Table

from hgpo_datasets import StepWriter, scan_steps, schema
from hgpo_train.models.tiny import save_tiny
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.rollout.env_handle import open_env
from hgpo_train.rollout.run import RolloutSpec, collect_groups
from hgpo_train.training.config import load_config, template_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hgpo_datasets.manifest import Shard
    from hgpo_datasets.rows import Rows

CONSOLE = Console()
READS = 5
"""Reads of each format; the fastest counts, because the first one also starts threads and imports libraries."""
FEW = ["task_id", "history_hash_2", "reward", "action_valid"]
DERIVED = {column.name for column in schema.columns() if column.derived}
TEXTS = {"prompt", "response", "state", "next_state", "task", "admissible_actions", "action"}
TOKENS = {"prompt_token_ids", "response_token_ids", "response_logprobs"}
MINARI = ["task_id", "trajectory", "step", "task", "state", "next_state", "action", "reward", "terminated", "truncated"]


def measured(call: Callable[[], Any], times: int = 1) -> tuple[Any, float]:
    """Return a call's result and its CPU seconds (all threads), the minimum of several calls."""
    least = float("inf")
    for _ in range(times):
        began = time.process_time()
        value = call()
        least = min(least, time.process_time() - began)
    return value, least


class TimedWriter(StepWriter):
    """A writer that sums its CPU seconds."""

    cpu_s = 0.0

    def add_group(self, steps: Rows) -> None:
        rows = list(steps)  # part of the collector, not of the writer
        _, seconds = measured(lambda: super(TimedWriter, self).add_group(rows))
        self.cpu_s += seconds

    def commit(self) -> Shard | None:
        began = time.process_time()
        shard = super().commit()
        self.cpu_s += time.process_time() - began
        return shard


def rollout(folder: Path, episodes: int, policy: str, **options: Any) -> dict[str, float]:
    """Collect groups of 8; return steps, CPU seconds, and CPU seconds of the writer."""
    environment = {} if not options else {"prompt_template": template_path(load_config("tiny-alfworld").environment)}
    handle = open_env("HGPO/ALFWorld-v0", action_format="response", **environment)
    acting: Any = make_policy(policy, PolicyContext("ALFWorld", "response", options))
    with TimedWriter(folder, config={"policy": policy.partition(":")[0]}) as writer:
        what = RolloutSpec(tasks=episodes // 8, group_size=8, seed=1)
        tally, seconds = measured(lambda: collect_groups(handle, acting, writer, what))
    return {"episodes": tally.trajectories, "steps": tally.steps, "cpu_s": seconds, "writer_cpu_s": writer.cpu_s}


def with_tokens(steps: pl.DataFrame) -> pl.DataFrame:
    draw = random.Random(0)

    def ids(text: str) -> list[int]:
        return [zlib.crc32(word.encode()) % 150_000 for word in re.findall(r"\w+|[^\w\s]", text)]

    response = [ids(text) for text in steps["response"]]
    return steps.with_columns(
        prompt_token_ids=pl.Series([ids(text) for text in steps["prompt"]], dtype=schema.TOKENS),
        response_token_ids=pl.Series(response, dtype=schema.TOKENS),
        response_logprobs=pl.Series(
            [[-draw.expovariate(4) for _ in one] for one in response], dtype=pl.List(pl.Float32)
        ),
    )


def step_table(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    def write() -> None:
        with StepWriter(folder / "run") as writer:
            writer.add_group(rows)

    _, write_s = measured(write)
    read, read_s = measured(lambda: scan_steps(folder / "run").collect(), READS)
    few = [name for name in FEW if name in read.columns]
    _, few_s = measured(lambda: scan_steps(folder / "run").select(few).collect(), READS)
    assert len(read) == len(rows)
    size = sum(file.stat().st_size for file in (folder / "run").rglob("*") if file.is_file())
    return figures(len(rows), write_s, read_s, few_s, size)


def json_lines(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    path = folder / "rows.jsonl"

    def write() -> None:
        with path.open("wb") as file:
            file.writelines(orjson.dumps(row) + b"\n" for row in rows)

    def read() -> list[Any]:
        with path.open("rb") as file:
            return [orjson.loads(line) for line in file]

    _, write_s = measured(write)
    back, read_s = measured(read, READS)
    assert len(back) == len(rows)
    return figures(len(rows), write_s, read_s, read_s, path.stat().st_size)


def pickled(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    path = folder / "rows.pickle"

    def write() -> None:
        with path.open("wb") as file:
            pickle.dump(rows, file, pickle.HIGHEST_PROTOCOL)

    def read() -> list[Any]:
        with path.open("rb") as file:
            loaded: list[Any] = pickle.load(file)  # noqa: S301 (written by this script)
            return loaded

    _, write_s = measured(write)
    back, read_s = measured(read, READS)
    assert len(back) == len(rows)
    return figures(len(rows), write_s, read_s, read_s, path.stat().st_size)


def minari_dataset(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    os.environ["MINARI_DATASETS_PATH"] = str(folder / "minari")
    import minari

    from hgpo_datasets.interchange.minari import to_minari

    with StepWriter(folder / "source") as writer:
        writer.add_group(rows)
    _, write_s = measured(lambda: to_minari(folder / "source", "hgpo/benchmark-v0"))
    loaded = minari.load_dataset("hgpo/benchmark-v0")
    back, read_s = measured(lambda: sum(len(episode.rewards) for episode in loaded.iterate_episodes()), READS)
    assert back == len(rows)
    size = sum(file.stat().st_size for file in (folder / "minari").rglob("*") if file.is_file())
    return figures(len(rows), write_s, read_s, read_s, size)


def figures(rows: int, write_s: float, read_s: float, few_s: float, size: int) -> dict[str, Any]:
    return {
        "rows": rows,
        "written_rows_per_s": round(rows / write_s),
        "read_rows_per_s": round(rows / max(read_s, 1e-9)),
        "read_4_columns_rows_per_s": round(rows / max(few_s, 1e-9)),
        "bytes_per_row": round(size / rows, 1),
    }


def formats(steps: pl.DataFrame, minari_rows: int) -> dict[str, Any]:
    given = steps.drop("run", *(DERIVED & set(steps.columns)))
    shapes: dict[str, Iterable[str]] = {
        "numbers": [name for name in given.columns if name not in TEXTS | TOKENS] + ["state"],
        "numbers, texts": [name for name in given.columns if name not in TOKENS],
        "numbers, texts, tokens": given.columns,
    }
    found: dict[str, Any] = {}
    for shape, columns in shapes.items():
        rows = given.select(columns).to_dicts()
        for name, call in (("step table", step_table), ("JSON lines", json_lines), ("pickle", pickled)):
            with tempfile.TemporaryDirectory() as folder:
                found[f"{shape}: {name}"] = call(Path(folder), rows)
    rows = given.select(MINARI).head(minari_rows).to_dicts()
    rows = rows[: max(i for i, row in enumerate(rows) if row["step"] == 0)]  # only complete trajectories
    for name, call in (("step table", step_table), ("Minari", minari_dataset)):
        with tempfile.TemporaryDirectory() as folder:
            found[f"what Minari holds: {name}"] = call(Path(folder), rows)
    return found


def writing(folder: Path, episodes: int) -> dict[str, Any]:
    rollout(folder / "warm", 16, "random")
    found: dict[str, Any] = rollout(folder / "random", episodes, "random")
    words = scan_steps(folder / "random").select("prompt").collect()["prompt"].to_list()
    model = save_tiny(folder / "model", words[:2_000])
    options = {"device": "cpu", "max_response_tokens": 8, "max_batch_tokens": 4_096}
    found["language model"] = rollout(folder / "model rollout", episodes, f"transformers:{model}", **options)
    others_s = found["cpu_s"] - found["writer_cpu_s"]
    found["writer_us_per_step"] = round(found["writer_cpu_s"] / found["steps"] * 1e6, 1)
    found["rest_us_per_step"] = round(others_s / found["steps"] * 1e6, 1)
    longer = {"random policy": 0.0, "1 ms more a step": 1e-3, "10 ms more a step": 1e-2}
    if (alfworld := RESULTS / "alfworld.json").exists():
        longer["the original ALFWorld, as measured by alfworld.py"] = orjson.loads(alfworld.read_bytes())["figures"][
            "against"
        ]["original_step_s"]
    found["share"] = {
        name: round(found["writer_cpu_s"] / (found["cpu_s"] + seconds * found["steps"]), 5)
        for name, seconds in longer.items()
    }
    modelled = found["language model"]
    found["share"]["a language model of 1.1M parameters"] = round(modelled["writer_cpu_s"] / modelled["cpu_s"], 5)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1_000)
    parser.add_argument("--minari-rows", type=int, default=5_000, help="Minari is slow: how many rows it gets")
    add_keep(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found: dict[str, Any] = {"writing": writing(folder, arguments.episodes)}
        rollout(folder / "mixed", arguments.episodes, "mixture:expert=0.5,random=0.5")
        steps = with_tokens(scan_steps(folder / "mixed").collect())
    found["formats"] = formats(steps, arguments.minari_rows)
    table = Table("rows", "written/s", "read/s", "4 columns/s", "bytes a row", title="Formats, CPU time")
    for name, row in found["formats"].items():
        table.add_row(name, *(f"{value:,}" for value in list(row.values())[1:]))
    CONSOLE.print(table)
    for name, value in found["writing"].items():
        CONSOLE.print(f"{name}: {value}")
    CONSOLE.print(store("step_tables", found, keep=arguments.keep))


if __name__ == "__main__":
    main()
