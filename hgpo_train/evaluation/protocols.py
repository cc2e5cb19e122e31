"""What the protocol of an evaluation adds to a number: the same outcomes, scored as others score them.

The reference is this project's own protocol: every task once per seed, failed rollouts left out, intervals over tasks.
A protocol moves its number in one of two ways:

- A **shift** counts the same rollouts in another way, or plays the tasks under another setting. Its effect is a
  difference of two success rates, whose 95% interval is paired by task: tasks are independent, rollouts of one task are
  not.
- A **spread** draws tasks, seeds or checkpoints. Its effect is how far its numbers lie from the reference: their mean,
  and the interval in which 95% of them are, for this policy.

**Draws.** A number is Σ w x over N tasks, where w is the share of the environments that play a task, and x a task's
outcome. Over all orders in which N tasks can be listed, its variance is

    N / (N - 1) · between · (Σ w² - 1 / N) + within / environments,

where `between` is the variance of the tasks' chances and `within` the mean variance of a task's outcome. With n tasks
without repeats Σ w² = 1 / n, which gives the variance of the hypergeometric distribution if a task always ends in the
same way (W. G. Cochran, Sampling Techniques, 3rd edition, 1977, theorem 2.2). With repeats the wins of n environments
are binomial.

**Population.** Published validations draw 64, 128 or 140 environments from the 140 games of ALFWorld's valid_seen. A
run with fewer tasks stands for 140 tasks like its own.

Examples:
    >>> table = pl.DataFrame({"env_id": "e", "task_id": [f"{n}" for n in range(100)], "seed": 1, "length": 5.0,
    ...                       "won": [n < 50 for n in range(100)], "aborted": False, "truncated": False})
    >>> found = {each.protocol: each for each in table_effects(Reference(table))}
    >>> [round(100 * found["128 draws"].high, 1), round(100 * found["128 tasks"].high, 1)]  # points
    [8.6, 2.5]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError
from hgpo_envs.task_sampling import verl_agent
from hgpo_train.evaluation.comparison import compare
from hgpo_train.evaluation.report import episode_table
from hgpo_train.evaluation.reporting_rules import DROPPED, OUTCOMES, by_seed, count
from hgpo_train.measures import TASK
from hgpo_train.proportions import paired_interval

if TYPE_CHECKING:
    from collections.abc import Callable

POPULATION: Final = 140
"""The number of games of ALFWorld's valid_seen, from which verl-agent and its forks draw."""

WORKER_SEED: Final = 1000
"""The seed of verl-agent's first validation worker; worker i has `WORKER_SEED` + i."""

TAILS: Final = (0.025, 0.975)


@dataclass(frozen=True)
class Reference:
    """The outcomes of a policy, every task once per seed.

    Attributes:
        rollouts: One row per rollout (`hgpo_train.evaluation.episode_table`).
        evaluations: The rollouts of all evaluations of a training run, whose last one is `rollouts`; otherwise None.
    """

    rollouts: pl.DataFrame
    evaluations: pl.DataFrame | None = None

    @cached_property
    def success(self) -> float:
        """The share of solved tasks, as every command reports it.

        Raises:
            InputError: Every rollout failed, or no outcome is known.
        """
        share = count(self.rollouts).success
        if share is None:
            raise InputError(
                "protocols: expected rollouts whose success is known, received none that did not fail"
            )
        return share

    @cached_property
    def tasks(self) -> int:
        """The number of tasks."""
        return self.rollouts.select(pl.struct(TASK).n_unique()).item()  # type: ignore[no-any-return]  # a count

    @cached_property
    def within(self) -> float | None:
        """The mean over tasks of the variance of a task's outcome; None if every task was played once."""
        of_tasks = self.rollouts.group_by(TASK).agg(DROPPED.var().alias("variance"))
        return of_tasks["variance"].mean()  # type: ignore[return-value]  # of floats

    @property
    def between(self) -> float:
        """The variance of the tasks' chances; of their outcomes if every task was played once."""
        return max(0.0, self.success * (1 - self.success) - (self.within or 0.0))

    @property
    def population(self) -> int:
        """The number of tasks from which environments draw."""
        return max(POPULATION, self.tasks)


