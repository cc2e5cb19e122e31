"""Evaluation: every task of a split exactly once a seed, and what may be said about the result.

An evaluation is a step table whose `iteration` is the seed. Intervals and tests take tasks, not episodes, for the
independent units: episodes of one task under several seeds are alike, and counting them apart makes intervals too
narrow. Resampling is seeded, so the same table gives the same numbers.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError
from hgpo_train.rollout.run import Collection, collect

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from hgpo_datasets import StepWriter
    from hgpo_train.policies.base import Policy
    from hgpo_train.rollout.collector import Tally
    from hgpo_train.rollout.run import Machine, World

SEEDS: Final = (123, 456, 789)
"""The seeds of the published evaluations."""

TEMPERATURE: Final = 0.4
"""The sampling temperature of the published evaluations."""

MEASURES: Final = ("success", "score", "length", "validity")
"""What is measured of an episode: solved (0 or 1), last score, steps, share of valid actions."""

_RESAMPLES: Final = 10_000
_SEED: Final = 20_260_222


def evaluate(
    world: World,
    policy: Policy,
    writer: StepWriter,
    seeds: Sequence[int] = SEEDS,
    machine: Machine | None = None,
    *,
    retry_failed: bool = False,
    progress: Callable[[Tally], None] = lambda _: None,
    stopping: Callable[[], bool] = lambda: False,
) -> bool:
    """Plays every task of the world's split once for each seed; what the run has is not played again.

    Args:
        world: What is played.
        policy: What acts.
        writer: The run.
        seeds: Different integers, at least 0.
        machine: How it is run.
        retry_failed: Play the episodes again that the run holds as aborted.
        progress: Called now and then with the tally of the seed that is under way.
        stopping: Asked now and then whether to stop early.

    Returns:
        Whether all of it is done.
    """
    if not seeds or len(set(seeds)) != len(seeds) or min(seeds) < 0:
        raise InputError(f"seeds: expected different integers of at least 0, got {list(seeds)}")
    for seed in seeds:
        what = Collection(tasks=len(world.tasks), group_size=1, seed=seed, order="sweep", iteration=seed)
        collect(world, policy, writer, what, machine, retry_failed=retry_failed, progress=progress, stopping=stopping)
        if stopping():
            return False
    return True


def episodes(steps: pl.LazyFrame) -> pl.DataFrame:
    """One row an episode: seed, task_id, task_type, success, score, length, validity, aborted.

    Rows are sorted by seed and task.
    """
    return (
        steps.group_by("iteration", "task_id", "trajectory")
        .agg(
            pl.col("task_type").first(),
            pl.col("won").any().cast(pl.Float64).alias("success"),
            pl.col("score").sort_by("step").last().cast(pl.Float64),
            pl.len().cast(pl.Float64).alias("length"),
            pl.col("action_valid").mean().alias("validity"),
            pl.col("aborted").any(),
        )
        .rename({"iteration": "seed"})
        .drop("trajectory")
        .sort("seed", "task_id")
        .collect()
    )


@dataclass(frozen=True, slots=True)
class Measured:
    """One measure over a set of episodes.

    Attributes:
        mean: Over all episodes.
        std: Standard deviation (ddof 1) of the seeds' means; None with one seed.
        low: Lower end of the 95% interval of the mean, tasks resampled (percentile bootstrap).
        high: Its upper end.
    """

    mean: float
    std: float | None
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Report:
    """What an evaluation found, of all tasks or of one task type.

    Attributes:
        name: ``all``, or the task type.
        tasks: How many tasks.
        episodes: How many whole episodes.
        aborted: Episodes that failed for a reason outside the task; they are left out.
        seeds: The seeds.
        measures: Each of `MEASURES`.
    """

    name: str
    tasks: int
    episodes: int
    aborted: int
    seeds: tuple[int, ...]
    measures: dict[str, Measured]

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)


def report(table: pl.DataFrame) -> list[Report]:
    """Reports of all tasks and of each task type.

    Args:
        table: Episodes, as `episodes` makes them.

    Raises:
        InputError: There is no whole episode.
    """
    if not len(table.filter(~pl.col("aborted"))):
        raise InputError("the run holds no whole episode; look at its `error` column")
    kinds = sorted(kind for kind in table["task_type"].unique().to_list() if kind)
    parts = [("all", table), *((kind, table.filter(pl.col("task_type") == kind)) for kind in kinds)]
    return [_report(name, part) for name, part in parts if len(part.filter(~pl.col("aborted")))]


def _report(name: str, table: pl.DataFrame) -> Report:
    whole = table.filter(~pl.col("aborted"))
    return Report(
        name=name,
        tasks=table["task_id"].n_unique(),
        episodes=len(whole),
        aborted=len(table) - len(whole),
        seeds=tuple(sorted(table["seed"].unique().to_list())),
        measures={measure: _measured(whole, measure) for measure in MEASURES},
    )


def _measured(table: pl.DataFrame, measure: str) -> Measured:
    seeds = table.group_by("seed").agg(pl.col(measure).mean()).sort("seed")[measure]
    sums = table.group_by("task_id").agg(pl.col(measure).sum(), pl.len()).sort("task_id")
    total, number = sums[measure].to_numpy(), sums["len"].to_numpy().astype(np.float64)
    drawn = _resamples(len(sums))
    means = total[drawn].sum(1) / number[drawn].sum(1)
    low, high = np.quantile(means, [0.025, 0.975])
    deviation = seeds.std(ddof=1) if len(seeds) > 1 else None
    return Measured(
        mean=float(total.sum() / number.sum()),
        std=None if deviation is None else float(deviation),  # type: ignore[arg-type]  # a float column's is a float
        low=float(low),
        high=float(high),
    )


def _resamples(tasks: int) -> NDArray[np.int64]:
    rng = np.random.Generator(np.random.PCG64(_SEED))
    return rng.integers(0, tasks, (min(_RESAMPLES, 20_000_000 // tasks + 1), tasks))


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two evaluations, task by task.

    Attributes:
        measure: What is compared.
        tasks: Tasks that both have played.
        difference: Mean over tasks of (first - second), each the mean over the seeds.
        low: Lower end of its 95% interval, tasks resampled.
        high: Its upper end.
        better: Tasks on which the first is better.
        worse: Tasks on which it is worse.
        p: Two-sided p of the paired permutation test: the share of sign flips whose difference is at least as far from
            0 (all of them up to 16 tasks that differ, else 10,000 drawn ones with the observed one counted).
    """

    measure: str
    tasks: int
    difference: float
    low: float
    high: float
    better: int
    worse: int
    p: float


