"""Rules that choose where rollouts branch: registered functions of a step table, and the points that fit a budget.

A rule receives the steps of a run and returns those at which branches may start, with a `priority`. Others add theirs
by the entry point group `hgpo.branch_rules`, or are named as ``module:function``.

A rule that reads outcomes chooses steps *because of* their outcomes, and the outcomes that chose a step say
something else about it than new ones (SIPO calls this selection bias). Such a rule says so (`BranchRule.outcomes`), and
its branches are compared among themselves (`fresh` of the estimators over trees).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import polars as pl
from msgspec import Meta

from hgpo_datasets.branches import IS_FIRST
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.hashing import text_hashes
from hgpo_train.registry import NamedFunction, Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

GROUP: Final = ("iteration", "task_id", "group")
POINT: Final = (*GROUP, "trajectory", "step")
"""The columns that identify a step within a run."""

READ: Final = (
    *POINT,
    "state_hash",
    "action_hash",
    "episode_return",
    "episode_won",
    "episode_length",
    "parent",
    "branch_step",
    "aborted",
)
"""The columns that rules receive."""

WIDTH: Final = 1
"""The default number of branches at a point: one at many points was better than several at a few
(research/docs/branch_study.md)."""

WIDEST: Final = 1000
Width = Annotated[int, Meta(ge=1, le=WIDEST)]


@dataclass(frozen=True)
class BranchRule(NamedFunction):
    """A registered rule.

    Attributes:
        name: Its name in the registry.
        function: Returns some rows of a step table, with the column `priority`: a number, or null for not at all. Rows
            of high priority come first, and equal ones in random order. The table has the columns `READ`, and those of
            the scores; aborted rollouts are left out.
        scores: The names of scores that it reads (`hgpo score`).
        outcomes: Whether it reads what happened after a step.
    """

    function: Callable[[pl.LazyFrame], pl.LazyFrame]
    scores: tuple[str, ...] = ()
    outcomes: bool = False


def branch_rule(
    name: str, *, scores: Sequence[str] = (), outcomes: bool = False
) -> Callable[[Callable[[pl.LazyFrame], pl.LazyFrame]], BranchRule]:
    """Return a decorator that registers a function as a rule; the arguments are fields of `BranchRule`.

    Raises:
        InputError: Another rule is registered under this name.
    """

    def decorate(function: Callable[[pl.LazyFrame], pl.LazyFrame]) -> BranchRule:
        return RULES.add(BranchRule(name, function, tuple(scores), outcomes))

    return decorate


def _as_rule(found: object, name: str) -> BranchRule:
    if isinstance(found, BranchRule):
        return found
    if callable(found):
        # unknown, and so the careful answer
        return BranchRule(name, found, outcomes=True)
    raise InputError(
        f"{name}: expected a function of a step table, received {type(found).__name__}"
    )


RULES: Final = Registry("hgpo.branch_rules", "a branch rule", _as_rule)
get = RULES.get
names = RULES.names


def check_in_rollouts(name: str, group_size: int) -> BranchRule:
    """Return the rule by which rollouts branch while they are collected, in groups of this size.

    Raises:
        InputError: It is unknown or reads scores, which are there later, or a group is too small.
    """
    rule = get(name)
    if rule.scores:
        raise InputError(
            f"branch rule {name}: expected one that reads no scores, such as uniform, because rollouts are not scored "
            "yet; use hgpo score RUN and then hgpo branch RUN"
        )
    if group_size < 2:
        raise InputError(
            f"group_size: expected at least 2 with branches, a rollout and its branches, received {group_size}"
        )
    return rule


def identity(name: str, width: int) -> dict[str, Any]:
    """Return what a run stores of the rule by which its rollouts branch."""
    return {"branches": {"at": name, "outcomes": get(name).outcomes, "width": width}}


# ------------------------------------------------------------------------------------------------------------ the rules


@branch_rule("uniform")
def uniform(steps: pl.LazyFrame) -> pl.LazyFrame:
    """Any step, all with equal probability."""
    return steps.with_columns(priority=pl.lit(0.0))


@branch_rule("first-visits")
def first_visits(steps: pl.LazyFrame) -> pl.LazyFrame:
    """Each state of a group once, at the earliest step that is in it."""
    ordered = steps.sort("step", "trajectory")
    return ordered.unique(
        [*GROUP, "state_hash"], keep="first", maintain_order=True
    ).with_columns(priority=pl.lit(0.0))


@branch_rule("mixed-outcomes", outcomes=True)
def mixed_outcomes(steps: pl.LazyFrame) -> pl.LazyFrame:
    """States whose rollouts ended with different returns, those of the largest variance first."""
    state = [*GROUP, "state_hash"]
    visits = steps.sort("step").unique([*state, "trajectory"], keep="first")
    variances = visits.group_by(state).agg(
        pl.col("episode_return").var(0).alias("priority")
    )
    return (
        first_visits.function(steps)
        .drop("priority")
        .join(variances.filter(pl.col("priority") > 0), on=state)
    )


@branch_rule("entropy", scores=("entropy",))
def entropy(steps: pl.LazyFrame) -> pl.LazyFrame:
    """Steps at which the model's responses have the highest entropy (hgpo score RUN --model MODEL -s entropy)."""
    return steps.with_columns(priority="entropy")


