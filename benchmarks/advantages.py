"""Measure advantages, compared with decoding of their Parquet columns and with the official implementations.

    python benchmarks/advantages.py                                   4.7k, 75k and 603k rows
    python benchmarks/advantages.py --large                           also 12M rows, in chunks, with peak memory
    python benchmarks/advantages.py --huge                            also 100M rows: these rows ten times, as ten runs
    python benchmarks/advantages.py --before DIR                      compare with another checkout, alternately
    python benchmarks/advantages.py --official DIR --official-g2po DIR  checkouts of verl-agent (gigpo/, recipe/hgpo/)
                                                                      and of G2PO (g2po/); needs torch

Rollouts are simulated walks of up to 50 steps along each task's path with deviations, similar to ALFWorld's. Times are
CPU seconds of this process on one thread, the minimum of several runs. Results: benchmarks/results/advantages.json.
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
from hgpo_train.advantages import EstimatorSpec, compute, get

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
    return str(folder / shards.PATTERN), rows


def cpu(work: Callable[[], object], times: int = 5) -> float:
    """Return the minimum CPU seconds of several runs after a warm-up."""
    work()
    least = float("inf")
    for _ in range(times):
        began = time.process_time()
        work()
        least = min(least, time.process_time() - began)
    return least


def compare(pattern: str, rows: int) -> dict[str, Any]:
    """Return CPU seconds of decoding and of computing for each estimator and engine."""
    steps = pl.scan_parquet(pattern)
    schema = steps.collect_schema()
    figures: dict[str, Any] = {"rows": rows}
    for label, (name, parameters) in RUNS.items():
        estimator = get(name)
        columns = EstimatorSpec(estimator, estimator.parameters.of(parameters)).columns(schema)
        decode = cpu(lambda columns=columns: steps.select(columns).collect())
        plan = compute(steps, name, **parameters).select("advantage")
        whole = cpu(lambda plan=plan: plan.collect(engine="streaming"))
        figures[label] = {
            "decode_s": decode,
            "with_advantages_s": whole,
            "in_memory_s": cpu(lambda plan=plan: plan.collect(engine="in-memory"), times=2),
            "ratio": whole / decode,
            "ns_per_row": whole / rows * 1e9,
        }
    return figures


BEFORE = """
import json, sys, time
import polars as pl
from hgpo_train.advantages import compute

def cpu(work, times):
    work()
    least = float("inf")
    for _ in range(times):
        began = time.process_time()
        work()
        least = min(least, time.process_time() - began)
    return least

steps = pl.scan_parquet(sys.argv[1])
runs = json.loads(sys.argv[2])
print(json.dumps({
    label: cpu(lambda: compute(steps, name, reward_scale=10.0, **p).select("advantage").collect(), int(sys.argv[3]))
    for label, (name, p) in runs.items()
}))
"""


def beside(pattern: str, before: Path, times: int = 3) -> dict[str, dict[str, float]]:
    """Return CPU seconds of another checkout and of this one, in alternating processes."""
    least: dict[str, dict[str, float]] = {}
    here = Path(__file__).parent.parent
    for _ in range(times):
        for side, checkout in (("before", before), ("now", here)):
            environment = os.environ | {"PYTHONPATH": f"{checkout}:{checkout}/datasets"}
            command = [sys.executable, "-c", BEFORE, pattern, json.dumps(RUNS), "3"]
            done = subprocess.run(
                command, capture_output=True, text=True, check=True, env=environment, cwd=tempfile.gettempdir()
            )
            for label, seconds in json.loads(done.stdout).items():
                known = least.setdefault(label, {})
                known[side] = min(known.get(side, seconds), seconds)
    return least


def stages(pattern: str) -> dict[str, float]:
    """Return cumulative CPU seconds of the stages of HGPO with K = 2."""
    from hgpo_train.advantages.input_columns import prepare
    from hgpo_train.advantages.windows import mean, normalise, within

    scan, hgpo = pl.scan_parquet(pattern), get("hgpo")
    spec = EstimatorSpec(hgpo, hgpo.parameters())
    prepared = prepare(scan, spec.parameters, hgpo.reads(spec.parameters))
    state = within("history_hash_0")
    plans = {
        "decode": scan.select(spec.columns(scan.collect_schema())),
        "keys": prepared.select("trajectory_key"),
        "keys, returns": prepared.select("task_key", "return"),
        "keys, returns, means of one level": mean(prepared, "m", "return", state).select("m"),
        "keys, returns, one level": normalise(prepared, "a", "return", state).select("a"),
        "the whole": compute(scan, "hgpo").select("advantage"),
    }
    return {name: cpu(lambda plan=plan: plan.collect()) for name, plan in plans.items()}


MEMORY = """
import json, sys, time
from pathlib import Path
import polars as pl
from hgpo_train.advantages import EstimatorSpec, get
from hgpo_train.advantages.advantage_tables import write_advantages

