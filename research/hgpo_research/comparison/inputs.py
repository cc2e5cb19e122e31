"""The input of a comparison: a run and its truth table, as arrays of steps for redrawn groups of any size.

Groups are redrawn without replacement: the rollouts of each group are permuted and cut into subgroups of g rollouts,
several times. Rollouts of a task are independent, so disjoint subgroups are independent groups of that size. The rest
of a group that is not divisible by g is left out of a redraw.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_datasets import manifest
from hgpo_datasets.sources import run_at
from hgpo_envs.errors import InputError
from hgpo_envs.wording import listed
from hgpo_research.comparison.contexts import Contexts, numbered
from hgpo_research.truth.table import METADATA, read_metadata
from hgpo_train.advantages.estimators.hgpo import hgpo
from hgpo_train.advantages.input_columns import (
    CHAINS,
    columns_used,
    group_keys,
    prepare,
    row_keys,
)
from hgpo_train.advantages.parameters import Parameters
from hgpo_train.advantages.registry import compute_many

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence

    from hgpo_research.arrays import Booleans, Floats, Integers
    from hgpo_train.advantages.parameters import Context
    from hgpo_train.advantages.variants import Variant

TRUTH_KEYS: Final = ("trajectory", "step")
TRUTH_NUMBERS: Final = (
    "value_first",
    "value_second",
    "advantage",
    "advantage_error",
    "advantage_first",
    "advantage_second",
)
TRUTH_COLUMNS: Final = (
    *TRUTH_KEYS,
    *TRUTH_NUMBERS,
    "prompt_hash",
    "choice",
    "probabilities",
)
"""The columns of a truth table that a comparison reads."""

TRUTH_REWARDS: Final = Parameters(invalid_action_penalty=0.0, penalty_at="reward", reward_scale=1.0)
"""The rewards of a truth table that does not describe them: those of the environment, with a discount of 0.95."""

REFERENCE: Final = "return - true value"
"""The name of the reference: the return of the step minus the true value of its state, a perfect baseline."""

_HAS_TRUTH: Final = pl.all_horizontal(
    pl.col(f"(truth) {name}").is_finite().fill_null(value=False) for name in TRUTH_NUMBERS
)
_HAS_PROBABILITIES: Final = (
    pl.col("(truth) choice").is_not_null()
    & pl.col("(truth) prompt_hash").is_not_null()
    & (pl.col("(truth) choice") < pl.col("(truth) probabilities").list.len()).fill_null(value=False)
)


@dataclass(frozen=True)
class Run:
    """A run joined with its truth table.

    Attributes:
        steps: The columns that the estimators read, the truth, and `(task)`, the number of the row's task; without
            aborted rollouts.
        task_ids: The tasks' ids, in the order of their numbers.
        size: The largest number of rollouts in a group.
        variants: The estimators.
        counts: Numbers of `steps`, `rollouts`, `groups`, `aborted` rollouts, and of steps that are `without_truth`
            or `without_probabilities`.
    """

    steps: pl.DataFrame
    task_ids: Sequence[str]
    size: int
    variants: Sequence[Variant]
    counts: dict[str, int]

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return len(self.task_ids)


@dataclass(frozen=True)
class Draw:
    """The steps of redrawn groups of one size, with truth and estimates. Every array has one entry per step.

    Attributes:
        size: Number of rollouts in a group.
        task: Number of the step's task.
        redraw: Number of the task's redraw, unique over tasks: the subgroups of one redraw are disjoint.
        group: Number of the subgroup, unique over redraws.
        first: True advantage from the first half of the Monte Carlo, in the unit of rewards.
        second: The same from the second half.
        sure: Whether the sign of the true advantage is known: it is more than two standard errors from 0.
        level: Depth of the deepest context that the step shares with another step of its subgroup; -1 if none.
        step: Position in the episode.
        prompt: Number of the visible context, unique over tasks; -1 if the step has no action probabilities.
        choice: Index of the action taken; -1 if unknown.
        estimates: For each estimator, two arrays, equal except for references that contain the truth's halves.
    """

    size: int
    task: Integers
    redraw: Integers
    group: Integers
    first: Floats
    second: Floats
    sure: Booleans
    level: Integers
    step: Integers
    prompt: Integers
    choice: Integers
    estimates: dict[str, tuple[Floats, Floats]]

    @cached_property
    def contexts(self) -> Contexts:
        """The numbers of the visible contexts and actions."""
        usable = self.prompt >= 0
        seen = self.prompt[usable], self.choice[usable]
        return Contexts(
            usable,
            numbered(self.group[usable], *seen),
            numbered(self.redraw[usable], *seen),
        )


def read_run(
    steps: pl.LazyFrame,
    truth: pl.LazyFrame,
    variants: Sequence[Variant],
    depth: int,
    rewards: Parameters = TRUTH_REWARDS,
) -> Run:
    """Join a step table with its truth table.

    Args:
        steps: A step table.
        truth: A table with `TRUTH_COLUMNS`.
        variants: The estimators.
        depth: The deepest context that is used to classify steps.
        rewards: The definition of the truth's rewards.

    Raises:
        InputError: A column is missing, a step is twice in the truth table, a trajectory is in two runs, or no step of
            the run has a truth.
    """
    # 1. The columns that something reads.
    schema = steps.collect_schema()
    known = truth.collect_schema()
    if missing := [name for name in TRUTH_COLUMNS if name not in known]:
        raise InputError(f"the truth table has no {listed(missing)}; write it with hgpo truth")
    histories = [f"{stem}{k}" for stem in CHAINS.values() for k in range(depth + 1)]
    read = {
        *row_keys(schema),
        *columns_used(schema, rewards, (), "the truth")[0],
        *histories,
    }
    read |= {
        "state_hash",
        "state",
        "action_hash",
        "action",
        "aborted",
        "policy_version",
    }
    read = read.union(*(variant.estimator.columns(schema) for variant in variants))
    table = steps.select(name for name in schema if name in read).collect()
    exact = truth.select(TRUTH_COLUMNS).collect()

    # 2. Trajectories are the key of both.
    if exact.select(TRUTH_KEYS).is_duplicated().any():
        raise InputError("the truth table has several rows for one step; expected one row per trajectory and step")
    groups = group_keys(schema)
    if table.select(*groups, "trajectory").unique()["trajectory"].is_duplicated().any():
        raise InputError("expected names of trajectories that are unique in all runs; compare one run at a time")
    rollouts = complete_rollouts(table)
    task = [name for name in groups if name in ("env_id", "task_id", "task")]
    joined = rollouts.with_columns(ranks(task).alias("(task)")).join(
        exact.rename({name: f"(truth) {name}" for name in TRUTH_COLUMNS if name not in TRUTH_KEYS}),
        on=TRUTH_KEYS,
        how="left",
        maintain_order="left",
    )
    if not joined.select(_HAS_TRUTH.any()).item():
        raise InputError("no step of the run is in the truth table; expected the truth of this run")

    # 3. What there is.
    sizes = joined.group_by(groups).agg(pl.col("trajectory").n_unique())["trajectory"]
    counts = {
        "steps": joined.height,
        "rollouts": joined["trajectory"].n_unique(),
        "groups": len(sizes),
        "tasks": joined["(task)"].n_unique(),
        "aborted": table["trajectory"].n_unique() - joined["trajectory"].n_unique(),
        "without_truth": joined.filter(~_HAS_TRUTH).height,
        "without_probabilities": joined.filter(_HAS_TRUTH & ~_HAS_PROBABILITIES).height,
    }
    name = "task_id" if "task_id" in task else task[-1]
    task_ids = joined.unique("(task)").sort("(task)")[name].cast(pl.String).to_list()
    return Run(joined, task_ids, int(str(sizes.max())), variants, counts)


def truth_rewards(truth: str | os.PathLike[str], run: str | os.PathLike[str]) -> Parameters:
    """Return the definition of rewards that a truth table describes; `TRUTH_REWARDS` if it describes none.

    Args:
        truth: The path of the truth table.
        run: The path of the run that it is compared with.

    Raises:
        InputError: There is no such file, or it is the truth of another run.
    """
    truth = Path(truth)
    if not truth.is_file():
        raise InputError(f"{truth}: expected a truth table, received no file; write it with hgpo truth")
    # Tables of other programs have no metadata and are taken as they are.
    if METADATA not in pl.read_parquet_metadata(truth):
        return TRUTH_REWARDS
    described = read_metadata(truth)
    folder = run_at(Path(run))
    header = None if folder is None else manifest.read(folder).header
    if header is not None and described.get("run") != header.run:
        raise InputError(f"{truth} is not the truth of {run}; compute it with hgpo truth {run}")
    return replace(TRUTH_REWARDS, **described["rewards"])


def descriptions(variants: Sequence[Variant]) -> dict[str, dict[str, Any]]:
    """Return the names and parameters of estimators, for JSON."""
    return {
        variant.name: {
            "estimator": variant.estimator.name,
            "parameters": asdict(variant.estimator.parameters),
        }
        for variant in variants
    }


def complete_rollouts(table: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a step table without aborted rollouts."""
    if "aborted" not in table.columns:
        return table
    return table.filter(~pl.col("aborted").cast(pl.Boolean).fill_null(value=False).any().over("trajectory"))


