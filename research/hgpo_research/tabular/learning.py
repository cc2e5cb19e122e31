"""Learning curves of estimators: groups of rollouts, advantages, updates, and an evaluation at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import polars as pl

from hgpo_research.tabular.policy import TabularPolicy
from hgpo_research.tabular.rollouts import rollouts, step_table, success
from hgpo_research.tabular.updates import Adam, FixedKL
from hgpo_research.tabular.values import true_advantages
from hgpo_research.truth.task import without_collector
from hgpo_train.advantages.variants import read_variants
from hgpo_train.settings import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from hgpo_research.tabular.graphs import TaskSet
    from hgpo_research.tabular.rollouts import Rollouts
    from hgpo_train.advantages import Estimator

    Floats = NDArray[np.float64]

ORACLE: Final = "oracle"
"""The name of the true advantages of success, among those of estimators."""

AGAIN: Final = " (again)"
"""The end of the name of the A/A test: the first estimator, with other random numbers."""

_EVALUATION, _TRUTH = 1 << 20, 1 << 21  # streams of random numbers, beside those of iterations


@dataclass(frozen=True, kw_only=True)
class Learning:
    """How policies learn.

    Attributes:
        seeds: Number of seeds.
        first_seed: The first one.
        iterations: Number of updates.
        group_size: Number of rollouts of each task in an iteration.
        taste: The standard deviation of the noise in the first logits.
        update: ``kl`` moves the policies by a fixed divergence, ``adam`` by Adam.
        kl: The divergence per step of an update.
        learning_rate: The step size of Adam.
        evaluation: Number of rollouts of each task after the last update.
        samples: Number of rollouts of each value, for the oracle, where values are not exact.
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
    samples: PositiveInt = 16

    def __post_init__(self) -> None:
        check(self, "parameter")


def estimators(texts: Iterable[str], settings: Sequence[str] = ()) -> dict[str, Estimator | None]:
    """Return estimators by name as `hgpo_train.advantages.variants.read_variants`, and None for ``oracle``.

    Raises:
        InputError: An estimator or a parameter is unknown, or an estimator is given twice.
    """
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    read = read_variants([name for name in names if name != ORACLE], settings=settings) if set(names) - {ORACLE} else []
    by_name: dict[str, Estimator | None] = {variant.name: variant.estimator for variant in read}
    return {name: by_name.get(name) for name in names}


def advantages(
    estimator: Estimator | None,
    policy: TabularPolicy,
    batch: Sequence[Rollouts],
    samples: int,
    stream: Sequence[int],
) -> list[Floats]:
    """Return the advantages of the rows of each task, of all seeds by one call; None is the oracle's (γ = 1)."""
    if estimator is None:
        return true_advantages(policy, batch, gamma=1.0, samples=samples, stream=stream)
    table = estimator(step_table(policy, batch).lazy(), column="advantage").collect()
    lengths = np.cumsum([len(rows.seed) for rows in batch])[:-1]
    return np.split(table["advantage"].to_numpy(), lengths)


def learn(
    tasks: TaskSet, estimator: Estimator | None, how: Learning, repetition: int = 0
) -> Iterator[tuple[TabularPolicy, Floats]]:
    """Let policies learn; yield them and their success before each update, and after the last one.

    The success before an update is that of the rollouts of the update, the last one is of further rollouts.

    Args:
        tasks: The tasks.
        estimator: The estimator; None for the oracle.
        how: How they learn.
        repetition: Another number gives other random numbers to the same first policies.
    """
    policy = TabularPolicy(tasks, range(how.first_seed, how.first_seed + how.seeds), how.taste)
    update: Any = FixedKL(how.kl) if how.update == "kl" else Adam(how.learning_rate)
    for iteration in range(how.iterations):
        batch = rollouts(policy, how.group_size, (repetition, iteration))
        yield policy, success(policy, batch)
        found = advantages(estimator, policy, batch, how.samples, (repetition, iteration + _TRUTH))
        gradient = policy.gradient(batch, found)
        policy.add(update(gradient, policy.products(batch, gradient, gradient)))
    yield policy, success(policy, rollouts(policy, how.evaluation, (repetition, _EVALUATION)))


def curves(
    tasks: TaskSet,
    named: dict[str, Estimator | None],
    how: Learning,
    watch: Callable[[str, int, TabularPolicy], object] = lambda _name, _iteration, _policy: None,
) -> pl.DataFrame:
    """Return the learning curves of estimators, and of the first one again (A/A).

    Args:
        tasks: The tasks.
        named: Estimators by name; None for the oracle.
        how: How policies learn.
        watch: Called with the name, the number of updates and the policies, before each update and at the end.

    Returns:
        Rows of `estimator`, `seed`, `iteration` and `success`. The last iteration is the evaluation.
    """
    first = next(iter(named))
    runs = [(first, named[first], 0), (first + AGAIN, named[first], 1)]
    runs += [(name, estimator, 0) for name, estimator in named.items() if name != first]
    parts = []
    seeds = np.arange(how.first_seed, how.first_seed + how.seeds)
    with without_collector():
        for name, estimator, repetition in runs:
            for iteration, (policy, rate) in enumerate(learn(tasks, estimator, how, repetition)):
                columns = {"seed": seeds, "iteration": np.full(how.seeds, iteration), "success": rate}
                parts.append(pl.DataFrame({"estimator": [name] * how.seeds} | columns))
                watch(name, iteration, policy)
    return pl.concat(parts)
