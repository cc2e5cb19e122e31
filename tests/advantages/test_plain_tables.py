"""`hgpo advantages` and `hgpo stats` on Parquet files that Polars and pandas wrote, and what they refuse."""

from pathlib import Path

import pandas as pd
import polars as pl
import pytest
from command import invoke
from hypothesis import given, settings
from hypothesis import strategies as st

from hgpo_datasets import StepWriter, scan_steps
from hgpo_envs.errors import InputError
from hgpo_train.advantages import compute, get
from hgpo_train.analysis.statistics import statistics

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
ESTIMATORS = ("hgpo", "gigpo", "grpo", "g2po", "graphgpo", "rloo", "reinforce_pp")


def write(kind: str, path: Path) -> None:
    if kind == "polars":
        TABLE.write_parquet(path)
    else:
        frame = pd.DataFrame(ROWS).astype({"task": "category", "step": "int32", "reward": "float32"})
        frame.set_index(pd.Index(range(5, 13))).to_parquet(path)


@pytest.mark.parametrize("kind", ["polars", "pandas"])
@pytest.mark.parametrize("estimator", ["hgpo", "g2po", "rloo"])
def test_a_table_of_another_program(tmp_path: Path, kind: str, estimator: str) -> None:
    path = tmp_path / "mine.parquet"
    write(kind, path)
    before = path.read_bytes()
    assert "8 rows" in invoke("advantages", path, "-e", estimator)
    found = pl.read_parquet(tmp_path / "mine.advantages" / f"{estimator}.parquet")
    want = compute(TABLE, estimator).collect()["advantage"]
    assert found["advantage"].to_list() == pytest.approx(want.to_list(), abs=1e-12)
    assert found.select("trajectory", "step").rows() == TABLE.select("trajectory", "step").rows()
    assert "8 steps of 4 rollouts in 2 groups" in invoke("stats", path)
    assert path.read_bytes() == before


def test_a_table_with_advantages_already(tmp_path: Path) -> None:
    compute(TABLE, "grpo").collect().write_parquet(tmp_path / "mine.parquet")
    invoke("advantages", tmp_path / "mine.parquet", "-e", "grpo")
    found = pl.read_parquet(tmp_path / "mine.advantages" / "grpo.parquet")
    assert found["advantage"].to_list() == compute(TABLE, "grpo").collect()["advantage"].to_list()


@settings(max_examples=40)
@given(st.sets(st.sampled_from(list(ROWS))), st.sampled_from(ESTIMATORS))
def test_exactly_the_missing_columns_are_named(dropped: set[str], estimator: str) -> None:
    """Those that are named are enough, and none of them can be left out."""

    def lacking(table: pl.DataFrame) -> set[str]:
        try:
            get(estimator).columns(table.schema)
        except InputError as error:
            line = str(error).partition(", which ")[0]
            return {name for name in (*ROWS, "task_id") if f"`{name}`" in line}
        compute(table, estimator)
        return set()

    table = TABLE.drop(dropped)
    named = lacking(table)
    added = {"task" if name == "task_id" else name for name in named}
    assert added <= dropped
    for missing in [set(), *({name} for name in added)]:
        with_some = table.with_columns(TABLE[name] for name in sorted(added - missing))
        assert {"task" if name == "task_id" else name for name in lacking(with_some)} == missing


def test_statistics_name_them_too() -> None:
    with pytest.raises(InputError, match=r"no `trajectory` \(text: .*\) and `state` \(.*\), which hgpo reads"):
        statistics(TABLE.drop("trajectory", "state"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    with StepWriter(folder) as writer:
        step = {"task_id": "a", "trajectory": "x", "step": 0, "state": "s", "action": "go", "reward": 1.0}
        writer.add_group([{**step, "terminated": True, "won": True}])
    return folder


def test_a_file_in_a_run_folder_is_a_step_table(run: Path) -> None:
    """Without the metadata of a step table it is damaged or foreign there, whatever its columns are."""
    shard = next(run.glob("steps/*.parquet"))
    for path in (shard, run / "steps/foreign.parquet"):
        TABLE.write_parquet(path)
        for command in ("advantages", "stats"):
            with pytest.raises(
                InputError, match=r"expected a step table, received a file without the metadata hgpo\.schema_version"
            ):
                invoke(command, path)


def test_metadata_of_a_step_table_are_looked_at(run: Path, tmp_path: Path) -> None:
    """A file of ours without its version is no plain table, nor is one of a newer version."""
    shard = next(run.glob("steps/*.parquet"))
    metadata = {name: value for name, value in pl.read_parquet_metadata(shard).items() if name.startswith("hgpo.")}
    assert len(metadata) > 2
    TABLE.write_parquet(tmp_path / "changed.parquet", metadata={**metadata, "hgpo.schema_version": "999"})
    with pytest.raises(InputError, match="newer"):
        invoke("stats", tmp_path / "changed.parquet")


def test_only_where_it_is_asked_for(tmp_path: Path) -> None:
    TABLE.write_parquet(tmp_path / "mine.parquet")
    with pytest.raises(InputError, match="expected a step table"):
        scan_steps(tmp_path / "mine.parquet")
    with pytest.raises(InputError, match="expected a step table"):
        invoke("data", "show", tmp_path / "mine.parquet")


def test_plain_files_that_are_read_together_have_the_same_columns(tmp_path: Path) -> None:
    TABLE[:4].write_parquet(tmp_path / "1.parquet")
    TABLE[4:].write_parquet(tmp_path / "2.parquet")
    assert scan_steps(tmp_path / "*.parquet", plain=True).collect().equals(TABLE)
    TABLE[4:].with_columns(pl.col("step").cast(pl.Int32)).write_parquet(tmp_path / "2.parquet")
    with pytest.raises(InputError, match=r"1\.parquet and .*2\.parquet have different columns or types"):
        invoke("advantages", tmp_path / "*.parquet")


def test_no_parquet_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("task,step\n")
    for name in ("text.parquet", "none.parquet"):
        with pytest.raises(InputError):
            invoke("advantages", tmp_path / name)
