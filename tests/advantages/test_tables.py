"""Estimators on step tables: invalid input, row order, columns, engines, threads, chunks and aborted rollouts."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from hgpo_envs.errors import InputError
from hgpo_envs.hashing import chain_columns, text_hashes
from hgpo_train.advantages import EstimatorSpec, compute, compute_many, get, names, register
from hgpo_train.advantages.advantage_tables import fingerprint, join_advantages, read_metadata, write_advantages
from hgpo_train.advantages.filters import informative
from hgpo_train.advantages.parameters import Mode
from hgpo_train.advantages.registry import columns_read
from hgpo_train.advantages.windows import Level, mean, normalise

ROOT = Path(__file__).parent.parent.parent


def walks(tasks: int = 12, rollouts: int = 6, seed: int = 0) -> pl.DataFrame:
    """Return rollouts that wander between few states, as a step table with hashes and without texts."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 20, tasks * rollouts)
    trajectory = np.repeat(np.arange(tasks * rollouts), lengths)
    step = np.arange(len(trajectory)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    last = np.append(trajectory[1:] != trajectory[:-1], True)
    states = text_hashes([f"room {n}" for n in rng.integers(0, 5, len(trajectory))])
    values, defined = chain_columns(states, step == 0, 4)
    return pl.DataFrame(
        {
            "run": "walks",
            "iteration": trajectory // (rollouts * 4),
            "task_id": [f"task {n // rollouts}" for n in trajectory],
            "group": 0,
            "trajectory": [f"walk {n}" for n in trajectory],
            "step": step,
            "reward": np.where(last & (rng.random(len(last)) < 0.5), 1.0, 0.0),
            "action_valid": rng.random(len(last)) < 0.9,
            "state_hash": states,
        }
    ).with_columns(
        pl.when(pl.Series(defined[k])).then(pl.Series(values[k])).alias(f"history_hash_{k}") for k in range(5)
    )


def bits(frame: pl.DataFrame, column: str = "advantage") -> list[int]:
    return frame[column].to_numpy().view(np.int64).tolist()


SMALL = pl.DataFrame(
    {
        "task": ["a", "a", "a", "a"],
        "trajectory": ["x", "x", "y", "y"],
        "step": [0, 1, 0, 1],
        "state": ["s", "t", "s", "u"],
        "reward": [0.0, 10.0, 0.0, 0.0],
        "action_valid": [True, True, True, False],
    }
)


# --------------------------------------------------------------------------------------------------- invalid input


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), None])
@pytest.mark.parametrize("name", names())
def test_rewards_that_are_not_numbers_are_reported(name: str, value: float | None) -> None:
    table = SMALL.with_columns(reward=pl.Series([0.0, 1.0, value, 0.0]))
    with pytest.raises(
        InputError, match=r"^expected a finite number as reward, received .* at task='a', trajectory='y', step=0$"
    ):
        compute(table, name).collect()


@pytest.mark.parametrize("column", ["task", "trajectory", "step", "state", "reward", "action_valid"])
def test_missing_columns_are_reported(column: str) -> None:
    with pytest.raises(InputError, match=f"`?{column}`?"):
        compute(SMALL.drop(column), "hgpo")


def test_action_valid_is_not_required_without_a_penalty() -> None:
    assert compute(SMALL.drop("action_valid"), "hgpo", invalid_action_penalty=0.0).collect().height == 4


def test_unknown_names_suggest_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'graphgpo'"):
        compute(SMALL, "graphpo")
    with pytest.raises(InputError, match="did you mean 'history_length'"):
        compute(SMALL, "hgpo", history_lenght=2)
    with pytest.raises(InputError, match="did you mean 'mean_std_norm'"):
        compute(SMALL, "hgpo", mode="mean_std")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("hgpo", {"gamma": 1.5}),
        ("hgpo", {"gamma": float("nan")}),
        ("hgpo", {"history_length": -1}),
        ("hgpo", {"history_length": True}),
        ("hgpo", {"base_group": "yes"}),
        ("hgpo", {"epsilon": -1.0}),
        ("gigpo", {"similarity": True, "similarity_threshold": 1.0}),
        ("graphgpo", {"normalize_distance": True, "gamma": 0.0}),
    ],
)
def test_parameters_out_of_range_are_reported(name: str, parameters: dict[str, object]) -> None:
    with pytest.raises(InputError):
        compute(SMALL, name, **parameters).collect()


def test_depths_beyond_the_stored_hashes_require_states() -> None:
    table = walks()
    with pytest.raises(
        InputError, match=r"history_hash_0 … history_hash_6: the table has these columns up to depth 4, and neither"
    ):
        compute(table.drop("state_hash"), "hgpo", history_length=6)
    deep = compute(table, "hgpo", history_length=6).collect()
    stored = compute(table.select(pl.exclude("^history_hash.*$")), "hgpo", history_length=6).collect()
    assert bits(deep) == bits(stored)


