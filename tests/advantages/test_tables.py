"""Estimators on step tables: invalid input, row order, columns, engines, threads, chunks and aborted rollouts."""

import pickle
import re

import numpy as np
import polars as pl
import pytest
from command import environment, python
from refusals import refused

from hgpo_envs.errors import InputError
from hgpo_envs.hashing import chain_columns, text_hashes
from hgpo_train.advantages import compute, compute_many, get, names
from hgpo_train.advantages.advantage_tables import (
    fingerprint,
    join_advantages,
    read_metadata,
    write_advantages,
)
from hgpo_train.advantages.windows import mean, normalise, within


def walks(tasks=12, rollouts=6, seed=0):
    """Return rollouts that wander between few states, as a step table with hashes and without texts."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 20, tasks * rollouts)
    trajectory = np.repeat(np.arange(tasks * rollouts), lengths)
    step = np.arange(len(trajectory)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    last = np.append(trajectory[1:] != trajectory[:-1], True)
    states = text_hashes([f"room {n}" for n in rng.integers(0, 5, len(trajectory))])
    values, defined = chain_columns(states, step == 0, 4)
    columns = {
        "run": "walks",
        "iteration": trajectory // (rollouts * 4),
        "group": 0,
        "step": step,
    }
    columns |= {
        "task_id": [f"task {n // rollouts}" for n in trajectory],
        "state_hash": states,
    }
    columns |= {"trajectory": [f"walk {n}" for n in trajectory]}
    columns |= {"reward": np.where(last & (rng.random(len(last)) < 0.5), 1.0, 0.0)}
    columns |= {"action_valid": rng.random(len(last)) < 0.9}
    columns |= {"action": rng.choice(["go north", "go south", "wait"], len(last))}
    columns |= {
        "entropy": rng.random(len(last)),
        "hindsight": -3 * rng.random(len(last)),
    }
    columns |= {
        name: -rng.random((len(last), 2)) for name in ("logprobs", "reference_logprobs")
    }
    lists = pl.col("logprobs", "reference_logprobs").arr.to_list()
    return (
        pl.DataFrame(columns)
        .with_columns(lists)
        .with_columns(
            pl.when(pl.Series(defined[k]))
            .then(pl.Series(values[k]))
            .alias(f"history_hash_{k}")
            for k in range(5)
        )
    )


def same(frame, other, column="advantage"):
    """Return whether two columns differ by at most 1e-12, and have equal zeros and nulls."""
    one = frame[column]
    two = other[column].alias(one.name)
    zeros = (one == 0).equals(two == 0)
    nulls = one.is_null().equals(two.is_null())
    return zeros and nulls and float(abs(one - two).max() or 0) <= 1e-12


SMALL = pl.DataFrame(
    [
        ("a", "x", 0, "s", 0.0, True),
        ("a", "x", 1, "t", 10.0, True),
        ("a", "y", 0, "s", 0.0, True),
        ("a", "y", 1, "u", 0.0, False),
    ],
    ["task", "trajectory", "step", "state", "reward", "action_valid"],
    orient="row",
).with_columns(action=pl.lit("go"))
SCORED = SMALL.with_columns(
    entropy=pl.Series([0.5, 1.0, 0.25, 0.0]),
    hindsight=pl.Series([-1.0, -0.5, -2.0, -1.0]),
    logprobs=pl.Series([[-1.0, -2.0], [-1.0], [-0.5], [-3.0]]),
    reference_logprobs=pl.Series([[-1.0, -1.0], [-2.0], [-0.5], [-1.0]]),
)
NAMES = [
    name
    for name in names(scored=True)
    if get(name).function.__module__.startswith("hgpo_")
]
"""The estimators of this project; other modules of tests register theirs."""


@pytest.mark.parametrize("name", NAMES)
def test_invalid_rows_are_named(name):
    place = "at task='a', trajectory='y', step="
    for value in (float("nan"), float("inf"), None):
        table = SCORED.with_columns(reward=pl.Series([0.0, 1.0, value, 0.0]))
        with refused(rf"^expected a finite number as reward, received .* {place}0$"):
            compute(table, name).collect()
    with refused(f"expected a value as action_valid, received null {place}1"):
        compute(
            SCORED.with_columns(action_valid=pl.Series([True, True, True, None])), name
        ).collect()
    with refused(
        f"expected each step of a trajectory once, received step 1 again {place}1"
    ):
        compute(pl.concat([SCORED, SCORED.tail(1)]), name).collect()
    with refused("^expected a step of 0 or more, received -1 at task='a', .*step=-1$"):
        compute(SCORED.with_columns(step=pl.col("step") - 1), name).collect()
    with refused(
        r"trajectory in one task and group .*, received y at task='b', traj.*'y'"
    ):
        compute(
            SCORED.with_columns(task=pl.Series(["a", "a", "a", "b"])), name
        ).collect()
    with refused("column state_hash: expected int64, received UInt64; convert it with"):
        compute(SMALL.with_columns(state_hash=pl.col("state").hash()), "hgpo")
    with refused(r"^state key: expected .*, which raised TypeError: .* for '"):
        compute(SMALL, "hgpo", state_key="math:sqrt").collect()
    with refused("the step table has no rows"):
        compute(SCORED.clear(), name).collect()


def test_an_invalid_row_of_an_unsorted_table_is_named():
    table = SMALL.with_columns(state=pl.Series(["s", "t", "s", None])).reverse()
    for parameters in ({}, {"similarity": True}):
        with refused(
            "a value as state, received null at task='a', trajectory='y', step=1"
        ):
            compute(table, "gigpo", **parameters).collect()


def test_wrong_columns_and_parameters_are_reported():
    for column in SMALL.drop("action").columns:
        with refused(f"`{column}(_id)?`"):
            compute(SMALL.drop(column), "hgpo")
    assert (
        compute(SMALL.drop("action_valid"), "hgpo", invalid_action_penalty=0.0)
        .collect()
        .height
        == 4
    )
    cases: list[tuple[str, str, dict[str, object]]] = [
        ("did you mean 'graphgpo'", "graphpo", {}),
        ("did you mean 'history_length'", "hgpo", {"history_lenght": 2}),
        ("did you mean 'mean_std_norm'", "hgpo", {"mode": "mean_std"}),
        ("gamma", "hgpo", {"gamma": 1.5}),
        ("gamma", "hgpo", {"gamma": float("nan")}),
        ("history_length", "hgpo", {"history_length": -1}),
        ("epsilon", "hgpo", {"epsilon": -1.0}),
        (
            "similarity_threshold",
            "gigpo",
            {"similarity": True, "similarity_threshold": 1.0},
        ),
        ("gamma", "graphgpo", {"normalize_distance": True, "gamma": 0.0}),
        ("unknown state key 'upper'", "hgpo", {"state_key": "upper"}),
        ("`admissible_actions`", "g2po", {"state_key": "alfworld-nodes"}),
    ]
    for line, name, parameters in cases:
        with refused(line):
            compute(SMALL, name, **parameters).collect()
    for table, line in (
        (
            SMALL.with_columns(pl.col("step").cast(pl.Float64)),
            "column step: expected integers, received Float64",
        ),
        (
            SMALL.with_columns(pl.col("reward").cast(pl.String)),
            "column reward: expected numbers, received String",
        ),
        (
            SMALL.with_columns(action_valid=pl.lit("yes")),
            "column action_valid: expected booleans, received String",
        ),
        (
            SMALL.with_columns(aborted=pl.lit("no")),
            "column aborted: expected booleans, received String",
        ),
        (
            SMALL.with_columns(pl.concat_list("state")),
            r"column state: expected texts, received List\(String\)",
        ),
        (compute(SMALL, "hgpo"), "already has a column 'advantage'"),
    ):
        with refused(line):
            compute(table, "gigpo")


def test_depths_beyond_the_stored_hashes_require_states():
    table = walks()
    with refused("the table has no `state`"):
        compute(table.drop("state_hash"), "hgpo", history_length=6)
    deep = compute(table, "hgpo", history_length=6).collect()
    derived = compute(
        table.select(pl.exclude("^history_hash.*$")), "hgpo", history_length=6
    ).collect()
    assert same(deep, derived)


def test_equal_names_in_two_runs_are_two_trajectories():
    runs = [SMALL.with_columns(run=pl.lit(run)) for run in ("one", "two")]
    both = compute(pl.concat(runs), "hgpo").collect()
    assert (
        both["advantage"].to_list()
        == compute(SMALL, "hgpo").collect()["advantage"].to_list() * 2
    )


@pytest.mark.parametrize("name", NAMES)
def test_rewards_that_are_too_large_are_reported_in_one_line(name):
    """Or their advantages are finite, where differences and means do not overflow."""
    for size in (1e30, 1e200, 1e308):
        for precision in ("float64", "mixed"):
            table = SCORED.with_columns(reward=pl.Series([size, size, 0.0, 0.0]))
            try:
                assert (
                    compute(table, name, precision=precision)
                    .collect()["advantage"]
                    .is_finite()
                    .all()
                )
            except InputError as error:
                if not re.fullmatch(
                    r"expected a finite .*, received .* at task='a', .*, step=\d",
                    str(error),
                ):
                    raise


def in_a_process(code, *arguments, threads):
    done = python(
        code, *arguments, env=environment(POLARS_MAX_THREADS=str(threads)), timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["streaming", "in-memory"])
def test_an_invalid_row_is_reported_on_a_single_thread(engine, tmp_path):
    """An invalid row's names are read by a second query inside the first, which must not wait for its thread."""
    is_bad = pl.int_range(pl.len()) == 1000
    bad = pl.when(is_bad).then(float("nan")).otherwise("reward")
    walks(tasks=40).with_columns(reward=bad).write_parquet(
        tmp_path / "steps.parquet", row_group_size=100
    )
    code = (
        "import polars as pl, sys; from hgpo_train.advantages import compute\n"
        "from hgpo_envs.errors import InputError\n"
        "try: compute(pl.scan_parquet(sys.argv[1]), 'hgpo').select('advantage').collect(engine=sys.argv[2])\n"
        "except InputError as error: print(error)"
    )
    output = in_a_process(code, tmp_path / "steps.parquet", engine, threads=1)
    row = walks(tasks=40).row(1000, named=True)
    assert (
        f"received nan at run='walks', iteration={row['iteration']}, task_id='{row['task_id']}'"
        in output
    )
    assert output.endswith(f"trajectory='{row['trajectory']}', step={row['step']}\n")


