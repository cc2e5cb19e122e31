"""The training loop on the house of doors: its files, its configuration, and which rows it trains on."""

import contextlib
import io
import json
import re
import warnings
from unittest.mock import Mock

import polars as pl
import pytest
from lazily import lazily
from refusals import refused
from rich.console import Console

from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError
from hgpo_train.advantages import compute, estimator, names
from hgpo_train.training.config import UpdateConfig, replace, stored_config
from hgpo_train.training.display import Display

(trained_rows,) = lazily("hgpo_train.training.stages", "trained_rows")
AutoModelForCausalLM, AutoTokenizer = lazily(
    "transformers", "AutoModelForCausalLM AutoTokenizer"
)


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
    whole, resumed = (runs.metrics(name) for name in ("whole", "run"))
    assert [line["counted/iterations"] for line in resumed] == [1, 2]
    assert (
        resumed[1]["counted/weight"]
        == whole[1]["counted/weight"]
        != whole[0]["counted/weight"]
    )
    assert runs.weights("run") == runs.weights("whole")
    assert "counted" not in names()


@pytest.mark.slow
def test_a_run_writes_tables_metrics_and_checkpoints(config, runs):
    trainer = runs.train(replace(config, evaluation={"every": 2}))
    folder = runs.folder / "run"
    assert trainer.shared.state.iteration == 3
    steps = scan_steps(folder / "steps").collect()
    assert (
        steps.select(pl.struct("iteration", "task_id", "group").n_unique()).item() == 9
    )
    assert steps["policy_version"].to_list() == steps["iteration"].to_list()
    held_out = scan_steps(folder / "evaluation").collect()
    assert held_out["iteration"].unique().sort().to_list() == [0, 2, 3]
    assert set(held_out["split"]) == {"test"}
    lines = runs.metrics()
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
    own = trainer.shared.learner.model.state_dict()
    loaded = AutoModelForCausalLM.from_pretrained(checkpoints[-1]).state_dict()
    assert all((value == own[name]).all() for name, value in loaded.items())
    assert AutoTokenizer.from_pretrained(checkpoints[-1]).chat_template


@pytest.mark.slow
def test_an_evaluation_shows_of_how_many_rollouts_it_is(config, runs, monkeypatch):
    # otherwise a line every half minute
    monkeypatch.setattr("hgpo_train.training.display._LINES_S", 0.0)
    shown = io.StringIO()
    trainer = runs.trainer(
        replace(config, iterations=1, evaluation={"every": 1}),
        display=Display(Console(file=shown, width=200), 1),
    )
    with contextlib.closing(trainer):
        trainer.evaluate()
    assert re.search(r"\d of 4 rollouts · ", shown.getvalue())


@pytest.mark.slow
def test_verify_covers_all_files_of_a_run(config, runs, hgpo, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    folder = runs.train(
        replace(config, iterations=2, evaluation={"every": 1})
    ).shared.folder
    output = hgpo.output("verify", folder)
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
        r"unknown setting 'rollout.engine_options.top_q'.*Known: rollout.engine_options.max_batch_tokens$",
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


def test_the_engine_starts_without_the_optimisers_state_on_its_device(
    small, runs, monkeypatch
):
    calls = []
    monkeypatch.setattr(
        "hgpo_train.training.trainer.move_state",
        lambda optimiser, device: calls.append(f"state to {device}"),
    )
    monkeypatch.setattr(
        "hgpo_train.policies.transformers.TransformersPolicy.publish",
        lambda *_: calls.append("publish the weights"),
    )
    runs.trainer(replace(small, rollout={"offload_optimiser": True})).close()
    runs.trainer(small, "other").close()
    assert calls == ["state to cpu", "publish the weights", "publish the weights"]


def test_a_publication_without_memory_gives_advice(small, runs, monkeypatch):
    trainer = runs.trainer(small)
    full = pytest.importorskip("torch").OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB"
    )
    monkeypatch.setattr(trainer.policy, "publish", Mock(side_effect=full))
    with refused(r"out of memory with update.micro_batch_tokens"):
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
        with refused(line):
            runs.trainer(replace(config, **changes))


