"""Measure advantages beside plain Polars windows of the same equations, and the official implementations.

    python benchmarks/advantages.py                                   4.3k, 63k and 527k rows
    python benchmarks/advantages.py --large                           also 12M rows, in chunks, with peak memory
    python benchmarks/advantages.py --huge                            also 100M rows: these rows ten times, as ten runs
    python benchmarks/advantages.py --official DIR --official-g2po DIR  checkouts of verl-agent (gigpo/, recipe/hgpo/)
                                                                      and of G2PO (g2po/); needs torch

Rollouts are simulated walks of up to 50 steps along each task's path with deviations, similar to ALFWorld's. Times are
CPU seconds of this process on one thread, with reading of the file, the minimum of several runs in turn with their
reference. Plain windows check nothing: no order, duplicates, NaN, aborted rollouts, or penalties. The import of
`hgpo_train.advantages` is compared with that of its libraries. Results: benchmarks/results/advantages.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("POLARS_MAX_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import polars as pl
from record import add_keep, store
from rich.console import Console
from rich.table import Table

from hgpo_datasets import manifest, shards
from hgpo_envs.hashing import chain_columns, link
from hgpo_train.advantages import compute, get

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = {"16 × 8": (16, 8), "128 × 16": (128, 16), "1024 × 16": (1024, 16)}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "HGPO K=2": ("hgpo", {"history_length": 2}),
    "HGPO K=4": ("hgpo", {"history_length": 4}),
    "GiGPO": ("gigpo", {}),
    "G2PO": ("g2po", {}),
    "GraphGPO": ("graphgpo", {}),
    "GRPO": ("grpo", {}),
    "RLOO": ("rloo", {}),
    "REINFORCE++": ("reinforce_pp", {}),
}
OF_STEP_RETURNS = ("HGPO K=2", "HGPO K=4", "GiGPO")
SHARD_TASKS = 256


def simulate(tasks: int, rollouts: int, seed: int) -> pl.DataFrame:
    """Simulate rollouts of up to 50 steps, in which a policy follows its task's path or deviates from it."""
    rng = np.random.default_rng(seed)
    walkers = tasks * rollouts
    way = np.repeat(rng.integers(8, 24, tasks), rollouts)
    skill = np.repeat(rng.uniform(0.25, 0.75, tasks), rollouts)
    place, alive = np.zeros(walkers, np.int64), np.ones(walkers, np.bool_)
    states = np.full((walkers, 50), -1, np.int64)
    for step in range(50):
        aside = rng.random(walkers) > skill
        detour = place * 8 + 1 + rng.integers(0, 7, walkers)
        novel = rng.random(walkers) < 0.04
        shown = np.where(novel, 1_000_000 + rng.integers(0, 1 << 40, walkers), np.where(aside, detour, place * 8))
        states[alive, step] = shown[alive]
        place += ~aside
        alive &= place < way
    there = states >= 0
    lengths = there.sum(axis=1)
    trajectory = np.repeat(np.arange(walkers), lengths)
    step = np.nonzero(there)[1]
    last = np.append(trajectory[1:] != trajectory[:-1], True)
    won = last & ((place >= way)[trajectory])
    task = trajectory // rollouts
    state_hash = link(task + 1_000_003 * seed, states[there])
    values, defined = chain_columns(state_hash, step == 0, 8)
    frame = pl.DataFrame(
        {
            "run": pl.Series(np.zeros(len(step), np.int8)).replace_strict({0: "simulated"}),
            "iteration": np.zeros(len(step), np.int32),
            "env_id": pl.Series(np.zeros(len(step), np.int8)).replace_strict({0: "HGPO/ALFWorld-v0"}),
            "task_number": task + 100_000 * seed,
            "group": np.zeros(len(step), np.int32),
            "trajectory": trajectory,
            "step": step.astype(np.int32),
            "action_valid": rng.random(len(step)) > 0.05,
            "won": won,
            "aborted": np.zeros(len(step), np.bool_),
            "reward": won.astype(np.float64),
            "state_hash": state_hash,
            "next_state_hash": np.where(last, 0, np.roll(state_hash, -1)),
        }
    )
    return frame.with_columns(
        pl.format("train/pick_and_place_simple-{}/trial_T2026", "task_number").alias("task_id"),
        pl.format("00000-{}-{}", "task_number", pl.col("trajectory").cast(pl.String).str.zfill(6)).alias("trajectory"),
        *(pl.when(pl.Series(defined[k])).then(pl.Series(values[k])).alias(f"history_hash_{k}") for k in range(9)),
    ).drop("task_number")