# ----------------------------------------------------------------------------------------------------------- the points


def choose_points(
    steps: pl.LazyFrame,
    rule: BranchRule,
    *,
    width: int,
    budget: int | None,
    seed: int,
    replays: bool,
) -> pl.DataFrame:
    """Return the steps at which branches start.

    A branch is expected to take as many steps as rollouts of the run, on average, still take at its step number. Points
    are taken in the rule's order until the budget is spent. Which points fit therefore depends on averages, never on
    the outcome of a point itself: that would be a selection by outcomes.

    Args:
        steps: The steps of a run.
        rule: The rule.
        width: W, the number of branches at each point.
        budget: The number of environment steps of all branches, which is met on average; None for as many as the run
            has.
        seed: The seed of the order of points with equal priority.
        replays: Whether the environment replays a branch's first steps, which then count, too.

    Returns:
        The columns `POINT`, in the rule's order.

    Raises:
        InputError: The rule returned something else than rows of the table with priorities.
    """
    # 1. What the rule chooses. A branch at a first row would be one of the parent's parent, or a rollout of its own.
    whole = steps.filter(~pl.col("aborted").any().over("trajectory"))
    left = (pl.col("episode_length") - pl.col("step")).mean().over("step")
    allowed = (
        whole.with_columns(left.alias("left")).filter(~IS_FIRST).select(*POINT, "left")
    )
    try:
        found = rule.function(whole).select(*POINT, pl.col("priority").cast(pl.Float64))
        points = found.drop_nulls().unique(POINT).join(allowed, on=POINT).collect()
    except Exception as error:  # of a function of one's own
        expected = (
            f"rows of the step table with {', '.join(POINT)} and a number as priority"
        )
        received = f"{type(error).__name__}: {one_line(error, 200)}"
        raise InputError(
            f"branch rule {rule.name}: expected {expected}, received {received}"
        ) from error

    # 2. Their order. The names of equal ones are hashed with the seed, so that it does not depend on that of rows.
    texts = points.select(
        pl.format(f"{seed}/{{}}/{{}}", "trajectory", "step")
    ).to_series()
    points = points.with_columns(order=text_hashes(texts))
    points = points.sort("priority", "order", descending=[True, False])

    # 3. Those that fit the budget: each begins before it is spent.
    cost = width * (pl.col("left") + (pl.col("step") if replays else 0))
    if budget is None:
        budget = int(whole.select(pl.len()).collect().item())
    return points.filter(cost.cum_sum() - cost < budget).select(POINT)
