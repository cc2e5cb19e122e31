"""Checks of which rollouts are compared: those of one task, in any order, number and length, and no others."""

from __future__ import annotations

import numpy as np
import polars as pl

from hgpo_record.conform.rollouts import ONE_STEP, PLAIN, table
from hgpo_record.conform.verdicts import NOISE, Estimate, Note, unless_equal


def other_tasks(estimate: Estimate) -> str | None:
    """The rollouts of another task change nothing (agent-lightning #489)."""
    others = [[0.0, 5.0], [0.0, -3.0], [0.0, 1.0], [0.0, 0.25]]
    before = estimate(table(PLAIN)).values[:8]
    after = estimate(table(PLAIN | {"rare": others})).values[:8]
    return unless_equal(
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
    return unless_equal(
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
        problem = unless_equal(
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
    return unless_equal(
        found, expected, "another order of the rollouts of a task changes advantages"
    )


def sizes(estimate: Estimate) -> str | None:
    """Groups may have different sizes, as after failed rollouts."""
    both = estimate(
        table({"three": PLAIN["won"][:3], "five": [*PLAIN["rare"], [0.0, 1.0]]})
    ).values
    first = estimate(table({"three": PLAIN["won"][:3]})).values
    return unless_equal(
        both[: len(first)],
        first,
        "a group of another size changes advantages; group by ids, not by position",
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


def aborted(estimate: Estimate) -> str | None:
    """A rollout that a failure aborted is in no baseline, and is not trained on."""
    ended = [[0.0, 1.0], [0.0, 0.0], [0.0, 1.0]]
    steps = table({"a": ended})
    failed = table({"a": [*ended, [0.0, 0.0]]})
    is_failed = (pl.col("trajectory") == "a/3").alias("aborted")
    found = estimate(failed.with_columns(is_failed)).values
    if np.nan_to_num(np.abs(found[6:])).max() > NOISE:
        return f"an aborted rollout has the advantage {found[6]:.3g}; expected none"
    expected = estimate(steps).values
    return unless_equal(
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
    return unless_equal(
        found,
        first,
        "equal states of two tasks are compared with each other; advantages change",
    )


def longer(estimate: Estimate) -> str | None:
    """Whether long rollouts weigh more in the baseline (agent-lightning #445)."""
    values = estimate(table({"a": [[0.0, 0.0, 0.0, 1.0], [0.0]]})).values
    if abs(values[0] + values[-1]) <= 0.05 * abs(values[0]):
        return None
    return Note(
        f"the baseline counts rows: a won rollout of 4 steps has {values[0]:.3g}, a lost one of 1 step "
        f"{values[-1]:.3g}, so long rollouts weigh more, as in verl-agent"
    )
