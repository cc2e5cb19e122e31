"""A plugin's environment in the commands: rollouts with their check and statistics, advantages, an evaluation."""

import json
from pathlib import Path

import polars as pl
from command import invoke

from hgpo_datasets import scan_steps


def rolled_out(run: Path, *options: object) -> pl.DataFrame:
    """Write rollouts, verify them and compute their statistics; return their steps, by trajectory."""
    invoke("rollout", *options, "--out", run)
    invoke("verify", run)
    invoke("stats", run)
    return scan_steps(run).sort("trajectory", "step").collect()


def assert_advantages_are_numbers(run: Path) -> None:
    """Compute two estimators' advantages of a run."""
    table = run.with_name(f"{run.name}-advantages.parquet")
    invoke("advantages", run, "-e", "hgpo", "-e", "grpo", "--out", table)
    columns = pl.read_parquet(table).select(r"^advantage_(hgpo|grpo)$")
    assert columns.select(pl.all().is_finite().all()).row(0) == (True, True)


def success_of_the_expert(folder: Path, *env: object) -> tuple[int, float]:
    """Evaluate the expert once on each held-out task; return the number of tasks and the share that it solved."""
    expert = ("--policy", "expert", "--seeds", 1, "--json")
    report = json.loads(invoke("eval", *env, *expert, "--out", folder))
    (row,) = [each for each in report["reports"] if each["name"] == "all"]
    return row["tasks"], row["measures"]["success"]["mean"]
