"""The training loop on the house of doors: its files, failures, and that interrupted runs end in the same bytes."""

import io
import json
import random
import re
import shutil
import signal
import warnings
from unittest.mock import Mock

import polars as pl
import pytest
from command import python
from lazily import lazily
from nightly import sample_or_all
from polars.testing import assert_frame_equal
from rich.console import Console

from hgpo_datasets import StepWriter, scan_steps
from hgpo_envs.errors import InputError
from hgpo_train.advantages import compute, estimator, names
from hgpo_train.models.checkpoint_files import OPTIMISER, list_checkpoints
from hgpo_train.settings import to_toml
from hgpo_train.training.config import UpdateConfig, load_config, replace, stored_config
from hgpo_train.training.display import Display
from hgpo_train.training.tracking import read_metrics

(describe_interrupted,) = lazily(
    "hgpo_train.training.run_folder", "describe_interrupted"
)
(trained_rows,) = lazily("hgpo_train.training.stages", "trained_rows")
has_raw_logprobs, train_on_table = lazily(
    "hgpo_train.training.saved_tables", "has_raw_logprobs train_on_table"
)
AutoModelForCausalLM, AutoTokenizer = lazily(
    "transformers", "AutoModelForCausalLM AutoTokenizer"
)


@pytest.fixture
def small(config):
    """Two iterations that take less than a CPU second."""
    rollout = {"tasks": 2, "group_size": 2, "max_response_tokens": 3}
    return replace(
        config,
        iterations=2,
        environment={"max_steps": 3},
        rollout=rollout,
        evaluation={"every": 0},
    )


@pytest.fixture
def whole(small, runs):
    return runs.train(small, "whole")


def test_a_resumed_run_ends_in_the_same_bytes(small, runs, whole):
    runs.train(replace(small, iterations=1))
    resumed = runs.train(small, resume=True)
    assert resumed.state == whole.state
    assert runs.weights("run") == runs.weights("whole")
    lines = read_metrics(runs.folder / "run" / "metrics.jsonl")
    assert [line["iteration"] for line in lines] == [1, 2]


def test_a_run_killed_while_its_engine_starts_can_be_resumed(
    small, runs, whole, monkeypatch
):
    """What is on the disk while the engine starts is what a kill leaves there."""
    from hgpo_train.training import trainer

    def starting(*_):
        shutil.copytree(runs.folder / "run", runs.folder / "killed")
        raise InputError("no engine")

    with monkeypatch.context() as patched:
        patched.setattr(trainer, "trainable_factory", lambda *_: starting)
        with pytest.raises(InputError, match="no engine"):
            runs.train(small)
    assert not (runs.folder / "run").exists()
    stored = load_config(
        runs.folder / "killed" / "config.toml", allow=["doors_env:HGPO-Test/Doors-v0"]
    )
    runs.train(stored, "killed", resume=True)
    assert runs.weights("killed") == runs.weights("whole")


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
    with StepWriter(tmp_path / "run", config={"policy": policy}):
        pass
    config = replace(
        small, rollout={"temperature": policy["temperature"]}, update=update
    )
    if is_raw and update:
        with pytest.raises(InputError, match=r"--logprobs-mode processed_logprobs"):
            has_raw_logprobs(config, tmp_path / "run", tmp_path)
    else:
        assert has_raw_logprobs(config, tmp_path / "run", tmp_path) == is_raw


@pytest.mark.parametrize(
    ("every", "sentence"),
    [(1, "Kept: checkpoint 1, "), (5, "updates of iterations 1 to 1 from")],
)
def test_an_interrupted_run_says_what_is_repeated(
    small, runs, every, sentence, monkeypatch
):
    """Ctrl-C in the second update."""
    from hgpo_train.training.update.learner import Learner

    updates = Mock(side_effect=[Learner.update, KeyboardInterrupt])
    monkeypatch.setattr(
        Learner, "update", lambda *given, **named: updates()(*given, **named)
    )
    with pytest.raises(KeyboardInterrupt):
        runs.train(replace(small, checkpoint={"every": every}))
    said = describe_interrupted(runs.folder / "run")
    assert sentence in said
    assert "4 of iteration 2. Resuming repeats" in said
    assert said.endswith("the rest of iteration 2.")