def write(folder: Path, tasks: int, rollouts: int) -> tuple[str, int]:
    """Write simulated shards as step table files; return their glob pattern and number of rows."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = 0
    for number, start in enumerate(range(0, tasks, SHARD_TASKS)):
        frame = simulate(min(SHARD_TASKS, tasks - start), rollouts, number)
        (folder / manifest.file_name(number)).write_bytes(shards.encode(frame, {}))
        rows += frame.height
    return str(folder / "*.parquet"), rows


def cpu(*works: Callable[[], object], times: int = 7) -> list[float]:
    """Return the minimum CPU seconds of each work, in turn, after a warm-up."""
    least = [float("inf")] * len(works)
    for run in range(times + 1):
        for number, work in enumerate(works):
            began = time.process_time()
            work()
            if run:
                least[number] = min(least[number], time.process_time() - began)
    return least


# ------------------------------------------------------------------------------------------------- plain windows


def with_keys(steps: pl.LazyFrame) -> pl.LazyFrame:
    """Add the task, the trajectory, the episode's score and discounted returns; rows are in order."""
    task, gamma = pl.struct("run", "iteration", "env_id", "task_id", "group").rle_id(), 0.95
    steps = steps.with_columns(task=task, walk=pl.col("trajectory").rle_id(), reward=10.0 * pl.col("reward"))
    discount = pl.lit(gamma).pow(pl.col("step").cast(pl.Float64))
    returns = (discount * pl.col("reward")).cum_sum(reverse=True).over("walk") / discount
    return steps.with_columns(R=returns, S=pl.col("reward").sum().over("walk"))


def normalised(x: pl.Expr, *group: str, ddof: int = 1) -> pl.Expr:
    """Return (x - mean) / (std + ε) within a group, and 0 in singletons and where all are equal."""
    mean, std = x.mean().over(group), x.std(ddof).over(group)
    return pl.when((pl.len().over(group) > 1) & (std > 1e-9 * mean.abs())).then((x - mean) / (std + 1e-6)).otherwise(0)


def plain_hgpo(steps: pl.LazyFrame, depth: int = 2) -> pl.LazyFrame:
    """HGPO."""
    known = {k: pl.col(f"history_hash_{k}").is_not_null() for k in range(depth + 1)}
    levels = {k: normalised(pl.col("R"), "task", f"history_hash_{k}", ddof=0) for k in known}
    steps = steps.with_columns(pl.when(known[k]).then(level).otherwise(0).alias(f"A{k}") for k, level in levels.items())
    total = pl.sum_horizontal((k + 2.0) * pl.col(f"A{k}") for k in levels)
    weight = pl.sum_horizontal((k + 2.0) * (pl.col(f"A{k}") != 0) for k in levels)
    return steps.with_columns(advantage=pl.when(weight > 0).then(total / (weight + 1e-6)).otherwise(0))


def plain_rloo(steps: pl.LazyFrame) -> pl.LazyFrame:
    """RLOO."""
    n, score = pl.len().over("task"), pl.col("S")
    return steps.with_columns(advantage=(score - score.mean().over("task")) * n / (n - 1))


def plain_g2po(steps: pl.LazyFrame) -> pl.LazyFrame:
    """G2PO."""
    left = (pl.len().over("walk") - pl.col("step")).cast(pl.Float64)
    steps = steps.with_columns(visit=pl.lit(0.95).pow(left) * pl.col("S"))
    steps = steps.with_columns(V=pl.col("visit").mean().over("task", "history_hash_0"))
    end = pl.when(pl.col("S") == 10).then(10.0).otherwise(0.0)
    steps = steps.with_columns(after=pl.col("V").shift(-1).over("walk").fill_null(end))
    node, edge = (
        normalised(pl.col("after"), "task", "history_hash_0"),
        normalised(pl.col("after") - pl.col("V"), "task"),
    )
    return steps.with_columns(advantage=normalised(pl.col("S"), "task") + node + edge)


PLAIN: dict[str, Callable[[pl.LazyFrame], pl.LazyFrame]] = {
    "HGPO K=2": plain_hgpo,
    "HGPO K=4": lambda steps: plain_hgpo(steps, 4),
    "GiGPO": lambda steps: steps.with_columns(
        advantage=normalised(pl.col("S"), "task") + normalised(pl.col("R"), "task", "history_hash_0")
    ),
    "G2PO": plain_g2po,
    "GRPO": lambda steps: steps.with_columns(advantage=normalised(pl.col("S"), "task")),
    "RLOO": plain_rloo,
}


