"""Statistics against their definitions, computed in plain Python over pairs of steps."""

import re
from collections import Counter, defaultdict

import numpy as np
import polars as pl
import polars.testing
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgpo_envs.errors import InputError
from hgpo_train.advantages import compute
from hgpo_train.analysis.describe import describe
from hgpo_train.analysis.statistics import _permuted, statistics
from hgpo_train.analysis.uncertainty import STATISTICS, uncertainty

DEPTH = 3


@st.composite
def tables(draw):
    rows = []
    for task in range(draw(st.integers(1, 3))):
        for rollout in range(draw(st.integers(1, 4))):
            for step in range(draw(st.integers(1, 6))):
                rows.append(
                    {
                        "task": str(task),
                        "task_type": "even" if task % 2 == 0 else "odd",
                        "trajectory": f"{task}/{rollout}",
                        "step": step,
                        "state": draw(st.sampled_from(["a", "b"])),
                        "reward": draw(st.sampled_from([0.0, 0.0, 10.0])),
                        "action_valid": draw(st.booleans()),
                    }
                )
    return rows


def histories(rows):
    """Return each row's states from the start of its trajectory up to the row."""
    so_far, found = defaultdict(list), []
    for row in rows:
        so_far[row["trajectory"]].append(row["state"])
        found.append(tuple(so_far[row["trajectory"]]))
    return found


@settings(max_examples=40)
@given(tables())
def test_levels_match_plain_counting(rows):
    found = statistics(pl.DataFrame(rows), history_length=DEPTH)
    past = histories(rows)
    detailed = compute(pl.DataFrame(rows), "hgpo", history_length=DEPTH, details=True).collect()
    pairs = [
        (i, j)
        for i in range(len(rows))
        for j in range(len(rows))
        if i != j and rows[i]["task"] == rows[j]["task"] and past[i][-1] == past[j][-1]
    ]
    for level in found.levels.iter_rows(named=True):
        oracle = level["level"] == "oracle"
        k = 99 if oracle else int(level["level"])
        context = [p if oracle else p[-k - 1 :] if len(p) > k else None for p in past]
        keys = [(row["task"], c) for row, c in zip(rows, context, strict=True) if c is not None]
        size = Counter(keys)
        tracks = defaultdict(set)
        for row, c in zip(rows, context, strict=True):
            tracks[row["task"], c].add(row["trajectory"])
        n = len(rows)
        assert level["eligible"] == pytest.approx(len(keys) / n)
        assert level["shared"] == pytest.approx(sum(size[key] > 1 for key in keys) / n)
        assert level["cross"] == pytest.approx(sum(len(tracks[key]) > 1 for key in keys) / n)
        assert level["groups"] == len(size)
        if size:
            assert level["mean_size"] == pytest.approx(len(keys) / len(size))
            assert level["step_size"] == pytest.approx(sum(size[key] for key in keys) / len(keys))
        if pairs:
            grouped = [context[i] is not None and context[i] == context[j] for i, j in pairs]
            assert level["inconsistency"] == pytest.approx(1 - sum(grouped) / len(pairs))
            apart = [past[i][-k - 1 :] != past[j][-k - 1 :] for i, j in pairs]
            assert level["differing"] == pytest.approx(sum(apart) / len(pairs))
        histogram = dict(found.sizes.filter(level=level["level"]).select("size", "groups").iter_rows())
        assert histogram == Counter(size.values())
        if not oracle:
            own, deepest = detailed[f"advantage_k{k}"], detailed[f"advantage_k{DEPTH}"]
            both = [(a, b) for a, b in zip(own, deepest, strict=True) if a is not None and b is not None]
            assert level["compared"] == len(both)
            if both:
                assert level["bias"] == pytest.approx(sum(abs(a - b) for a, b in both) / len(both))
            assert level["weight"] == pytest.approx(detailed[f"advantage_weight_k{k}"].mean())