def in_training(steps, parameters, model, metrics):
    """Count the iterations so far, and store the policy's first weight."""
    weight = next(iter(model.parameters())).flatten()[0].item()
    rows = steps.with_columns(advantage=parameters.gamma * (pl.col("step") - 0.5))
    return rows, {"counted/iterations": len(metrics) + 1, "counted/weight": weight}


@estimator("counted", reads=(), in_training=in_training)
def counted(steps):
    """An estimator that needs the policy."""
    raise InputError("counted: expected `hgpo train`, received a table")


def test_an_estimator_of_the_policy_receives_the_model_and_earlier_metrics(small, runs):
    chosen = replace(
        small, advantage={"estimator": "counted", "parameters": {"gamma": 0.5}}
    )
    runs.train(chosen, "whole")
    runs.train(replace(chosen, iterations=1))
    runs.train(chosen, resume=True)
    whole, resumed = (
        read_metrics(runs.folder / name / "metrics.jsonl") for name in ("whole", "run")
    )
    assert [line["counted/iterations"] for line in resumed] == [1, 2]
    assert (
        resumed[1]["counted/weight"]
        == whole[1]["counted/weight"]
        != whole[0]["counted/weight"]
    )
    assert runs.weights("run") == runs.weights("whole")
    assert "counted" not in names()


def test_steps_that_were_committed_before_a_kill_are_not_collected_again(
    small, runs, whole, monkeypatch
):
    """The second process starts after the first was killed between the commit of a shard and the update."""
    with monkeypatch.context() as patch:
        patch.setattr(
            "hgpo_train.training.update.learner.Learner.update",
            Mock(side_effect=KeyboardInterrupt),
        )
        with pytest.raises(KeyboardInterrupt):
            runs.train(small)
    folder = runs.folder / "run"
    shard = folder / "steps" / "steps-000000.parquet"
    before = shard.stat()
    kept = "Kept: the rollouts of finished groups, 4 of iteration 1. Resuming repeats the rest of iteration 1."
    assert describe_interrupted(folder) == kept
    assert not (folder / "checkpoints").exists() or not list_checkpoints(
        folder / "checkpoints"
    )
    runs.train(small, resume=True)
    assert shard.stat().st_mtime_ns == before.st_mtime_ns
    assert runs.weights("run") == runs.weights("whole")


@pytest.mark.slow
def test_an_evaluation_after_the_checkpoint_is_not_repeated(small, runs, monkeypatch):
    config = replace(
        small, evaluation={"every": 1, "tasks": 2}, checkpoint={"every": 1}
    )
    runs.train(replace(config, iterations=1))
    folder = runs.folder / "run"
    with monkeypatch.context() as patch:
        patch.setattr(
            "hgpo_train.training.trainer.save_checkpoint",
            Mock(side_effect=KeyboardInterrupt),
        )
        with pytest.raises(KeyboardInterrupt):
            runs.train(config, resume=True)
    before = scan_steps(folder / "evaluation").collect()
    assert runs.train(config, resume=True).state.iteration == 2
    assert_frame_equal(scan_steps(folder / "evaluation").collect(), before)
    with pytest.raises(
        InputError, match=r"was written with training\.evaluation\.split"
    ):
        runs.trainer(replace(config, evaluation={"split": "train"}), resume=True)
    with pytest.raises(InputError, match="unknown split 'tset'"):
        runs.trainer(replace(config, evaluation={"split": "tset"}), resume=True)


