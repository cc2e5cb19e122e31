"""Statistics against their definitions, computed in plain Python over pairs of steps."""

import re
from collections import Counter, defaultdict
from html import escape
from pathlib import Path

import numpy as np
import polars as pl
import polars.testing
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgpo_envs.errors import InputError
from hgpo_train.advantages import compute
from hgpo_train.analysis.definitions import DEFINITIONS
from hgpo_train.analysis.describe import describe
from hgpo_train.analysis.level_sums import Groups, exchanged
from hgpo_train.analysis.statistics import WITH_INTERVALS, Statistics, statistics
from hgpo_train.proportions import wilson_interval

DEPTH = 3
NAMES = ["task", "trajectory", "step", "state", "reward", "action_valid"]


def table_of(rows: list[tuple]) -> pl.DataFrame:
    """Return a table with the values of `NAMES`."""
    return pl.DataFrame(rows, NAMES, orient="row")


@st.composite
def tables(draw):
    rows = []
    for task in range(draw(st.integers(1, 3))):
        for rollout in range(draw(st.integers(1, 4))):
            for step in range(draw(st.integers(1, 6))):
                row = {
                    "task": str(task),
                    "task_type": "even" if task % 2 == 0 else "odd",
                    "step": step,
                }
                row |= {
                    "trajectory": f"{task}/{rollout}",
                    "state": draw(st.sampled_from(["a", "b"])),
                }
                row |= {"reward": draw(st.sampled_from([0.0, 0.0, 10.0]))}
                rows.append(row | {"action_valid": draw(st.booleans())})
    return rows


def histories(rows):
    """Return each row's states from the start of its trajectory up to the row."""
    so_far = defaultdict(list)
    found = []
    for row in rows:
        so_far[row["trajectory"]].append(row["state"])
        found.append(tuple(so_far[row["trajectory"]]))
    return found


@pytest.mark.slow
@settings(max_examples=10)
@given(tables())
def test_levels_match_plain_counting(rows):
    found = statistics(pl.DataFrame(rows), history_length=DEPTH)
    past = histories(rows)
    detailed = compute(
        pl.DataFrame(rows), "hgpo", history_length=DEPTH, details=True
    ).collect()
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
        keys = [
            (row["task"], c)
            for row, c in zip(rows, context, strict=True)
            if c is not None
        ]
        size = Counter(keys)
        tracks = defaultdict(set)
        for row, c in zip(rows, context, strict=True):
            tracks[row["task"], c].add(row["trajectory"])
        n = len(rows)
        assert level["eligible"] == pytest.approx(len(keys) / n)
        assert level["shared"] == pytest.approx(sum(size[key] > 1 for key in keys) / n)
        assert level["cross"] == pytest.approx(
            sum(len(tracks[key]) > 1 for key in keys) / n
        )
        assert level["groups"] == len(size)
        if size:
            assert level["mean_size"] == pytest.approx(len(keys) / len(size))
            assert level["step_size"] == pytest.approx(
                sum(size[key] for key in keys) / len(keys)
            )
        if pairs:
            grouped = [
                context[i] is not None and context[i] == context[j] for i, j in pairs
            ]
            assert level["inconsistency"] == pytest.approx(
                1 - sum(grouped) / len(pairs)
            )
            apart = [past[i][-k - 1 :] != past[j][-k - 1 :] for i, j in pairs]
            assert level["differing"] == pytest.approx(sum(apart) / len(pairs))
        histogram = dict(
            found.sizes.filter(level=level["level"])
            .select("size", "groups")
            .iter_rows()
        )
        assert histogram == Counter(size.values())
        if not oracle:
            own = detailed[f"advantage_k{k}"]
            deepest = detailed[f"advantage_k{DEPTH}"]
            both = [
                (a, b)
                for a, b in zip(own, deepest, strict=True)
                if a is not None and b is not None
            ]
            assert level["compared"] == len(both)
            if both:
                assert level["bias"] == pytest.approx(
                    sum(abs(a - b) for a, b in both) / len(both)
                )
            assert level["weight"] == pytest.approx(
                detailed[f"advantage_weight_k{k}"].mean()
            )


