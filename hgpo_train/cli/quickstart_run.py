"""The whole way once through, on bundled games: rollouts, a step table, advantages for several K, what they rest on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_datasets import StepWriter, scan_steps
from hgpo_envs.errors import InputError
from hgpo_train.advantages import EstimatorSpec, get
from hgpo_train.advantages.advantage_tables import fingerprint, write_advantages
from hgpo_train.analysis.statistics import statistics
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.rollout.env_handle import open_env
from hgpo_train.rollout.failures import failures_of_tally, raise_if_too_many
from hgpo_train.rollout.older_runs import comparable
from hgpo_train.rollout.run import RolloutSpec, collect, run_config

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hgpo_train.rollout.collector import Tally

ENV: Final = "HGPO/ALFWorld-v0"
DEPTHS: Final = (0, 1, 2, 4)
"""The K that advantages are computed for."""

POLICY: Final = "mixture:expert=0.3,random=0.7"
"""Solves most of its rollouts, by different ways: groups hold successes and failures, and states that are met again."""

REWARD_SCALE: Final = 10.0
"""A success counts 10, as verl-agent trains."""


@dataclass(frozen=True)
class QuickstartResult:
    """What a quickstart found.

    Attributes:
        tally: The collection.
        run: The step table's folder.
        advantages: The table of advantages: one row a step, ``advantage_k0``, ``advantage_k1`` …
        depths: One row a K: ``K``; ``inconsistent``, the share of pairs of steps at the same state whose K states
            before it differ; ``moved``, the share of steps whose advantage differs from that of K = 0; ``shift``, the
            mean |A_K - A_0| over the steps that have both, beside ``spread``, the standard deviation of A_0;
            ``flipped``, the share of those whose sign turns.
    """

    tally: Tally
    run: Path
    advantages: Path
    depths: pl.DataFrame


def collect_rollouts(run: Path, seed: int, tasks: int, group_size: int, progress: Callable[[Tally], None]) -> Tally:
    """Collects groups on bundled games by a seeded mixture of expert and random choices.

    Raises:
        InputError: The folder holds something else, or more groups than are asked for.
        RolloutError: More than a tenth of the rollouts failed.
    """
    handle = open_env(ENV, split="train", action_format="command")
    policy = make_policy(POLICY, PolicyContext(handle.shared.source.name, "command"))
    spec = RolloutSpec(tasks, group_size, seed)
    config = comparable(run, run_config(handle, {"split": "train"}, POLICY, {}, spec), handle)
    with StepWriter(run, config=config) as writer:
        if len(writer.committed) > tasks:
            raise InputError(
                f"{run} holds {len(writer.committed)} groups, more than the {tasks} that are asked for; ask for as "
                "many, or give another --out"
            )
        tally = collect(handle, policy, writer, spec, retry_failed=True, progress=progress)
    raise_if_too_many(failures_of_tally(tally))
    return tally


def write_advantages_by_depth(run: Path) -> Path:
    """Writes HGPO's advantages for every K of `DEPTHS` beside the run, in one pass."""
    hgpo = get("hgpo")
    specs = [
        EstimatorSpec(hgpo, hgpo.parameters.of({"history_length": k, "reward_scale": REWARD_SCALE}), f"advantage_k{k}")
        for k in DEPTHS
    ]
    target = run.parent / f"{run.name}.advantages" / "hgpo_by_depth.parquet"
    write_advantages(scan_steps(run), specs, target, fingerprint=fingerprint(run))
    return target


def compare_depths(run: Path, advantages: Path) -> pl.DataFrame:
    """How often equal states had different histories, and what that changes; see `QuickstartResult`."""
    levels = statistics(scan_steps(run), history_length=max(DEPTHS), reward_scale=REWARD_SCALE).levels
    differing = dict(levels.select("level", "differing").iter_rows())
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
        rows.append({"K": k, "inconsistent": differing[str(k)], **values.row(0, named=True)})
    return pl.DataFrame(rows)


def quickstart(
    folder: Path,
    *,
    seed: int = 0,
    tasks: int = 24,
    group_size: int = 8,
    progress: Callable[[Tally], None] = lambda _: None,
) -> QuickstartResult:
    """Rollouts, step table, advantages and their comparison, in a folder of their own.

    Args:
        folder: Gets ``run`` and ``run.advantages``. What is already there is used, not made again.
        seed: Seeds the order of games and every choice.
        tasks: Games, each played by one group.
        group_size: Rollouts a game.
        progress: Called now and then while rollouts are played.

    Raises:
        InputError: The folder holds something else.
    """
    if folder.is_file():
        raise InputError(f"{folder} is a file; name a folder with --out")
    run = folder / "run"
    tally = collect_rollouts(run, seed, tasks, group_size, progress)
    advantages = write_advantages_by_depth(run)
    return QuickstartResult(tally, run, advantages, compare_depths(run, advantages))
