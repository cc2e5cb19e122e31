"""The work of `hgpo quickstart`: rollouts of bundled games, advantages for several K, and their comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError
from hgpo_train.advantages import EstimatorSpec, get
from hgpo_train.advantages.advantage_tables import fingerprint, write_advantages
from hgpo_train.analysis.statistics import statistics
from hgpo_train.rollout.collection import collect

if TYPE_CHECKING:
    from pathlib import Path

    from hgpo_train.rollout.collector import Tally

ENV: Final = "HGPO/ALFWorld-v0"
DEPTHS: Final = (0, 1, 2, 4)
"""The values of K for which advantages are computed."""

POLICY: Final = "hgpo_train.cli.quickstart_player:PLAYER"
"""A policy that wins about half of the games and repeats itself, as trained ones do (`quickstart_player`)."""

MAX_STEPS: Final = 30
"""The step limit of its episodes, so that they take seconds."""


@dataclass(frozen=True)
class QuickstartResult:
    """The results of a quickstart.

    Attributes:
        tally: The counts of the collection.
        run: The folder of the step table.
        advantages: The path of the table of advantages: one row per step, ``advantage_k0``, ``advantage_k1`` …
        depths: One row per K with the columns ``K``; ``shared``, the share of steps whose state and K states before
            also occur elsewhere in their group of rollouts; ``inconsistent``, the share of pairs of steps with the same
            state whose last K states differ; ``moved``, the share of steps whose advantage differs from that of K = 0;
            ``shift``, the mean |A_K - A_0| over the steps that have both; ``spread``, the standard deviation of A_0;
            ``flipped``, the share of these steps whose sign changes.
    """

    tally: Tally
    run: Path
    advantages: Path
    depths: pl.DataFrame


def collect_rollouts(run: Path, seed: int, tasks: int, group_size: int, *, progress: bool) -> Tally:
    """Collect groups on bundled games with `POLICY`.

    Args:
        run: The run's folder.
        seed: Seed of the order of games and of every rollout.
        tasks: Number of groups.
        group_size: Number of rollouts per group.
        progress: Whether to show a progress line.

    Raises:
        InputError: The folder contains another run or other files.
        RolloutError: More than a tenth of the rollouts failed.
    """
    played = collect(
        ENV,
        POLICY,
        run,
        tasks=tasks,
        group_size=group_size,
        seed=seed,
        progress=progress,
        action_format="command",
        max_steps=MAX_STEPS,
    )
    return played.tally


def write_advantages_by_depth(run: Path) -> Path:
    """Write HGPO's advantages for every K of `DEPTHS` to a table beside the run, in one pass. Return its path."""
    hgpo = get("hgpo")
    specs = [EstimatorSpec(hgpo, hgpo.parameters.of({"history_length": k}), f"advantage_k{k}") for k in DEPTHS]
    target = run.parent / f"{run.name}.advantages" / "hgpo_by_depth.parquet"
    write_advantages(scan_steps(run), specs, target, fingerprint=fingerprint(run))
    return target


def compare_depths(run: Path, advantages: Path) -> pl.DataFrame:
    """Return how often the histories of equal states differ, and how that changes advantages.

    See `depths` of `QuickstartResult`.
    """
    levels = statistics(scan_steps(run), history_length=max(DEPTHS)).levels
    of_level = {level: shares for level, *shares in levels.select("level", "shared", "differing").iter_rows()}
    table = pl.read_parquet(advantages)
    state_alone = pl.col("advantage_k0")
    rows = []
    for k in DEPTHS:
        with_history = pl.col(f"advantage_k{k}")
        moved = (with_history - state_alone).abs() > 1e-9
        flipped = (with_history.sign() * state_alone.sign()) < 0
        values = table.select(
            moved=moved.mean(),
            shift=(with_history - state_alone).abs().mean(),
            flipped=flipped.mean(),
            spread=state_alone.std(),
        )
        shared, differing = of_level[str(k)]
        rows.append({"K": k, "shared": shared, "inconsistent": differing, **values.row(0, named=True)})
    return pl.DataFrame(rows)


def quickstart(
    folder: Path,
    *,
    seed: int = 0,
    tasks: int = 24,
    group_size: int = 16,
    progress: bool = False,
) -> QuickstartResult:
    """Collect rollouts, compute advantages and compare them.

    Args:
        folder: The folder in which ``run`` and ``run.advantages`` are created. Rollouts in ``run`` are reused.
        seed: Seed of the order of games and of every rollout.
        tasks: Number of games, each played by one group.
        group_size: Number of rollouts per group.
        progress: Whether to show a progress line while rollouts are played.

    Raises:
        InputError: The folder contains another run or other files.
        RolloutError: More than a tenth of the rollouts failed.
    """
    if folder.is_file():
        raise InputError(f"{folder}: expected a folder, received a file; use another --out")
    run = folder / "run"
    tally = collect_rollouts(run, seed, tasks, group_size, progress=progress)
    advantages = write_advantages_by_depth(run)
    return QuickstartResult(tally, run, advantages, compare_depths(run, advantages))