@pytest.mark.parametrize("name", NAMES)
def test_neither_order_nor_engine_changes_results_and_columns_are_kept(name):
    table = walks().with_columns(note=pl.lit("kept"), row=pl.int_range(pl.len()))
    want = compute(table, name).collect(engine="in-memory")
    shuffled = table.sample(fraction=1.0, shuffle=True, seed=3)
    result = compute(shuffled, name, details=True).collect(engine="streaming")
    assert result.select(table.columns).equals(shuffled)
    assert result.columns[table.width] == "advantage"
    assert same(result.sort("row"), want)
    assert pickle.loads(pickle.dumps(get(name))) == get(name)


@pytest.mark.slow
def test_threads_do_not_change_results(tmp_path):
    walks(tasks=40).write_parquet(tmp_path / "steps.parquet", row_group_size=100)
    code = (
        "import polars as pl, sys; from hgpo_train.advantages import compute\n"
        "steps = pl.scan_parquet(sys.argv[1])\n"
        f"for name in {NAMES}: steps = compute(steps, name, column=name)\n"
        f"steps.select({NAMES}).collect().write_parquet(sys.argv[2])"
    )
    for threads in (1, 4):
        in_a_process(
            code, tmp_path / "steps.parquet", tmp_path / str(threads), threads=threads
        )
    one, four = (pl.read_parquet(tmp_path / threads) for threads in ("1", "4"))
    assert all(same(one, four, name) for name in one.columns)


