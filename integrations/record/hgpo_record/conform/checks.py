"""The checks: what advantage code owes whatever its formula, each with the public report of a trainer that missed it.

A check calls the code with small tables and returns what is wrong in a line, or None. A few return a note: something
that is a choice, and that its user should know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from inspect import signature
from itertools import combinations_with_replacement
from math import factorial, prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from hgpo_envs.errors import InputError, one_line, unknown
from hgpo_record.conform.adapters import ADAPTERS, Advantages, CallError
from hgpo_record.conform.rollouts import table

if TYPE_CHECKING:
    from numpy.typing import NDArray

Estimate = Callable[[pl.DataFrame], Advantages]
"""The code that is checked: from a table to its advantages."""

NOISE: Final = 1e-5
"""Differences up to this are rounding of float32."""

PLAIN: Final = {
    "won": [[0.0, 1.0], [0.0, 0.0], [0.0, 0.0], [0.0, 1.0]],
    "rare": [[0.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0]],
}
"""Two tasks with four rollouts of two steps."""

ONE_STEP: Final = {
    "won": [[1.0], [0.0], [0.0], [0.5]],
    "rare": [[0.0], [0.0], [0.25], [1.0]],
}
"""Two tasks with four rollouts of one step."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found.

    Attributes:
        check: The name of the check.
        kind: ``ok``, ``fault``, ``note`` (a choice that its user should know), or ``skipped``.
        text: What was found, or what the check asks for.
    """

    check: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind:<8}{self.check}: {self.text}"


class Note(str):
    """What a check returns that found a choice, not a fault."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Check:
    """A check: its function, the adapters that it is for, and whether it needs baselines of single tasks, or γ = 1."""

    name: str
    asks: str
    find: Callable[[Estimate], str | None]
    adapters: tuple[str, ...] = tuple(ADAPTERS)
    per_task: bool = False
    undiscounted: bool = False


def conform(
    function: Callable[..., Any],
    adapter: str = "plain",
    *,
    scope: str = "group",
    settings: Mapping[str, Any] | None = None,
) -> list[Finding]:
    """Check advantage code.

    Args:
        function: The code, called as its adapter says.
        adapter: One of `ADAPTERS`.
        scope: ``group`` if advantages depend only on the rollouts of a task, or ``batch`` if they are normalised over
            all tasks, as in REINFORCE++. Checks of single tasks are then left out.
        settings: Keyword arguments of the function. Each must have an effect.

    Returns:
        One finding for each check, in the order of `CHECKS`.

    Raises:
        InputError: The adapter or the scope is unknown, or the function needs arguments that the adapter does not pass.

    >>> from hgpo_train.advantages import grpo
    >>> {finding.kind for finding in conform(grpo) if finding.check != "rows or rollouts"}
    {'ok'}
    """
    if adapter not in ADAPTERS:
        raise InputError(unknown("adapter", adapter, ADAPTERS))
    if scope not in ("group", "batch"):
        raise InputError(unknown("scope", scope, ("group", "batch")))
    given = dict(settings or {})
    call = partial(ADAPTERS[adapter], function)
    estimate = partial(call, settings=given)
    chosen = [
        check
        for check in CHECKS
        if adapter in check.adapters and not (check.per_task and scope == "batch")
    ]
    # With a discount, returns that are equal at the end differ before: to stop early is better.
    try:
        takes_gamma = "gamma" in signature(function).parameters
    except (TypeError, ValueError) as error:  # not callable, or built in
        raise InputError(
            f"expected a function of Python, received {one_line(repr(function))}"
        ) from error
    without_discount = (
        partial(call, settings={**given, "gamma": 1.0}) if takes_gamma else estimate
    )
    try:
        estimate(table(PLAIN))
    except CallError as error:  # all checks would fail for the same reason
        return [Finding("call", "fault", str(error))]
    findings = [
        _run(check, without_discount if check.undiscounted else estimate)
        for check in chosen
    ]
    for name, value in given.items():
        others = {other: kept for other, kept in given.items() if other != name}
        effect = partial(
            has_effect,
            without=partial(call, settings=others),
            shown=f"{name}={value!r}",
        )
        findings.append(
            _run(Check(f"setting {name}", "it has an effect", effect), estimate)
        )
    return findings