def compare(pattern: str, rows: int) -> dict[str, Any]:
    """Return CPU seconds of decoding, of each estimator with both engines, and of plain windows."""
    steps = pl.scan_parquet(pattern)
    schema = steps.collect_schema()
    figures: dict[str, Any] = {"rows": rows}
    for label, (name, parameters) in RUNS.items():
        columns = get(name).with_parameters(**parameters).columns(schema)

        def estimate(
            engine: pl._typing.EngineType, name: str = name, parameters: dict[str, Any] = parameters
        ) -> pl.DataFrame:
            return compute(steps, name, **parameters).select("advantage").collect(engine=engine)

        works: dict[str, Callable[[], object]] = {
            "decode_s": lambda columns=columns: steps.select(columns).collect(),
            "with_advantages_s": lambda estimate=estimate: estimate("streaming"),
            "in_memory_s": lambda estimate=estimate: estimate("in-memory"),
        }
        if label in PLAIN:
            plain = PLAIN[label]
            works["plain_s"] = lambda plain=plain: plain(with_keys(steps)).select("advantage").collect()
        figures[label] = dict(zip(works, cpu(*works.values()), strict=True))
    return figures


def imports(times: int = 5) -> dict[str, float]:
    """Return the CPU seconds of new processes that import the package, or its libraries."""
    commands = {"package_s": "import hgpo_train.advantages", "libraries_s": "import gymnasium, polars"}
    least = dict.fromkeys(commands, float("inf"))
    for _ in range(times):
        for name, command in commands.items():
            code = f"import time; {command}; print(time.process_time())"
            done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            least[name] = min(least[name], float(done.stdout))
    return least


MEMORY = """
import json, sys, time
from pathlib import Path
import polars as pl
from hgpo_train.advantages import get
from hgpo_train.advantages.advantage_tables import write_advantages

def peak_mb():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024

start, began = peak_mb(), time.process_time()
steps = pl.concat([pl.scan_parquet(sys.argv[1]).with_columns(run=pl.lit(f"run {n}")) for n in range(int(sys.argv[3]))])
rows = write_advantages(steps, [get("hgpo")], Path(sys.argv[2]))
taken = time.process_time() - began
print(json.dumps({"rows": rows, "cpu_s": taken, "peak_mb": peak_mb(), "start_mb": start}))
"""