@pytest.mark.slow
@settings(max_examples=8)
@given(tables())
def test_replies_to_actions_that_changed_nothing_are_left_out(rows):
    """They are left out of groups and pairs, and remain in the histories of later steps."""
    found = statistics(pl.DataFrame(rows), history_length=DEPTH, without_unchanged=True)
    past = histories(rows)
    kept = [
        number
        for number, states in enumerate(past)
        if len(states) == 1 or states[-1] != states[-2]
    ]
    assert found.levels["steps"].unique().to_list() == [len(kept)]
    assert found.summary["unchanged"].item() == pytest.approx(1 - len(kept) / len(rows))
    pairs = [
        (past[i], past[j])
        for i in kept
        for j in kept
        if i != j and rows[i]["task"] == rows[j]["task"] and past[i][-1] == past[j][-1]
    ]
    for level in found.levels.iter_rows(named=True):
        k = 99 if level["level"] == "oracle" else int(level["level"])
        if pairs:
            apart = sum(one[-k - 1 :] != other[-k - 1 :] for one, other in pairs)
            assert level["differing"] == pytest.approx(apart / len(pairs))


def rollout(states: list[str], actions: list[str], **columns: object) -> pl.DataFrame:
    """One rollout of ten, which differ in nothing but their names and tasks."""
    steps = {
        "step": range(len(states)),
        "state": states,
        "action": actions,
        "reward": 0.0,
        "action_valid": True,
    }
    return pl.concat(
        pl.DataFrame(
            steps | columns | {"task": f"task {number // 2}", "trajectory": str(number)}
        )
        for number in range(10)
    )


def test_what_changed_nothing_is_known_from_the_state_the_action_and_alfworlds_reply():
    listed = [["go"]] * 5
    table = rollout(
        ["hall", "hall", "Nothing happens.", "You refuse.", "kitchen"],
        ["go", "go", "hop", "go", "go"],
    )
    assert statistics(table).summary["unchanged"].item() == pytest.approx(2 / 5)
    with_actions = table.with_columns(admissible_actions=pl.Series(listed * 10))
    assert statistics(with_actions).summary.select("unchanged", "admissible").row(
        0
    ) == pytest.approx((3 / 5, 4 / 5))
    assert (
        statistics(table.with_columns(action_admissible=pl.lit(value=True)))
        .summary["admissible"]
        .item()
        == 1
    )


def test_the_states_that_carry_the_pairs_are_named_with_their_shares():
    table = rollout(
        ["hall", "Nothing happens.", "Nothing happens.", "cellar"], ["go"] * 4
    )
    found = statistics(table, history_length=1)
    assert found.states.rows() == [
        ("Nothing happens.", pytest.approx(12 / 16), 0.5),
        ("cellar", pytest.approx(2 / 16), 0.25),
        ("hall", pytest.approx(2 / 16), 0.25),
    ] or set(found.states["state"][1:]) == {"cellar", "hall"}
    text = "\n".join(
        describe(found, statistics(table, history_length=1, without_unchanged=True))
    )
    assert "“Nothing happens.” makes up 75% of these pairs and 50% of the steps" in text
    assert "Without them, none differ in the state before" in text


@pytest.mark.slow
def test_a_counter_in_states_is_reported_and_can_be_masked():
    rows = [(task, f"{task}/{one}", step, f"{name}. Moves: {step}, seed {one}", 0.0, True)
            for task in "ab" for one in range(2) for step, name in enumerate(("a hall", "a kitchen"))]  # fmt: skip
    table = table_of(rows)
    found = statistics(table, history_length=1)
    assert not statistics(table, history_length=101).sizes["level"].has_nulls()
    masked = statistics(table, history_length=1, state_key="mask-numbers")
    assert (found.levels["shared"][0], masked.levels["shared"][0]) == (0, 1)
    assert found.summary["shared_masked"].item() == 1
    advice = "all instead of none of the steps would share their state: see --state-key mask-numbers"
    assert advice in "\n".join(describe(found))
    assert "mask-numbers" not in "\n".join(describe(masked))


@pytest.mark.slow
@settings(max_examples=5)
@given(tables(), st.integers(1, 12))
def test_chunks_and_columns_to_split_by(rows, chunk_rows):
    table = pl.DataFrame(rows)
    whole = statistics(table, by=["task_type"], history_length=2)
    chunked = statistics(
        table, by=["task_type"], history_length=2, chunk_rows=chunk_rows
    )
    even = statistics(table.filter(task_type="even"), history_length=2)
    for one, other, part in zip(whole, chunked, even, strict=True):
        pl.testing.assert_frame_equal(one, other, rel_tol=1e-12)
        pl.testing.assert_frame_equal(
            one.filter(task_type="even").drop("task_type"), part, rel_tol=1e-12
        )