@pytest.mark.slow
def test_a_run_writes_tables_metrics_and_checkpoints(config, runs):
    trainer = runs.train(config)
    folder = runs.folder / "run"
    assert trainer.state.iteration == 3
    steps = scan_steps(folder / "steps").collect()
    assert (
        steps.select(pl.struct("iteration", "task_id", "group").n_unique()).item() == 9
    )
    assert steps["policy_version"].to_list() == steps["iteration"].to_list()
    held_out = scan_steps(folder / "evaluation").collect()
    assert held_out["iteration"].unique().sort().to_list() == [0, 2, 3]
    assert set(held_out["split"]) == {"test"}
    lines = read_metrics(folder / "metrics.jsonl")
    assert [line["iteration"] for line in lines] == [0, 1, 2, 3]
    assert lines[2].keys() >= {
        "episode/success_rate", "episode/rooms_1_success_rate", "episode/length/mean", "episode/valid_action_ratio",
        "critic/advantages/mean", "groups/k0/size_mean", "groups/k2/shared_ratio", "groups/k1/weight_mean",
        "actor/pg_loss", "actor/kl_loss", "actor/entropy", "actor/clip_fraction", "actor/ratio", "actor/grad_norm",
        "prompt_length/clip_ratio", "timing_s/gen", "timing_s/update_actor", "timing_s/adv", "timing_s/publish",
        "timing_s/old_log_prob", "timing_s/ref", "perf/throughput", "perf/rollout_tokens_per_s",
        "perf/update_tokens_per_s",
    }  # fmt: skip
    assert "val/success_rate" in lines[2]
    assert "val/success_rate" not in lines[1]
    assert lines[1]["training/rollout_logprobs_abs_diff_mean"] < 1e-4
    checkpoints = sorted((folder / "checkpoints").iterdir())
    assert checkpoints[-1].name == "000003"
    own = trainer.model.state_dict()
    loaded = AutoModelForCausalLM.from_pretrained(checkpoints[-1]).state_dict()
    assert all((value == own[name]).all() for name, value in loaded.items())
    assert AutoTokenizer.from_pretrained(checkpoints[-1]).chat_template


@pytest.mark.slow
def test_the_best_checkpoint_is_kept_and_a_run_that_stalls_stops(
    config, runs, monkeypatch
):
    """The success on held-out tasks is 0.5, 0.75, 0.75, 0.25 after iterations 1 to 4: the second is the best."""
    rates = {1: 0.5, 2: 0.75, 3: 0.75, 4: 0.25}
    evaluate = "hgpo_train.training.trainer.Trainer.evaluate"
    monkeypatch.setattr(
        evaluate, lambda self: {"val/success_rate": rates[self.state.iteration]}
    )
    evaluation = {"every": 1, "before_training": False, "patience": 2}
    config = replace(
        config, iterations=9, evaluation=evaluation, checkpoint={"every": 1, "keep": 1}
    )
    runs.train(replace(config, iterations=3))
    trainer = runs.train(config, resume=True)
    assert (
        trainer.state.iteration,
        trainer.state.best,
        trainer.state.best_success,
    ) == (4, 2, 0.75)
    checkpoints = list_checkpoints(runs.folder / "run" / "checkpoints")
    assert [(path.name, (path / OPTIMISER).exists()) for path in checkpoints] == [
        ("000002", False),
        ("000004", True),
    ]
    ended = runs.train(config, resume=True)
    assert ended.state == trainer.state
    assert "Nothing is left to do" in ended._display._console.file.getvalue()


@pytest.mark.slow
def test_environment_steps_end_a_run_and_a_larger_budget_resumes_it(config, runs):
    config = replace(
        config,
        iterations=4,
        evaluation={"every": 4, "before_training": False},
        checkpoint={"every": 4},
    )
    whole = runs.train(config, "whole")
    assert set(scan_steps(whole.folder / "evaluation").collect()["iteration"]) == {4}
    budget = (
        int(
            read_metrics(runs.folder / "whole" / "metrics.jsonl")[0][
                "training/environment_steps"
            ]
        )
        + 1
    )
    ended = runs.train(replace(config, environment_steps=budget), "short")
    assert ended.state.iteration == 2
    assert ended.state.environment_steps >= budget
    assert (
        "val/success_rate" in read_metrics(runs.folder / "short" / "metrics.jsonl")[1]
    )
    assert list_checkpoints(ended.folder / "checkpoints")[-1].name == "000002"
    resumed = runs.train(config, "short", resume=True)
    assert resumed.state.environment_steps == whole.state.environment_steps
    assert runs.weights("short") == runs.weights("whole")


