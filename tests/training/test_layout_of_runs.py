"""A training run's folder means its steps, in the present layout and in that of the first version."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hgpo_datasets import manifest, scan_steps
from hgpo_train.advantages.advantage_tables import fingerprint
from hgpo_train.cli import app
from hgpo_train.training.config import replace


def to_first_layout(folder: Path) -> None:
    """Make both tables runs of their own, with the shards beside the manifest."""
    (folder / manifest.NAME).rename(folder / "steps" / manifest.NAME)
    (folder / "steps/.lock").touch()
    for shard in (folder / "evaluation/steps").iterdir():
        shard.rename(folder / "evaluation" / shard.name)
    (folder / "evaluation/steps").rmdir()


def hgpo(*arguments: object) -> str:
    shown = CliRunner().invoke(app, [str(part) for part in arguments], env={"COLUMNS": "300"})
    assert shown.exit_code == 0, shown.output
    return shown.stdout


@pytest.fixture
def both(config, runs) -> tuple[Path, Path]:
    """A training run of the present layout, and one that is resumed in the layout of the first version."""
    first = replace(config, iterations=1, evaluation={"every": 1}, checkpoint={"every": 1})
    for name in ("new", "old"):
        runs.train(first, name)
    to_first_layout(runs.folder / "old")
    for name in ("new", "old"):
        runs.train(replace(first, iterations=2), name, resume=True)
    return runs.folder / "new", runs.folder / "old"


@pytest.mark.slow
def test_each_run_is_resumed_in_its_layout(both, runs):
    new, old = both
    assert sorted(path.name for path in (new / "steps").iterdir()) == ["steps-000000.parquet", "steps-000001.parquet"]
    assert sorted(path.name for path in new.iterdir() if path.is_file()) == [
        ".lock",
        "config.toml",
        "manifest.jsonl",
        "metrics.jsonl",
        "origin.json",
    ]
    assert not (old / manifest.NAME).exists()
    assert sorted(path.name for path in (old / "steps").iterdir()) == [
        ".lock",
        "manifest.jsonl",
        "steps-000000.parquet",
        "steps-000001.parquet",
    ]
    assert not (old / "evaluation/steps").exists()
    assert runs.weights("new") == runs.weights("old")


@pytest.mark.slow
def test_every_command_takes_the_folder_for_its_steps(both):
    for folder in both:
        steps = scan_steps(folder / "steps").collect()
        assert steps["iteration"].unique().sort().to_list() == [0, 1]
        for source in (folder, f"{folder}/steps", f"{folder}/*", f"{folder}/steps/*.parquet"):
            assert scan_steps(source).collect().equals(steps), source
            hgpo("stats", source)
            assert json.loads(hgpo("data", "show", "run", source, "--json"))["steps"] == len(steps)
        assert fingerprint(folder) == fingerprint(folder / "steps")
        hgpo("advantages", folder, "-e", "grpo")
        assert (folder.parent / f"{folder.name}.advantages" / "grpo.parquet").exists()
        reports = json.loads(hgpo("verify", folder, "--json"))
        assert sum(report["rows"] for report in reports) > len(steps), "the evaluation is verified, too"
        assert len(reports) == 5, "files, two tables, two checkpoints"
        assert len(json.loads(hgpo("verify", folder / "steps", "--json"))) == 1
    everything = json.loads(hgpo("verify", both[0].parent, "--json"))
    assert len(everything) == 10
    assert json.loads(hgpo("verify", f"{both[0].parent}/*", "--json")) == everything