@pytest.mark.slow
def test_an_iteration_warns_about_truncated_prompts_and_a_wide_gap(config, runs):
    config = replace(config, iterations=1, rollout={"max_prompt_tokens": 20})
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
        rollout={"max_response_tokens": 1},
    )
    runs.train(replace(config, update={"overlong": "mask", "rollout_is": "token_mask"}))
    line = runs.metrics()[-1]
    assert line["training/overlong_ratio"] == 1.0
    assert line["actor/optimiser_steps"] == 0.0


@pytest.mark.slow
def test_dynamic_sampling_trains_only_on_informative_groups(config, runs):
    rollout = {"filter_groups": True, "max_generation_batches": 3}
    config = replace(config, iterations=1, rollout=rollout)
    trainer = runs.train(config)
    groups = (
        scan_steps(runs.folder / "run" / "steps").collect().group_by("task_id", "group")
    )
    returns = groups.agg(pl.col("episode_return").n_unique())
    line = runs.metrics()[-1]
    trainer.shared.display.row(1, line | {"actor/optimiser_steps": 0.0})
    assert (
        "no informative groups: no update"
        in trainer.shared.display._console.file.getvalue()
    )
    assert (
        line.get("training/groups", 0)
        == returns.filter(pl.col("episode_return") > 1).height
    )
    assert trainer.shared.state.tasks_drawn == returns.height


@pytest.mark.slow
def test_advantages_are_normalised_over_the_groups_that_are_trained_on(
    config, runs, monkeypatch
):
    from hgpo_train.training import stages

    collect = stages.collect

    # all rollouts of two groups win, and one of the third
    def collected(*arguments, **others):
        steps, seconds = collect(*arguments, **others)
        first = (pl.col("group") == 0) & (pl.col("task_id") == steps["task_id"][0])
        won = ~first | (pl.col("trajectory") == steps.filter(first)["trajectory"][0])
        reward = pl.when(won & (pl.col("step") == 0)).then(1.0).otherwise(0.0)
        returns = won.cast(pl.Float64)
        return steps.with_columns(reward=reward, episode_return=returns), seconds

    monkeypatch.setattr(stages, "collect", collected)
    config = replace(config, iterations=1, rollout={"filter_groups": True})
    parameters = {"invalid_action_penalty": 0.0, "gamma": 1.0}
    runs.train(
        replace(
            config, advantage={"estimator": "reinforce_pp", "parameters": parameters}
        )
    )
    (line,) = runs.metrics()
    assert line["training/groups"] == 1
    assert line["critic/advantages/mean"] == pytest.approx(0.0, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", sorted({*names()} - {"hgpo"}))
def test_every_estimator_trains(config, runs, estimator):
    config = replace(
        config,
        iterations=1,
        advantage={"estimator": estimator},
    )
    config = replace(config, update={"rollout_is": "token"})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert runs.train(config).shared.state.iteration == 1
    (line,) = runs.metrics()
    # the engine runs the trained model
    assert line["rollout_corr/rollout_is_mean"] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.slow
def test_an_overlong_prompt_stops_training(config, runs):
    config = replace(
        config,
        rollout={"overflow": "error", "max_prompt_tokens": 20},
    )
    with refused(
        r"PromptTooLong.*more than max_prompt_tokens = 20.*overflow is \"error\""
    ):
        runs.train(config)


@pytest.mark.slow
def test_conversations_train_on_shared_sequences_and_resume(config, runs):
    environment = {"prompt_style": "chat", "system_prompt": "Be brief."}
    chat = replace(
        config,
        environment=environment,
        rollout={"max_prompt_tokens": 2000},
        evaluation={"every": 2},
    )
    runs.train(chat, "whole")
    runs.train(replace(chat, iterations=1), "parts")
    runs.train(chat, "parts", resume=True)
    assert runs.weights("parts") == runs.weights("whole")
    metrics = runs.metrics("whole")
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
    config = replace(config, iterations=2, advantage=advantage)
    runs.train(config)
    lines = runs.metrics()
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
    with refused(r"was written with training\.advantage\.parameters"):
        runs.trainer(other, resume=True)
