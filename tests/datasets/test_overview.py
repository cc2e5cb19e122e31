"""What `hgpo data show` and `hgpo verify` say of a run, counted by hand."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from groups import group, step
from typer.testing import CliRunner

from hgpo_datasets import StepWriter
from hgpo_datasets.overview import overview
from hgpo_train.cli import app


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two shards: task a won once in two, task b played twice with one broken off, an unknown kind."""
    folder = tmp_path / "first"
    with StepWriter(folder, config={"seed": 3}, defaults={"env_id": "HGPO/ALFWorld-v0", "split": "train"}) as writer:
        won = [step("a", "a0", 0), step("a", "a0", 1, won=True, terminated=True, reward=1.0, score=1.0)]
        lost = [step("a", "a1", t, score=0.0, action_valid=t > 0) for t in range(4)]
        writer.add_group({**row, "task_type": "pick"} for row in won + lost)
        writer.commit()
        writer.add_group([step("b", "b0", 0, task_type="look", aborted=True, error="gone")])
        writer.add_group([step("b", "b1", 0, task_type="look", group=1)])
        writer.add_group(group("c", 1, 3, iteration=2))
    return folder


def test_the_overview_counts(run: Path) -> None:
    seen = overview(run)
    assert (seen.runs, seen.env_ids, seen.splits) == (["first"], ["HGPO/ALFWorld-v0"], ["train"])
    assert (seen.groups, seen.group_sizes, seen.iterations) == (4, {1: 3, 2: 1}, (0, 2))
    assert (seen.steps, seen.shortest, seen.median, seen.longest) == (11, 1, 2.0, 4)
    assert (seen.files, seen.depth, seen.config) == (2, 8, {"seed": 3})
    look, pick, unknown = seen.kinds
    assert (look.task_type, look.tasks, look.episodes, look.aborted, look.success) == ("look", 1, 2, 1, 0.0)
    assert (pick.episodes, pick.success, pick.score, pick.mean_return, pick.mean_length) == (2, 0.5, 0.5, 0.5, 3.0)
    assert pick.valid == 5 / 6
    assert (unknown.task_type, unknown.score, unknown.episodes) == (None, None, 1)
    assert (seen.total.episodes, seen.total.success) == (5, 0.2)


def test_bytes_by_family_are_those_that_the_footer_names(run: Path) -> None:
    files = sorted(run.glob("*.parquet"))
    groups = [pq.read_metadata(file).row_group(0) for file in files]
    total = sum(chunks.column(i).total_compressed_size for chunks in groups for i in range(chunks.num_columns))
    seen = overview(run)
    assert sum(seen.family_bytes.values()) == total
    assert seen.bytes == sum(file.stat().st_size for file in files)


def test_show_prints_json_and_tables(run: Path) -> None:
    shown = json.loads(CliRunner().invoke(app, ["data", "show", str(run), "--json"]).stdout)
    assert (shown["steps"], shown["group_sizes"], shown["total"]["episodes"]) == (11, {"1": 3, "2": 1}, 5)
    text = CliRunner().invoke(app, ["data", "show", str(run)]).stdout
    assert all(word in text for word in ("HGPO/ALFWorld-v0", "pick", "unknown", "hashes to depth 8", "Next: hgpo"))


def test_verify_says_so_with_its_exit_code(run: Path) -> None:
    right = CliRunner().invoke(app, ["verify", str(run), "--json"])
    assert (right.exit_code, json.loads(right.stdout)[0]["ok"]) == (0, True)
    assert "all right" in CliRunner().invoke(app, ["verify", str(run)]).stdout
    file = run / "steps-000001.parquet"
    file.write_bytes(file.read_bytes()[:-5])
    wrong = CliRunner().invoke(app, ["verify", str(run), "--json"])
    (report,) = json.loads(wrong.stdout)
    assert (wrong.exit_code, report["ok"], report["problems"][0]["kind"]) == (1, False, "size")
    assert "1 problems" in CliRunner().invoke(app, ["verify", str(run)]).stdout