def _run(check: Check, estimate: Estimate) -> Finding:
    name = check.name
    asks = check.asks
    try:
        found = check.find(estimate)
    except CallError as error:
        return Finding(name, "fault", str(error))
    if found is None:
        return Finding(name, "ok", asks)
    return Finding(name, "note" if isinstance(found, Note) else "fault", str(found))


def finite(estimate: Estimate) -> str | None:
    """One finite number for each step, in whatever order groups and lengths come."""
    steps = table(
        {**PLAIN, "long": [[0.0, 0.5, 0.0, 1.0], [0.0], [0.0, 0.0, 0.0], [1.0, 1.0]]}
    )
    values = estimate(steps).values
    bad = int((~np.isfinite(values)).sum())
    return f"{bad} of {len(values)} advantages are NaN or infinite" if bad else None


def mask(estimate: Estimate) -> str | None:
    """Each sequence's own mask (SkyRL #1492: the last step's mask was used for all)."""
    steps = table(
        {
            "a": [[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]],
            "b": [[0.0, 0.0, 1.0], *[[0.0] * 3] * 2],
        }
    )
    found = estimate(steps)
    if found.outside > NOISE:
        return f"advantages outside the response mask, up to {found.outside:.3g}; multiply by each sequence's own mask"
    if found.uneven:
        return "the tokens of one step have different advantages"
    lost = int((np.abs(found.values) < NOISE).sum())
    return (
        f"{lost} of {len(found.values)} steps have advantage 0 where their rollouts' returns differ"
        if lost
        else None
    )


def equal(estimate: Estimate) -> str | None:
    """Equal returns give 0, not the noise of their mean divided by its own size (verl-agent; many forks)."""
    rewards = {
        f"all {value:.4g}": [[0.0, value]] * size
        for value, size in ((0.1, 3), (1 / 3, 7), (10.0, 6), (0.7, 5))
    }
    for name, rollouts in rewards.items():
        values = estimate(table({name: rollouts})).values
        if not np.abs(values).max() <= 10 * NOISE:  # NaN, too
            worst = values[np.argmax(np.abs(np.nan_to_num(values, nan=np.inf)))]
            equal = f"{len(rollouts)} equal returns of {rollouts[0][-1]:.4g}"
            return f"{equal} have an advantage of {worst:.3g}, expected 0"
    return None


def alone(estimate: Estimate) -> str | None:
    """A group of one rollout has no baseline (rLLM #776: every group was one)."""
    values = estimate(table({"only": [[0.0, 1.0]]})).values
    if not np.isfinite(values).all():
        return "a group of one rollout has NaN; its standard deviation is not defined, expected 0"
    if np.abs(values).max() > NOISE:
        return Note(
            f"a group of one rollout has the advantage {values[0]:.3g}: its return, without a baseline"
        )
    return None


def other_tasks(estimate: Estimate) -> str | None:
    """The rollouts of another task change nothing (agent-lightning #489)."""
    changed = PLAIN | {"rare": [[0.0, 5.0], [0.0, -3.0], [0.0, 1.0], [0.0, 0.25]]}
    before = estimate(table(PLAIN)).values[:8]
    after = estimate(table(changed)).values[:8]
    return _unless_equal(
        before, after, "other rewards in one task change the advantages of another"
    )


def names(estimate: Estimate) -> str | None:
    """Task names are compared as a whole: a prefix of a name, or another case, is another task."""
    pair = {
        "task-1": PLAIN["won"],
        "task-10": PLAIN["rare"],
        "Task-1": [[0.0, 3.0], *[[0.0, 0.0]] * 3],
    }
    others = {"x": PLAIN["won"], "y": PLAIN["rare"], "z": pair["Task-1"]}
    found = estimate(table(pair)).values
    expected = estimate(table(others)).values
    return _unless_equal(
        found,
        expected,
        "other names of the tasks change advantages; compare whole names",
    )


def order(estimate: Estimate) -> str | None:
    """Rows in any order give the same advantages, also where tasks and steps are mixed."""
    return _reordered(estimate, table(PLAIN), seeds=range(3))


def mixed_tasks(estimate: Estimate) -> str | None:
    """Rollouts of different tasks may stand between each other."""
    return _reordered(estimate, table(ONE_STEP), seeds=range(3))


