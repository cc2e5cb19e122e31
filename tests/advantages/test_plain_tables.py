"""`hgpo advantages` and `hgpo stats` on Parquet files that Polars and pandas wrote, and what they refuse."""

from pathlib import Path

import pandas as pd
import polars as pl
import pytest
from command import invoke

from hgpo_datasets import StepWriter, scan_steps
from hgpo_envs.errors import InputError
from hgpo_train.advantages import compute

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


@pytest.mark.parametrize("program", ["polars", "pandas"])
def test_a_table_of_another_program(tmp_path: Path, program: str) -> None:
    """It may have advantages already."""
    path = tmp_path / "mine.parquet"
    if program == "polars":
        compute(TABLE, "grpo").collect().write_parquet(path)
    else:
        frame = pd.DataFrame(ROWS).astype({"task": "category", "step": "int32", "reward": "float32"})
        frame.set_index(pd.Index(range(5, 13))).to_parquet(path)
    before = path.read_bytes()
    assert "8 rows" in invoke("advantages", path, "-e", "g2po")
    written = pl.read_parquet(tmp_path / "mine.advantages" / "g2po.parquet")
    want = compute(TABLE, "g2po").collect()["advantage"]
    assert written["advantage"].to_list() == pytest.approx(want.to_list(), abs=1e-12)
    assert written.select("trajectory", "step").rows() == TABLE.select("trajectory", "step").rows()
    assert "8 steps of 4 rollouts in 2 groups" in invoke("stats", path)
    assert path.read_bytes() == before


def test_metadata_of_a_step_table_are_looked_at(tmp_path: Path) -> None:
    """In a run, a file without them is damaged or foreign, and elsewhere a newer version is refused."""
    with StepWriter(tmp_path / "run") as writer:
        step = {"task_id": "a", "trajectory": "x", "step": 0, "state": "s", "action": "go", "reward": 1.0}
        writer.add_group([{**step, "terminated": True, "won": True}])
    shard = next((tmp_path / "run").glob("steps/*.parquet"))
    metadata = {name: value for name, value in pl.read_parquet_metadata(shard).items() if name.startswith("hgpo.")}
    TABLE.write_parquet(tmp_path / "changed.parquet", metadata={**metadata, "hgpo.schema_version": "999"})
    with pytest.raises(InputError, match="newer"):
        invoke("stats", tmp_path / "changed.parquet")
    for path in (shard, tmp_path / "run/steps/foreign.parquet"):
        TABLE.write_parquet(path)
        for command in ("advantages", "stats"):
            with pytest.raises(InputError, match=r"without the metadata hgpo\.schema_version"):
                invoke(command, path)


def test_plain_files_that_are_read_together_have_the_same_columns(tmp_path: Path) -> None:
    TABLE[:4].write_parquet(tmp_path / "1.parquet")
    TABLE[4:].write_parquet(tmp_path / "2.parquet")
    assert scan_steps(tmp_path / "*.parquet", plain=True).collect().equals(TABLE)
    TABLE[4:].with_columns(pl.col("step").cast(pl.Int32)).write_parquet(tmp_path / "2.parquet")
    with pytest.raises(InputError, match=r"1\.parquet and .*2\.parquet have different columns or types"):
        invoke("advantages", tmp_path / "*.parquet")