def ranks(names: Iterable[str]) -> pl.Expr:
    """Return the number of each row's combination of values, in their order, from 0: int64."""
    return pl.struct(names).rank("dense").cast(pl.Int64) - 1


def redraw(run: Run, size: int, redraws: int, rng: np.random.Generator) -> pl.DataFrame:
    """Return the steps of redrawn groups, with new names of groups and trajectories, and columns `(redraw)`, `(group)`.

    Args:
        run: The run.
        size: Number of rollouts per subgroup; the run's size for the groups as they are.
        redraws: Number of redraws of each group; 1 for the groups as they are.
        rng: The source of the permutations.
    """
    groups = group_keys(run.steps.columns)
    # A sorted table, so that the permutations do not depend on the order of the run's rows.
    rollouts = run.steps.select(*groups, "(task)", "trajectory").unique().sort(*groups, "trajectory")
    rollouts = rollouts.with_columns(ranks(groups).alias("(given)"))
    if size >= run.size:
        drawn = rollouts.with_columns(
            pl.lit(0, pl.Int64).alias("(redraw)"),
            pl.lit(0, pl.Int64).alias("(part)"),
        )
    else:
        several = pl.concat(
            rollouts.with_columns(
                pl.lit(number, pl.Int64).alias("(redraw)"),
                pl.Series("(order)", rng.random(rollouts.height)),
            )
            for number in range(redraws)
        )
        # Each redraw of a group is cut into as many whole subgroups as it has.
        place = pl.col("(order)").rank("ordinal").over("(given)", "(redraw)").cast(pl.Int64) - 1
        full = pl.len().over("(given)", "(redraw)").cast(pl.Int64) // size
        drawn = several.with_columns((place // size).alias("(part)")).filter(pl.col("(part)") < full)
    drawn = drawn.with_columns(ranks(["(given)", "(redraw)", "(part)"]).alias("(group)"))
    table = run.steps.drop("(task)").join(
        drawn.select("trajectory", "(task)", "(redraw)", "(part)", "(group)"),
        on="trajectory",
        maintain_order="right_left",
    )
    # Batches of whole runs are divided like groups, so that estimators with a scope of batches get one of each task.
    batch = [name for name in ("run", "iteration") if name in table.columns]
    return table.with_columns(
        ranks([*batch, "(redraw)", "(part)"]).alias("iteration"),
        pl.format("{}/{}", "(redraw)", "trajectory").alias("trajectory"),
    )


def draw(
    run: Run,
    size: int,
    redraws: int,
    seed: int,
    *,
    depth: int,
    context: Context,
    rewards: Parameters,
) -> Draw:
    """Redraw groups of one size, compute all estimators in them, and return the steps that have a truth.

    Args:
        run: The run.
        size: Number of rollouts per group.
        redraws: Number of redraws.
        seed: Seed of the redraws.
        depth: The deepest context by which steps are classified.
        context: The content of contexts.
        rewards: The definition of the truth's rewards.

    Raises:
        InputError: An estimator's scale of rewards is 0.
    """
    table = redraw(
        run,
        size,
        redraws,
        np.random.Generator(np.random.PCG64([seed, size])),
    )
    steps = table.select(name for name in table.columns if not name.startswith("("))

    # 1. The estimates, the returns without a penalty, and the deepest context that is shared with another step.
    estimators = [variant.estimator for variant in run.variants]
    estimates = compute_many(steps, estimators).select(estimator.column for estimator in estimators)
    # Contexts are HGPO's, and returns those of the truth's rewards.
    parameters = hgpo.with_parameters(**{**vars(rewards), "history_length": depth, "context": context}).parameters
    contexts = [f"{CHAINS[context]}{k}" for k in range(depth + 1)]
    made = prepare(steps, parameters).sort("(row)").select("plain_return", *contexts)
    parts = [
        estimates.collect(engine="in-memory"),
        made.collect(engine="in-memory").rename("(made) {}".format),
    ]
    table = pl.concat([table, *parts], how="horizontal")
    shared = [
        pl.when((pl.len().over("(group)", f"(made) {name}") > 1) & pl.col(f"(made) {name}").is_not_null()).then(k)
        for k, name in enumerate(contexts)
    ]
    table = table.with_columns(pl.max_horizontal(*shared, -1).alias("(level)")).filter(_HAS_TRUTH)

    # 2. Numbers of what the step's policy saw and chose.
    prompt = ranks(["(task)", "(truth) prompt_hash"]).alias("(prompt)")
    choice = pl.col("(truth) choice").cast(pl.Int64).alias("(choice)")
    table = table.with_columns(
        pl.when(_HAS_PROBABILITIES).then(prompt).otherwise(-1),
        pl.when(_HAS_PROBABILITIES).then(choice).otherwise(-1),
        ranks(["(task)", "(redraw)"]).alias("(redraw)"),
    )

    def floats(name: str) -> Floats:
        return table[name].cast(pl.Float64).to_numpy()

    def integers(name: str) -> Any:  # noqa: ANN401 - an array of int64, which Polars types as Any
        return table[name].cast(pl.Int64).to_numpy()

    # 3. Everything in the unit of rewards.
    unit = rewards.reward_scale
    # Both halves are equal but for the reference, which contains those of the truth.
    by_estimator: dict[str, tuple[Floats, Floats]] = {}
    for variant in run.variants:
        scale = variant.estimator.parameters.reward_scale
        if not scale:
            raise InputError(f"{variant.name}: expected a reward_scale other than 0, received 0")
        estimate = floats(variant.estimator.column) / scale
        by_estimator[variant.name] = (estimate, estimate)
    gained = floats("(made) plain_return")
    first, second = ((gained - floats(f"(truth) value_{half}")) / unit for half in ("first", "second"))
    by_estimator[REFERENCE] = (first, second)
    return Draw(
        size=size,
        task=integers("(task)"),
        redraw=integers("(redraw)"),
        group=integers("(group)"),
        first=floats("(truth) advantage_first") / unit,
        second=floats("(truth) advantage_second") / unit,
        sure=np.abs(floats("(truth) advantage")) > 2 * floats("(truth) advantage_error"),
        level=integers("(level)"),
        step=integers("step"),
        prompt=integers("(prompt)"),
        choice=integers("(choice)"),
        estimates=by_estimator,
    )
