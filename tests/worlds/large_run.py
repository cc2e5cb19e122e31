"""A run of real rollouts in many shards, and an estimator that kills its process."""

from pathlib import Path

from hgpo_datasets import StepWriter, scan_steps, schema
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.rollout.env_handle import open_env
from hgpo_train.rollout.plan import RolloutSpec
from hgpo_train.rollout.run import collect_groups

OWN = """
import os, signal
from pathlib import Path
import polars as pl

def zero(trajectories):
    kind, _, who = Path("fault").read_text().partition(" ") if Path("fault").exists() else ("", "", "")
    if kind and who in trajectories.to_list():
        if kind == "once":
            Path("fault").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    with Path("log").open("a") as log:
        print(trajectories.len(), file=log)
    return pl.Series([0.0] * trajectories.len())

def killed(steps: pl.LazyFrame) -> pl.LazyFrame:
    zeros = pl.col("trajectory").map_batches(zero, return_dtype=pl.Float64)
    return steps.with_columns(advantage=pl.col("return") + zeros)
"""
"""Returns as advantages. The process that reads the trajectory of the file `fault` is killed, `once` or `always`."""


def collect(folder: Path, tasks: int) -> None:
    """Collect rollouts of the bundled games and write them in shards of one task each."""
    handle = open_env("HGPO/ALFWorld-v0", action_format="response", max_steps=12)
    policy = make_policy(
        "mixture:expert=0.6,random=0.4", PolicyContext("ALFWorld", "response", {})
    )
    with StepWriter(folder.parent / "collected", run="run") as writer:
        collect_groups(
            handle, policy, writer, RolloutSpec(tasks=tasks, group_size=6, seed=0)
        )
    given = [
        column.name
        for column in schema.columns()
        if not column.derived and column.name != "run"
    ]
    rows = scan_steps(folder.parent / "collected").select(given).collect()
    with StepWriter(folder, run="run", shard_rows=1) as writer:
        for group in rows.partition_by("task_id", maintain_order=True):
            writer.add_group(group)