def test_equal_values_are_exactly_zero_and_others_keep_their_digits():
    """Three equal values whose float64 mean is not exactly their value, and values far from 0 that differ little."""
    equal = [0.1] * 3
    large = [1e9, 1e9 + 1, 1e9 + 2]
    steps = pl.LazyFrame({"task_key": [1, 1, 1, 2, 2, 2], "x": [*equal, *large]})
    for mode in ("mean_std_norm", "mean_norm"):
        for epsilon in (0.0, 1e-6):
            found = normalise(
                steps, "a", "x", within(), mode=mode, epsilon=epsilon, ddof=1
            ).collect()["a"]
            assert found.to_list() == pytest.approx([0, 0, 0, -1, 0, 1], abs=2e-6)
            assert (found[:3] == 0).all()
    means = mean(steps, "m", "x", within()).collect()["m"]
    assert means.to_list() == [*equal, *[1e9 + 1] * 3]


def test_values_that_are_not_finite_are_never_used():
    for value in (float("nan"), float("inf"), -float("inf")):
        steps = pl.LazyFrame(
            {"task_key": [1, 1, 1, 2, 2], "x": [1.0, value, 2.0, 3.0, 4.0]}
        )
        for mode in ("mean_std_norm", "mean_norm"):
            normalised = normalise(steps, "a", "x", within(), mode=mode)
            found = mean(normalised, "m", "x", within()).collect()
            finite = found.select(pl.col("a", "m").is_finite()).rows()
            assert finite == [(False, False)] * 3 + [(True, True)] * 2


