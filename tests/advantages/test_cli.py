"""`hgpo advantages` and `hgpo stats` on a small run: output next to the run, never in its folder, and errors."""

import hashlib
from pathlib import Path

import polars as pl
import pytest
from command import invoke

from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError
from hgpo_train.advantages import compute, names


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.rglob("*.*"))}


def test_tables_are_written_next_to_the_run_which_is_unchanged(run: Path) -> None:
    before = digests(run)
    command = ["advantages", run, "-e", "hgpo", "-e", "gigpo:step_weight=0.5", "--history-length", 1]
    assert "96 rows" in invoke(*command)
    with pytest.raises(InputError, match="exists already; replace it with --overwrite"):
        invoke(*command)
    invoke(*command, "--overwrite", "--details")
    assert digests(run) == before
    table = pl.read_parquet(run.parent / "first.advantages" / "hgpo+gigpo.parquet")
    for name, parameters in (("gigpo", {"step_weight": 0.5}), ("hgpo", {"history_length": 1})):
        want = compute(scan_steps(run), name, **parameters).collect()["advantage"].to_list()
        assert table[f"advantage_{name}"].to_list() == pytest.approx(want, abs=1e-12)


def test_state_keys_of_a_saved_run(run: Path) -> None:
    """All rooms are one state if numbers are masked; the stored hashes say otherwise."""
    invoke("advantages", run, "--state-key", "mask-numbers", "--details")
    table = pl.read_parquet(run.parent / "first.advantages" / "hgpo.parquet")
    assert table["advantage_size_k0"].unique().to_list() == [16.0]
    with pytest.raises(InputError, match="unknown state key 'upper'"):
        invoke("advantages", run, "--state-key", "upper", "--overwrite")


def test_an_output_never_replaces_the_input(run: Path, tmp_path: Path) -> None:
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
        with pytest.raises(InputError, match="expected an output file outside of the input"):
            invoke("advantages", source, "--out", out, "--overwrite")
    assert digests(run) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-e", "hgppo"], "did you mean 'hgpo'"),
        (["-e", "hgpo,hgpo"], "expected different estimators"),
        (["--set", "alfa=2"], "did you mean 'alpha'"),
        (["--set", "alpha"], "--set: expected name=value, received 'alpha'"),
        (["-e", "gigpo:alpha=2"], "unknown parameter 'alpha'"),
        (["-e", "grpo", "--history-length", "2"], "unknown parameter 'history_length'"),
    ],
)
def test_invalid_options_are_reported(run: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        invoke("advantages", run, *arguments)
    assert not (run.parent / "first.advantages").exists()


def test_all_estimators_are_one_name(run: Path) -> None:
    output = invoke("advantages", run, "--list")
    assert all(name in output for name in (*names(), "history_length=2"))
    invoke("advantages", run, "-e", "all", "--history-length", 9, "--out", run.parent / "all.parquet")  # from the texts
    columns = pl.read_parquet_schema(run.parent / "all.parquet")
    assert {f"advantage_{name}" for name in names()} <= set(columns)


def test_statistics_are_printed_and_written(run: Path, tmp_path: Path) -> None:
    output = invoke("stats", run, "--history-length", 2)
    assert "96 steps of 24 rollouts in 6 groups" in output
    assert "Context inconsistency" in output
    output = invoke("stats", run, "--by", "task_type", "--out", tmp_path / "tables")
    assert "even" in output
    levels = pl.read_csv(tmp_path / "tables" / "levels.csv")
    assert levels.filter(pl.col("level") == "0")["steps"].to_list() == [48, 48]
    with pytest.raises(InputError, match="did you mean 'task_type'"):
        invoke("stats", run, "--by", "task_typ")
