"""Intervals of statistics and what chance gives: about tasks, of known widths, none where too few tasks decide."""

import re
from collections import Counter

import numpy as np
import polars as pl
import polars.testing
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_tables import table_of, tables

from hgpo_train.analysis.describe import describe
from hgpo_train.analysis.level_sums import Groups, exchanged
from hgpo_train.analysis.statistics import WITH_INTERVALS, statistics
from hgpo_train.proportions import wilson_interval


def wandering(rng, *, matters):
    """Rollouts through one of two rooms into a hall; what follows depends on the room only if it `matters`."""
    rows = []
    for task in range(24):
        for rollout in range(16):
            room = int(rng.integers(2))
            won = room if matters else int(rng.integers(2))
            for step, state in enumerate(("start", f"room {room}", "hall")):
                reward = 10.0 * won if step == 2 else 0.0
                rows.append((str(task), f"{task}/{rollout}", step, state, reward, True))
    return table_of(rows)


OF_DEPTH_ONE = (pl.col("level") == "1") & (pl.col("statistic") == "explained")


def test_histories_that_decide_are_told_from_chance_and_others_are_not():
    """In a third of the steps, the hall, the state before decides all; at the others, it is the same for all."""
    for matters in (True, False):
        table = wandering(np.random.default_rng(0), matters=matters)
        result = statistics(table, history_length=1, permutations=20)
        found = result.intervals.row(by_predicate=OF_DEPTH_ONE, named=True)
        assert found["low"] > 0.2 if matters else found["low"] < found["chance"]
        assert found["chance"] == pytest.approx(0, abs=0.02)
        text = "\n".join(describe(result))
        assert re.search(
            rf"\(\S+% to \S+%; by chance .*\): {'' if matters else 'not '}more than chance\.",
            text,
        )
        assert "; by chance it would be " in text


@pytest.mark.slow
@settings(max_examples=5)
@given(tables(), st.integers(0, 2))
def test_intervals_are_about_the_statistics(rows, seed):
    table = pl.DataFrame(rows)
    options = {"by": "task_type", "history_length": 2, "permutations": 2, "seed": seed}
    found = statistics(table, **options)
    assert all(
        frame.equals(other)
        for frame, other in zip(found, statistics(table, **options), strict=True)
    )
    for name in WITH_INTERVALS:
        expected = found.levels.select("task_type", "level", name)
        received = found.intervals.filter(statistic=name).select(
            "task_type", "level", pl.col("value").alias(name)
        )
        pl.testing.assert_frame_equal(received, expected)
    bounded = found.intervals.drop_nulls("low")
    assert (bounded["low"] <= bounded["high"]).all()
    assert bounded.filter(pl.col("tasks") < 6).is_empty()


def test_a_share_of_all_steps_has_an_interval_with_a_width():
    rows = [
        (str(task), f"{task}/{one}", 0, "hall", 0.0, True)
        for task in range(36)
        for one in range(2)
    ]
    table = table_of(rows)
    found = statistics(table, history_length=1).intervals.filter(
        level="0", statistic="shared"
    )
    assert found.select("low", "high").row(0) == wilson_interval(1.0, 36)
    differing = statistics(table, history_length=1).intervals.filter(
        level="0", statistic="differing"
    )
    # by definition, not by chance
    assert differing.select("low", "high").row(0) == (0, 0)


def test_a_level_that_nobody_shares_is_not_bounded_above_the_one_before_it():
    rows = [
        (
            str(task),
            f"{task}/{one}",
            step,
            f"{step}" if task == 0 and step < 2 else f"{one}/{step}",
            0.0,
            True,
        )
        for task in range(8)
        for one in range(2)
        for step in range(12)
    ]
    found = statistics(table_of(rows), history_length=2).intervals.filter(
        statistic="shared"
    )
    value = found["value"].to_list()
    high = found["high"].to_list()
    assert value[:3] == pytest.approx([4 / 192, 2 / 192, 0.0])
    # one task of eight differs
    assert high[2] <= high[1] <= high[0] == wilson_interval(4 / 192, 8)[1]


