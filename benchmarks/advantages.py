"""Measure advantages beside plain Polars windows of the same equations, and the official implementations.

    python -m benchmarks advantages                                   4.3k, 63k and 527k rows
    python -m benchmarks advantages --large                           also 12M rows, in chunks, with peak memory
    python -m benchmarks advantages --huge                            also 100M rows: these rows ten times, as ten runs
    python -m benchmarks advantages --official DIR                    a checkout of verl-agent (gigpo/, recipe/hgpo/);
                                                                      needs torch

Rollouts are simulated walks of up to 50 steps along each task's path with deviations, similar to ALFWorld's. Times are
CPU seconds of this process on one thread, with reading of the file, the minimum of several runs in turn with their
reference. Plain windows check nothing: no order, duplicates, NaN, aborted rollouts, or penalties.
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
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

from benchmarks.runner import (
    Row,
    in_new_process,
    least,
    memory_mb,
    quantity,
    seconds,
)
from hgpo_datasets import shards
from hgpo_envs.hashing import chain_columns, link
from hgpo_train.advantages import compute, get
from hgpo_train.advantages.advantage_tables import write_advantages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZES = ((16, 8), (128, 16), (1024, 16))
"""Numbers of tasks and of rollouts of each."""
SHOWN = (128, 16)
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
SHARD_TASKS = 256


def simulate(tasks: int, rollouts: int, seed: int) -> pl.DataFrame:
    """Simulate rollouts of up to 50 steps, in which a policy follows its task's path or deviates from it."""
    rng = np.random.default_rng(seed)
    walkers = tasks * rollouts
    way = np.repeat(rng.integers(8, 24, tasks), rollouts)
    skill = np.repeat(rng.uniform(0.25, 0.75, tasks), rollouts)
    place = np.zeros(walkers, np.int64)
    alive = np.ones(walkers, np.bool_)
    states = np.full((walkers, 50), -1, np.int64)
    for step in range(50):
        aside = rng.random(walkers) > skill
        detour = place * 8 + 1 + rng.integers(0, 7, walkers)
        novel = rng.random(walkers) < 0.04
        shown = np.where(
            novel,
            1_000_000 + rng.integers(0, 1 << 40, walkers),
            np.where(aside, detour, place * 8),
        )
        states[alive, step] = shown[alive]
        place += ~aside
        alive &= place < way
    there = states >= 0
    trajectory, step = np.nonzero(there)
    last = np.append(trajectory[1:] != trajectory[:-1], True)
    won = last & ((place >= way)[trajectory])
    task = trajectory // rollouts
    state_hash = link(task + 1_000_003 * seed, states[there])
    values, defined = chain_columns(state_hash, step == 0, 8)
    frame = pl.DataFrame(
        {
            "iteration": np.zeros(len(step), np.int32),
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
    histories = {
        f"history_hash_{k}": pl.when(pl.Series(defined[k])).then(pl.Series(values[k]))
        for k in range(9)
    }
    number = pl.col("trajectory").cast(pl.String).str.zfill(6)
    return frame.with_columns(
        run=pl.lit("simulated"),
        env_id=pl.lit("HGPO/ALFWorld-v0"),
        task_id=pl.format("train/pick_and_place_simple-{}/trial_T2026", "task_number"),
        trajectory=pl.format("00000-{}-{}", "task_number", number),
        **histories,
    ).drop("task_number")


def write(folder: Path, tasks: int, rollouts: int) -> tuple[str, int]:
    """Write simulated shards as step table files; return their glob pattern and number of rows."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = 0
    for number, start in enumerate(range(0, tasks, SHARD_TASKS)):
        frame = simulate(min(SHARD_TASKS, tasks - start), rollouts, number)
        (folder / f"steps-{number:06d}.parquet").write_bytes(shards.encode(frame, {}))
        rows += frame.height
    return str(folder / "*.parquet"), rows


def plain_hgpo(steps: pl.LazyFrame, history_length: int) -> pl.LazyFrame:
    """Estimate HGPO's advantages of rows that are in order."""
    # 1. Tasks, trajectories and discounted returns.
    task = pl.struct("run", "iteration", "env_id", "task_id", "group").rle_id()
    steps = steps.with_columns(task=task, walk=pl.col("trajectory").rle_id())
    discount = pl.lit(0.95).pow(pl.col("step").cast(pl.Float64))
    later = (discount * 10.0 * pl.col("reward")).cum_sum(reverse=True).over("walk")
    steps = steps.with_columns(R=later / discount)

    # 2. Normalised returns of each level, 0 in singletons, where all are equal, and where there is no such history.
    returns = pl.col("R")
    levels = range(history_length + 1)
    for k in levels:
        group = ("task", f"history_hash_{k}")
        mean = returns.mean().over(group)
        std = returns.std(0).over(group)
        differ = (pl.len().over(group) > 1) & (std > 1e-9 * mean.abs())
        known = pl.col(group[1]).is_not_null()
        level = pl.when(differ & known).then((returns - mean) / (std + 1e-6))
        steps = steps.with_columns(level.otherwise(0).alias(f"A{k}"))

    # 3. Their weighted mean, without those that are 0.
    total = pl.sum_horizontal((k + 2.0) * pl.col(f"A{k}") for k in levels)
    weight = pl.sum_horizontal((k + 2.0) * (pl.col(f"A{k}") != 0) for k in levels)
    advantage = pl.when(weight > 0).then(total / (weight + 1e-6)).otherwise(0)
    return steps.with_columns(advantage=advantage)


def cpu_times(pattern: str, label: str) -> dict[str, float]:
    """Return CPU seconds of an estimator with both engines, of decoding its columns, and of plain windows."""
    steps = pl.scan_parquet(pattern)
    name, parameters = RUNS[label]
    columns = get(name).with_parameters(**parameters).columns(steps.collect_schema())
    found = compute(steps, name, **parameters).select("advantage")
    works: dict[str, Callable[[], object]] = {
        "streaming": partial(found.collect, engine="streaming"),
        "in memory": partial(found.collect, engine="in-memory"),
        "decoding": steps.select(columns).collect,
    }
    if name == "hgpo":
        plain = plain_hgpo(steps, **parameters)
        works["plain"] = plain.select("advantage").collect
    return least(7, {each: partial(seconds, work) for each, work in works.items()})


def rows_of(
    pattern: str, size: tuple[int, int], count: int, official: dict[str, float]
) -> Iterator[Row]:
    """Compare every estimator with plain windows, and with the official code and its step returns."""
    for label in RUNS:
        found = cpu_times(pattern, label)
        what = f"{label}, {count:,} steps, including reading"
        # of the engine of `collect()`
        floor = ("plain windows", found["plain"]) if "plain" in found else None
        yield Row(
            f"{what}, in memory",
            found["in memory"],
            "s",
            floor=floor,
            note=f"decoding alone {quantity(found['decoding'], 's')}",
        )
        rival = None
        if label in official:
            rival = ("official code", official[label] + official["step returns"])
        shown = (label, size) == ("HGPO K=2", SHOWN)
        yield Row(
            f"Advantages: {what}",
            found["streaming"],
            "s",
            rival=rival,
            shown="readme" * shown,
        )


def in_chunks(pattern: str, folder: Path, copies: int) -> Row:
    """Estimate as `hgpo advantages` does, for several copies of a run, in a new process."""
    steps = pl.concat(
        pl.scan_parquet(pattern).with_columns(run=pl.lit(f"run {n}"))
        for n in range(copies)
    )
    began = time.process_time()
    count = write_advantages(steps, [get("hgpo")], folder / "advantages.parquet")
    return Row(
        f"Advantages: HGPO K=2, {count:,} steps, in chunks",
        time.process_time() - began,
        "s",
        note=f"{memory_mb('VmHWM'):.0f} MB of memory",
        shown="page",
    )


def official_times(frame: pl.DataFrame, verl_agent: Path) -> dict[str, float]:
    """Return CPU seconds of the official functions for the same rows.

    Their step returns, which require a pass over all rows for each row, are a separate entry, and are passed to the
    official HGPO and GiGPO. Ours are part of each estimator's time.
    """
    import torch

    torch.set_num_threads(1)
    stub = types.ModuleType("verl")
    stub.DataProto = object  # type: ignore[attr-defined]
    sys.modules.setdefault("verl", stub)
    gigpo = runpy.run_path(f"{verl_agent}/gigpo/core_gigpo.py")
    walks = frame["trajectory"].to_numpy().astype(object)
    batch = types.SimpleNamespace(
        batch={"input_ids": torch.ones(1)},
        non_tensor_batch={
            "rewards": frame["reward"].to_numpy() * 10,
            "traj_uid": walks,
            "active_masks": np.ones(frame.height),
        },
    )
    work = gigpo["compute_step_discounted_returns"]
    taken = {"step returns": once(partial(work, batch, 0.95))}
    scores = frame.select(pl.col("reward").sum().over("trajectory") * 10).to_series()
    returns = compute(frame.lazy(), "gigpo", mode="mean_norm").collect()["advantage"]
    rewards = torch.tensor(scores.to_numpy().copy()).float()[:, None]
    step_rewards = torch.tensor(returns.to_numpy().copy()).float()
    given = {
        "response_mask": torch.ones(frame.height, 1),
        "anchor_obs": frame["state_hash"].cast(pl.String).to_numpy().astype(object),
        "index": frame["task_id"].to_numpy().astype(object),
        "traj_index": walks,
    }
    work = gigpo["compute_gigpo_outcome_advantage"]
    taken["GiGPO"] = once(partial(work, rewards.clone(), step_rewards, **given))
    hgpo = runpy.run_path(f"{verl_agent}/recipe/hgpo/core_hgpo.py")[
        "compute_hgpo_outcome_advantage"
    ]
    for depth in (2, 4):
        work = partial(hgpo, rewards.clone(), step_rewards, **given)
        taken[f"HGPO K={depth}"] = once(partial(work, history_length=depth))
    return taken


def once(work: Callable[[], object]) -> float:
    """Return CPU seconds of one call without its output."""
    with contextlib.redirect_stdout(io.StringIO()):
        return seconds(work)


def run(
    official: Path | None = None,
    large: bool = False,
    huge: bool = False,
) -> Iterator[Row]:
    """Measure all sizes, and large tables in chunks."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in SIZES:
            pattern, count = write(folder / f"{size[0]}", *size)
            theirs = {}
            if official and count < 100_000:
                theirs = official_times(pl.read_parquet(pattern), official)
            yield from rows_of(pattern, size, count, theirs)
        yield in_new_process(in_chunks, pattern, folder, 1)
        if large or huge:
            pattern, _ = write(folder / "chunks", 20 * 1024, 16)
            yield in_new_process(in_chunks, pattern, folder, 1)
        if huge:
            yield in_new_process(in_chunks, pattern, folder, 10)
