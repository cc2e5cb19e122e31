"""The stages of an iteration: an interrupted run resumes at the first one whose output is missing."""

import shutil
from pathlib import Path
from unittest.mock import Mock

import polars as pl
import pytest
from lazily import Lazy
from refusals import refused
from verified import damaged_files

from examples.entropy_estimator import entropy_grpo
from hgpo_datasets import scan_steps
from hgpo_datasets.branches import IS_BRANCH
from hgpo_datasets.reader import step_files
from hgpo_datasets.row_tables import files_of, read_metadata, read_table
from hgpo_train.advantages import compute
from hgpo_train.advantages.advantage_tables import METADATA
from hgpo_train.training.config import replace
from hgpo_train.view.estimates import estimate
from hgpo_train.view.index import read_index

stages = Lazy("hgpo_train.training.stages")

WHOLE = []
ORDER = ("collect", "score", "estimate", "update", "evaluate")


@pytest.fixture
def small(config):
    rollout = {"tasks": 2, "group_size": 2, "max_response_tokens": 3}
    evaluation = {"every": 1, "tasks": 2, "before_training": False}
    changes = {
        "environment": {"max_steps": 3},
        "rollout": rollout,
        "evaluation": evaluation,
    }
    advantage = {"estimator": "entropy_grpo", "parameters": {}}
    return replace(
        config, iterations=2, advantage=advantage, checkpoint={"every": 2}, **changes
    )


@pytest.fixture
def whole(small, runs, tmp_path_factory):
    """The runs with an uninterrupted one, which is trained once."""
    if not WHOLE:
        WHOLE.append(type(runs)(tmp_path_factory.mktemp("whole")))
        WHOLE[0].train(small)
    return WHOLE[0]


class Killed(BaseException):
    """What ends the process, as far as the trainer can see."""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("stage", [*ORDER, "publish", "checkpoint"])
def test_a_run_killed_at_a_stages_boundary_ends_in_the_same_bytes(
    small, runs, whole, monkeypatch, stage, moment
):
    """In the second iteration, whose first one has no checkpoint yet."""
    with monkeypatch.context() as patched:
        kill_at(patched, stage, moment)
        with pytest.raises(Killed):
            runs.train(small)
    runs.train(small, resume=True)
    run = runs.folder / "run"
    assert runs.weights("run") == whole.weights("run")
    for name in ("scores", "advantages"):
        for one, other in zip(
            files_of(run, name), files_of(whole.folder / "run", name), strict=True
        ):
            assert read_table(one).equals(read_table(other))
    assert runs.results() == whole.results()
    assert damaged_files(run) == []


def kill_at(patched, stage, moment):
    """Let the second call of a stage end the process, before or after its work."""
    from hgpo_train.policies.transformers import TransformersPolicy
    from hgpo_train.training import trainer

    owner, name = {
        "publish": (TransformersPolicy, "publish"),
        "checkpoint": (trainer, "save_checkpoint"),
    }.get(stage, (stages._target(), stage))
    work = getattr(owner, name)
    calls = []

    def killed(*given, **named):
        calls.append(stage)
        # weights are published before training, too
        last = len(calls) == {"publish": 3, "checkpoint": 1}.get(stage, 2)
        if last and moment == "before":
            raise Killed
        result = work(*given, **named)
        if last:
            raise Killed
        return result

    patched.setattr(owner, name, killed)


def killed_in_its_update(config, runs, monkeypatch):
    """Train a run that is killed in its first update, and return its folder."""
    with monkeypatch.context() as patched:
        patched.setattr(stages._target(), "update", Mock(side_effect=Killed))
        with pytest.raises(Killed):
            runs.train(config)
    return runs.folder / "run"


def test_what_a_stage_left_is_read_again(small, runs, monkeypatch):
    """A run that is killed in its first update scores and estimates nothing again, and repeats no failed rollout."""
    config = replace(small, iterations=1, evaluation={"every": 0})
    folder = killed_in_its_update(config, runs, monkeypatch)
    (scores,) = files_of(folder, "scores")
    (advantages,) = files_of(folder, "advantages")
    before = [path.stat().st_mtime_ns for path in (scores, advantages)]
    assert set(read_table(scores).columns) == {
        "run", "trajectory", "step", "entropy", "logprobs", "reference_logprobs"
    }  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setattr(stages._target().scores, "score_table", None)
        patched.setattr(stages._target(), "compute", None)
        patched.setattr(stages._target(), "collect_groups", None)
        runs.train(config, resume=True)
    assert [path.stat().st_mtime_ns for path in (scores, advantages)] == before
    shutil.rmtree(folder)


