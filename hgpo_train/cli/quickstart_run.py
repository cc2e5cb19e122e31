"""The work of `hgpo quickstart`: rollouts of bundled games, advantages for several K, and their comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from hgpo_envs.errors import InputError
from hgpo_train.advantages import get
from hgpo_train.advantages.advantage_tables import write_advantages
from hgpo_train.analysis.statistics import statistics
from hgpo_train.rollout.collection import collect

if TYPE_CHECKING:
    from pathlib import Path

    from hgpo_train.rollout.tally import Tally

DEPTHS: Final = (0, 1, 2, 4)
"""The values of K for which advantages are computed."""

POLICY: Final = "forgetful"

MAX_STEPS: Final = 30
"""The step limit of its episodes, so that they take seconds."""


class QuickstartResult(NamedTuple):
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
    folder: Path,
    *,
    seed: int = 0,
    tasks: int = 24,
    group_size: int = 16,
    progress: bool = False,
) -> QuickstartResult:
    """Collect rollouts of games in `folder`/run, compute advantages in `folder`/run.advantages, and compare them.

    Rollouts that the folder contains are reused.

    Raises:
        InputError: The folder contains another run or other files.
        RolloutError: More than a tenth of the rollouts failed.
    """
    if folder.is_file():
        raise InputError(
            f"{folder}: expected a folder, received a file; use another --out"
        )
    run = folder / "run"
    target = folder / "run.advantages" / "hgpo_by_depth.parquet"
    env: dict[str, Any] = {
        "env": "HGPO/ALFWorld-v0",
        "action_format": "command",
        "max_steps": MAX_STEPS,
    }
    played = collect(
        policy=POLICY,
        out=run,
        tasks=tasks,
        group_size=group_size,
        seed=seed,
        progress=progress,
        **env,
    )
    estimators = [
        get("hgpo").with_parameters(history_length=k, column=f"advantage_k{k}")
        for k in DEPTHS
    ]
    write_advantages(run, estimators, target)
    found = statistics(run, history_length=max(DEPTHS))
    depths = _compare_depths(found.levels, pl.read_parquet(target, glob=False))
    return QuickstartResult(
        played.tally, run, target, found.summary.row(0, named=True), depths
    )


def _compare_depths(levels: pl.DataFrame, advantages: pl.DataFrame) -> pl.DataFrame:
    """Return how often the histories of equal states differ, and how that changes advantages (`QuickstartResult`)."""
    state_alone = pl.col("advantage_k0")
    rows = []
    for k in DEPTHS:
        change = pl.col(f"advantage_k{k}") - state_alone
        changes = advantages.select(
            moved=(change.abs() > 1e-9).mean(),
            shift=change.abs().mean(),
            flipped=(
                (pl.col(f"advantage_k{k}").sign() * state_alone.sign()) < 0
            ).mean(),
        )
        level = levels.filter(level=str(k)).select(
            shared="shared", inconsistent="differing"
        )
        rows.append({"K": k} | level.row(0, named=True) | changes.row(0, named=True))
    return pl.DataFrame(rows)