def peak_mb():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024

hgpo = get("hgpo")
spec = EstimatorSpec(hgpo, hgpo.parameters())
start, began = peak_mb(), time.process_time()
steps = pl.concat([pl.scan_parquet(sys.argv[1]).with_columns(run=pl.lit(f"run {n}")) for n in range(int(sys.argv[3]))])
rows = write_advantages(steps, [spec], Path(sys.argv[2]))
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
    table = Table(
        "rows", "estimator", "decode ms", "with advantages ms", "in memory ms", "before ms", "of before",
        "ratio", "ns/row", "official ms", "times",
        "with their step returns ms", "times", title="CPU"
    )  # fmt: skip
    for size, found in figures["sizes"].items():
        theirs = figures["official"].get(size, {})
        for label in RUNS:
            ours, was = found[label], figures["before"].get(size, {}).get(label)
            slow = theirs.get(label)
            cells = [f"{slow * 1e3:,.0f}", f"{slow / ours['with_advantages_s']:,.0f}"] if slow else ["", ""]
            if slow and label in OF_STEP_RETURNS and "step returns" in theirs:
                slow += theirs["step returns"]
                cells += [f"{slow * 1e3:,.0f}", f"{slow / ours['with_advantages_s']:,.0f}"]
            table.add_row(
                f"{found['rows']:,}",
                label,
                f"{ours['decode_s'] * 1e3:.1f}",
                f"{ours['with_advantages_s'] * 1e3:.1f}",
                f"{ours['in_memory_s'] * 1e3:.1f}",
                *([f"{was['before'] * 1e3:.1f}", f"{was['now'] / was['before']:.2f}"] if was else ["", ""]),
                f"{ours['ratio']:.1f}",
                f"{ours['ns_per_row']:.0f}",
                *cells,
            )
    console.print(table)
    profile = Table("HGPO K=2, up to", "ms", title=f"Profile at {figures['sizes']['1024 × 16']['rows']:,} rows")
    for stage, seconds in figures["stages"].items():
        profile.add_row(stage, f"{seconds * 1e3:.1f}")
    console.print(profile)
    if figures["chunks"]:
        chunks = Table("rows", "CPU s", "peak MB", "of it at start", title="hgpo advantages, in chunks")
        for found in figures["chunks"]:
            chunks.add_row(
                f"{found['rows']:,}", f"{found['cpu_s']:.1f}", f"{found['peak_mb']:.0f}", f"{found['start_mb']:.0f}"
            )
        console.print(chunks)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--official", type=Path)
    parser.add_argument("--official-g2po", type=Path)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--huge", action="store_true")
    parser.add_argument("--before", type=Path, help="another checkout to compare with")
    add_keep(parser)
    given = parser.parse_args()
    console = Console()
    figures: dict[str, Any] = {"sizes": {}, "before": {}, "official": {}, "chunks": []}
    with tempfile.TemporaryDirectory() as name, console.status("measuring") as status:
        folder = Path(name)
        for size, (tasks, rollouts) in SIZES.items():
            status.update(f"{size} rollouts")
            pattern, rows = write(folder / size.replace(" ", ""), tasks, rollouts)
            figures["sizes"][size] = compare(pattern, rows)
            if given.before:
                figures["before"][size] = beside(pattern, given.before.resolve())
            if (given.official or given.official_g2po) and rows < 100_000:
                status.update(f"{size} rollouts, official")
                figures["official"][size] = official(pl.read_parquet(pattern), given.official, given.official_g2po)
        status.update("profile")
        figures["stages"] = stages(pattern)
        figures["chunks"].append(in_chunks(pattern, folder))
        if given.large or given.huge:
            status.update("20,480 × 16 rollouts, in chunks")
            pattern, _ = write(folder / "chunks", 20 * 1024, 16)
            figures["chunks"].append(in_chunks(pattern, folder))
        if given.huge:
            status.update("ten times as many")
            figures["chunks"].append(in_chunks(pattern, folder, copies=10))
    show(console, figures)
    console.print(store("advantages_before" if given.before else "advantages", figures, keep=given.keep))


if __name__ == "__main__":
    main()