@pytest.mark.slow
def test_stages_alone_on_what_the_one_before_left_on_disk_end_in_the_same_weights(
    config, runs, hgpo
):
    """`hgpo advantages` and `hgpo train --steps` on each iteration's shard, twice, beside `hgpo train`."""
    config = replace(config, iterations=2, evaluation={"every": 0})
    runs.train(config, "whole")
    path = runs.folder / "config.toml"
    alone = runs.folder / "alone"
    path.write_text(to_toml(config))
    for number, resume in enumerate(([], ["--resume"])):
        shard = runs.folder / "whole" / "steps" / f"steps-{number:06d}.parquet"
        table = runs.folder / f"{number}.parquet"
        code, _, errors = hgpo("advantages", shard, "--out", table)
        assert code == 0, errors
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
        code, output, errors = hgpo(*update)
        assert code == 0, errors
        assert f"checkpoints/00000{number + 1}" in output.replace("\n", "")
    assert runs.weights("alone") == runs.weights("whole")
    lines = [
        read_metrics(runs.folder / name / "metrics.jsonl")
        for name in ("alone", "whole")
    ]
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


KILLED = """
import os, signal, sys
import torch
torch.set_num_threads(1)
from hgpo_train.cli import main
folder, left, number = sys.argv.pop(1), int(sys.argv.pop(1)), os.getpid()
calls = 0

def count(event, arguments):
    global calls
    if event.startswith(("os.", "open", "shutil.")) and folder in repr(arguments):
        calls += 1
        if calls == left:
            os.kill(number, signal.SIGKILL)

sys.addaudithook(count)
try:
    main()
finally:
    print("calls", calls)
"""


def killed_command(folder, kill_at, *arguments):
    """Run a command that is killed at the n-th system call in a folder; return exit status, output and errors."""
    done = python(KILLED, folder, kill_at, *arguments, timeout=300)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.slow