def _reordered(estimate: Estimate, steps: pl.DataFrame, seeds: range) -> str | None:
    expected = estimate(steps).values
    for seed in seeds:
        places = np.random.default_rng(seed).permutation(steps.height)
        found = estimate(steps[places]).values
        problem = _unless_equal(
            found,
            expected[places],
            "another order of the rows changes advantages; group by ids, not by position",
        )
        if problem is not None:
            return problem
    return None


def rollout_order(estimate: Estimate) -> str | None:
    """The rollouts of a task in any order give the same advantages."""
    steps = table(ONE_STEP)
    places = np.array([2, 0, 3, 1, 7, 6, 4, 5])
    found = estimate(steps[places]).values
    expected = estimate(steps).values[places]
    return _unless_equal(
        found, expected, "another order of the rollouts of a task changes advantages"
    )


def sizes(estimate: Estimate) -> str | None:
    """Groups may have different sizes, as after failed rollouts."""
    both = estimate(
        table({"three": PLAIN["won"][:3], "five": [*PLAIN["rare"], [0.0, 1.0]]})
    ).values
    first = estimate(table({"three": PLAIN["won"][:3]})).values
    return _unless_equal(
        both[: len(first)],
        first,
        "a group of another size changes advantages; group by ids, not by position",
    )


def sign(estimate: Estimate) -> str | None:
    """The better rollout of a group has the larger advantage, above 0; the worse one is below 0."""
    for high, low in ((1.0, 0.0), (0.0, -1.0), (1000.1, 1000.0), (0.02, 0.01)):
        values = estimate(table({"pair": [[high], [low], [low], [high]]})).values
        if not (values[0] > NOISE and values[1] < -NOISE):
            shown = f"{values[0]:.3g} and {values[1]:.3g}"
            return f"returns of {high:g} and {low:g} have the advantages {shown}; expected above and below 0"
    return None


def shift(estimate: Estimate) -> str | None:
    """The same reward added to all rollouts of a task changes nothing."""
    before = estimate(table(PLAIN)).values
    more = {
        name: [[*rewards[:-1], rewards[-1] + 3.0] for rewards in rollouts]
        for name, rollouts in PLAIN.items()
    }
    won = table(PLAIN)["won"]  # as before: some estimators read it
    after = estimate(table(more).with_columns(won)).values
    return _unless_equal(
        after, before, "3 more in every return changes advantages", most=10 * NOISE
    )


def scale(estimate: Estimate) -> str | None:
    """Larger rewards do not give smaller advantages, as a division by the variance does."""
    before = estimate(table(PLAIN)).values
    more = {
        name: [[8 * reward for reward in rollout] for rollout in rollouts]
        for name, rollouts in PLAIN.items()
    }
    after = estimate(table(more)).values
    ratio = np.abs(after).max() / max(np.abs(before).max(), NOISE)
    if ratio > 0.5:  # by the variance, 1/8
        return None
    return f"8 times the rewards give advantages of {ratio:.3g} times the size; divide by the standard deviation"


def centred(estimate: Estimate) -> str | None:
    """Whether the advantages of a task's rollouts sum to 0: the baseline is the mean of all their returns."""
    values = estimate(table({"a": [[1.0], [0.0], [0.0], [0.5]]})).values
    if abs(values.sum()) <= 0.01 * np.abs(values).sum():
        return None
    return Note(
        f"the advantages of four rollouts sum to {values.sum():.3g}: the baseline is not their mean return"
    )


def iterations(estimate: Estimate) -> str | None:
    """Whether rollouts of the same task in another iteration are left out of the comparison."""
    steps = table(PLAIN)
    later = table(
        {name: rollouts[:2] for name, rollouts in PLAIN.items()}
    ).with_columns(
        pl.lit(1, pl.Int64).alias("iteration"),
        pl.format("later {}", "trajectory").alias("trajectory"),
    )
    found = estimate(pl.concat([steps, later])).values[: steps.height]
    if np.abs(found - estimate(steps).values).max() <= NOISE:
        return None
    return Note(
        "rollouts of one task in two iterations are compared; group by run and iteration too, or pass only one"
    )


def nan(estimate: Estimate) -> str | None:
    """A reward that is NaN is an error or stays one; it is never counted as a number."""
    steps = table({"broken": [[0.0, float("nan")], [0.0, 1.0], [0.0, 0.0]]})
    try:
        values = estimate(steps).values
    except CallError:
        return None
    if np.isnan(values[1]):
        return None
    return f"a reward of NaN has the advantage {values[1]:.3g}: it was counted as a number; raise an error"


