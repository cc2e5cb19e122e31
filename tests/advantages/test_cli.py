"""`hgpo advantages` and `hgpo stats` on a small run and on tables of other programs: what is written, and errors."""

import hashlib

import pandas as pd
import polars as pl
import pytest
from command import invoke
from groups import write_run
from refusals import refused

from hgpo_datasets import StepWriter, scan_steps
from hgpo_train.advantages import compute, names


def digests(folder):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*.*"))
    }


def test_tables_are_written_next_to_the_run_which_is_unchanged(run):
    before = digests(run)
    command = [
        "advantages",
        run,
        "-e",
        "hgpo",
        "-e",
        "gigpo:step_weight=0.5",
        "--history-length",
        1,
    ]
    assert "96 rows" in invoke(*command)
    with refused("exists already; replace it with --overwrite"):
        invoke(*command)
    invoke(*command, "--overwrite", "--details")
    assert digests(run) == before
    table = pl.read_parquet(run.parent / "first.advantages" / "hgpo+gigpo.parquet")
    for name, parameters in (
        ("gigpo", {"step_weight": 0.5}),
        ("hgpo", {"history_length": 1}),
    ):
        want = (
            compute(scan_steps(run), name, **parameters)
            .collect()["advantage"]
            .to_list()
        )
        assert table[f"advantage_{name}"].to_list() == pytest.approx(want, abs=1e-12)


@pytest.mark.slow
def test_several_runs_in_a_folder_are_named(run, tmp_path):
    folder = tmp_path / "several"
    rows = scan_steps(run).drop("run").filter(task_id="task 4").collect()
    for name in ("one", "two"):
        write_run(folder / name, rows, run=name)
    note = f"Note: 2 runs are read as one table: {folder / 'one'}, {folder / 'two'}."
    assert note in invoke("advantages", folder, "--out", tmp_path / "a.parquet")
    assert note in invoke("stats", folder)
    assert "Note:" not in invoke("advantages", run)


def test_state_keys_of_a_saved_run(run):
    """All rooms are one state if numbers are masked; the stored hashes say otherwise."""
    invoke("advantages", run, "--state-key", "mask-numbers", "--details")
    table = pl.read_parquet(run.parent / "first.advantages" / "hgpo.parquet")
    assert table["advantage_size_k0"].unique().to_list() == [16.0]
    with refused("unknown state key 'upper'"):
        invoke("advantages", run, "--state-key", "upper", "--overwrite")


def test_an_output_never_replaces_the_input(run, tmp_path):
    before = digests(run)
    shard = next(run.glob("steps/*.parquet"))
    (tmp_path / "link").symlink_to(run)
    (tmp_path / "twin.parquet").hardlink_to(shard)
    for source, out in [
        (run, shard),
        (run, tmp_path / "link" / "new.parquet"),
        (run, tmp_path / "twin.parquet"),
        (run / "steps/*.parquet", run / "steps/new.parquet"),
        (shard, run / "steps/new/deeper.parquet"),
        (run / "steps", run / "new.parquet"),
    ]:
        with refused(r"expected (an output file|a path) outside of"):
            invoke("advantages", source, "--out", out, "--overwrite")
    assert digests(run) == before


def test_invalid_options_are_reported(run):
    for arguments, message in (
        ("-e hgpo,hgpo", "expected different estimators"),
        ("--set alfa=2", "did you mean 'alpha'"),
        ("--set alpha", "--set: expected name=value, received 'alpha'"),
        ("-e gigpo:alpha=2", "unknown parameter 'alpha'"),
        ("-e grpo --history-length 2", "unknown parameter 'history_length'"),
    ):
        with refused(message):
            invoke("advantages", run, *arguments.split())
    assert not (run.parent / "first.advantages").exists()


def test_all_estimators_are_one_name(run):
    output = invoke("advantages", run, "--list")
    assert all(name in output for name in (*names(), "history_length=2"))
    # from the texts
    invoke(
        "advantages",
        run,
        "-e",
        "all",
        "--history-length",
        9,
        "--out",
        run.parent / "all.parquet",
    )
    columns = pl.read_parquet_schema(run.parent / "all.parquet")
    assert {f"advantage_{name}" for name in names()} <= set(columns)


