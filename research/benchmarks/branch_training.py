"""Branches in training, at equal environment steps: python -m research.benchmarks.branch_training [--last HH:MM].

Protocol and results are on research/docs/branch_study.md. Missing runs are trained one after the other, seed by seed;
an interrupted one resumes. After the time of --last no further one begins. The results of finished runs are
printed, and kept with --keep.
"""

from __future__ import annotations

import datetime as dt
import math
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from benchmarks.readme import figures
from benchmarks.runner import make_parser, store
from hgpo_research.tabular.report import markdown_table
from hgpo_train.resampling import student_quantile
from hgpo_train.training.tracking import read_metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hgpo_research.arrays import Floats

SEEDS: Final = range(10)
WORLDS: Final = {
    "WebShop": ("tiny-webshop", "rollout.tasks=12"),
    "ALFWorld": ("tiny-alfworld", "rollout.tasks=6"),
}
COMMON: Final = (
    "advantage.estimator=tree_grpo",
    "advantage.parameters.mode=mean_std_norm",
    "environment_steps=4000",
    "evaluation.every=1000",  # which is after training alone
    "evaluation.before_training=false",
    "checkpoint.every=1000",
    "tracking.tensorboard=false",
)
ARMS: Final = {
    "independent": (),
    "branched": ("rollout.branch=uniform", "rollout.branch_width=1"),
    "again": (),
}
"""The settings of each arm; that of the A/A test has seeds of its own."""
OTHER: Final = 1000
MEASURES: Final = {"success": "val/success_rate", "steps": "training/environment_steps"}
HGPO: Final = (sys.executable, "-c", "from hgpo_train.cli import main; main()")


def planned() -> Iterator[tuple[str, str, int]]:
    """Yield world, arm and seed of the runs in their order."""
    for arms in (("independent", "branched"), ("again",)):
        for seed in SEEDS:
            for world in WORLDS:
                for arm in arms:
                    yield world, arm, seed


def settings(world: str, arm: str, seed: int) -> list[str]:
    """Return the settings of a run."""
    _, *own = WORLDS[world]
    return [*COMMON, *own, *ARMS[arm], f"seed={seed + OTHER * (arm == 'again')}"]


def finished(folder: Path, world: str, arm: str, seed: int) -> dict[str, float] | None:
    """Return what a run measured; None if it is not finished."""
    lines = read_metrics(folder / world / f"{arm}-{seed}" / "metrics.jsonl")
    # which is measured after the last iteration alone
    if not lines or MEASURES["success"] not in lines[-1]:
        return None
    return {name: lines[-1][key] for name, key in MEASURES.items()}


def train(folder: Path, world: str, arm: str, seed: int) -> None:
    """Train a run, or resume it."""
    overrides = [f"--set={text}" for text in settings(world, arm, seed)]
    place = folder / world / f"{arm}-{seed}"
    command = [
        *HGPO,
        "train",
        WORLDS[world][0],
        *overrides,
        "--out",
        str(place),
        "--resume",
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def comparisons(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the differences from independent rollouts, paired by seeds, with intervals and p-values."""
    found = []
    for world in WORLDS:
        by_arm = {
            arm: {
                run["seed"]: run
                for run in runs
                if (run["world"], run["arm"]) == (world, arm)
            }
            for arm in ARMS
        }
        for arm in ("branched", "again"):
            seeds = sorted(by_arm[arm].keys() & by_arm["independent"].keys())
            if len(seeds) < 2:
                continue
            values = {
                name: np.array([by_arm[name][seed]["success"] for seed in seeds])
                for name in ("independent", arm)
            }
            steps = [
                by_arm[arm][seed]["steps"] / by_arm["independent"][seed]["steps"]
                for seed in seeds
            ]
            difference = values[arm] - values["independent"]
            error = float(difference.std(ddof=1)) / len(seeds) ** 0.5
            found.append(
                {
                    "world": world,
                    "arm": arm,
                    "seeds": len(seeds),
                    "independent": float(values["independent"].mean()),
                    "success": float(values[arm].mean()),
                    "steps": float(np.mean(steps)),
                    "difference": float(difference.mean()),
                    "half": student_quantile(0.975, len(seeds) - 1) * error,
                    "p": sign_flips(difference),
                }
            )
    return found


def sign_flips(difference: Floats) -> float:
    """Return the two-sided p-value of a mean of 0, from all signs of the differences."""
    numbers = np.arange(2 ** len(difference))[:, None]
    signs = 1 - 2 * (numbers >> np.arange(len(difference)) & 1)
    means = np.abs((signs * difference).mean(1))
    return float((means >= abs(difference.mean()) - 1e-12).mean())


def table() -> str:
    """Return the kept comparisons as Markdown."""
    rows = figures("branch_training")["comparisons"]
    # Holm's correction of the two planned ones.
    ordered = sorted(row["p"] for row in rows if row["arm"] == "branched")
    lines = []
    for row in rows:
        verdict = ""
        if row["arm"] == "branched":
            steps = [
                min(1.0, p * (len(ordered) - rank))
                for rank, p in enumerate(ordered)
                if p <= row["p"]
            ]
            verdict = f"{max(steps):.2f}"
        values = [
            100 * row[name] for name in ("independent", "success", "difference", "half")
        ]
        independent, success, difference, half = values
        interval = f"{difference:+.1f} ± {half:.1f}"
        shown = [
            f"{independent:.1f}",
            f"{success:.1f}",
            interval,
            verdict,
            f"{row['steps']:.2f}",
        ]
        lines.append([row["world"], row["arm"], str(row["seeds"]), *shown])
    head = [
        "world",
        "arm",
        "seeds",
        "independent, %",
        "this arm, %",
        "difference",
        "p (Holm)",
        "steps",
    ]
    return markdown_table(head, lines)


def is_late(last: str | None) -> bool:
    """Return whether a time of day (UTC), as HH:MM, has passed."""
    return last is not None and dt.datetime.now(tz=dt.UTC).strftime("%H:%M") >= last


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/branch_training"))
    parser.add_argument("--last", help="the time after which no run begins")
    parser.add_argument(
        "--most", type=float, default=math.inf, help="the number of runs to train"
    )
    given = parser.parse_args()
    results = []
    for world, arm, seed in planned():
        run = (given.folder, world, arm, seed)
        if finished(*run) is None and given.most > 0 and not is_late(given.last):
            given.most -= 1
            train(*run)
        measured = finished(*run)
        if measured is not None:
            results.append({"world": world, "arm": arm, "seed": seed, **measured})
            print(results[-1], flush=True)
    kept = {"runs": results, "comparisons": comparisons(results)}
    print(store("branch_training", kept, keep=given.keep))