def test_a_duplicate_step_is_reported() -> None:
    with pytest.raises(InputError, match="trajectory 'y' of task 'a' has step 1 twice"):
        compute(pl.concat([SMALL, SMALL.tail(1)]), "hgpo").collect()


def test_a_trajectory_in_two_tasks_is_reported() -> None:
    table = SMALL.with_columns(task=pl.Series(["a", "a", "a", "b"]))
    with pytest.raises(InputError, match=r"trajectory 'y' is in .*a.* and in .*b"):
        compute(table, "hgpo").collect()


def test_equal_names_in_two_runs_are_two_trajectories() -> None:
    runs = [SMALL.with_columns(run=pl.lit(run)) for run in ("one", "two")]
    both = compute(pl.concat(runs), "hgpo").collect()
    assert both["advantage"].to_list() == compute(SMALL, "hgpo").collect()["advantage"].to_list() * 2


def test_an_empty_table_is_reported() -> None:
    with pytest.raises(InputError, match="the step table has no rows"):
        compute(SMALL.clear(), "hgpo").collect()


def test_a_column_is_never_overwritten() -> None:
    with pytest.raises(InputError, match="already has a column 'advantage'"):
        compute(compute(SMALL, "hgpo"), "gigpo")


def test_steps_that_are_not_numbers_are_reported() -> None:
    with pytest.raises(InputError, match="expected an integer as step in every row, received Float64"):
        compute(SMALL.with_columns(pl.col("step").cast(pl.Float64)), "hgpo").collect()


# ----------------------------------------------------------------------------------------------------- invariances


@pytest.mark.parametrize("name", names())
def test_rows_and_columns_are_unchanged(name: str) -> None:
    table = walks().with_columns(note=pl.lit("kept")).sample(fraction=1.0, shuffle=True, seed=3)
    result = compute(table, name, details=True).collect()
    assert result.select(table.columns).equals(table)
    assert result.columns[table.width] == "advantage"
    assert bits(result) == bits(compute(table, name).collect())


@pytest.mark.parametrize("name", names())
def test_engines_give_the_same_bytes(name: str) -> None:
    table = compute(walks().lazy(), name)
    assert bits(table.collect(engine="streaming")) == bits(table.collect(engine="in-memory"))


def test_threads_give_the_same_bytes(tmp_path: Path) -> None:
    walks(tasks=40).write_parquet(tmp_path / "steps.parquet", row_group_size=100)
    code = (
        "import polars as pl, sys; from hgpo_train.advantages import compute, names\n"
        "steps = pl.scan_parquet(sys.argv[1])\n"
        "for name in names(): steps = compute(steps, name, column=name)\n"
        "frame = steps.select(names()).collect(engine=sys.argv[2])\n"
        "print(pl.thread_pool_size(), frame.hash_rows().to_list())"
    )
    outputs = {}
    for threads, engine in (("1", "streaming"), ("4", "streaming"), ("4", "in-memory")):
        environment = os.environ | {"POLARS_MAX_THREADS": threads, "PYTHONPATH": f"{ROOT}:{ROOT}/datasets"}
        command = [sys.executable, "-c", code, str(tmp_path / "steps.parquet"), engine]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        used, _, outputs[threads, engine] = ran.stdout.partition(" ")
        assert used == threads
    assert len(set(outputs.values())) == 1


@pytest.mark.parametrize("rows", [1, 37, 100, 10_000])
def test_chunks_give_the_same_bytes(tmp_path: Path, rows: int) -> None:
    table = walks(tasks=40)
    specs = [EstimatorSpec(get(name), get(name).parameters(), name) for name in names()]
    out = tmp_path / "advantages.parquet"
    assert write_advantages(table.lazy(), specs, out, chunk_rows=rows) == table.height
    chunked, whole = pl.read_parquet(out), compute_many(table, specs).collect()
    for name in names():
        assert bits(chunked, name) == bits(whole, name), name


def test_only_needed_columns_are_read() -> None:
    plan = compute(walks().lazy().with_columns(prompt=pl.lit("long")), "hgpo").select("advantage").explain()
    assert "prompt" not in plan
    assert "history_hash_3" not in plan


def test_earlier_filters_are_pushed_down_and_plans_stay_lazy(tmp_path: Path) -> None:
    walks(tasks=40).write_parquet(tmp_path / "steps.parquet")
    steps = pl.scan_parquet(tmp_path / "steps.parquet").filter(pl.col("iteration") == 3)
    plan = compute(steps, "hgpo").select("advantage")
    assert 'SELECTION: col("iteration") == 3' in plan.explain()
    read = int(re.search(r"PROJECT (\d+)/\d+ COLUMNS", plan.explain())[1])
    assert read == 11  # six names, reward, flag, three histories
    assert plan.collect().height == steps.select(pl.len()).collect().item()