def test_only_needed_columns_are_read_and_filters_are_pushed_down(tmp_path):
    walks(tasks=40).with_columns(prompt=pl.lit("long")).write_parquet(
        tmp_path / "steps.parquet"
    )
    steps = pl.scan_parquet(tmp_path / "steps.parquet").filter(pl.col("iteration") == 3)
    plan = compute(steps, "hgpo").select("advantage")
    assert 'SELECTION: col("iteration") == 3' in plan.explain()
    # 6 names, reward, flag, 3 histories
    assert int(re.search(r"PROJECT (\d+)/\d+ COLUMNS", plan.explain())[1]) == 11
    assert plan.collect().height == steps.select(pl.len()).collect().item()


@pytest.mark.parametrize("name", NAMES)
def test_aborted_rollouts_are_left_out(name):
    table = walks()
    broken = table["trajectory"].unique(maintain_order=True)[3]
    last = (pl.col("trajectory") == broken) & (
        pl.col("step") == pl.col("step").max().over("trajectory")
    )
    anything = pl.when(last).then(float("nan")).otherwise("reward")  # in aborted rows
    flagged = table.with_columns(aborted=last, reward=anything)
    result = compute(flagged, name).collect()
    assert (
        result.filter(trajectory=broken)["advantage"].null_count()
        == table.filter(trajectory=broken).height
    )
    others = compute(table.filter(pl.col("trajectory") != broken), name).collect()
    assert same(result.filter(pl.col("trajectory") != broken), others)
    nothing = compute(
        SCORED.with_columns(aborted=pl.lit(value=True)), name, details=True
    ).collect()
    assert nothing["advantage"].null_count() == 4


def test_state_keys_ignore_stored_hashes():
    """A counter makes all states different; without it, they are those of a table that never had one."""
    plain = SMALL.with_columns(next_state=pl.Series([None, "end", None, "end"]))
    count = pl.format("{} (move {})", pl.col("state"), pl.int_range(pl.len()))
    noisy = plain.with_columns(
        state=count,
        next_state=pl.format("{} (move 7)", "next_state"),
        state_hash=count.hash(),
    )
    noisy = noisy.with_columns(pl.col("state_hash").reinterpret(signed=True))
    noisy = noisy.with_columns(
        history_hash_0="state_hash", next_state_hash="state_hash"
    )
    for name in ("hgpo", "gigpo", "g2po", "graphgpo"):
        want = compute(
            plain.with_columns(pl.col("state", "next_state") + " (move #)"), name
        ).collect()
        assert same(compute(noisy, name, state_key="mask-numbers").collect(), want)
        assert not same(compute(noisy, name).collect(), want)
    upper = compute(
        plain.with_columns(pl.col("state").str.to_uppercase()),
        "hgpo",
        state_key=f"{__name__}:lower",
    )
    assert same(upper.collect(), compute(plain, "hgpo").collect())


