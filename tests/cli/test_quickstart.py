"""The quick start: reproducible bytes, its figures against the tables, and its output."""

from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from typer.testing import CliRunner

from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError
from hgpo_train.analysis.statistics import statistics
from hgpo_train.cli import app
from hgpo_train.cli.quickstart_run import DEPTHS, quickstart


def test_the_same_seed_gives_the_same_steps_and_advantages(tmp_path: Path) -> None:
    first, second = (quickstart(tmp_path / name, seed=3, tasks=2, group_size=3) for name in ("a", "b"))
    drop = ["run"]
    assert scan_steps(first.run).drop(drop).collect().equals(scan_steps(second.run).drop(drop).collect())
    assert first.depths.equals(second.depths)
    other = quickstart(tmp_path / "c", seed=4, tasks=2, group_size=3)
    assert not scan_steps(first.run).select("action").collect().equals(scan_steps(other.run).select("action").collect())


def test_the_quickstart_numbers_match_plain_counting(tmp_path: Path) -> None:
    found = quickstart(tmp_path, tasks=4, group_size=4)
    steps = scan_steps(found.run).select("task_id", "group", "trajectory", "step", "state").collect().rows()
    texts = {(trajectory, step): state for *_, trajectory, step, state in steps}
    for row in found.depths.iter_rows(named=True):
        k = row["K"]
        windows = [
            (task, group, state, tuple(texts.get((trajectory, t)) for t in range(max(0, step - k), step)))
            for task, group, trajectory, step, state in steps
        ]
        pairs = differing = 0
        counts = Counter((window, step >= k) for window, (*_, step, _) in zip(windows, steps, strict=True))
        shared = sum(count for (_, whole), count in counts.items() if whole and count > 1)
        assert row["shared"] == pytest.approx(shared / len(steps))
        for i, (task, group, state, past) in enumerate(windows):
            for j, (other_task, other_group, other_state, other_past) in enumerate(windows):
                if i != j and (task, group, state) == (other_task, other_group, other_state):
                    pairs += 1
                    differing += past != other_past
        assert pairs > 50
        assert row["inconsistent"] == pytest.approx(differing / pairs)
    assert found.depths["K"].to_list() == list(DEPTHS)


@pytest.mark.slow
def test_the_run_shows_what_estimators_differ_in(tmp_path: Path) -> None:
    """About half of the rollouts win, most groups are mixed, few actions change nothing, and all levels have groups."""
    for seed in range(3):
        found = quickstart(tmp_path / str(seed), seed=seed)
        run = statistics(found.run).summary.row(0, named=True)
        assert 0.35 < run["success"] < 0.65
        assert run["flat_groups"] < 0.25
        assert 0 < run["unchanged"] < 0.05
        assert found.depths["shared"].is_sorted(descending=True)
        assert found.depths["shared"].min() > 0.1
        assert found.depths["shift"].to_list() == sorted(set(found.depths["shift"].to_list()))


def test_a_second_quickstart_reuses_the_run_and_prints_the_next_steps(tmp_path: Path) -> None:
    arguments = ["quickstart", "--out", str(tmp_path / "q"), "--tasks", "2", "--group-size", "3"]
    first, second = (CliRunner().invoke(app, arguments) for _ in range(2))
    assert first.exit_code == second.exit_code == 0, first.output
    assert "steps/s" in first.output
    assert "already collected" in second.output
    assert "hgpo stats" in first.output
    assert f"hgpo view {tmp_path / 'q/run'}" in "".join(first.output.splitlines())
    table = pl.read_parquet(tmp_path / "q/run.advantages/hgpo_by_depth.parquet")
    assert {f"advantage_k{k}" for k in DEPTHS} <= set(table.columns)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="expected a folder, received a file"):
        quickstart(tmp_path / "file")


def test_stats_of_the_quickstart_run_by_type_and_in_sentences(tmp_path: Path) -> None:
    found = quickstart(tmp_path, tasks=3, group_size=3)
    kinds = scan_steps(found.run).select(pl.col("task_type").unique()).collect()["task_type"].to_list()
    by_type = CliRunner().invoke(app, ["stats", str(found.run), "--by", "task_type"])
    assert by_type.exit_code == 0, by_type.output
    assert all(f"task_type {kind}" in by_type.output for kind in kinds)
    words = CliRunner().invoke(app, ["stats", str(found.run), "--out", str(tmp_path / "tables")])
    assert "• Context inconsistency" in words.output
    assert pl.read_csv(tmp_path / "tables/levels.csv")["level"].cast(pl.String).to_list() == [*"01234", "oracle"]


def test_an_existing_folder_is_extended_or_refused(tmp_path: Path) -> None:
    """More groups give the same result as in a new folder; fewer groups or another seed are refused."""
    quickstart(tmp_path / "a", tasks=2, group_size=2)
    more = quickstart(tmp_path / "a", tasks=3, group_size=2)
    new = quickstart(tmp_path / "b", tasks=3, group_size=2)
    drop = ["run", "policy_seconds", "environment_seconds"]
    tables = [scan_steps(one.run).drop(drop, strict=False).collect().sort("trajectory", "step") for one in (more, new)]
    assert tables[0].equals(tables[1])
    before = sorted(path.name for path in (tmp_path / "a" / "run").rglob("*"))
    with pytest.raises(InputError, match="seed = 0, not 1"):
        quickstart(tmp_path / "a", seed=1, tasks=3, group_size=2)
    assert sorted(path.name for path in (tmp_path / "a" / "run").rglob("*")) == before