def aborted(estimate: Estimate) -> str | None:
    """A rollout that a failure aborted is in no baseline, and is not trained on."""
    steps = table({"a": [[0.0, 1.0], [0.0, 0.0], [0.0, 1.0]]})
    failed = table({"a": [[0.0, 1.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0]]})
    is_failed = (pl.col("trajectory") == "a/3").alias("aborted")
    found = estimate(failed.with_columns(is_failed)).values
    if np.nan_to_num(np.abs(found[6:])).max() > NOISE:
        return f"an aborted rollout has the advantage {found[6]:.3g}; expected none"
    expected = estimate(steps).values
    return _unless_equal(
        found[:6], expected, "an aborted rollout changes the advantages of the others"
    )


def other_states(estimate: Estimate) -> str | None:
    """Equal states of two tasks are not one state."""
    named = table(PLAIN)
    same = named.with_columns(
        state=pl.format("at {}", "step"),
        next_state=pl.format("at {}", pl.col("step") + 1),
    )
    first = estimate(same.filter(pl.col("task_id") == "won")).values
    found = estimate(same).values[:8]
    return _unless_equal(
        found,
        first,
        "equal states of two tasks are compared with each other; advantages change",
    )


def untouched(estimate: Estimate) -> str | None:
    """The arguments are not modified: the caller still needs them."""
    changed = estimate(table(PLAIN)).changed
    return f"it modifies {', '.join(changed)} in place; copy first" if changed else None


def repeated(estimate: Estimate) -> str | None:
    """Two calls give the same advantages."""
    steps = table(PLAIN)
    first = estimate(steps).values
    second = estimate(steps).values
    return _unless_equal(first, second, "two calls with the same rows differ", most=0)


def longer(estimate: Estimate) -> str | None:
    """Whether long rollouts weigh more in the baseline (agent-lightning #445)."""
    values = estimate(table({"a": [[0.0, 0.0, 0.0, 1.0], [0.0]]})).values
    if abs(values[0] + values[-1]) <= 0.05 * abs(values[0]):
        return None
    return Note(
        f"the baseline counts rows: a won rollout of 4 steps has {values[0]:.3g}, a lost one of 1 step "
        f"{values[-1]:.3g}, so long rollouts weigh more, as in verl-agent"
    )


def stopping(estimate: Estimate) -> str | None:
    """The expected gradient of a choice to stop that makes no difference is 0 (verl #7244)."""
    bias = stop_gradient(estimate, {(1.0,): 0.5, (0.5, 1.0): 0.25, (0.5, 0.0): 0.25})
    if abs(bias) <= 100 * NOISE:
        return None
    more = "going on" if bias > 0 else "stopping"
    return (
        f"stopping and going on have equal returns, and the expected gradient favours {more} by {bias:+.3g}: "
        "a baseline depends on when a rollout stops"
    )


def better(estimate: Estimate) -> str | None:
    """The expected gradient points to the better choice: to go on, or to stop."""
    for name, wins in (("going on", 0.45), ("stopping", 0.05)):
        game = {(0.5,): 0.5, (0.0, 1.0): wins, (0.0, 0.0): 0.5 - wins}
        gradient = stop_gradient(estimate, game)
        if (gradient > 0) != (name == "going on"):
            return f"{name} is better, and the expected gradient points to the other choice ({gradient:+.3g})"
    return None


def stop_gradient(
    estimate: Estimate, game: Mapping[tuple[float, ...], float], size: int = 4
) -> float:
    """Return the expected gradient of the probability to go on, by all groups that can occur.

    Rollouts of one step have stopped, those of two went on, each with probability 1/2 by the policy, and what happens
    then is chance. The gradient of the log-probability of going on is 2 for those that went on and -2 for the others,
    so that the expectation is over the counts of outcomes in a group, with their multinomial probabilities.

    Args:
        estimate: The code.
        game: For each outcome, as rewards of its steps, its probability.
        size: Number of rollouts of a group.
    """
    groups = list(combinations_with_replacement(game, size))
    tasks = {
        f"group {number}": [list(rewards) for rewards in group]
        for number, group in enumerate(groups)
    }
    steps = table(tasks)
    if size * len(groups) != steps.filter(step=0).height:
        raise AssertionError("a rollout of the game is missing")
    values = (
        estimate(steps)
        .values[(steps["step"] == 0).to_numpy()]
        .reshape(len(groups), size)
    )
    total = 0.0
    for group, advantages in zip(groups, values, strict=True):
        ways = factorial(size) / prod(
            factorial(group.count(outcome)) for outcome in game
        )
        probability = ways * prod(game[outcome] for outcome in group)
        scores = np.array([2.0 if len(outcome) > 1 else -2.0 for outcome in group])
        total += probability * float((advantages * scores).mean())
    return total


