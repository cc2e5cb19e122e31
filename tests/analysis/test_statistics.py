"""Statistics against their definitions, computed in plain Python over pairs of steps."""

import re
from collections import Counter, defaultdict
from html import escape
from itertools import permutations
from pathlib import Path

import numpy as np
import polars as pl
import polars.testing
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from small_tables import NAMES, table_of, tables

from hgpo_train.advantages import compute
from hgpo_train.analysis.definitions import DEFINITIONS
from hgpo_train.analysis.describe import describe
from hgpo_train.analysis.statistics import statistics

DEPTH = 3


def histories(rows):
    """Return each row's states from the start of its trajectory up to the row."""
    so_far = defaultdict(list)
    found = []
    for row in rows:
        so_far[row["trajectory"]].append(row["state"])
        found.append(tuple(so_far[row["trajectory"]]))
    return found


def pairs_at_one_state(rows, past, numbers):
    """Return the ordered pairs of different rows of a task whose states are equal."""
    places = [(row["task"], states[-1]) for row, states in zip(rows, past, strict=True)]
    return [(i, j) for i, j in permutations(numbers, 2) if places[i] == places[j]]


@pytest.mark.slow
@settings(max_examples=10)
@given(tables())
def test_levels_match_plain_counting(rows):
    found = statistics(pl.DataFrame(rows), history_length=DEPTH)
    past = histories(rows)
    detailed = compute(
        pl.DataFrame(rows), "hgpo", history_length=DEPTH, details=True
    ).collect()
    pairs = pairs_at_one_state(rows, past, range(len(rows)))
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
    pairs = pairs_at_one_state(rows, past, kept)
    for level in found.levels.iter_rows(named=True):
        k = 99 if level["level"] == "oracle" else int(level["level"])
        if pairs:
            apart = sum(past[i][-k - 1 :] != past[j][-k - 1 :] for i, j in pairs)
            assert level["differing"] == pytest.approx(apart / len(pairs))


def rollout(states, actions, **columns):
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


def spread(values):
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


def with_outcomes(won, aborted):
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
    rows = [
        ("a", "x", 0, "hall", 0.0, True, "up"),
        ("a", "x", 1, "attic", 0.0, True, "look"),
        ("a", "y", 0, "hall", 0.0, True, "climb"),
        ("a", "y", 1, "attic", 0.0, True, "look"),
    ]
    table = pl.DataFrame(rows, [*NAMES, "action"], orient="row")
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
    with refused("did you mean 'trajectory'"):
        statistics(table, by=["trajectori"])
    with refused("expected one value in each trajectory, received step"):
        statistics(
            pl.concat([table, table.with_columns(step=pl.lit(1, pl.Int64))]),
            by=["step"],
        )
    with refused("lists of texts, received String"):
        statistics(
            table.with_columns(admissible_actions=pl.lit("go"), action=pl.lit("go"))
        )
    for by in (["won"], ["level"], ["steps"], ["trajectory", "trajectory"]):
        with refused("columns to split by: expected"):
            statistics(table.with_columns(won=True, level=0, steps=0), by=by)
    with refused("unknown state key"):
        statistics(table, state_key="mask")
    for column, key in (("state", "mask-numbers"), ("trajectory", None)):
        with refused(f"a value as {column}"):
            statistics(
                table.with_columns(pl.lit(None, pl.String).alias(column)), state_key=key
            )
    for name in ("permutations", "seed"):
        for value in (-1, "5", 1.5):
            with refused(f"{name}: expected an integer of at least"):
                statistics(table, **{name: value})
    for name in ("permutations", "history_length"):
        with refused(
            f"{name}: expected an integer of at most 1,000, received 10000000"
        ):
            statistics(table, **{name: 10**7})
    with refused("no rows"):
        statistics(table.clear())


def test_every_statistic_that_is_shown_is_defined_in_the_docs_and_on_hover():
    """A table's columns are those that are defined, and the page's rows are the definitions."""
    # the first rollout was aborted, so that all columns are shown
    steps = rollout(["hall", "den"], ["go", "stay"], task_type="<i>", won=True)
    steps = steps.with_columns(aborted=pl.col("trajectory") == "0")
    found = statistics(steps, by="task_type")
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
            if table != "intervals" and (table, name) != ("lengths", "steps"):
                assert (
                    f'title="{escape(definition.text)}">{escape(definition.label)}<'
                    in html
                )