def test_columns_read_lists_only_columns_that_are_read() -> None:
    spec = EstimatorSpec(get("hgpo"), get("hgpo").parameters(history_length=1))
    read = columns_read(walks().collect_schema(), [spec])
    assert read == ["run", "iteration", "task_id", "group", "trajectory", "step", "reward", "action_valid",
                    "history_hash_0", "history_hash_1"]  # fmt: skip


@pytest.mark.parametrize("name", names())
def test_row_order_does_not_change_the_bytes(name: str) -> None:
    table = walks().with_columns(place=pl.int_range(pl.len()))
    shuffled = compute(table.sample(fraction=1.0, shuffle=True, seed=5), name, precision="float64").collect()
    assert bits(shuffled.sort("place")) == bits(compute(table, name, precision="float64").collect())


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("size", [1e30, 1e200, 1e308])
def test_rewards_that_are_too_large_are_reported_in_one_line(name: str, size: float) -> None:
    table = SMALL.with_columns(reward=pl.Series([size, size, 0.0, 0.0]))
    try:
        found = compute(table, name, precision="float64").collect()["advantage"]
        line = ""
    except InputError as error:
        found, line = pl.Series([0.0]), str(error)
    assert found.is_finite().all()
    assert not line or re.fullmatch(r"expected a finite .*, received .* at task='a', trajectory='x', step=\d", line)
    if size > 1e38 and name in {"hgpo", "gigpo", "g2po", "grpo", "rloo", "reinforce_pp"}:
        with pytest.raises(InputError, match="expected a finite"):
            compute(table, name).collect()


# ------------------------------------------------------------------------------------------------ aborted rollouts


@pytest.mark.parametrize("name", names())
def test_aborted_rollouts_are_left_out(name: str) -> None:
    table = walks()
    broken = table["trajectory"].unique(maintain_order=True)[3]
    last = (pl.col("trajectory") == broken) & (pl.col("step") == pl.col("step").max().over("trajectory"))
    flagged = table.with_columns(
        aborted=last, reward=pl.when(last).then(float("nan")).otherwise("reward")
    )  # aborted rows may contain anything
    result = compute(flagged, name).collect()
    assert result.filter(trajectory=broken)["advantage"].null_count() == table.filter(trajectory=broken).height
    others = compute(table.filter(pl.col("trajectory") != broken), name).collect()
    assert bits(result.filter(pl.col("trajectory") != broken)) == bits(others)