def read_reference(run: str | Path) -> Reference:
    """Return the outcomes of a saved run; of a training run those of its last evaluation on held-out tasks.

    Args:
        run: A run of `hgpo eval` or `hgpo train`, or another step table (`hgpo_datasets.scan_steps`).

    Raises:
        InputError: It is no step table of one run.
    """
    held_out = Path(run) / "evaluation"
    is_training = held_out.is_dir()
    steps = scan_steps(held_out if is_training else run)
    runs = steps.select(pl.col("run").n_unique()).collect().item()
    if runs != 1:
        raise InputError(
            f"{run}: expected the rollouts of one run, received those of {runs}; name one"
        )
    rollouts = episode_table(steps)
    if not is_training:
        return Reference(rollouts)
    return Reference(rollouts.filter(pl.col("seed") == pl.col("seed").max()), rollouts)


class Effect(NamedTuple):
    """How a protocol moves the number of a policy.

    Attributes:
        kind: ``shift``, ``spread``, or ``none`` if the number is not moved or the effect is not known.
        effect: The protocol's number minus the reference's, of a spread their mean; in [-1, 1], None if not known.
        low: Lower bound of the 95% interval; None if there is none.
        high: Upper bound of this interval.
        note: Why the protocol cannot move the number, or what is missing.
        protocol: The protocol's name; this and the next two are empty until they are known.
        sentence: What the protocol does.
        source: Where it was seen: repositories with issues, or papers.
    """

    kind: str
    effect: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""
    protocol: str = ""
    sentence: str = ""
    source: str = ""


def cannot_move(reason: str) -> Effect:
    """Return that a protocol cannot move the number."""
    return Effect("none", 0.0, note=f"cannot move it: {reason}")


def not_known(reason: str) -> Effect:
    """Return that the effect is not known."""
    return Effect("none", None, note=f"not known: {reason}")


_SAME: Final = cannot_move("every draw has the same outcomes")


# ------------------------------------------------------------------------------------------------------------- shifts


def recounted(outcome: pl.Expr, nothing: str, reference: Reference) -> Effect:
    """Count the same rollouts in another way.

    The interval is that of paired shares, of each task's influence on the difference; if all tasks count as often as
    each other, this is the difference of the task's shares (the delta method: B. Efron, The Jackknife, the Bootstrap
    and Other Resampling Plans, 1982, chapter 6).

    Args:
        outcome: What a rollout counts, in [0, 1]; null leaves it out.
        nothing: Why the number is not moved if no rollout counts differently.
        reference: The rollouts.
    """
    both = reference.rollouts.select(*TASK, first=outcome, second=DROPPED)
    if both.filter(pl.col("first").ne_missing(pl.col("second"))).is_empty():
        return cannot_move(nothing)
    sums = both.group_by(TASK).agg(
        pl.col("first", "second").sum().name.suffix(", won"),
        pl.col("first", "second").count().name.suffix(", counted"),
    )
    won = sums.select("first, won", "second, won").to_numpy()
    counted = sums.select("first, counted", "second, counted").to_numpy()
    shares = won.sum(0) / counted.sum(0)
    influences = len(sums) * (won - shares * counted) / counted.sum(0) + shares
    differences = influences[:, 0] - influences[:, 1]
    return Effect(
        "shift", float(shares[0] - shares[1]), *paired_interval(differences.tolist())
    )


def shorter(limit: int, reference: Reference) -> Effect:
    """Truncate the rollouts after so many steps: exact for policies that do not know the limit."""
    outcome = pl.when(pl.col("length") > limit).then(0.0).otherwise(DROPPED)
    return recounted(outcome, f"no success takes more than {limit} steps", reference)


def by_rule(rule: str, nothing: str) -> Callable[[Reference], Effect]:
    """Return the protocol that counts rollouts by one of the reporting rules of `OUTCOMES`; else as `recounted`."""
    return partial(recounted, OUTCOMES[rule][1], nothing)


