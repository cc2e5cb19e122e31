"""What the arena measures of one estimator in one world.

*Learning* (by seed, for each setting): `area`, the mean success over updates, `final`, that after the last update, and
with shared logits `held_out`, that on tasks which nobody learned.

*At fixed policies*, those of the reference estimator at three stages of its learning: the gains of
`hgpo_research.tabular.gain`, and from the frozen step tables, over all steps of a policy's batches:

    correlation      of the advantage e with the true one a
    sign_agreement   share of the steps with the sign of a, of those with a ≠ 0; e = 0 counts a half
    variance         1 - (Σ e a)² / (Σ e² Σ a²): what is left of e after the best scale, as a share
    zeros            share of the steps whose advantage is 0, from which nothing is learned
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from hgpo_research.arena.ranking import ORACLE, REFERENCE
from hgpo_research.tabular.cross_validation import by_task
from hgpo_research.tabular.gain import batches, gains
from hgpo_research.tabular.learning import AGAIN, learn
from hgpo_research.tabular.methods import ADAPTIVE, Oracle, TableEstimator, methods
from hgpo_research.tabular.rollouts import rollouts, step_table, success
from hgpo_train.advantages.variants import read_variants
from hgpo_train.settings import types_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from hgpo_research.arena.worlds import World
    from hgpo_research.arrays import Floats
    from hgpo_research.tabular.graphs import TaskSet
    from hgpo_research.tabular.learning import Learning
    from hgpo_research.tabular.methods import Method
    from hgpo_research.tabular.policy import TabularPolicy

POLICIES: Final = 4
"""The number of seeds whose policies are measured."""

COPIES: Final = 8
"""The number of redrawn batches of each of them."""

SAMPLES: Final = 8
"""The number of rollouts of each true value, where values are not exact."""

STAGES: Final = (0.0, 0.4, 1.0)
"""The stages: the share of the updates after which policies are measured."""

REPEATS: Final = 3
"""How often the time of an estimator is measured; the shortest counts."""

_EVALUATION: Final = 1 << 20  # a stream of random numbers beside those of updates

RESULT: Final = {
    "world": pl.String(),
    "estimator": pl.String(),
    "setting": pl.String(),
    "measure": pl.String(),
    "stage": pl.Int64(),
    "seed": pl.Int64(),
    "value": pl.Float64(),
}
"""The columns of results: one number a row. `stage` is null for learning."""


class Stage(NamedTuple):
    """A policy at a stage of learning.

    Attributes:
        number: The number of the stage.
        policy: The policies of all measured seeds.
        position: The position of the seed.
    """

    number: int
    policy: TabularPolicy
    position: int

    @property
    def stream(self) -> tuple[int, int]:
        """What the random numbers of its batches depend on besides the seed."""
        return (self.number, 1)


def is_mixture(name: str) -> bool:
    """Return whether a method is no estimator of tables: the truth, or a mixture of several."""
    return name.partition(":")[0] in (ADAPTIVE, ORACLE)


def method_of(name: str, world: World) -> Callable[[], Method]:
    """Return a function that makes a method, with the arena's parameters: no penalty, and the world's reward.

    Raises:
        InputError: The estimator or a parameter is unknown, or it reads a score that tabular policies do not have.
    """
    known: Any = {"invalid_action_penalty", "reward"}
    if not is_mixture(name):
        (variant,) = read_variants([name])
        known = (
            types_of(type(variant.estimator.parameters)).keys()
            - variant.assigned.keys()
        )
    chosen = {"invalid_action_penalty": "0", "reward": world.reward}
    settings = [
        f"{key}={value}"
        for key, value in chosen.items()
        if key in known and name != ORACLE
    ]
    return methods([name], settings, SAMPLES)[name]


def stages(world: World, tasks: TaskSet) -> Iterator[Stage]:
    """Yield the measured policies; they must be used before the next one is taken."""
    how = world.learning(POLICIES, "kl")
    at = {round(share * how.iterations): number for number, share in enumerate(STAGES)}
    reference = method_of(REFERENCE, world)()
    for iteration, (policy, _) in enumerate(
        learn(tasks, reference, how, range(POLICIES))
    ):
        if iteration in at:
            for position in range(POLICIES):
                yield Stage(at[iteration], policy, position)


def stage_tables(world: World, tasks: TaskSet) -> dict[int, pl.DataFrame]:
    """Return the frozen step table of each stage.

    Returns:
        Step tables with the columns of `hgpo_research.tabular.rollouts.step_table`, `policy`, the seed, and
        `true_advantage`. `run` is the number of a policy's batch.
    """
    how = world.learning(POLICIES, "kl")
    parts: dict[int, list[pl.DataFrame]] = {number: [] for number in range(len(STAGES))}
    for stage in stages(world, tasks):
        same, visits = batches(stage.policy, stage.position, how, COPIES, stage.stream)
        truth = Oracle(SAMPLES)(same, visits, (*stage.stream, 1))
        table = step_table(same, visits.rollouts, scores=True)
        added: dict[str, Any] = {
            "policy": pl.lit(stage.position),
            "true_advantage": pl.Series(np.concatenate(truth)),
        }
        # Batches of all policies have numbers of their own, so that one call of an estimator takes a whole table.
        parts[stage.number].append(
            table.with_columns(pl.col("run") + COPIES * stage.position, **added)
        )
    return {number: pl.concat(tables) for number, tables in parts.items()}


def measured(
    world_name: str, world: World, estimator: str, seeds: int, folder: Path
) -> pl.DataFrame:
    """Measure an estimator in a world.

    Args:
        world_name: The world's name.
        world: The world.
        estimator: As on the command line; with `AGAIN` at its end, with other random numbers.
        seeds: The number of seeds that learn.
        folder: The folder of the world, with its graphs and step tables.

    Returns:
        Rows of `RESULT`.
    """
    name = estimator.removesuffix(AGAIN)
    new = method_of(name, world)
    rows = learning_rows(world, new, seeds, folder, repetition=int(estimator != name))
    if estimator == name and isinstance(new(), TableEstimator | Oracle):
        rows += list(stage_rows(world, name, new, folder))
    keys = {"world": world_name, "estimator": estimator}
    return pl.DataFrame([keys | row for row in rows], RESULT).sort(
        list(RESULT)[:-1], nulls_last=True
    )


def learning_rows(
    world: World,
    new: Callable[[], Method],
    seeds: int,
    folder: Path,
    *,
    repetition: int,
) -> list[dict[str, Any]]:
    """Return what policies learn in each setting."""
    settings: list[tuple[str, bool, Any]] = [
        ("separate", False, "kl"),
        ("adam", world.shares, "adam"),
    ]
    if world.shares:
        settings.append(("shared", True, "kl"))
    rows: list[dict[str, Any]] = []
    for setting, shared, update in settings:
        tasks, others = world.compile(
            folder / ("shared" if shared else "separate"), shared=shared
        )
        how = world.learning(seeds, update)
        found = _learned(tasks, others if shared else None, new(), how, repetition)
        for measure, values in found.items():
            rows += [
                {"setting": setting, "measure": measure, "seed": seed, "value": value}
                for seed, value in enumerate(values.tolist())
            ]
    return rows


def _learned(
    tasks: TaskSet,
    others: TaskSet | None,
    method: Method,
    how: Learning,
    repetition: int,
) -> Mapping[str, Floats]:
    """Return the area, final success and success on held-out tasks of each seed."""
    rates = []
    policy: Any = None
    for policy, rate in learn(tasks, method, how, range(how.seeds), repetition):  # noqa: B007 (the last one is used)
        rates.append(rate)
    found = {"area": np.mean(rates, axis=0), "final": rates[-1]}
    if others is not None:
        other = policy.on(others)
        found["held_out"] = success(
            other, rollouts(other, how.evaluation, (repetition, _EVALUATION))
        )
    return found


def stage_rows(
    world: World, name: str, new: Callable[[], Method], folder: Path
) -> Iterator[dict[str, Any]]:
    """Yield what an estimator is worth at the measured policies."""
    tasks, _ = world.compile(folder / "separate", shared=False)
    how = world.learning(POLICIES, "kl")
    tables = {number: read_stage(folder, number) for number in range(len(STAGES))}
    method = new()
    compared: dict[int, pl.DataFrame] = {}
    if isinstance(method, TableEstimator):
        compared = {
            number: agreement(table, method) for number, table in tables.items()
        }
    titles = {
        "one_batch": "gain",
        "expected": "expected_gain",
        "cross_validated": "cross_validated_gain",
    }
    for stage in stages(world, tasks):
        keys = {"setting": "separate", "stage": stage.number, "seed": stage.position}
        table = tables[stage.number].filter(policy=stage.position)
        _, visits = batches(stage.policy, stage.position, how, COPIES, stage.stream)
        truth = by_task(table["true_advantage"].to_numpy(), visits.rollouts)
        found = gains(
            stage.policy, stage.position, {name: new}, how, COPIES, stage.stream, truth
        )
        values = {
            title: found[column][0]
            for column, title in titles.items()
            if column in found.columns
        }
        if compared:
            values |= compared[stage.number].row(stage.position, named=True)
        for measure, value in values.items():
            if value is not None and measure != "policy":
                yield keys | {"measure": measure, "value": value}


def read_stage(folder: Path, number: int) -> pl.DataFrame:
    """Return the frozen step table of a stage."""
    return pl.read_parquet(folder / f"stage-{number}.parquet", glob=False)


def agreement(table: pl.DataFrame, method: TableEstimator) -> pl.DataFrame:
    """Return how an estimator's advantages agree with the true ones, one row for each policy of a step table."""
    e = pl.col("advantage")
    a = pl.col("true_advantage")
    # Differences of rounding are no sign.
    known = a.abs() > 1e-9
    zero = e.abs() < 1e-12
    same = (e.sign() == a.sign()).cast(pl.Float64)
    # an estimate of 0 points half the way in either direction
    sign = pl.when(zero).then(0.5).otherwise(same)
    sizes = (e**2).sum() * (a**2).sum()
    explained = (e * a).sum() ** 2 / sizes
    return (
        method.estimator(table.lazy(), column="advantage")
        .collect()
        .group_by("policy", maintain_order=True)
        .agg(
            correlation=pl.corr(e, a),
            sign_agreement=sign.filter(known).mean(),
            variance=1 - explained,
            zeros=zero.mean(),
        )
        .with_columns(pl.col(pl.Float64).fill_nan(None))
        .sort("policy")
    )


def cost(world: World, estimator: str, folder: Path) -> float | None:
    """Return the CPU time of an estimator on the frozen step tables, in ms per 10,000 steps; None for mixtures."""
    method = method_of(estimator, world)()
    if not isinstance(method, TableEstimator):
        return None
    # Batches of different stages are different runs, which one call of the estimator takes.
    table = pl.concat(
        read_stage(folder, number).with_columns(pl.col("run") + 1000 * number)
        for number in range(len(STAGES))
    )
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        method.estimator(table.lazy(), column="advantage").collect()
        times.append(time.process_time() - start)
    return 1e7 * min(times) / table.height