def in_chunks(pattern: str, folder: Path, copies: int = 1) -> dict[str, Any]:
    """Run `hgpo advantages` on several copies of a run in a new process; return CPU seconds and peak memory."""
    command = [sys.executable, "-c", MEMORY, pattern, str(folder / "advantages.parquet"), str(copies)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    return dict(json.loads(done.stdout))


def official(frame: pl.DataFrame, verl_agent: Path | None, g2po: Path | None) -> dict[str, float]:
    """Return CPU seconds of the official functions for the same rows.

    Their step returns, which require a pass over all rows for each row, are a separate entry, and are passed to the
    official HGPO and GiGPO. Ours are part of each estimator's time.
    """
    import torch

    torch.set_num_threads(1)
    stub = types.ModuleType("verl")
    stub.DataProto = object  # type: ignore[attr-defined]
    sys.modules.setdefault("verl", stub)
    names = {name: frame[name].to_numpy().astype(object) for name in ("task_id", "trajectory")}
    states = frame["state_hash"].cast(pl.String).to_numpy().astype(object)
    detailed = compute(frame.lazy(), "gigpo", mode="mean_norm").collect()
    scores = torch.tensor(frame.select(pl.col("reward").sum().over("trajectory") * 10).to_series().to_numpy().copy())
    common = {"index": names["task_id"], "traj_index": names["trajectory"], "response_mask": torch.ones(len(states), 1)}
    rewards = scores.float()[:, None]
    returns = torch.tensor(detailed["advantage"].to_numpy().copy()).float()
    taken: dict[str, float] = {}
    if verl_agent is not None:
        core_gigpo = load(verl_agent / "gigpo/core_gigpo.py")
        batch = types.SimpleNamespace(
            batch={"input_ids": torch.ones(1)},
            non_tensor_batch={
                "rewards": frame["reward"].to_numpy() * 10,
                "traj_uid": names["trajectory"],
                "active_masks": np.ones(frame.height),
            },
        )
        taken["step returns"] = once(lambda: core_gigpo.compute_step_discounted_returns(batch, 0.95))
    if verl_agent is not None:
        core = load(verl_agent / "recipe/hgpo/core_hgpo.py")
        for depth in (2, 4):
            taken[f"HGPO K={depth}"] = once(
                lambda depth=depth: core.compute_hgpo_outcome_advantage(
                    rewards.clone(), returns, anchor_obs=states, history_length=depth, **common
                )
            )
        core_gigpo = load(verl_agent / "gigpo/core_gigpo.py")
        taken["GiGPO"] = once(
            lambda: core_gigpo.compute_gigpo_outcome_advantage(rewards.clone(), returns, anchor_obs=states, **common)
        )
    if g2po is not None:
        taken["G2PO"] = once(lambda: official_g2po(load(g2po / "g2po/core_g2po.py"), frame, rewards, states, common))
    return taken


def official_g2po(core: Any, frame: pl.DataFrame, rewards: Any, states: Any, common: dict[str, Any]) -> None:  # noqa: ANN401
    """Compute node values and advantages like the official trainer."""
    batch = types.SimpleNamespace(
        batch={"responses": common["response_mask"]},
        non_tensor_batch={
            "episode_rewards": rewards[:, 0].numpy(),
            "anchor_obs": states,
            "traj_uid": common["traj_index"],
            "uid": common["index"],
        },
    )
    values, nodes, following = core.compute_group_aggregation_values(batch)
    core.compute_g2po_outcome_advantage(
        rewards.clone(),
        values,
        group_idx=nodes,
        next_group_idx=following,
        is_action_valid=frame["action_valid"].to_numpy().astype(int),
        mode="mean_std_norm",
        **common,
    )


def load(path: Path) -> Any:  # noqa: ANN401
    """Import a module from its file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def once(work: Callable[[], object]) -> float:
    """Return CPU seconds of one call without its output."""
    import contextlib
    import io

    with contextlib.redirect_stdout(io.StringIO()):
        began = time.process_time()
        work()
        return time.process_time() - began


def show(console: Console, figures: dict[str, Any]) -> None:
    """Print tables of all measurements."""
    titles = ("decode ms", "with advantages ms", "in memory ms", "plain windows ms", "of plain windows", "ns/row")
    table = Table("rows", "estimator", *titles, "official ms", "with their step returns ms", "times", title="CPU")
    for size, sizes in figures["sizes"].items():
        theirs = figures["official"].get(size, {})
        for label in RUNS:
            ours, official = sizes[label], theirs.get(label)
            seconds, plain = ours["with_advantages_s"], ours.get("plain_s")
            cells = [f"{ours[name] * 1e3:.1f}" for name in ("decode_s", "with_advantages_s", "in_memory_s")]
            cells += [f"{plain * 1e3:.1f}", f"{seconds / plain:.2f}"] if plain else ["", ""]
            cells.append(f"{seconds / sizes['rows'] * 1e9:.0f}")
            if official:
                whole = official + (theirs.get("step returns", 0.0) if label in OF_STEP_RETURNS else 0.0)
                cells += [f"{official * 1e3:,.0f}", f"{whole * 1e3:,.0f}", f"{whole / seconds:,.0f}"]
            table.add_row(f"{sizes['rows']:,}", label, *cells)
    console.print(table)
    package, libraries = figures["imports"].values()
    console.print(f"import hgpo_train.advantages: {package:.2f} s, {package / libraries:.2f} times its libraries")
    chunks = Table("rows", "CPU s", "peak MB", "of it at start", title="hgpo advantages, in chunks")
    for each in figures["chunks"]:
        chunks.add_row(f"{each['rows']:,}", f"{each['cpu_s']:.1f}", f"{each['peak_mb']:.0f}", f"{each['start_mb']:.0f}")
    console.print(chunks)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--official", type=Path)
    parser.add_argument("--official-g2po", type=Path)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--huge", action="store_true")
    add_keep(parser)
    given = parser.parse_args()
    console = Console()
    figures: dict[str, Any] = {"sizes": {}, "official": {}, "chunks": [], "imports": imports()}
    with tempfile.TemporaryDirectory() as name, console.status("measuring") as status:
        folder = Path(name)
        for size, (tasks, rollouts) in SIZES.items():
            status.update(f"{size} rollouts")
            pattern, rows = write(folder / size.replace(" ", ""), tasks, rollouts)
            figures["sizes"][size] = compare(pattern, rows)
            if (given.official or given.official_g2po) and rows < 100_000:
                status.update(f"{size} rollouts, official")
                figures["official"][size] = official(pl.read_parquet(pattern), given.official, given.official_g2po)
        status.update("in chunks")
        figures["chunks"].append(in_chunks(pattern, folder))
        if given.large or given.huge:
            status.update("20,480 × 16 rollouts, in chunks")
            pattern, _ = write(folder / "chunks", 20 * 1024, 16)
            figures["chunks"].append(in_chunks(pattern, folder))
        if given.huge:
            status.update("ten times as many")
            figures["chunks"].append(in_chunks(pattern, folder, copies=10))
    show(console, figures)
    console.print(store("advantages", figures, keep=given.keep))


if __name__ == "__main__":
    main()
