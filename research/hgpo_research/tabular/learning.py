"""Learning curves of estimators: groups of rollouts, advantages, updates, and an evaluation at the end."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError
from hgpo_research.tabular.policy import TabularPolicy, Visits
from hgpo_research.tabular.rollouts import rollouts, success
from hgpo_research.tabular.updates import Adam, FixedKL
from hgpo_research.truth.task import without_collector
from hgpo_train.settings import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    check,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hgpo_research.arrays import Floats
    from hgpo_research.tabular.graphs import TaskSet
    from hgpo_research.tabular.methods import Method

AGAIN: Final = " (again)"
"""The end of the name of the A/A test: the first estimator, with other random numbers."""

# Streams of random numbers, beside those of iterations.
_EVALUATION: Final = 1 << 20
_TRUTH: Final = 1 << 21


@dataclass(frozen=True, kw_only=True)
class Learning:
    """How policies learn.

    Attributes:
        seeds: Number of seeds; those of a set of tasks learn in lock-step.
        first_seed: The first seed.
        iterations: Number of updates.
        group_size: Number of rollouts of each task in an iteration.
        taste: The standard deviation of the noise in the first logits.
        update: kl moves the policies by a fixed divergence, adam by Adam.
        kl: The divergence per step of an update of kl.
        learning_rate: The step size of Adam.
        evaluation: Number of rollouts of each task after the last update.
    """

    seeds: PositiveInt = 32
    first_seed: NonNegativeInt = 0
    iterations: NonNegativeInt = 40
    group_size: PositiveInt = 8
    taste: NonNegativeFloat = 1.0
    update: Literal["kl", "adam"] = "kl"
    kl: PositiveFloat = 0.01
    learning_rate: PositiveFloat = 0.1
    evaluation: PositiveInt = 32

    def __post_init__(self) -> None:
        check(self, "parameter")


def learn(
    tasks: TaskSet,
    method: Method,
    how: Learning,
    seeds: Sequence[int],
    repetition: int = 0,
) -> Iterator[tuple[TabularPolicy, Floats]]:
    """Let policies learn; yield them and their success before each update, and after the last one.

    The success before an update is that of the rollouts of the update, the last one is of further rollouts.

    Args:
        tasks: The tasks.
        method: Where advantages come from.
        how: How they learn.
        seeds: The seeds of the policies.
        repetition: Another number gives other random numbers to the same first policies.
    """
    policy = TabularPolicy(tasks, seeds, how.taste)
    update: Any = FixedKL(how.kl) if how.update == "kl" else Adam(how.learning_rate)
    for iteration in range(how.iterations):
        batch = rollouts(policy, how.group_size, (repetition, iteration))
        yield policy, success(policy, batch)
        # The update sees the rollouts that were just evaluated, and nothing else.
        visits = Visits(policy, batch)
        gradient = visits.gradient(
            method(policy, visits, (repetition, iteration + _TRUTH))
        )
        policy.add(update(visits.dense(gradient), visits.products(gradient, gradient)))
    yield (
        policy,
        success(
            policy,
            rollouts(policy, how.evaluation, (repetition, _EVALUATION)),
        ),
    )


class Curves(NamedTuple):
    """Learning curves.

    Attributes:
        success: Rows of `estimator`, `tasks`, `seed`, `iteration` and `success`. The last iteration is the evaluation.
            With held-out tasks also `held_out`, their success, in the first and the last iteration.
        metrics: Rows of `estimator`, `tasks`, `seed`, `iteration` and the metrics of adaptive methods; maybe empty.
    """

    success: pl.DataFrame
    metrics: pl.DataFrame


def curves(
    task_sets: Mapping[str, TaskSet],
    named: Mapping[str, Callable[[], Method]],
    how: Learning,
    watch: Callable[
        [str, str, int, TabularPolicy], object
    ] = lambda _tasks, _name, _iteration, _policy: None,
    held_out: Mapping[str, TaskSet] = MappingProxyType({}),
) -> Curves:
    """Return the learning curves of methods, and of the first one again (A/A).

    Args:
        task_sets: Sets of tasks by name. Each is learned by an equal share of the seeds.
        named: Functions that return a new method, by name.
        how: How policies learn.
        watch: Called with the names of tasks and method, the number of updates and the policies, before each update and
            at the end.
        held_out: For each set of tasks, others with its parameters, which nobody learns.

    Raises:
        InputError: There are more sets than seeds.
    """
    if len(task_sets) > how.seeds:
        raise InputError(
            f"--task-sets: expected at most {how.seeds}, the number of seeds, received {len(task_sets)}"
        )
    first, *others = named
    # The second run of the first method shows what chance alone makes of a curve.
    runs = [
        (first, first, 0),
        (first + AGAIN, first, 1),
        *((name, name, 0) for name in others),
    ]
    every = np.arange(how.first_seed, how.first_seed + how.seeds)
    parts: list[pl.DataFrame] = []
    metrics: list[pl.DataFrame] = []
    # Graphs grow all the time, and a search for garbage would go through them again and again.
    with without_collector():
        for (tasks, compiled), seeds in zip(
            task_sets.items(),
            np.array_split(every, len(task_sets)),
            strict=True,
        ):
            for label, name, repetition in runs:
                method = named[name]()
                keys = {
                    "estimator": [label] * len(seeds),
                    "tasks": [tasks] * len(seeds),
                    "seed": seeds,
                }
                for iteration, (policy, rate) in enumerate(
                    learn(compiled, method, how, seeds.tolist(), repetition)
                ):
                    rows = pl.DataFrame(
                        keys
                        | {
                            "iteration": np.full(len(seeds), iteration),
                            "success": rate,
                        }
                    )
                    # Tasks that nobody learns are played at both ends only, which is what is compared.
                    if held_out:
                        rates: Any = [None] * len(seeds)
                        if iteration in (0, how.iterations):
                            other = policy.on(held_out[tasks])
                            rates = success(
                                other,
                                rollouts(
                                    other,
                                    how.evaluation,
                                    (repetition, _EVALUATION),
                                ),
                            )
                        rows = rows.with_columns(
                            pl.Series("held_out", rates, pl.Float64)
                        )
                    parts.append(rows)
                    watch(tasks, label, iteration, policy)
                for iteration, values in enumerate(getattr(method, "metrics", ())):
                    metrics.append(
                        pl.DataFrame(
                            keys
                            | {"iteration": np.full(len(seeds), iteration)}
                            | values
                        )
                    )
    return Curves(
        pl.concat(parts),
        pl.concat(metrics, how="diagonal") if metrics else pl.DataFrame(),
    )