def test_a_task_that_loops_is_named_and_what_no_task_decides_has_no_interval():
    """Of twelve tasks, the first stays in one room for forty steps; no rollout wins, so that no sign can differ."""
    rng = np.random.default_rng(0)
    rows = [
        (
            f"task {task}",
            f"{task}/{one}",
            step,
            "hall" if task == 0 else f"{rng.integers(4)}",
            0.0,
            True,
        )
        for task in range(12)
        for one in range(3)
        for step in range(40 if task == 0 else 8)
    ]
    found = statistics(table_of(rows), history_length=1)
    pairs = 120 * 119
    others = sum(
        n * (n - 1)
        for (task, _), n in Counter((row[0], row[3]) for row in rows).items()
        if task != "task 0"
    )
    assert found.summary["largest_task"].item() == "task 0"
    assert found.summary["largest_pairs"].item() == pytest.approx(
        pairs / (pairs + others)
    )
    text = found.describe()
    assert re.search(
        r"none \(no interval: too few tasks decide it\)|\d% \(no interval: too few tasks",
        text,
    )
    assert "The task “task 0” holds" in text
    assert (
        found.intervals.filter(statistic="differing", level="1")["low"].item() is None
    )
    assert "“task 0”" in found._repr_html_()


def test_permuted_returns_stay_at_their_states_with_the_visits_of_a_rollout_together():
    """The rollout with two visits of a state receives the return of the other one twice, which receives its first."""
    states = np.array([0, 0, 0, 1, 1])
    owners = np.array([0, 0, 1, 0, 1])
    groups = Groups.of(states, states >= 0, np.zeros(5, np.int64), 1)
    generators = map(np.random.default_rng, range(50))
    permuted = exchanged(
        groups, owners, np.array([1.0, 2.0, 3.0, 4.0, 5.0]), generators
    )
    assert {(*values,) for values in permuted} == {
        (1, 2, 3, 4, 5),
        (1, 2, 3, 5, 4),
        (3, 3, 1, 4, 5),
        (3, 3, 1, 5, 4),
    }


def test_a_level_without_an_interval_takes_no_bound_from_deeper_ones():
    """One of six tasks has most steps. All share their state, so that there is no interval; some also the last one."""
    rows = []
    for task, length in enumerate((2, 2, 3, 3, 4, 30)):
        for rollout in range(2):
            for step in range(length):
                state = f"room {(step + rollout) % 2}"
                key = {
                    "task_id": f"task {task}",
                    "trajectory": f"{task}/{rollout}",
                    "step": step,
                }
                rows.append(
                    {
                        **key,
                        "state": state,
                        "group": 0,
                        "reward": 0.0,
                        "action_valid": True,
                    }
                )
    steps = pl.DataFrame(rows).with_columns(env_id=pl.lit("Mine/House-v0"))
    found = statistics(steps, history_length=1).intervals.filter(statistic="shared")
    bounds = found.select("level", pl.col("low", "high").is_not_null()).rows()
    assert bounds[0] == ("0", False, False)
    assert bounds[1] == ("1", True, True)


def test_the_groups_of_one_task_are_one_observation():
    """Groups that repeat the others of their tasks add nothing to what is known: intervals stay as wide."""
    generator = np.random.default_rng(0)
    rows = []
    for task in range(8):
        for number in range(4):
            for step, state in enumerate(generator.choice(["hall", "cellar"], 5)):
                row = {
                    "task_id": f"task {task}",
                    "trajectory": f"{task}/{number}",
                    "step": step,
                    "state": state,
                }
                rows.append(row)
    once = pl.DataFrame(rows).with_columns(
        reward=0.0, action_valid=True, env_id=pl.lit("Mine/House-v0"), group=0
    )
    again = once.with_columns(
        group=1, trajectory=pl.concat_str(pl.col("trajectory"), pl.lit(" again"))
    )
    bounds = ["level", "statistic", "low", "high", "tasks"]
    shares = pl.col("statistic").is_in(
        ["shared", "cross", "differing", "inconsistency"]
    )
    expected = statistics(once).intervals.filter(shares).select(bounds)
    found = statistics(pl.concat([once, again])).intervals.filter(shares).select(bounds)
    assert found["tasks"].unique().to_list() == [8]
    assert expected["low"].is_not_null().any()
    polars.testing.assert_frame_equal(found, expected)
