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

import contextlib
import importlib.util
import io
import os
import subprocess
import sys
import tempfile
import time
import types
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("POLARS_MAX_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import polars as pl
from record import in_new_process, in_turns, make_parser, memory_mb, print_table, seconds, store
from rich.console import Console

from hgpo_datasets import manifest, shards
from hgpo_envs.hashing import chain_columns, link
from hgpo_train.advantages import compute, get
from hgpo_train.advantages.advantage_tables import write_advantages

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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


def least(times: int, measures: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Return the minimum of each measure, in turns, after a warm-up."""
    return {name: min(found[1:]) for name, found in in_turns(times + 1, measures).items()}


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
    node = normalised(pl.col("after"), "task", "history_hash_0")
    edge = normalised(pl.col("after") - pl.col("V"), "task")
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


def estimate(steps: pl.LazyFrame, name: str, parameters: dict[str, Any], engine: pl._typing.EngineType) -> pl.DataFrame:
    return compute(steps, name, **parameters).select("advantage").collect(engine=engine)


def compare(pattern: str, rows: int) -> dict[str, Any]:
    """Return CPU seconds of decoding, of each estimator with both engines, and of plain windows."""
    steps = pl.scan_parquet(pattern)
    schema = steps.collect_schema()
    figures: dict[str, Any] = {"rows": rows}
    for label, (name, parameters) in RUNS.items():
        columns = get(name).with_parameters(**parameters).columns(schema)
        works: dict[str, Callable[[], object]] = {
            "decode_s": lambda columns=columns: steps.select(columns).collect(),
            "with_advantages_s": partial(estimate, steps, name, parameters, "streaming"),
            "in_memory_s": partial(estimate, steps, name, parameters, "in-memory"),
        }
        if label in PLAIN:
            works["plain_s"] = lambda plain=PLAIN[label]: plain(with_keys(steps)).select("advantage").collect()
        figures[label] = least(7, {each: partial(seconds, work) for each, work in works.items()})
    return figures


def imports() -> dict[str, float]:
    """Return the CPU seconds of new processes that import the package, or its libraries."""

    def cpu(modules: str) -> float:
        code = f"import time, {modules}; print(time.process_time())"
        return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)

    modules = {"package_s": "hgpo_train.advantages", "libraries_s": "gymnasium, polars"}
    return least(5, {name: partial(cpu, each) for name, each in modules.items()})


def in_chunks(pattern: str, folder: Path, copies: int = 1) -> dict[str, Any]:
    """Estimate as `hgpo advantages` does, for several copies of a run; return CPU seconds and peak memory."""
    start, began = memory_mb("VmHWM"), time.process_time()
    steps = pl.concat([pl.scan_parquet(pattern).with_columns(run=pl.lit(f"run {n}")) for n in range(copies)])
    rows = write_advantages(steps, [get("hgpo")], folder / "advantages.parquet")
    taken = time.process_time() - began
    return {"rows": rows, "cpu_s": taken, "peak_mb": memory_mb("VmHWM"), "start_mb": start}


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
        core = load(verl_agent / "recipe/hgpo/core_hgpo.py")
        for depth in (2, 4):
            taken[f"HGPO K={depth}"] = once(
                lambda depth=depth: core.compute_hgpo_outcome_advantage(
                    rewards.clone(), returns, anchor_obs=states, history_length=depth, **common
                )
            )
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
    with contextlib.redirect_stdout(io.StringIO()):
        return seconds(work)


def show(figures: dict[str, Any]) -> None:
    """Print tables of all measurements."""
    for size, sizes in figures["sizes"].items():
        theirs, rows = figures["official"].get(size, {}), []
        for label in RUNS:
            row = {"estimator": label} | {
                name.replace("_s", ", ms"): taken * 1e3 for name, taken in sizes[label].items()
            }
            taken = sizes[label]["with_advantages_s"]
            if "plain_s" in sizes[label]:  # with the same engine, the one of `collect()`
                row["of plain windows"] = sizes[label]["in_memory_s"] / sizes[label]["plain_s"]
            row["ns a row"] = taken / sizes["rows"] * 1e9
            if label in theirs:
                whole = theirs[label] + (theirs.get("step returns", 0.0) if label in OF_STEP_RETURNS else 0.0)
                row |= {"official, s": theirs[label], "with their step returns, s": whole, "times": whole / taken}
            rows.append(row)
        print_table(rows, title=f"CPU, {size} rollouts, {sizes['rows']:,} rows")
    package, libraries = figures["imports"].values()
    print(f"import hgpo_train.advantages: {package:.2f} s, {package / libraries:.2f} times its libraries")
    print_table(figures["chunks"], title="hgpo advantages, in chunks")


def main() -> None:
    """Run the command."""
    parser = make_parser(__doc__)
    parser.add_argument("--official", type=Path)
    parser.add_argument("--official-g2po", type=Path)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--huge", action="store_true")
    given = parser.parse_args()
    figures: dict[str, Any] = {"sizes": {}, "official": {}, "chunks": [], "imports": imports()}
    with tempfile.TemporaryDirectory() as name, Console().status("measuring") as status:
        folder = Path(name)
        for size, (tasks, rollouts) in SIZES.items():
            status.update(f"{size} rollouts")
            pattern, rows = write(folder / size.replace(" ", ""), tasks, rollouts)
            figures["sizes"][size] = compare(pattern, rows)
            if (given.official or given.official_g2po) and rows < 100_000:
                status.update(f"{size} rollouts, official")
                figures["official"][size] = official(pl.read_parquet(pattern), given.official, given.official_g2po)
        status.update("in chunks")
        figures["chunks"].append(in_new_process(in_chunks, pattern, folder))
        if given.large or given.huge:
            pattern, _ = write(folder / "chunks", 20 * 1024, 16)
            figures["chunks"].append(in_new_process(in_chunks, pattern, folder))
        if given.huge:
            figures["chunks"].append(in_new_process(in_chunks, pattern, folder, 10))
    show(figures)
    print(store("advantages", figures, keep=given.keep))


if __name__ == "__main__":
    main()