@settings(max_examples=20)
@given(tables(), st.integers(1, 12))
def test_chunks_and_columns_to_split_by(rows, chunk_rows):
    table = pl.DataFrame(rows)
    whole = statistics(table, by=["task_type"], history_length=2)
    chunked = statistics(table, by=["task_type"], history_length=2, chunk_rows=chunk_rows)
    even = statistics(table.filter(task_type="even"), history_length=2)
    for one, other, part in zip(whole, chunked, even, strict=True):
        pl.testing.assert_frame_equal(one, other, rel_tol=1e-12)
        pl.testing.assert_frame_equal(one.filter(task_type="even").drop("task_type"), part, rel_tol=1e-12)


@settings(max_examples=40)
@given(tables(), st.integers(0, 3), st.booleans())
def test_every_table_is_described_truthfully(rows, depth, some_aborted):
    """Only what is exactly none is called none, and nothing is said of groups that are not there."""
    table = pl.DataFrame(rows).with_columns(aborted=pl.col("trajectory").str.ends_with("/0") & some_aborted)
    found = statistics(table, history_length=depth)
    lines = describe(found)
    text = "\n".join(lines)
    assert not re.search(
        r"None |nan|\b0%|100%|(?<![\d.])1 (steps|rollouts|groups|states)\b", text.replace("None of", "")
    )
    levels = [row for row in found.levels.iter_rows(named=True) if row["level"] != "oracle"]
    if not found.summary["trajectories"].item():
        assert lines == [
            f"Every rollout was aborted ({table['trajectory'].n_unique()}), so there is nothing to compare."
        ]
        return
    if not levels[0]["shared"]:
        assert "Every step is a singleton group" in lines[-1]
        assert "weights" not in text
        return
    assert "singleton" not in text
    assert ("HGPO's weights" in text) == (sum(row["weight"] for row in levels) > 0)
    assert ("advantages are all 0" in text) == (sum(row["weight"] for row in levels) == 0)
    alone = [row["level"] for row in levels if not row["shared"]]
    assert ("none for k" in text) == bool(alone)
    for level in alone:
        assert f"groups of two or more steps at k = {level}" not in text
        assert f"those at k = {level}" not in text


def spread(values: list[float]) -> float:
    """The unbiased variance, times the number of values."""
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) * len(values) / (len(values) - 1)


@settings(max_examples=40)
@given(tables())
def test_explained_variance_matches_plain_counting(rows):
    parameters = {"mode": "mean_norm", "invalid_action_penalty": 0, "precision": "float64"}
    found = statistics(pl.DataFrame(rows), history_length=DEPTH, **parameters)
    past = histories(rows)
    last = {row["trajectory"]: row["step"] for row in rows}
    rewards = {(row["trajectory"], row["step"]): row["reward"] for row in rows}
    returns = []
    for row in rows:
        later = range(row["step"], last[row["trajectory"]] + 1)
        returns.append(sum(0.95 ** (step - row["step"]) * rewards[row["trajectory"], step] for step in later))
    states = defaultdict(list)
    for row, c, value in zip(rows, past, returns, strict=True):
        states[row["task"], c[-1]].append(value)
    for k in range(DEPTH + 1):
        groups, members = defaultdict(list), defaultdict(list)
        for row, c, value in zip(rows, past, returns, strict=True):
            if len(c) > k:
                groups[row["task"], c[-k - 1 :]].append(value)
                members[row["task"], c[-k - 1 :]].append((value, states[row["task"], c[-1]]))
        shared = {key: values for key, values in groups.items() if len(values) > 1}
        own = sum(spread(values) for values in shared.values())
        whole = 0.0
        for key in shared:
            for value, there in members[key]:
                mean = sum(there) / len(there)
                whole += (value - mean) ** 2 * len(there) / (len(there) - 1)
        explained = found.levels.filter(level=str(k))["explained"].item()
        if whole > 1e-9:
            assert explained == pytest.approx(1 - own / whole)