def best_checkpoint(reference: Reference) -> Effect:
    """Report the best of a training run's evaluations instead of the last one."""
    if reference.evaluations is None:
        return not_known("it takes the evaluations of a training run")
    found = by_seed(reference.evaluations)
    best = max(found, key=lambda iteration: found[iteration].value)
    if found[best].value == reference.success:
        return cannot_move(f"the last of {len(found)} evaluations is the best")
    return paired_difference(
        Reference(reference.evaluations.filter(seed=best)), reference
    )


def paired_difference(first: Reference, second: Reference) -> Effect:
    """Return the difference of two evaluations on the tasks with the same ids."""
    try:
        found = compare(
            first.rollouts.with_columns(success="won"),
            second.rollouts.with_columns(success="won"),
            on=TASK,
        )
    except InputError:
        return not_known("no task was played without failure in both")
    return Effect("shift", found.difference, found.low, found.high)


# ------------------------------------------------------------------------------------------------------------ spreads


def spread(reference: Reference, deviation: float, highest_of: int = 1) -> Effect:
    """Return how far numbers with a standard deviation lie from the reference, or the highest of several of them.

    Numbers are taken as normal, within [0, 1]. The highest of k is below its quantile at p with the probability with
    which one number is below that at p^(1 / k).
    """
    if deviation < 1e-9:  # rounding
        return _SAME
    middles = (np.arange(1000) + 0.5) / 1000
    levels = [*TAILS, *middles]
    low, high, *values = (
        deviation * NormalDist().inv_cdf(level ** (1 / highest_of)) for level in levels
    )
    most = 1 - reference.success
    return Effect(
        "spread",
        min(most, round(fmean(values), 12)),
        max(most - 1, low),
        min(most, high),
    )


def drawn(environments: int, squares: float, reference: Reference) -> Effect:
    """Play each task in a share w of the environments, in any order of the tasks.

    Args:
        environments: The number of environments.
        squares: Σ w².
        reference: The outcomes.
    """
    tasks = reference.population
    of_tasks = tasks / (tasks - 1) * reference.between * max(0.0, squares - 1 / tasks)
    of_rollouts = (reference.within or 0.0) / environments
    return spread(reference, math.sqrt(of_tasks + of_rollouts))


def drawn_by_workers(environments: int, reference: Reference) -> Effect:
    """Play the first game of each of verl-agent's workers, whose list has the order of the file system."""
    places = [str(place) for place in range(reference.population)]
    games = [
        next(verl_agent(places, WORKER_SEED + worker)) for worker in range(environments)
    ]
    shares = np.unique(games, return_counts=True)[1] / environments
    return drawn(environments, float((shares**2).sum()), reference)


def drawn_with_repeats(
    environments: int, reference: Reference, highest_of: int = 1
) -> Effect:
    """Play so many tasks, each drawn from all of them; report the highest of several such validations.

    The number of wins is binomial, whatever the policy: a draw wins with the mean chance of the tasks.
    """
    share = reference.success
    if share in (0, 1):
        return _SAME
    numbers = range(environments + 1)
    chances = [
        math.comb(environments, wins)
        * share**wins
        * (1 - share) ** (environments - wins)
        for wins in numbers
    ]
    at_most = np.cumsum(chances).clip(0, 1) ** highest_of
    mean = float((1 - at_most[:-1]).sum()) / environments
    # The numbers of wins that 2.5% and 97.5% of the draws do not exceed.
    quantiles = np.searchsorted(at_most, TAILS) / environments
    return Effect("spread", round(mean - share, 12), *(quantiles - share).tolist())


def reseeded(evaluations: float, reference: Reference, highest_of: int = 1) -> Effect:
    """Play the same tasks with other seeds.

    Args:
        evaluations: The number's variance, in variances of one evaluation that plays every task once.
        reference: The outcomes.
        highest_of: The number of equal checkpoints of which the best is reported.
    """
    if reference.within is None:
        return not_known("every task was played once; it takes two seeds")
    deviation = math.sqrt(evaluations * reference.within / reference.tasks)
    return spread(reference, deviation, highest_of)


def other_seeds(reference: Reference) -> Effect:
    """Repeat the evaluation with as many other seeds: what chance gives without any difference."""
    return reseeded(2 * reference.tasks / len(reference.rollouts), reference)


