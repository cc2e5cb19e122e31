"""Training on tables that a rollout left on disk: the same weights as in one run, by stages of their own."""

import io

import pytest
from groups import write_run
from lazily import lazily
from refusals import refused
from rich.console import Console

from hgpo_datasets import StepWriter, manifest, scan_steps
from hgpo_train.settings import to_toml
from hgpo_train.training.config import replace, stored_config
from hgpo_train.training.display import Display

check_loss_ignores_engine, has_raw_logprobs, train_on_table = lazily(
    "hgpo_train.training.saved_tables",
    "check_loss_ignores_engine has_raw_logprobs train_on_table",
)


@pytest.mark.parametrize(
    ("policy", "is_raw"),
    [
        ({"name": "openai:m", "temperature": 0.7}, True),
        ({"name": "openai:m", "temperature": 0.7, "logprobs_mode": "processed"}, False),
        ({"name": "openai:m", "temperature": 1.0}, False),
        ({"name": "openai:m", "temperature": 1.0, "top_p": 0.9}, True),
        ({"name": "transformers:m", "temperature": 0.7}, False),
    ],
)
@pytest.mark.parametrize(
    "update", [{}, {"old_logprobs": "rollout"}, {"rollout_is": "token"}]
)
def test_raw_log_probabilities_of_a_server_are_not_used(
    small, tmp_path, policy, is_raw, update
):
    write_run(tmp_path / "run", config={"policy": policy})
    config = replace(small, update=update)
    header = manifest.read(tmp_path / "run").header
    assert header is not None
    assert has_raw_logprobs(header) == is_raw
    if update:
        with refused(r"--logprobs-mode processed_logprobs"):
            check_loss_ignores_engine(config, tmp_path / "run")
    else:
        check_loss_ignores_engine(config, tmp_path / "run")


def test_each_of_several_runs_is_checked(small, tmp_path, hgpo):
    row = {"task_id": "a", "step": 0, "state": "A hall.", "reward": 0.0}
    rows = [{**row, "trajectory": name, "response_token_ids": [5]} for name in "xy"]
    for name, temperature in (("one", 1.0), ("two", 0.7)):
        policy = {"name": "transformers:m", "temperature": temperature}
        write_run(tmp_path / "runs" / name, rows, config={"policy": policy})
    table = tmp_path / "table.parquet"
    hgpo.output("advantages", tmp_path / "runs", "-e", "grpo", "--out", table)
    display = Display(Console(file=io.StringIO()), 1)
    with refused("was sampled at temperature 0.7"):
        train_on_table(small, tmp_path / "runs", table, tmp_path / "out", display)


@pytest.mark.slow
def test_stages_alone_on_what_the_one_before_left_on_disk_end_in_the_same_weights(
    config, runs, hgpo
):
    """`hgpo advantages` and `hgpo train --steps` on each iteration's shard, twice, beside `hgpo train`."""
    config = replace(config, iterations=2)
    runs.train(config, "whole")
    path = runs.folder / "config.toml"
    alone = runs.folder / "alone"
    path.write_text(to_toml(config))
    for number, resume in enumerate(([], ["--resume"])):
        shard = runs.folder / "whole" / "steps" / f"steps-{number:06d}.parquet"
        table = runs.folder / f"{number}.parquet"
        hgpo.output("advantages", shard, "--out", table)
        update = (
            "train",
            path,
            "--steps",
            shard,
            "--advantages",
            table,
            "--out",
            alone,
            *resume,
        )
        output = hgpo.output(*update)
        assert f"checkpoints/00000{number + 1}" in output.replace("\n", "")
    assert runs.weights("alone") == runs.weights("whole")
    lines = [runs.metrics(name) for name in ("alone", "whole")]
    for name in ("actor/loss", "training/environment_steps"):
        assert [line[name] for line in lines[0]] == [line[name] for line in lines[1]]
    for shown, update in (
        (
            "of another table than",
            ("--steps", runs.folder / "whole", "--advantages", table),
        ),
        (
            "was sampled at temperature 1.0",
            ("--steps", shard, "--advantages", table, "--set", "rollout.temperature=2"),
        ),
        ("was trained on saved tables", ()),
    ):
        code, _, errors = hgpo("train", path, "--out", alone, "--resume", *update)
        assert (code, shown in " ".join(errors.split())) == (2, True), errors
    assert (
        hgpo("advantages", shard, "--estimator", "grpo", "--overwrite", "--out", table)[
            0
        ]
        == 0
    )
    other = replace(config, model={"path": str(runs.folder / "whole")})
    with pytest.warns(UserWarning, match="was sampled from"):
        train_on_table(
            other,
            shard,
            table,
            runs.folder / "other",
            Display(Console(file=io.StringIO()), 0),
        )
    assert (
        stored_config(runs.folder / "other" / "config.toml").advantage.estimator
        == "grpo"
    )
    with StepWriter(runs.folder / "bare", without=["tokens"]) as writer:
        writer.add_group(scan_steps(shard).drop("run").collect())
    assert hgpo("advantages", writer.folder, "--overwrite", "--out", table)[0] == 0
    code, _, errors = hgpo(
        "train",
        path,
        "--steps",
        writer.folder,
        "--advantages",
        table,
        "--out",
        runs.folder / "new",
    )
    assert (code, "bare has no token ids" in " ".join(errors.split())) == (2, True), (
        errors
    )