def wandering(rng: np.random.Generator, *, matters: bool) -> pl.DataFrame:
    """Rollouts through one of two rooms into a hall; what follows depends on the room only if it `matters`."""
    rows = []
    for task in range(24):
        for rollout in range(16):
            room = int(rng.integers(2))
            won = room if matters else int(rng.integers(2))
            for step, state in enumerate(("start", f"room {room}", "hall")):
                reward = 10.0 * won if step == 2 else 0.0
                rows.append((str(task), f"{task}/{rollout}", step, state, reward, True))
    return pl.DataFrame(rows, ["task", "trajectory", "step", "state", "reward", "action_valid"], orient="row")


def explained_at_depth_one(table: pl.DataFrame) -> dict[str, float]:
    return uncertainty(table, history_length=1).row(
        by_predicate=(pl.col("level") == "1") & (pl.col("statistic") == "explained"), named=True
    )


def test_histories_that_decide_are_told_from_chance() -> None:
    """In a third of the steps, the hall, the state before decides all; at the others, it is the same for all."""
    found = explained_at_depth_one(wandering(np.random.default_rng(0), matters=True))
    assert found["low"] > 0.2
    assert found["chance"] == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_histories_without_influence_are_not_told_from_chance(seed: int) -> None:
    found = explained_at_depth_one(wandering(np.random.default_rng(seed), matters=False))
    assert found["low"] < found["chance"]
    assert found["chance"] == pytest.approx(0, abs=0.02)


def test_a_walk_without_memory_is_not_told_from_chance() -> None:
    """A walk visits its states repeatedly, so that the returns of a rollout's visits depend on each other."""
    rng = np.random.default_rng(0)
    rows = []
    for task in range(40):
        for rollout in range(8):
            place, step = 3, 0
            while 0 < place < 6:
                after = place + int(rng.choice((-1, 1)))
                rows.append((str(task), f"{task}/{rollout}", step, f"place {place}", 10.0 * (after == 6), True))
                place, step = after, step + 1
    names = ["task", "trajectory", "step", "state", "reward", "action_valid"]
    found = uncertainty(pl.DataFrame(rows, names, orient="row"), history_length=3)
    explained = found.filter(pl.col("statistic") == "explained", pl.col("level") != "0")
    assert (explained["low"] < explained["chance"]).all()
    assert (explained["chance"] < explained["high"]).all()


@settings(max_examples=20)
@given(tables(), st.integers(0, 2))
def test_uncertainty_is_about_the_statistics(rows, seed):
    table = pl.DataFrame(rows)
    levels = statistics(table, by="task_type", history_length=2).levels
    sure = uncertainty(table, by="task_type", history_length=2, resamples=100, permutations=2, seed=seed)
    again = uncertainty(table, by="task_type", history_length=2, resamples=100, permutations=2, seed=seed)
    assert sure.equals(again)
    for name in STATISTICS:
        expected = levels.select("task_type", "level", pl.col(name).fill_nan(None))
        got = sure.filter(statistic=name).select("task_type", "level", pl.col("value").alias(name))
        pl.testing.assert_frame_equal(got, expected, rel_tol=1e-12)
    bounded = sure.drop_nulls("low")
    assert (bounded["low"] <= bounded["high"]).all()
    assert bounded.filter(pl.col("tasks") < 6).is_empty()