# --------------------------------------------------------------------------------------------------------- the table


class Protocol(NamedTuple):
    """A way to score a policy.

    Attributes:
        name: Its name.
        sentence: What it does.
        source: Where it was seen: repositories with issues, or papers.
        move: Returns its effect on a reference.
        benchmark: The only benchmark that has it; None for all.
    """

    name: str
    sentence: str
    source: str
    move: Callable[[Reference], Effect]
    benchmark: str | None = None


SEEDS_SOURCE: Final = "checklist of arXiv 2604.09459: 2 of 41 methods report a variance"
LIMITS: Final = "jinyangwu/SEED #6; scripts of verl-agent and HGPO"
_AUDITS: Final = "ZJU-REAL/Agent-G2 #1, ZJU-REAL/SDAR #58, ZethWang/AgentOPSD #11"
_SIZES: Final = "aiming-lab/SkillRL #66, #68"
_BEST: Final = "aiming-lab/SkillRL #62"
_CARDS: Final = "Rollout Cards, arXiv 2605.12131"
_NONE_FAILED: Final = "no rollout failed"

_DRAWS: Final = [
    Protocol(
        f"{size} draws",
        f"{size} environments draw tasks with repeats.",
        _SIZES,
        partial(drawn_with_repeats, size),
    )
    for size in (64, 128, 140)
]
_TASKS: Final = [
    Protocol(
        f"{size} tasks",
        f"{size} tasks without repeats.",
        _SIZES,
        partial(drawn, size, 1 / size),
    )
    for size in (64, 128, 140)
]

PROTOCOLS: Final = (
    Protocol(
        "other seeds",
        "A/A: the reference again, with other seeds. What chance gives.",
        SEEDS_SOURCE,
        other_seeds,
    ),
    Protocol(
        "one seed",
        "One seed, without an interval.",
        SEEDS_SOURCE,
        partial(reseeded, 1.0),
    ),
    Protocol(
        "128 workers",
        "Each worker shuffles an unsorted list by its seed: 91 of 140 games.",
        _AUDITS,
        partial(drawn_by_workers, 128),
        "ALFWorld",
    ),
    *_DRAWS,
    *_TASKS,
    Protocol(
        "best of 30 draws",
        "The best of 30 equal checkpoints, each on 128 draws.",
        _BEST,
        partial(drawn_with_repeats, 128, highest_of=30),
    ),
    Protocol(
        "best of 30",
        "The best of 30 equal checkpoints, each on every task of the run once.",
        _BEST,
        partial(reseeded, 1.0, highest_of=30),
    ),
    Protocol(
        "best checkpoint",
        "The best evaluation of a training run, not the last.",
        _BEST,
        best_checkpoint,
    ),
    Protocol(
        "failed lost",
        "Failed rollouts count as lost.",
        _CARDS,
        by_rule("aborted lost", _NONE_FAILED),
    ),
    Protocol(
        "failed won",
        "Failed rollouts count as won.",
        _CARDS,
        by_rule("aborted won", _NONE_FAILED),
    ),
    Protocol(
        "limit won",
        "Done at the step limit counts as success.",
        "mll-lab-nu/RAGEN #138",
        by_rule("limit won", "no rollout reaches the limit"),
    ),
    Protocol(
        "30 steps", "A limit of 30 steps.", LIMITS, partial(shorter, 30), "ALFWorld"
    ),
    Protocol(
        "15 steps", "A limit of 15 steps.", LIMITS, partial(shorter, 15), "WebShop"
    ),
)
"""The protocols whose effect follows from a run's table."""


def table_effects(reference: Reference) -> list[Effect]:
    """Return the effect of every protocol of `PROTOCOLS` that the benchmark has.

    Args:
        reference: The policy's outcomes.
    """
    benchmarks = {None, *reference.rollouts["env_id"].str.extract(r"(\w+)-v\d+$")}
    effects = []
    for name, sentence, source, move, benchmark in PROTOCOLS:
        if benchmark in benchmarks:
            effect = move(reference)
            effects.append(
                effect._replace(protocol=name, sentence=sentence, source=source)
            )
    return effects