@pytest.mark.parametrize("engine", ["streaming", "in-memory"])
def test_an_invalid_row_is_reported_on_a_single_thread(engine: str, tmp_path: Path) -> None:
    """An invalid row's names are read by a second query inside the first, which must not wait for its thread."""
    table = (
        walks(tasks=40)
        .with_row_index("row")
        .with_columns(reward=pl.when(pl.col("row") == 1000).then(float("nan")).otherwise("reward"))
    )
    table.write_parquet(tmp_path / "steps.parquet", row_group_size=100)
    code = (
        "import polars as pl, sys; from hgpo_train.advantages import compute\n"
        "from hgpo_envs.errors import InputError\n"
        "try: compute(pl.scan_parquet(sys.argv[1]), 'hgpo').select('advantage').collect(engine=sys.argv[2])\n"
        "except InputError as error: print(error)"
    )
    environment = os.environ | {"POLARS_MAX_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT}/datasets"}
    command = [sys.executable, "-c", code, str(tmp_path / "steps.parquet"), engine]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    bad = table.row(1000, named=True)
    names = ", ".join(
        f"{name}={bad[name]!r}" for name in ("run", "iteration", "task_id", "group", "trajectory", "step")
    )
    assert ran.stdout.splitlines() == [f"expected a finite number as reward, received nan at {names}"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("mode", ["mean_std_norm", "mean_norm"])
def test_values_that_are_not_finite_are_never_used(value: float, mode: Mode) -> None:
    steps = pl.LazyFrame({"task_key": [1, 1, 1, 2, 2], "x": [1.0, value, 2.0, 3.0, 4.0]})
    made = mean(normalise(steps, {"a": Level("x")}, mode=mode), "x", {"m": []}).collect()
    assert not made[:3].select(pl.col("a", "m").is_finite().any()).to_series().any()
    assert made[3:].select(pl.col("a", "m").is_finite().all()).row(0) == (True, True)


def test_a_table_with_only_aborted_rollouts_has_no_advantages() -> None:
    result = compute(SMALL.with_columns(aborted=pl.lit(value=True)), "hgpo", details=True).collect()
    assert result["advantage"].null_count() == 4


# -------------------------------------------------------------------------------------------------------- details


def test_the_advantages_of_the_levels_sum_to_the_advantage() -> None:
    table = compute(walks(), "hgpo", history_length=2, base_group=True, details=True).collect()
    parts = [
        pl.col(f"advantage_{n}").fill_null(0) * pl.col(f"advantage_weight_{n}") for n in ("episode", "k0", "k1", "k2")
    ]
    assert table.select((pl.sum_horizontal(parts) - pl.col("advantage")).abs().max()).item() < 1e-12
    assert (table["advantage_size_k1"].is_null() == (table["step"] < 1)).all()
    for level in ("k0", "k1", "k2"):
        defined = table.filter(pl.col(f"history_hash_{level[1]}").is_not_null())
        defined = defined.with_columns(n=pl.len().over("task_id", f"history_hash_{level[1]}"))
        assert (defined["n"] == defined[f"advantage_size_{level}"]).all()
        assert ((defined["n"] == 1) == defined[f"advantage_{level}"].is_null()).all()
    assert (defined["n"] == 1).any()


def test_float32_results_are_float32() -> None:
    exact = compute(walks(), "hgpo").collect()["advantage"]
    rounded = compute(walks(), "hgpo", precision="float32").collect()["advantage"]
    assert rounded.equals(exact.cast(pl.Float32).cast(pl.Float64))


def test_a_table_is_written_next_to_the_run(tmp_path: Path) -> None:
    steps, out = tmp_path / "steps.parquet", tmp_path / "advantages.parquet"
    walks().write_parquet(steps)
    before = steps.read_bytes()
    specs = [EstimatorSpec(get("hgpo"), get("hgpo").parameters(history_length=1), "advantage", details=True)]
    write_advantages(pl.scan_parquet(steps), specs, out, fingerprint=fingerprint(steps))
    assert steps.read_bytes() == before
    metadata = read_metadata(out)
    assert metadata["columns"]["advantage"]["parameters"]["history_length"] == 1
    assert metadata["run_fingerprint"] == fingerprint(steps)
    joined = join_advantages(pl.scan_parquet(steps), pl.scan_parquet(out)).collect()
    assert bits(joined) == bits(compute(walks(), "hgpo", history_length=1).collect())
    walks(seed=1).write_parquet(steps)
    assert metadata["run_fingerprint"] != fingerprint(steps)


def test_an_interrupted_table_leaves_no_files(tmp_path: Path) -> None:
    def progress(_: int) -> None:
        raise KeyboardInterrupt

    specs = [EstimatorSpec(get("hgpo"), get("hgpo").parameters(), "advantage")]
    with pytest.raises(KeyboardInterrupt):
        write_advantages(walks().lazy(), specs, tmp_path / "out.parquet", progress=progress)
    assert list(tmp_path.iterdir()) == []


def test_several_files_have_one_fingerprint(tmp_path: Path) -> None:
    for seed in (0, 1):
        walks(seed=seed).write_parquet(tmp_path / f"{seed}.parquet")
    both = fingerprint(tmp_path / "*.parquet")
    assert fingerprint(tmp_path / "0*.parquet") == fingerprint(tmp_path / "0.parquet") != both
    walks(seed=2).write_parquet(tmp_path / "1.parquet")
    assert fingerprint(tmp_path / "*.parquet") != both
    with pytest.raises(InputError, match="no such file or run; the pattern matches nothing"):
        fingerprint(tmp_path / "*.csv")


def test_no_table_is_written_partially(tmp_path: Path) -> None:
    table = walks().with_columns(
        reward=pl.when(pl.int_range(pl.len()) < pl.len() - 1).then("reward").otherwise(float("nan"))
    )
    with pytest.raises(InputError, match="finite"):
        write_advantages(
            table.lazy(), [EstimatorSpec(get("hgpo"), get("hgpo").parameters())], tmp_path / "a", chunk_rows=50
        )
    assert list(tmp_path.iterdir()) == []


def test_groups_in_two_places_are_reported_in_chunks(tmp_path: Path) -> None:
    table = pl.concat([walks(), walks().with_columns(pl.col("trajectory") + "b")])
    with pytest.raises(InputError, match="is in two places"):
        write_advantages(
            table.lazy(), [EstimatorSpec(get("hgpo"), get("hgpo").parameters())], tmp_path / "a", chunk_rows=100
        )


# --------------------------------------------------------------------------------------------------- miscellaneous


def test_the_group_filter_keeps_informative_groups() -> None:
    table = SMALL.with_columns(episode_return=pl.Series([10.0, 10.0, 0.0, 0.0]))
    assert table.filter(informative(table.columns)).height == 4
    assert table.with_columns(episode_return=1.0).filter(informative(table.columns)).height == 0


def test_a_name_is_registered_only_once() -> None:
    from dataclasses import replace

    with pytest.raises(InputError, match="registered already"):
        register(replace(get("hgpo")))
