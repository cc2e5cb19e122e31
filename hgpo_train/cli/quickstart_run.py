"""The work of `hgpo quickstart`: rollouts of bundled games, advantages for several K, and their comparison."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError
from hgpo_train.advantages import get
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
        summary: The summary of the run's statistics (`hgpo_train.analysis.statistics.Statistics.summary`).
        depths: One row per K: ``K``; ``shared`` and ``inconsistent``, the statistics `shared` and `differing` of level
            K; and of the steps, the share whose advantage is not that of K = 0 (``moved``) or has another sign
            (``flipped``), and the mean |A_K - A_0| (``shift``).
    """

    tally: Tally
    run: Path
    advantages: Path
    summary: dict[str, Any]
    depths: pl.DataFrame


def quickstart(
    folder: Path, *, seed: int = 0, tasks: int = 24, group_size: int = 16, progress: bool = False
) -> QuickstartResult:
    """Collect rollouts of games in `folder`/run, compute advantages in `folder`/run.advantages, and compare them.

    Rollouts that the folder contains are reused.

    Raises:
        InputError: The folder contains another run or other files.
        RolloutError: More than a tenth of the rollouts failed.
    """
    if folder.is_file():
        raise InputError(f"{folder}: expected a folder, received a file; use another --out")
    run = folder / "run"
    env: dict[str, Any] = {"action_format": "command", "max_steps": MAX_STEPS}
    played = collect(ENV, POLICY, run, tasks=tasks, group_size=group_size, seed=seed, progress=progress, **env)
    advantages = write_advantages_by_depth(run)
    run_statistics = statistics(run, history_length=max(DEPTHS))
    depths = compare_depths(run_statistics.levels, pl.read_parquet(advantages))
    return QuickstartResult(played.tally, run, advantages, run_statistics.summary.row(0, named=True), depths)


def write_advantages_by_depth(run: Path) -> Path:
    """Write HGPO's advantages for every K of `DEPTHS` to a table beside the run, in one pass. Return its path."""
    estimators = [get("hgpo").with_parameters(history_length=k, column=f"advantage_k{k}") for k in DEPTHS]
    target = run.parent / f"{run.name}.advantages" / "hgpo_by_depth.parquet"
    write_advantages(scan_steps(run), estimators, target, fingerprint=fingerprint(run))
    return target


def compare_depths(levels: pl.DataFrame, advantages: pl.DataFrame) -> pl.DataFrame:
    """Return how often the histories of equal states differ, and how that changes advantages (`QuickstartResult`)."""
    state_alone = pl.col("advantage_k0")
    rows = []
    for k in DEPTHS:
        with_history = pl.col(f"advantage_k{k}")
        changes = advantages.select(
            moved=((with_history - state_alone).abs() > 1e-9).mean(),
            shift=(with_history - state_alone).abs().mean(),
            flipped=((with_history.sign() * state_alone.sign()) < 0).mean(),
        )
        level = levels.filter(level=str(k)).select(shared="shared", inconsistent="differing")
        rows.append({"K": k} | level.row(0, named=True) | changes.row(0, named=True))
    return pl.DataFrame(rows)
