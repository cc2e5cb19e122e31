"""`hgpo rollout` with each of its flags: each has the effect that its help describes."""

import inspect

import polars as pl
import pytest

from hgpo_datasets import manifest, scan_steps, verify
from hgpo_envs.alfworld.data.pack import write_pack
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_train.cli.rollout import rollout

SMALL = {"--tasks": 2, "--group-size": 2, "--max-steps": 3, "--seed": 1}


@pytest.fixture
def play(hgpo, tmp_path):
    """Return a function that runs the command with flags and returns its rows and the stored configuration."""
    runs = iter(range(99))

    def run(*flags: object) -> tuple[pl.DataFrame, dict]:
        out = tmp_path / f"run {next(runs)}"
        small = [part for name, value in SMALL.items() if name not in flags for part in (name, value)]
        code, _, error = hgpo("rollout", *small, *flags, "--out", out)
        assert code == 0, error
        assert verify(out).ok
        header = manifest.read(out).header
        return scan_steps(out).drop("run").sort("trajectory", "step").collect(), dict(header.config)

    return run


def size(steps: pl.DataFrame) -> tuple[int, int]:
    return steps["task_id"].n_unique(), steps["trajectory"].n_unique()


@pytest.mark.slow
def test_every_flag_has_its_effect(play, tmp_path, hgpo):
    data = tmp_path / "games.pack"
    source = ALFWorldSource(None)
    task = source.ids("valid_seen")[5]
    write_pack(data, [(task, source.read(task), source.trajectory(task))])
    base, config = play()
    assert size(base) == (2, 4)
    assert not base["aborted"].any()
    assert config["policy"] == {"name": "random"}
    assert play()[0].equals(base)
    assert size(play("--tasks", 3)[0]) == (3, 6)
    assert size(play("--group-size", 3)[0]) == (2, 6)
    assert not play("--seed", 2)[0].equals(base)
    assert play("--env", "HGPO/WebShop-v0")[0]["env_id"].unique().to_list() == ["HGPO/WebShop-v0"]
    assert play("--split", "valid_unseen")[0]["split"].unique().to_list() == ["valid_unseen"]
    assert play("--order", "sweep")[1]["order"] == "sweep"
    assert play("--data", data, "--split", "valid_seen")[0]["task_id"].unique().to_list() == [task]
    assert not play("--history-length", 0)[0]["prompt"].equals(base["prompt"])
    assert play("--max-steps", 5)[0]["step"].max() == 4
    assert not play("--action-format", "command")[0]["response"].str.contains("<action>").any()
    assert play("--env-option", "history_depth=3")[1]["env"]["history_depth"] == 3
    assert play("--policy", "expert")[1]["policy"] == {"name": "expert"}
    assert play("--dynamic", 4, "--tasks", 2)[1]["dynamic"]
    assert play("--slots", 1)[0].equals(base)
    assert play("--workers", "--slots", 2)[0].equals(base)
    assert play("--no-retry-failed", "--max-failed", 0)[0].equals(base)
    assert play("--without", "prompt")[0]["prompt"].null_count() == len(base)
    code, _, error = hgpo("rollout", "--policy-option", "temperature=1", "--out", tmp_path / "refused")
    assert code == 2
    assert "policy random has no options, received temperature" in error


def test_every_flag_is_in_the_test():
    text = inspect.getsource(test_every_flag_has_its_effect) + " ".join(SMALL)
    for name in inspect.signature(rollout).parameters:
        assert f"--{name.replace('_', '-')}" in text or name in ("out", "retry_failed"), name