@pytest.fixture
def interrupted(small, runs, monkeypatch):
    """The configuration and the folder of a run that is killed in its first update."""
    config = replace(
        small, iterations=1, advantage={"estimator": "grpo"}, evaluation={"every": 0}
    )
    return config, killed_in_its_update(config, runs, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("names", [["entropy"], ["logprobs", "reference_logprobs"]])
def test_scores_of_others_are_not_trained_on(interrupted, runs, tiny, names):
    """`hgpo score` on an interrupted run, with other columns or at another temperature: training computes its own."""
    config, folder = interrupted
    (path,) = files_of(folder, "scores")
    expected = read_table(path)
    path.unlink()
    Lazy("hgpo_train.training.scoring:score_run")(
        folder, names, config, temperature=3.0, reference=str(tiny)
    )
    runs.train(config, resume=True)
    found = read_table(path)
    assert found.select(expected.columns).equals(expected)
    assert set(names) <= set(found.columns)  # other columns are kept
    assert "actor/kl_loss" in runs.metrics()[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scores", "advantages"])
def test_tables_of_other_rows_are_not_trained_on(interrupted, runs, name):
    """Scores with missing rows are computed again; missing rows of advantages and duplicate rows are errors."""
    config, folder = interrupted
    (path,) = files_of(folder, name)
    table = read_table(path)
    stored = pl.read_parquet_metadata(path)
    # otherwise it is damaged whatever its rows
    path.with_name(f"{path.name}.sha256").unlink()
    pl.concat([table, table]).write_parquet(path, metadata=stored)
    with refused(r"it has rows twice.; delete it, and it is computed again"):
        runs.train(config, resume=True)
    table.clear().write_parquet(path, metadata=stored)
    if name == "advantages":
        with refused(r"expected the advantages of all steps .* delete the file"):
            runs.train(config, resume=True)
        return
    runs.train(config, resume=True)
    assert read_table(path).equals(table)


def test_an_estimator_of_scores_gives_the_trained_advantages_everywhere(
    small, runs, hgpo, tmp_path
):
    """In training, in Python, on the command line and in the viewer."""
    runs.train(replace(small, iterations=1, evaluation={"every": 0}))
    folder = runs.folder / "run"
    (path,) = files_of(folder, "advantages")
    trained = read_table(path).sort("trajectory", "step")["advantage"]
    about = read_metadata(path, METADATA)["columns"]["advantage"]
    assert (about["estimator"], about["parameters"]["strength"]) == (
        "entropy_grpo",
        0.5,
    )
    steps = scan_steps(folder).sort("trajectory", "step").collect()
    entropy = read_table(files_of(folder, "scores")[0]).sort("trajectory", "step")[
        "entropy"
    ]
    plain = compute(steps, "grpo").collect()["advantage"]
    mean = steps.select("task_id", "group", entropy=entropy).select(
        pl.col("entropy").mean().over("task_id", "group")
    )
    expected = plain * (1 + 0.5 * (entropy / mean["entropy"] - 1))
    assert trained.to_list() == pytest.approx(expected.to_list())
    source = (
        (Path(__file__).parents[2] / "examples/entropy_estimator.py")
        .read_text()
        .partition('"""\n\n')[2]
    )
    assert source in (Path(__file__).parents[2] / "docs/estimators.md").read_text()

    computed = (
        compute(folder, "entropy_grpo")
        .collect()
        .sort("trajectory", "step")["advantage"]
    )
    assert computed.to_list() == trained.to_list()
    table = tmp_path / "table.parquet"
    hgpo.output("advantages", folder, "-e", "entropy_grpo", "--out", table)
    assert (
        pl.read_parquet(table).sort("trajectory", "step")["advantage"].to_list()
        == trained.to_list()
    )
    index = read_index(step_files(folder))
    shown = [
        estimate(index, number, entropy_grpo)["columns"]["advantage"]
        for number in range(2)
    ]
    assert sorted(shown[0] + shown[1]) == sorted(trained.to_list())


@pytest.mark.slow
def test_a_run_killed_before_its_branches_are_committed_ends_in_the_same_bytes(
    small, runs, monkeypatch
):
    """In the second iteration, whose rollouts are committed."""
    rollout = {"branch": "uniform", "tasks": 3, "group_size": 4}
    config = replace(
        small,
        rollout=rollout,
        advantage={"estimator": "tree_grpo"},
        environment={"max_steps": 5},
    )
    runs.train(config, "whole")
    branches = Lazy("hgpo_train.rollout.branch_groups").Branches
    commit = branches._commit
    calls = []

    def killed(*given):
        calls.append(given)
        if len(calls) == 2:
            raise Killed
        commit(*given)

    with monkeypatch.context() as patched:
        patched.setattr(branches, "_commit", killed)
        with pytest.raises(Killed):
            runs.train(config)
    steps = (
        scan_steps(runs.folder / "run")
        .group_by("iteration")
        .agg(IS_BRANCH.any())
        .sort("iteration")
        .collect()
    )
    assert steps.rows() == [(0, True), (1, False)]
    runs.train(config, resume=True)
    assert runs.weights("run") == runs.weights("whole")
    rows = [
        scan_steps(runs.folder / name).sort("trajectory", "step").collect()
        for name in ("run", "whole")
    ]
    assert (
        rows[0]
        .drop("run", "policy_s", "environment_s")
        .equals(rows[1].drop("run", "policy_s", "environment_s"))
    )
    assert damaged_files(runs.folder / "run") == []


def test_estimators_and_rules_that_do_not_fit_branches_are_refused_before_rollouts(
    small, runs
):
    for rule, estimator, line in (
        ("uniform", "grpo", "expected one over trees with rollout.branch = 'uniform'"),
        ("entropy", "tree_grpo", "expected one that reads no scores"),
        ("unifrm", "tree_grpo", "did you mean 'uniform'"),
    ):
        with refused(line):
            runs.trainer(
                replace(
                    small, rollout={"branch": rule}, advantage={"estimator": estimator}
                )
            )
    assert not (runs.folder / "run").exists()