def compare(first: pl.DataFrame, second: pl.DataFrame, measure: str = "success") -> Comparison:
    """Compares two evaluations by the tasks that both have played.

    Args:
        first: Episodes, as `episodes` makes them.
        second: Likewise.
        measure: One of `MEASURES`.

    Raises:
        InputError: They have no task in common.

    >>> table = pl.DataFrame({"task_id": ["a", "b", "c"], "success": [1.0, 1.0, 0.0], "aborted": False})
    >>> compare(table, table.with_columns(success=pl.lit(0.0))).p  # 2 of 3 differ: 2 of 4 sign flips are as extreme
    0.5
    """
    means = [
        table.filter(~pl.col("aborted")).group_by("task_id").agg(pl.col(measure).mean().alias(name))
        for name, table in (("first", first), ("second", second))
    ]
    both = means[0].join(means[1], on="task_id").sort("task_id")
    if not len(both):
        raise InputError("the two evaluations have no task in common; evaluate the same split with the same data")
    differences = (both["first"] - both["second"]).to_numpy()
    low, high = np.quantile(differences[_resamples(len(both))].mean(1), [0.025, 0.975])
    return Comparison(
        measure=measure,
        tasks=len(both),
        difference=float(differences.mean()),
        low=float(low),
        high=float(high),
        better=int((differences > 0).sum()),
        worse=int((differences < 0).sum()),
        p=_permutation_p(differences[differences != 0]),
    )


def _permutation_p(differences: NDArray[np.float64]) -> float:
    """The two-sided p of the sign-flip test of mean 0."""
    number = len(differences)
    observed = abs(differences.sum()) - 1e-12 * np.abs(differences).sum()  # sums in another order may round otherwise
    if number <= 16:
        flips = (np.arange(2**number)[:, None] >> np.arange(number) & 1) * 2 - 1
        return float((np.abs(flips @ differences) >= observed).mean())
    rng = np.random.Generator(np.random.PCG64(_SEED))
    drawn = rng.integers(0, 2, (_RESAMPLES, number)) * 2 - 1
    return float((1 + (np.abs(drawn @ differences) >= observed).sum()) / (1 + _RESAMPLES))