def test_statistics_are_printed_and_written(run, tmp_path):
    output = invoke("stats", run, "--history-length", 2)
    assert "96 steps of 24 rollouts in 6 groups" in output
    assert "Context inconsistency" in output
    output = invoke("stats", run, "--by", "task_type", "--out", tmp_path / "tables")
    assert "even" in output
    levels = pl.read_csv(tmp_path / "tables" / "levels.csv")
    assert levels.filter(pl.col("level") == "0")["steps"].to_list() == [48, 48]
    with refused("did you mean 'task_type'"):
        invoke("stats", run, "--by", "task_typ")


ROWS = {
    "task": ["a"] * 4 + ["b"] * 4,
    "trajectory": ["x", "x", "y", "y", "u", "u", "v", "v"],
    "step": [0, 1] * 4,
    "reward": [0.0, 1, 0, 0, 0, 0, 0, 1],
    "state": ["s", "t", "s", "u", "s", "t", "s", "t"],
    "action": ["go"] * 8,
    "action_valid": [True] * 7 + [False],
}
TABLE = pl.DataFrame(ROWS)


@pytest.mark.parametrize("program", ["polars", "pandas"])
def test_a_table_of_another_program(tmp_path, program):
    """It may have advantages already."""
    path = tmp_path / "mine.parquet"
    if program == "polars":
        compute(TABLE, "grpo").collect().write_parquet(path)
    else:
        frame = pd.DataFrame(ROWS).astype(
            {"task": "category", "step": "int32", "reward": "float32"}
        )
        frame.set_index(pd.Index(range(5, 13))).to_parquet(path)
    before = path.read_bytes()
    assert "8 rows" in invoke("advantages", path, "-e", "g2po")
    written = pl.read_parquet(tmp_path / "mine.advantages" / "g2po.parquet")
    want = compute(TABLE, "g2po").collect()["advantage"]
    assert written["advantage"].to_list() == pytest.approx(want.to_list(), abs=1e-12)
    assert (
        written.select("trajectory", "step").rows()
        == TABLE.select("trajectory", "step").rows()
    )
    assert "8 steps of 4 rollouts in 2 groups" in invoke("stats", path)
    assert path.read_bytes() == before


def test_metadata_of_a_step_table_are_looked_at(tmp_path):
    """In a run, a file without them is damaged or foreign, and elsewhere a newer version is refused."""
    with StepWriter(tmp_path / "run") as writer:
        step = {
            "task_id": "a",
            "trajectory": "x",
            "step": 0,
            "state": "s",
            "action": "go",
            "reward": 1.0,
        }
        writer.add_group([{**step, "terminated": True, "won": True}])
    shard = next((tmp_path / "run").glob("steps/*.parquet"))
    metadata = {
        name: value
        for name, value in pl.read_parquet_metadata(shard).items()
        if name.startswith("hgpo.")
    }
    TABLE.write_parquet(
        tmp_path / "changed.parquet",
        metadata={**metadata, "hgpo.schema_version": "999"},
    )
    with refused("newer"):
        invoke("stats", tmp_path / "changed.parquet")
    for path in (shard, tmp_path / "run/steps/foreign.parquet"):
        TABLE.write_parquet(path)
        for command in ("advantages", "stats"):
            with refused(r"without the metadata hgpo\.schema_version"):
                invoke(command, path)


def test_plain_files_that_are_read_together_have_the_same_columns(tmp_path):
    TABLE[:4].write_parquet(tmp_path / "1.parquet")
    TABLE[4:].write_parquet(tmp_path / "2.parquet")
    assert scan_steps(tmp_path / "*.parquet", plain=True).collect().equals(TABLE)
    TABLE[4:].with_columns(pl.col("step").cast(pl.Int32)).write_parquet(
        tmp_path / "2.parquet"
    )
    with refused(r"1\.parquet and .*2\.parquet have different columns or types"):
        invoke("advantages", tmp_path / "*.parquet")