@settings(max_examples=30)
@given(tables(), st.integers(0, 99))
def test_permuted_returns_stay_at_their_states(rows, seed):
    """The returns of rollouts that visit a state once are permuted: each gets that of one rollout, and none is lost."""
    table = pl.DataFrame(rows).unique(["trajectory", "state"], keep="first", maintain_order=True)
    table = table.with_columns(
        task_key="task",
        trajectory_key="trajectory",
        **{"(aborted)": pl.lit(value=False)},
        **{"return": pl.int_range(pl.len()).cast(pl.Float64)},
    )
    exchanged = _permuted(table, "state", np.random.default_rng(seed))
    pl.testing.assert_frame_equal(exchanged.drop("return"), table.drop("return"))
    for name in (table, exchanged):
        assert sorted(name["return"]) == list(range(table.height))
    own = table.group_by("task", "state").agg(pl.col("return").sort()).sort("task", "state")
    pl.testing.assert_frame_equal(
        exchanged.group_by("task", "state").agg(pl.col("return").sort()).sort("task", "state"), own
    )


def test_a_rollout_that_returns_to_a_state_keeps_its_visits_together() -> None:
    table = pl.DataFrame(
        {"task_key": 0, "trajectory_key": [1, 1, 2], "state": "s", "return": [1.0, 2.0, 3.0], "(aborted)": False}
    )
    seen = {tuple(_permuted(table, "state", np.random.default_rng(seed))["return"]) for seed in range(20)}
    assert seen == {(1.0, 2.0, 3.0), (3.0, 3.0, 1.0)}


def test_the_sentences_say_how_sure_they_are() -> None:
    table = wandering(np.random.default_rng(0), matters=True)
    text = "\n".join(describe(statistics(table, history_length=1), uncertainty(table, history_length=1)))
    assert "That is more than chance: histories matter in this run." in text
    assert re.search(r"By chance alone, the sign would change for \d+%\.", text)
    table = wandering(np.random.default_rng(0), matters=False)
    text = "\n".join(describe(statistics(table, history_length=1), uncertainty(table, history_length=1)))
    assert "That is not more than chance: this run does not show that histories matter." in text


def described(states: str, rewards: list[float], depth: int) -> str:
    """What is said of two rollouts of one task with these states, half of them each."""
    length = len(states) // 2
    table = pl.DataFrame(
        {
            "task": "a",
            "trajectory": ["x"] * length + ["y"] * length,
            "step": [*range(length)] * 2,
            "state": list(states),
            "reward": rewards,
            "action_valid": True,
        }
    )
    return "\n".join(describe(statistics(table, history_length=depth)))


def test_a_level_without_groups_is_called_so() -> None:
    text = described("acbdcf", [0, 0, 1, 0, 0, 0], 4)
    assert "33% of the steps share their state" in text
    assert "none for k ≥ 1" in text
    assert "k = 4" not in text


def test_a_table_of_singletons_is_called_so() -> None:
    text = described("abcdef", [0, 0, 1, 0, 0, 0], 4)
    assert "Every step is a singleton group at every level, and HGPO's advantages are all 0." in text
    assert "0.00" not in text


def test_equal_returns_give_no_weights() -> None:
    text = described("abcabc", [0, 0, 1, 0, 0, 1], 1)
    assert "equal returns: HGPO's advantages are all 0" in text


def test_the_states_actions_context() -> None:
    table = pl.DataFrame(
        {
            "task": "a",
            "trajectory": ["x", "x", "y", "y"],
            "step": [0, 1, 0, 1],
            "state": ["hall", "attic", "hall", "attic"],
            "action": ["up", "look", "climb", "look"],
            "reward": [0.0, 10.0, 0.0, 0.0],
            "action_valid": True,
        }
    )
    shared = {
        c: statistics(table, history_length=1, context=c).levels["shared"].to_list()
        for c in ("states", "states_actions")
    }
    assert shared == {"states": [1.0, 0.5, 1.0], "states_actions": [1.0, 0.0, 0.5]}


def test_invalid_input_is_reported() -> None:
    row = {"task": "a", "trajectory": "x", "step": 0, "state": "s", "reward": 0.0, "action_valid": True}
    with pytest.raises(InputError, match="did you mean 'trajectory'"):
        statistics(pl.DataFrame([row]), by=["trajectori"])
    with pytest.raises(InputError, match="no rows"):
        statistics(pl.DataFrame([row]).clear())
