"""Advantages given a context: a small aliased world by hand, and what must hold on any table."""

import polars as pl
import pytest
import tabular_world

from hgpo_envs.errors import InputError
from hgpo_research.truth import context_advantages

# Two corridors look alike. From the red door, left is right (A = 0.5), from the blue one it is wrong (A = -0.25).
ROWS = [
    # trajectory, step, state, action, advantage
    ("a", 0, "red", "enter", 0.1),
    ("a", 1, "corridor", "left", 0.5),
    ("b", 0, "blue", "enter", -0.1),
    ("b", 1, "corridor", "left", -0.25),
    ("c", 0, "red", "wait", 0.0),
    ("c", 1, "corridor", "left", 0.5),
    ("d", 0, "corridor", "left", 0.05),
    ("d", 1, "corridor", "right", -0.5),
]
"""In trajectory d, the corridor is the first state."""


def aliased():
    table = pl.DataFrame(ROWS, schema=["trajectory", "step", "state", "action", "advantage"], orient="row")
    return table.with_columns(
        task_id=pl.lit("t"),
        reward=0.0,
        action_valid=True,
        advantage_first=pl.col("advantage") + 0.01,
        advantage_second=pl.col("advantage") - 0.01,
        advantage_error=pl.lit(0.02),
    )


@pytest.mark.parametrize(
    ("depth", "context", "expected", "rows"),
    [
        # the state alone: left in the corridor is (0.5 - 0.25 + 0.5 + 0.05) / 4
        (0, "states", [0.1, 0.2, -0.1, 0.2, 0.0, 0.2, 0.2, -0.5], [1, 4, 1, 4, 1, 4, 4, 1]),
        # with the state before: the doors tell the corridors apart, and the first step has no state before
        (1, "states", [0.1, 0.5, -0.1, -0.25, 0.0, 0.5, 0.05, -0.5], [1, 2, 1, 1, 1, 2, 1, 1]),
        # with the action before: a entered, c waited
        (1, "states_actions", [0.1, 0.5, -0.1, -0.25, 0.0, 0.5, 0.05, -0.5], [1] * 8),
    ],
)
def test_an_aliased_world(depth, context, expected, rows):
    found = context_advantages(aliased(), depth=depth, context=context)
    assert found["context_advantage"].to_list() == pytest.approx(expected)
    assert found["context_rows"].to_list() == rows
    assert found["context_advantage_first"].to_list() == pytest.approx([value + 0.01 for value in expected])
    assert found["context_advantage_second"].to_list() == pytest.approx([value - 0.01 for value in expected])
    assert found["context_advantage_error"].to_list() == pytest.approx([0.02] * 8)
    assert found.select(aliased().columns).equals(aliased())


def test_rows_without_truth_do_not_count():
    table = aliased().with_columns(
        pl.when(pl.col("trajectory") != "b").then(pl.col(name)).alias(name)
        for name in ("advantage", "advantage_first", "advantage_second", "advantage_error")
    )
    found = context_advantages(table)
    assert found.filter(trajectory="b")["context_advantage"].null_count() == 2
    assert found.filter(trajectory="b")["context_rows"].null_count() == 2
    assert found.filter(trajectory="a")["context_advantage"].to_list() == pytest.approx([0.1, 0.35])


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_the_policy_gradient_is_the_same_and_the_mean_square_smaller(depth):
    """The tabular gradient sums advantages by context and action, which averaging keeps."""
    steps, truth = tabular_world.play(3, 16, seed=1)
    joined = pl.DataFrame(steps).join(pl.DataFrame(truth), on=["trajectory", "step"], how="left", suffix="_truth")
    if "advantage_error" not in joined.columns:
        joined = joined.with_columns(advantage_error=pl.lit(0.0))
    found = context_advantages(joined, depth=depth)
    sums = found.group_by("task_id", "state", "action").agg(pl.col("advantage", "context_advantage").sum())
    assert sums["context_advantage"].to_numpy() == pytest.approx(sums["advantage"].to_numpy(), abs=1e-9)
    whole, averaged = (float((found[name] ** 2).mean()) for name in ("advantage", "context_advantage"))
    assert 0 < averaged < whole


def test_a_table_without_truth_is_an_error():
    with pytest.raises(InputError, match="the table has no advantage and advantage_error; join it with its truth"):
        context_advantages(aliased().drop("advantage", "advantage_error"))