def _unless_equal(
    found: NDArray[np.float64],
    expected: NDArray[np.float64],
    problem: str,
    most: float = NOISE,
) -> str | None:
    """Return the problem with its size unless advantages are equal up to rounding; NaN is a difference."""
    difference = np.abs(found - expected).max()
    if difference <= most:
        return None
    return f"{problem}, by {difference:.3g}"


def has_effect(estimate: Estimate, without: Estimate, shown: str) -> str | None:
    """Whether a setting changes anything, on rows that differ in all that a setting can be about."""
    long = [
        [0.2, 0.0, 0.0, 1.0],
        [0.0, 0.3, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.5],
        [0.0, 0.1, 0.0, 0.0],
    ]
    steps = table({"long": long, **PLAIN}).with_columns(
        action_valid=pl.col("step") != 1,
        state=pl.format("{} at {}", "task_id", pl.col("step") // 2),
    )
    difference = np.abs(estimate(steps).values - without(steps).values).max()
    if difference == 0:
        return f"{shown} changes no advantage; it is ignored, or it is the default"
    return None


_TENSORS: Final = ("verl", "skyrl")
_NAMED: Final = ("plain", "verl", "skyrl")
CHECKS: Final = (
    Check(
        "finite",
        "one finite number for each step",
        finite,
        _NAMED,
    ),
    Check(
        "mask",
        "advantages only inside of each sequence's own mask",
        mask,
        _TENSORS,
    ),
    Check(
        "equal returns",
        "0 for equal returns",
        equal,
        per_task=True,
        undiscounted=True,
    ),
    Check(
        "group of one",
        "0 without a baseline",
        alone,
    ),
    Check(
        "other tasks",
        "tasks are not mixed",
        other_tasks,
        per_task=True,
    ),
    Check(
        "names of tasks",
        "whole names are compared",
        names,
        _NAMED,
    ),
    Check(
        "order of rows",
        "any order of the rows",
        order,
        ("plain",),
    ),
    Check(
        "mixed tasks",
        "rollouts of other tasks in between",
        mixed_tasks,
        _NAMED,
    ),
    Check(
        "order of rollouts",
        "any order of a task's rollouts",
        rollout_order,
    ),
    Check(
        "sizes of groups",
        "groups of different sizes",
        sizes,
        _NAMED,
        per_task=True,
    ),
    Check(
        "sign",
        "better rollouts are above 0, worse ones below",
        sign,
    ),
    Check(
        "shift",
        "a constant in all returns changes nothing",
        shift,
        undiscounted=True,
    ),
    Check(
        "scale",
        "larger rewards do not give smaller advantages",
        scale,
    ),
    Check(
        "NaN",
        "a reward of NaN is an error, or stays NaN",
        nan,
    ),
    Check(
        "aborted",
        "aborted rollouts are left out",
        aborted,
        ("plain",),
    ),
    Check(
        "equal states",
        "states of different tasks are different",
        other_states,
        ("plain",),
        per_task=True,
    ),
    Check(
        "arguments",
        "arguments are not modified",
        untouched,
    ),
    Check(
        "repeated",
        "two calls agree",
        repeated,
    ),
    Check(
        "iterations",
        "iterations are not mixed",
        iterations,
        ("plain",),
    ),
    Check(
        "sum",
        "the baseline is the mean return",
        centred,
        per_task=True,
    ),
    Check(
        "rows or rollouts",
        "each rollout counts once",
        longer,
        _NAMED,
    ),
    Check(
        "stopping",
        "no bias by when a rollout stops",
        stopping,
        per_task=True,
        undiscounted=True,
    ),
    Check(
        "better choice",
        "the gradient points to the better choice",
        better,
        per_task=True,
        undiscounted=True,
    ),
)
"""The checks, in the order of the report."""
