"""`discounted_grpo` against its equation in plain Python, and against GRPO."""

import statistics

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgpo_train.advantages import compute


def table(lengths, scores, valid=True):
    """Return one task's rollouts, which are rewarded at their ends."""
    rows = [
        {
            "task": "t",
            "trajectory": str(i),
            "step": t,
            "reward": score * (t + 1 == length),
            "action_valid": valid,
        }
        for i, (length, score) in enumerate(zip(lengths, scores, strict=True))
        for t in range(length)
    ]
    return pl.DataFrame(rows, schema_overrides={"reward": pl.Float64})


def advantages(rows, estimator="discounted_grpo", **parameters):
    given = {
        "reward_scale": 1.0,
        "precision": "float64",
        "invalid_action_penalty": 0.0,
    } | parameters
    return compute(rows, estimator, **given).collect()["advantage"]


groups = st.lists(
    st.tuples(st.integers(1, 5), st.sampled_from([0.0, 1.0, 0.25])),
    min_size=2,
    max_size=6,
)


@settings(max_examples=8, deadline=None)
@given(
    groups,
    st.sampled_from([0.0, 0.5, 0.95, 1.0]),
    st.randoms(use_true_random=False),
)
def test_it_matches_its_equation_for_any_row_order(group, gamma, random):
    lengths, scores = zip(*group, strict=True)
    returns = [[gamma ** (n - 1 - t) * score for t in range(n)] for n, score in group]
    means = [statistics.fmean(each) for each in returns]
    spread = statistics.stdev(scores)
    expected = [
        (value - statistics.fmean(means[:i] + means[i + 1 :])) / spread
        if spread
        else 0.0
        for i, each in enumerate(returns)
        for value in each
    ]
    rows = table(lengths, scores)
    order = random.sample(range(rows.height), rows.height)
    assert advantages(rows[order], gamma=gamma).to_list() == pytest.approx(
        np.array(expected)[order], abs=1e-12
    )


@settings(max_examples=8, deadline=None)
@given(groups)
def test_without_a_discount_it_is_grpo_over_rollouts(group):
    """GRPO leaves the own rollout in its mean: a factor of n / (n - 1)."""
    rows = table(*zip(*group, strict=True))
    grpo = advantages(
        rows,
        "grpo",
        cross_steps=False,
        epsilon=0.0 if len({s for _, s in group}) > 1 else 1e-6,
    )
    factor = len(group) / (len(group) - 1)
    assert advantages(rows, gamma=1.0).to_list() == pytest.approx(
        (grpo * factor).to_list(), abs=1e-12
    )


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=6),
    st.sampled_from([0.0, 0.1, 1.0, 10 / 3]),
    st.booleans(),
)
def test_groups_of_equal_scores_have_advantages_of_exactly_0(lengths, score, valid):
    rows = table(lengths, [score] * len(lengths), valid)
    assert (advantages(rows, invalid_action_penalty=0.1) == 0).all()


def test_rewards_on_the_way_are_part_of_the_returns_from_there():
    """R of both rollouts are 1.5, 1, 2 and 0.5, 1; their means 1.5 and 0.75; the scores 3 and 1 deviate by √2."""
    rows = table([3, 2], [0.0, 0.0]).with_columns(
        reward=pl.Series([1.0, 0.0, 2.0, 0.0, 1.0])
    )
    expected = np.array([0.75, 0.25, 1.25, -1.0, -0.5]) / 2**0.5
    assert advantages(rows, gamma=0.5).to_list() == pytest.approx(
        expected.tolist(), abs=1e-12
    )


def test_a_penalty_is_that_of_the_step():
    rows = table([2, 1], [1.0, 0.0]).with_columns(
        action_valid=pl.Series([False, True, True])
    )
    less = advantages(rows) - advantages(rows, invalid_action_penalty=0.5)
    assert less.to_list() == pytest.approx([0.5 / statistics.stdev([1, 0]), 0, 0])


def test_returning_to_a_state_divides_its_credit():
    """R are 1/4, 1/2, 1 and 0, 0, their means 7/12 and 0; the scores 1 and 0 deviate by 1/√2."""
    rows = table([3, 2], [1.0, 0.0]).with_columns(
        state=pl.Series(["s", "t", "s", "s", "s"])
    )
    from_the_others_mean = np.array([1 / 4, 1 / 2, 1, -7 / 12, -7 / 12])
    visits = np.array([2, 1, 2, 2, 2])
    expected = from_the_others_mean / visits * 2**0.5
    assert advantages(rows, gamma=0.5, per_visit=True).to_list() == pytest.approx(
        expected.tolist(), abs=1e-12
    )
    # Another task's rollouts of the same names and states are others.
    both = pl.concat(
        [
            rows,
            rows.with_columns(task=pl.lit("u"), trajectory="u" + pl.col("trajectory")),
        ]
    )
    found = advantages(both, gamma=0.5, per_visit=True)
    assert found.to_list() == pytest.approx([*expected, *expected], abs=1e-12)