def lower(text):
    return text.lower()


@pytest.mark.parametrize("name", NAMES)
def test_state_keys_are_accepted_by_estimators_that_compare_no_states(name):
    counted = SCORED.with_columns(
        pl.format("{} (move {})", pl.col("state"), pl.int_range(pl.len()))
    )
    masked = SCORED.with_columns(pl.col("state") + " (move #)")
    want = compute(masked, name).collect()
    assert same(compute(counted, name, state_key="mask-numbers").collect(), want)


def test_similar_texts_are_those_of_state_keys():
    """Without their numbers the texts are equal, and their returns 0, 1 and 2 are one group."""
    table = pl.DataFrame(
        {
            "task": ["t"] * 3,
            "trajectory": ["a", "b", "c"],
            "step": [0] * 3,
            "state": ["1234567", "89", "0"],
            "reward": [0.0, 1.0, 2.0],
            "action_valid": [True] * 3,
            "admissible_actions": [["go"]] * 3,
        }
    )
    options = {"reward_scale": 1.0, "mode": "mean_norm", "episode_weight": 0.0}
    options |= {"similarity": True}

    plain = compute(table, "gigpo", **options).collect()
    assert plain["advantage"].to_list() == [0.0, 0.0, 0.0]
    keyed = compute(table, "gigpo", state_key="mask-numbers", **options).collect()
    assert keyed["advantage"].to_list() == [-1.0, 0.0, 1.0]
    with refused("a function of texts.* received alfworld-nodes"):
        compute(table, "gigpo", state_key="alfworld-nodes", **options).collect()


def test_a_table_is_written_next_to_the_run(tmp_path):
    steps = tmp_path / "steps.parquet"
    out = tmp_path / "advantages.parquet"
    walks().write_parquet(steps)
    before = steps.read_bytes()
    specs = [get("hgpo").with_parameters(history_length=1, details=True)]
    write_advantages(steps, specs, out)
    assert steps.read_bytes() == before
    metadata = read_metadata(out)
    assert metadata["columns"]["advantage"]["parameters"]["history_length"] == 1
    assert metadata["run_fingerprint"] == fingerprint(steps)
    joined = join_advantages(pl.scan_parquet(steps), pl.scan_parquet(out)).collect()
    assert same(joined, compute(walks(), "hgpo", history_length=1).collect())
    walks(seed=1).write_parquet(steps)
    assert metadata["run_fingerprint"] != fingerprint(steps)
    (tmp_path / "text").write_bytes(b"no table")
    for path in (tmp_path / "text", tmp_path / "absent", tmp_path):
        with refused("expected an advantage table of `hgpo advantages`"):
            read_metadata(path)


def test_chunks_do_not_change_results(tmp_path):
    table = walks(tasks=8)
    specs = [get(name).with_parameters(column=name) for name in NAMES]
    whole = compute_many(table, specs).collect()
    for rows in (1, 200):
        out = tmp_path / "advantages.parquet"
        assert (
            write_advantages(table.lazy(), specs, out, chunk_rows=rows) == table.height
        )
        chunked = pl.read_parquet(out)
        assert all(same(chunked, whole, name) for name in NAMES)


def test_no_table_is_written_partially(tmp_path):
    specs = [get("hgpo")]
    last = pl.int_range(pl.len()) == pl.len() - 1
    invalid = walks().with_columns(
        reward=pl.when(last).then(float("nan")).otherwise("reward")
    )
    twice = pl.concat([walks(), walks().with_columns(pl.col("trajectory") + "b")])
    for table, line in ((invalid, "finite"), (twice, "are in two places")):
        with refused(line):
            write_advantages(table.lazy(), specs, tmp_path / "a", chunk_rows=50)
    assert list(tmp_path.iterdir()) == []
