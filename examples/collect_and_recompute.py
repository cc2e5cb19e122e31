"""Collect rollouts once and compute several advantages from them, without an environment, a policy or a GPU.

    python -m examples.collect_and_recompute runs/again

The program collects groups of rollouts, then compares the advantages of HGPO for several K, and of other estimators,
on the same rows.
"""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl

from hgpo_train import collect, compute, scan_steps

RUNS = {f"HGPO, K = {k}": ("hgpo", {"history_length": k}) for k in (0, 1, 2, 4)} | {
    "GiGPO": ("gigpo", {}),
    "GRPO": ("grpo", {}),
}


def collect_steps(
    folder: Path,
    env_id: str = "HGPO/ALFWorld-v0",
    *,
    tasks: int = 8,
    group_size: int = 8,
) -> None:
    """Collect groups of rollouts into a step table, with a mixture of a scripted expert and random actions."""
    policy = "mixture:expert=0.3,random=0.7"
    collect(
        env_id,
        policy,
        folder,
        tasks=tasks,
        group_size=group_size,
        action_format="command",
    )


def recompute(folder: Path) -> pl.DataFrame:
    """Compare the advantages of a saved run with those of HGPO with K = 0; each estimator is a row of the result."""
    steps = scan_steps(folder)
    for name, (estimator, parameters) in RUNS.items():
        steps = compute(steps, estimator, column=name, **parameters)
    table = steps.select(list(RUNS)).collect()
    first = pl.col(next(iter(RUNS)))
    return pl.concat(
        table.select(
            pl.lit(name).alias("estimator"),
            pl.col(name).std().alias("spread"),
            (pl.col(name) - first).abs().mean().alias("mean difference"),
            (pl.col(name).sign() * first.sign() < 0).mean().alias("changed signs"),
        )
        for name in RUNS
    )


def main() -> None:
    """Collect rollouts, unless the run exists, and print the comparison."""
    folder = Path(sys.argv[1])
    if not folder.exists():
        collect_steps(folder)
    print(recompute(folder))


if __name__ == "__main__":
    main()