def test_a_run_killed_at_random_moments_ends_in_the_same_bytes(config, runs):
    config = replace(
        config, iterations=4, checkpoint={"every": 2}, evaluation={"every": 3}
    )
    path, killed, whole = (
        runs.folder / name for name in ("config.toml", "killed", "whole")
    )
    path.write_text(to_toml(config))
    code, output, errors = killed_command(whole, 0, "train", path, "--out", whole)
    assert code == 0, errors
    calls = int(output.rpartition(" ")[2])
    assert calls > 100
    moments = random.Random(1)
    kills = 0
    command = ("train", path, "--out", killed, "--resume")
    for _ in range(sample_or_all(2, 20)):
        code, _, errors = killed_command(
            killed, moments.randrange(1, calls // 2), *command
        )
        assert code in (0, -signal.SIGKILL), errors
        kills += code != 0
        written = killed / "metrics.jsonl"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            iterations = (
                [line["iteration"] for line in read_metrics(written)]
                if written.exists()
                else []
            )
        assert iterations == list(range(len(iterations)))
    code, _, errors = killed_command(killed, 0, *command)
    assert code == 0, errors
    assert kills
    assert runs.weights("killed") == runs.weights("whole")
    lines = [read_metrics(folder / "metrics.jsonl") for folder in (killed, whole)]
    times = ("timing_s/", "perf/")
    of_runs = [
        [{k: v for k, v in line.items() if not k.startswith(times)} for line in one]
        for one in lines
    ]
    assert of_runs[0] == of_runs[1]


@pytest.mark.slow
def test_too_many_failed_rollouts_stop_a_run_and_are_repeated(
    config, runs, tmp_path, monkeypatch, hgpo
):
    path = tmp_path / "outage"
    monkeypatch.setenv("HGPO_TEST_OUTAGE", str(path))  # a file that lists failing tasks
    environment = {"id": "doors_env:HGPO-Test/Outage-v0"}
    config = replace(
        config,
        environment=environment,
        rollout={"group_size": 2},
        iterations=1,
        evaluation={"every": 0},
    )
    runs.train(config, "whole")
    tasks = (
        scan_steps(runs.folder / "whole" / "steps")
        .select("task_id")
        .unique()
        .collect()["task_id"]
        .sort()
    )
    path.write_text(tasks[0])
    (tmp_path / "config.toml").write_text(to_toml(config))
    code, _, errors = hgpo(
        "train", tmp_path / "config.toml", "--out", runs.folder / "run"
    )
    assert code == 1
    assert re.search(r"error: 2 of 6 rollouts failed \(33%\).*the power is out", errors)
    assert "Repeat them with: hgpo train --resume --out" in errors.splitlines()[-1]
    runs.train(replace(config, rollout={"max_failed": 0.5}), "lenient")
    line = read_metrics(runs.folder / "lenient" / "metrics.jsonl")[-1]
    assert (
        line["episode/aborted"],
        line["episode/trajectories"],
        line["training/groups"],
    ) == (
        2,
        6,
        2,
    )
    path.unlink()
    runs.train(config, resume=True)
    assert runs.weights("run") == runs.weights("whole")


@pytest.mark.slow
def test_verify_covers_all_files_of_a_run(config, runs, hgpo, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    folder = runs.train(replace(config, iterations=2, evaluation={"every": 1})).folder
    code, output, _ = hgpo("verify", folder)
    assert code == 0, output
    # the run with its table, the evaluations, two checkpoints
    assert output.count("no problems") == 4
    newest = folder / "checkpoints" / "000002"
    for path in [
        *sorted(newest.rglob("*.*")),
        folder / "metrics.jsonl",
        folder / "config.toml",
    ]:
        whole = path.read_bytes()
        path.write_bytes(whole[:-9] + b"\xff" + whole[-8:])
        code, output, _ = hgpo("verify", folder)
        assert (code, output.count("no problems")) == (1, 3), path
        assert path.name in output
        path.write_bytes(whole)
    code, output, _ = hgpo("verify", folder, "--json")
    assert (code, [report["ok"] for report in json.loads(output)]) == (0, [True] * 4)


INVALID = (
    ({"advantage": {"estimator": "hgop"}}, "did you mean 'hgpo'"),
    (
        {"advantage": {"parameters": {"histroy_length": 2}}},
        "did you mean 'history_length'",
    ),
    ({"rollout": {"engine": "transfromers"}}, "did you mean 'transformers'"),
    (
        {
            "rollout": {"engine_options": {"top_q": 1}},
            "model": {"path": "no/such/model"},
        },
        "rollout.engine_options.top_q",
    ),
    (
        {"rollout": {"max_prompt_tokens": 5000}},
        "5006, but the model accepts at most 4096",
    ),
    (
        {"model": {"path": "no/such/model"}},
        r"cannot load a tokenizer from 'no/such/model' \(no such folder\)",
    ),
    ({"model": {"device": "quantum"}}, "the device 'quantum' cannot be used here"),
    ({"environment": {"prompt_template": "compcat"}}, "did you mean 'compact'"),
    (
        {
            "environment": {"prompt_template": "bad.j2"},
            "model": {"path": "no/such/model"},
        },
        "^prompt template .* fails",
    ),
    ({"model": {"path": "mute"}}, r"no chat template.*Instruct"),
    ({"environment": {"split": "trian"}}, "trian"),
    ({"model": {"lora": {"rank": 2, "targets": ["nothing"]}}}, "cannot add adapters"),
)


def test_a_publication_without_memory_gives_advice(small, runs, monkeypatch):
    trainer = runs.trainer(small)
    full = pytest.importorskip("torch").OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB"
    )
    monkeypatch.setattr(trainer.policy, "publish", Mock(side_effect=full))
    with pytest.raises(
        InputError, match=r"out of memory with update.micro_batch_tokens"
    ):
        trainer.run()


def test_invalid_configurations_are_reported_in_one_line_and_can_be_corrected(
    config, runs, tiny, monkeypatch
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(runs.folder)
    (runs.folder / "bad.j2").write_text("{{ admissible_actions[999] }}")
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(runs.folder / "mute")
    for changes, line in INVALID:
        with pytest.raises(InputError, match=line) as caught:
            runs.trainer(replace(config, **changes))
        assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_an_iteration_warns_about_truncated_prompts_and_a_wide_gap(config, runs):
    config = replace(
        config, iterations=1, evaluation={"every": 0}, rollout={"max_prompt_tokens": 20}
    )
    with pytest.warns(UserWarning, match="prompts are as long as") as shown:
        runs.train(replace(config, update={"gap_warning": 0.0}))
    assert any(
        "log-probabilities differ from the trainer's by" in str(warning.message)
        for warning in shown
    )


@pytest.mark.parametrize(
    ("settings", "trained", "metrics"),
    [
        ({}, "abcd", {}),
        ({"overlong": "mask"}, "acd", {"training/overlong_ratio": 0.25}),
        ({"max_policy_lag": 1}, "abc", {"training/stale_ratio": 0.25}),
        ({"max_policy_lag": 0}, "ab", {"training/stale_ratio": 0.5}),
        (
            {"max_policy_lag": 0, "overlong": "mask"},
            "a",
            {"training/overlong_ratio": 0.25, "training/stale_ratio": 0.5},
        ),
    ],
)
def test_overlong_and_stale_rows_are_not_trained_on(settings, trained, metrics):
    reasons = ["stop", "length", None, "stop"]
    rows = pl.DataFrame(
        {"id": list("abcd"), "finish_reason": reasons, "policy_version": [7, 7, 6, 5]}
    )
    kept, found = trained_rows(UpdateConfig(**settings), rows, 7)
    assert "".join(kept["id"]) == trained
    assert found == metrics


@pytest.mark.slow
def test_an_update_without_rows_is_no_update(config, runs):
    config = replace(
        config,
        iterations=1,
        evaluation={"every": 0},
        rollout={"max_response_tokens": 1},
    )
    runs.train(replace(config, update={"overlong": "mask", "rollout_is": "token_mask"}))
    line = read_metrics(runs.folder / "run" / "metrics.jsonl")[-1]
    assert line["training/overlong_ratio"] == 1.0
    assert line["actor/optimiser_steps"] == 0.0


@pytest.mark.slow
def test_dynamic_sampling_trains_only_on_informative_groups(config, runs):
    rollout = {"filter_groups": True, "max_generation_batches": 3}
    config = replace(config, iterations=1, evaluation={"every": 0}, rollout=rollout)
    trainer = runs.train(config)
    groups = (
        scan_steps(runs.folder / "run" / "steps").collect().group_by("task_id", "group")
    )
    returns = groups.agg(pl.col("episode_return").n_unique())
    line = read_metrics(runs.folder / "run" / "metrics.jsonl")[-1]
    trainer._display.row(1, line | {"actor/optimiser_steps": 0.0})
    assert (
        "no informative groups: no update" in trainer._display._console.file.getvalue()
    )
    assert (
        line.get("training/groups", 0)
        == returns.filter(pl.col("episode_return") > 1).height
    )
    assert trainer.state.tasks_drawn == returns.height


@pytest.mark.slow
def test_advantages_are_normalised_over_the_groups_that_are_trained_on(
    config, runs, monkeypatch
):
    from hgpo_train.training import stages

    collect = stages.collect

    # all rollouts of two groups win, and one of the third
    def collected(*arguments, **others):
        steps = collect(*arguments, **others)
        first = (pl.col("group") == 0) & (pl.col("task_id") == steps["task_id"][0])
        won = ~first | (pl.col("trajectory") == steps.filter(first)["trajectory"][0])
        reward = pl.when(won & (pl.col("step") == 0)).then(1.0).otherwise(0.0)
        return steps.with_columns(reward=reward, episode_return=won.cast(pl.Float64))

    monkeypatch.setattr(stages, "collect", collected)
    config = replace(
        config, iterations=1, evaluation={"every": 0}, rollout={"filter_groups": True}
    )
    parameters = {"invalid_action_penalty": 0.0, "gamma": 1.0}
    runs.train(
        replace(
            config, advantage={"estimator": "reinforce_pp", "parameters": parameters}
        )
    )
    (line,) = read_metrics(runs.folder / "run" / "metrics.jsonl")
    assert line["training/groups"] == 1
    assert line["critic/advantages/mean"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", sorted({*names()} - {"hgpo"}))
def test_every_estimator_trains(config, runs, estimator):
    config = replace(
        config,
        iterations=1,
        evaluation={"every": 0},
        advantage={"estimator": estimator},
    )
    config = replace(config, update={"rollout_is": "token"})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert runs.train(config).state.iteration == 1
    (line,) = read_metrics(runs.folder / "run" / "metrics.jsonl")
    # the engine runs the trained model
    assert line["rollout_corr/rollout_is_mean"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.slow
def test_an_overlong_prompt_stops_training(config, runs):
    config = replace(
        config,
        rollout={"overflow": "error", "max_prompt_tokens": 20},
        evaluation={"every": 0},
    )
    with pytest.raises(
        InputError,
        match=r"PromptTooLong.*more than max_prompt_tokens = 20.*overflow is \"error\"",
    ):
        runs.train(config)


VARIANTS = {
    "adapters": {"model": {"lora": {"rank": 4}}},
    "optimiser in the last checkpoint": {
        "checkpoint": {"every": 1, "keep": 0, "optimiser": "last"}
    },
    "moments in the memory of the host": {
        "rollout": {"offload_optimiser": True, "sleep": True}
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_of_a_run_resume_to_the_same_bytes(config, runs, variant):
    config = replace(
        config, iterations=2, evaluation={"every": 0}, checkpoint={"every": 1}
    )
    config = replace(config, **VARIANTS[variant])
    runs.train(config, "whole")
    runs.train(replace(config, iterations=1), "halved")
    runs.train(config, "halved", resume=True)
    assert runs.weights("whole") == runs.weights("halved")
    checkpoints = list_checkpoints(runs.folder / "whole" / "checkpoints")
    assert [(path / OPTIMISER).exists() for path in checkpoints] == [
        "last" not in variant,
        True,
    ]
    assert (checkpoints[-1] / "adapter_model.safetensors").exists() == (
        variant == "adapters"
    )
    if "host" in variant:
        runs.train(
            replace(config, rollout={"offload_optimiser": False, "sleep": False}),
            "plain",
        )
        assert runs.weights("whole") == runs.weights("plain")


@pytest.mark.slow
def test_conversations_train_on_shared_sequences_and_resume(config, runs):
    environment = {"prompt_style": "chat", "system_prompt": "Be brief."}
    chat = replace(config, environment=environment, rollout={"max_prompt_tokens": 2000})
    runs.train(chat, "whole")
    runs.train(replace(chat, iterations=1), "parts")
    runs.train(chat, "parts", resume=True)
    assert runs.weights("parts") == runs.weights("whole")
    metrics = list(read_metrics(runs.folder / "whole" / "metrics.jsonl"))
    assert all(
        line["perf/shared_tokens"] > 0.3
        for line in metrics
        if "perf/shared_tokens" in line
    )
    steps = scan_steps(runs.folder / "whole").sort("trajectory", "step").collect()
    for _, trajectory in steps.group_by("iteration", "trajectory"):
        before: list[int] = []
        for prompt, response in (
            trajectory.sort("step")
            .select("prompt_token_ids", "response_token_ids")
            .rows()
        ):
            assert prompt[: len(before)] == before
            before = prompt + response


MINE = """
import polars as pl
from hgpo_train.advantages.windows import within


def late(steps: pl.LazyFrame, *, scale: float = 1.0, name: str = "x") -> pl.LazyFrame:
    number = pl.col("step")
    return steps.with_columns(advantage=scale * (number - number.mean().over(within())) + len(name) - 1)
"""


@pytest.mark.slow
def test_training_with_a_custom_estimator(config, runs, tmp_path, monkeypatch):
    """A module in the working directory."""
    (tmp_path / "estimators_of_the_test.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    estimator = "estimators_of_the_test:late"
    parameters = {"scale": 3, "name": "xyz"}
    advantage = {"estimator": estimator, "parameters": parameters}
    config = replace(config, iterations=2, evaluation={"every": 0}, advantage=advantage)
    runs.train(config)
    lines = read_metrics(runs.folder / "run" / "metrics.jsonl")
    assert [line["iteration"] for line in lines] == [1, 2]
    steps = (
        scan_steps(runs.folder / "run" / "steps")
        .filter(pl.col("iteration") == 0)
        .collect()
    )
    advantage = compute(steps, estimator, **parameters).collect()["advantage"]
    extremes = [lines[0][f"critic/advantages/{name}"] for name in ("max", "min")]
    assert extremes == pytest.approx([advantage.max(), advantage.min()])
    assert advantage.n_unique() > 5
    assert stored_config(runs.folder / "run" / "config.toml") == config
    runs.train(replace(config, iterations=3), resume=True)
    other = replace(config, advantage={"parameters": {**parameters, "gamma": 0.5}})
    with pytest.raises(
        InputError, match=r"was written with training\.advantage\.parameters"
    ):
        runs.trainer(other, resume=True)