@pytest.mark.slow
@settings(max_examples=15)
@given(tables(), st.integers(0, 3), st.booleans())
def test_every_table_is_described_truthfully(rows, depth, some_aborted):
    """Only what is exactly none is called none, and nothing is said of groups that are not there."""
    table = pl.DataFrame(rows).with_columns(
        aborted=pl.col("trajectory").str.ends_with("/0") & some_aborted
    )
    found = statistics(table, history_length=depth)
    lines = describe(found)
    text = "\n".join(lines)
    untrue = r"None |nan|\b0%|100%|(?<![\d.])1 (steps|rollouts|groups|states)\b"
    assert not re.search(untrue, text.replace("None of", ""))
    levels = [
        row for row in found.levels.iter_rows(named=True) if row["level"] != "oracle"
    ]
    if not found.summary["trajectories"].item():
        number = table["trajectory"].n_unique()
        assert lines == [
            f"Every rollout was aborted ({number}), so there is nothing to compare."
        ]
        return
    if not levels[0]["shared"]:
        assert "so that HGPO's advantages are all 0" in lines[-1]
        return
    assert ("advantages are all 0" in text) == (
        sum(row["weight"] for row in levels) == 0
    )
    if depth:
        assert ("none also the" in text) == (levels[-1]["shared"] == 0)


def spread(values: list[float]) -> float:
    """The unbiased variance, times the number of values."""
    mean = sum(values) / len(values)
    return (
        sum((value - mean) ** 2 for value in values) * len(values) / (len(values) - 1)
    )


@pytest.mark.slow
@settings(max_examples=10)
@given(tables())
def test_explained_variance_matches_plain_counting(rows):
    parameters = {
        "mode": "mean_norm",
        "invalid_action_penalty": 0,
        "precision": "float64",
    }
    found = statistics(pl.DataFrame(rows), history_length=DEPTH, **parameters)
    past = histories(rows)
    last = {row["trajectory"]: row["step"] for row in rows}
    rewards = {(row["trajectory"], row["step"]): row["reward"] for row in rows}
    returns = []
    for row in rows:
        later = range(row["step"], last[row["trajectory"]] + 1)
        returns.append(
            sum(
                0.95 ** (step - row["step"]) * rewards[row["trajectory"], step]
                for step in later
            )
        )
    states = defaultdict(list)
    for row, c, value in zip(rows, past, returns, strict=True):
        states[row["task"], c[-1]].append(value)
    for k in range(DEPTH + 1):
        groups = defaultdict(list)
        members = defaultdict(list)
        for row, c, value in zip(rows, past, returns, strict=True):
            if len(c) > k:
                groups[row["task"], c[-k - 1 :]].append(value)
                members[row["task"], c[-k - 1 :]].append(
                    (value, states[row["task"], c[-1]])
                )
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


def with_outcomes(won: list[bool | None], aborted: list[bool]) -> Statistics:
    steps = [
        (str(number), one, lost)
        for number, (one, lost) in enumerate(zip(won, aborted, strict=True))
    ]
    table = pl.DataFrame(
        steps,
        {"trajectory": pl.String, "won": pl.Boolean, "aborted": pl.Boolean},
        orient="row",
    )
    return statistics(
        table.with_columns(
            task=pl.lit("a"), step=0, state=pl.lit("s"), reward=0.0, action_valid=True
        ),
        history_length=1,
    )


def test_success_is_what_is_known_with_bounds():
    """Aborted rollouts and those of unknown outcome count as lost in one bound, and as won in the other."""
    found = with_outcomes([True, True, False, None, None], [False] * 4 + [True])
    assert found.summary.select(
        "success", "success_if_aborted_lost", "success_if_aborted_won"
    ).row(0) == (
        2 / 3,
        2 / 5,
        4 / 5,
    )
    assert found.lengths.rows() == [("1–5", 5, 1, 2)]
    assert "40% won if they are lost, 80% if they are won" in "\n".join(describe(found))
    unknown = with_outcomes([None, None], [False, False])
    assert unknown.summary["success"].item() is None
    assert "it is not stored which of them won" in "\n".join(describe(unknown))


@pytest.mark.slow
def test_chunks_and_processes_give_the_same_numbers(tmp_path):
    from hgpo_datasets import StepWriter

    rng = np.random.default_rng(0)
    with StepWriter(tmp_path / "run", shard_rows=100) as writer:
        for task in range(12):
            writer.add_group(
                [
                    {"task_id": str(task), "trajectory": f"{task}/{one}", "step": step, "state": str(rng.integers(3)),
                     "action": "go", "reward": float(step == 4 and rng.random() < 0.5), "terminated": step == 4}
                    for one in range(5) for step in range(5)
                ]
            )  # fmt: skip
    options = {"chunk_rows": 100, "permutations": 2}
    one, several = (
        statistics(tmp_path / "run", processes=processes, **options)
        for processes in (1, 3)
    )
    assert all(frame.equals(other) for frame, other in zip(one, several, strict=True))
    whole = statistics(tmp_path / "run", chunk_rows=10**6)
    for name in ("levels", "sizes", "states", "summary", "lengths"):
        pl.testing.assert_frame_equal(
            getattr(one, name), getattr(whole, name), rel_tol=1e-12
        )


def test_contexts_of_states_and_actions_and_equal_returns():
    table = pl.DataFrame(
        [("a", trajectory, step, state, 0.0, True, action) for trajectory, actions in (("x", "up"), ("y", "climb"))
         for step, (state, action) in enumerate((("hall", actions), ("attic", "look")))],
        [*NAMES, "action"], orient="row",
    )  # fmt: skip
    both = {
        context: statistics(table, history_length=1, context=context)
        for context in ("states", "states_actions")
    }
    assert both["states"].levels["shared"].to_list() == [1.0, 0.5, 1.0]
    assert both["states_actions"].levels["shared"].to_list() == [1.0, 0.0, 0.5]
    assert "equal returns: HGPO's advantages are all 0" in "\n".join(
        describe(both["states"])
    )


def test_invalid_input_is_reported():
    table = table_of([("a", "x", 0, "s", 0.0, True)])
    with pytest.raises(InputError, match="did you mean 'trajectory'"):
        statistics(table, by=["trajectori"])
    with pytest.raises(
        InputError, match="expected one value in each trajectory, received step"
    ):
        statistics(
            pl.concat([table, table.with_columns(step=pl.lit(1, pl.Int64))]),
            by=["step"],
        )
    with pytest.raises(InputError, match="lists of texts, received String"):
        statistics(
            table.with_columns(admissible_actions=pl.lit("go"), action=pl.lit("go"))
        )
    for by in (["won"], ["level"], ["steps"], ["trajectory", "trajectory"]):
        with pytest.raises(InputError, match="columns to split by: expected"):
            statistics(table.with_columns(won=True, level=0, steps=0), by=by)
    with pytest.raises(InputError, match="unknown state key"):
        statistics(table, state_key="mask")
    for column, key in (("state", "mask-numbers"), ("trajectory", None)):
        with pytest.raises(InputError, match=f"a value as {column}"):
            statistics(
                table.with_columns(pl.lit(None, pl.String).alias(column)), state_key=key
            )
    for name in ("permutations", "seed"):
        with pytest.raises(
            InputError, match=f"{name}: expected an integer of at least"
        ):
            statistics(table, **{name: -1})
    for name in ("permutations", "history_length"):
        with pytest.raises(
            InputError,
            match=f"{name}: expected an integer of at most 1,000, received 10,000,000",
        ):
            statistics(table, **{name: 10**7})
    with pytest.raises(InputError, match="no rows"):
        statistics(table.clear())


def test_every_statistic_that_is_shown_is_defined_in_the_docs_and_on_hover():
    """A table's columns are those that are defined, and the page's rows are the definitions."""
    found = statistics(
        rollout(["hall", "den"], ["go", "stay"], task_type="<i>", won=True),
        by="task_type",
    )
    page = (Path(__file__).parents[2] / "docs/statistics.md").read_text("utf-8")
    html = found._repr_html_()
    assert "<i>" not in html
    for table, known in DEFINITIONS.items():
        keys = {"task_type", "level", "statistic", "value", "state"}
        keys |= {"steps", "groups"} if table == "levels" else set()
        assert known.keys() == set(getattr(found, table).columns) - keys, table
        for name, definition in known.items():
            row = f"| `{name}` | {definition.label} | {definition.meaning} | {definition.equation} |"
            assert row.replace("|A_k − A_K|", r"\|A_k − A_K\|") in page, row
            if table in ("summary", "levels"):
                assert (
                    f'title="{escape(definition.text)}">{escape(definition.label)}<'
                    in html
                )


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
