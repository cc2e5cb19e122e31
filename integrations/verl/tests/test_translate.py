"""The translation of configurations to verl: every setting is translated, read, without effect, or refused by name."""

import math
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from hgpo_envs.errors import InputError
from hgpo_envs.plugins import install_command
from hgpo_train.training.config import SHIPPED, Config, load_config, replace
from hgpo_verl.check import check, settings_of, unread
from hgpo_verl.command import command_line, launch_text, main
from hgpo_verl.launch_files import NAMES, text_of
from hgpo_verl.readers import READERS, VERSION
from hgpo_verl.run_settings import read_settings
from hgpo_verl.translate import RULES, Cluster, leaves, translate

ROOT = Path(__file__).parents[3]
FOLDER = Path("/runs/one")
PAPERS = [name for name in SHIPPED if not name.startswith("tiny")]

OTHER = {
    "name": "other",
    "seed": 7,
    "iterations": 3,
    "environment.split": "valid_seen",
    "model.path": "else/where",
    "model.compute_dtype": "float32",
    "model.attention": "eager",
    "model.gradient_checkpointing": False,
    "model.lora.rank": 8,
    "rollout.engine_options": {"gpu_memory_utilization": 0.4},
    "rollout.tasks": 5,
    "rollout.group_size": 4,
    "rollout.temperature": 0.7,
    "rollout.max_prompt_tokens": 999,
    "rollout.max_response_tokens": 99,
    "rollout.chat_template": str(
        ROOT / "hgpo_train/models/bundled/tiny-alfworld/chat_template.jinja"
    ),
    "rollout.offload_optimiser": True,
    "update.mini_batch_size": 512,
    "update.epochs": 2,
    "update.micro_batch_tokens": 9000,
    "update.layout": "packed",
    "update.clip_low": 0.1,
    "update.clip_high": 0.3,
    "update.dual_clip": None,
    "update.kl_weight": 0.0,
    "update.entropy_weight": 0.5,
    "optimiser.learning_rate": 0.5,
    "optimiser.weight_decay": 0.5,
    "optimiser.betas": [0.5, 0.6],
    "optimiser.epsilon": 0.5,
    "optimiser.gradient_clip": 0.0,
    "evaluation.every": 7,
    "evaluation.split": "train",
    "evaluation.group_size": 3,
    "evaluation.temperature": 0.0,
    "checkpoint.every": 9,
    "checkpoint.keep": 5,
    "tracking.tensorboard": False,
    # without effect
    "model.compile": True,
    "check_memory": False,
    "rollout.slots": 3,
    "rollout.max_generation_batches": 3,
    "rollout.sleep": True,
    "update.share_prefixes": False,
    "update.logit_chunk": 3,
    "update.rollout_is_threshold": 3.0,
    "update.rollout_is_least": 0.5,
    "update.max_policy_lag": 2,
    "update.gap_warning": 1.0,
    "checkpoint.optimiser": "all",
    # refused
    "evaluation.patience": 3,
    "environment_steps": 100,
    "model.device": "cpu",
    "model.lora.dropout": 0.5,
    "rollout.engine": "transformers",
    "rollout.ahead": True,
    "rollout.branch": "uniform",
    "rollout.branch_width": 2,
    "rollout.filter_groups": True,
    "update.aggregation": "sequence_mean",
    "update.old_logprobs": "rollout",
    "update.rollout_is": "token",
    "update.ratio": "sequence",
    "update.unbiased_kl": True,
    "update.overlong": "mask",
    "optimiser.schedule": "cosine",
    "optimiser.warmup_iterations": 3,
}
"""Another value of every setting that no part of the plug-in reads itself."""


def kind(*kinds: str) -> list[str]:
    return [name for name, rule in RULES.items() if rule.kind in kinds]


def config(**changes: object) -> Config:
    return replace(load_config("alfworld-7b-hgpo-k2"), **changes)


def changed(name: str, value: object) -> Config:
    for key in reversed(name.split(".")):
        value = {key: value}
    needed = (
        {"update": {"rollout_is": "token"}}
        if "ahead" in value.get("rollout", {})
        else {}
    )
    return config(**value, **needed)


def without_section(launch: dict) -> dict:
    return {name: value for name, value in launch.items() if name != "hgpo"}


def test_every_setting_has_a_rule_and_every_rule_a_setting() -> None:
    assert RULES.keys() == leaves(Config()).keys()
    assert {rule.kind for rule in RULES.values()} == {
        "translated",
        "read",
        "no effect",
        "refused",
    }
    assert all(rule.how for rule in RULES.values())


@pytest.mark.parametrize("name", kind("translated"))
def test_another_value_of_a_translated_setting_is_another_launch_file(name) -> None:
    before, after = (
        translate(one, Cluster(), FOLDER)
        for one in (config(), changed(name, OTHER[name]))
    )
    assert without_section(before) != without_section(after)


@pytest.mark.parametrize("name", kind("no effect"))
def test_another_value_of_a_setting_without_effect_changes_only_the_record(
    name,
) -> None:
    before, after = (
        translate(one, Cluster(), FOLDER)
        for one in (config(), changed(name, OTHER[name]))
    )
    assert without_section(before) == without_section(after)
    assert before["hgpo"] != after["hgpo"]


@pytest.mark.parametrize("name", kind("refused"))
def test_other_values_of_a_refused_setting_are_refused_by_name(name) -> None:
    with pytest.raises(
        InputError,
        match=rf"^setting {name}: verl cannot do this: expected .*; received ",
    ):
        translate(changed(name, OTHER[name]), Cluster(), FOLDER)


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("update.mini_batch_size", 100, "a multiple of rollout.group_size = 8"),
        (
            "update.micro_batch_tokens",
            4000,
            "at least the longest sequence, 4608 tokens",
        ),
        ("rollout.engine_options", {"request_seeds": True}, "received request_seeds"),
    ],
)
def test_values_that_verl_cannot_have_are_refused_by_name(name, value, line) -> None:
    with pytest.raises(InputError, match=f"^setting {name}: .*{line}"):
        translate(changed(name, value), Cluster(), FOLDER)


def test_two_projects_of_trackers_are_refused() -> None:
    with pytest.raises(InputError, match=r"setting tracking\..*the same project"):
        translate(config(tracking={"wandb": "a", "trackio": "b"}), Cluster(), FOLDER)


@pytest.mark.parametrize("name", PAPERS)
def test_configurations_of_the_papers_are_translated_and_come_back_whole(name) -> None:
    given = load_config(name)
    text = launch_text(name, given, Cluster(), FOLDER)
    launch = yaml.safe_load(text)
    assert read_settings(launch["hgpo"]).config == given
    actor = launch["actor_rollout_ref"]["actor"]
    rollout = launch["actor_rollout_ref"]["rollout"]
    assert actor["ppo_mini_batch_size"] * rollout["n"] == given.update.mini_batch_size
    assert launch["data"]["train_batch_size"] * rollout["n"] == 128
    assert launch["trainer"]["total_training_steps"] == given.iterations


def test_a_7b_launch_file_has_the_values_of_the_official_script() -> None:
    launch = translate(load_config("webshop-7b-hgpo-k4"), Cluster(8, 2), FOLDER)
    actor = launch["actor_rollout_ref"]["actor"]
    assert actor["optim"]["lr"] == 1e-6
    assert (actor["use_kl_loss"], actor["kl_loss_coef"], actor["kl_loss_type"]) == (
        True,
        0.01,
        "low_var_kl",
    )
    assert (
        actor["clip_ratio_low"],
        actor["clip_ratio_high"],
        actor["clip_ratio_c"],
    ) == (
        0.2,
        0.2,
        3.0,
    )
    assert (actor["entropy_coeff"], actor["loss_agg_mode"], actor["ppo_epochs"]) == (
        0.001,
        "token-mean",
        1,
    )
    assert launch["data"]["train_batch_size"] == 16
    assert launch["data"]["max_prompt_length"] == 4096
    assert launch["data"]["max_response_length"] == 512
    trainer = launch["trainer"]
    assert (
        trainer["save_freq"],
        trainer["test_freq"],
        trainer["val_before_train"],
    ) == (
        80,
        5,
        False,
    )
    assert (trainer["n_gpus_per_node"], trainer["nnodes"]) == (8, 2)
    assert launch["hgpo"]["configuration"]["environment"]["history_length"] == 4


def test_padded_rows_have_half_the_tokens_because_verl_pads_what_it_has_counted() -> (
    None
):
    budgets = [
        translate(
            config(update={"layout": layout, "micro_batch_tokens": tokens}),
            Cluster(),
            FOLDER,
        )
        for layout, tokens in (("packed", 16384), ("padded", 16384), ("padded", 5000))
    ]
    actors = [launch["actor_rollout_ref"]["actor"] for launch in budgets]
    assert [actor["ppo_max_token_len_per_gpu"] for actor in actors] == [
        16384,
        8192,
        4608,
    ]


def test_every_setting_of_a_launch_file_has_a_reader_in_verl() -> None:
    """Of the version that the list is of; its source is searched where verl is installed."""
    changes = {"model": {"lora": {"rank": 8}}, "update": {"kl_weight": 0.1}}
    engine = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 9000,
        "enforce_eager": True,
        "enable_prefix_caching": True,
    }
    engine |= {"enable_chunked_prefill": True, "gpu_memory_utilization": 0.5}
    launch = translate(
        config(**changes, rollout={"engine_options": engine}), Cluster(), FOLDER
    )
    assert set(settings_of(launch)) == READERS.keys()
    spec = find_spec("verl")
    if spec is None or version("verl") != VERSION:
        pytest.skip(f"verl {VERSION} is not installed")
    (source,) = spec.submodule_search_locations
    assert unread(launch, Path(source)) == []


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "HGPO/ALFWrld-v0",
            "unknown environment 'HGPO/ALFWrld-v0'; did you mean 'HGPO/ALFWorld-v0'",
        ),
        ("nothing", "unknown environment 'nothing'"),
        ("CartPole-v9", "unknown environment 'CartPole-v9'"),
        ("no id!", "unknown environment 'no id!'"),
        ("no_such_module:SPEC", "no_such_module"),
        ("no_such_module:Mine-v0", "unknown environment 'no_such_module:Mine-v0'"),
    ],
)
def test_an_unknown_environment_is_refused_by_name(name, line) -> None:
    with pytest.raises(InputError, match=f"^setting environment.id: .*{line}"):
        translate(config(environment={"id": name}), Cluster(), FOLDER)


@pytest.mark.parametrize(
    "name",
    ["HGPO/AppWorld-v0", "doors_env:HGPO-Test/Doors-v0", "CartPole-v1", "CartPole"],
)
def test_environments_of_other_packages_are_known(name) -> None:
    assert translate(config(environment={"id": name}), Cluster(), FOLDER)


def test_a_run_without_verl_says_what_to_install(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("hgpo_verl.check.find_spec", lambda _: None)
    monkeypatch.setattr("os.execv", lambda *_: pytest.fail("verl was started"))
    monkeypatch.setattr(
        "sys.argv", ["hgpo-verl", PAPERS[0], "--run", "--out", str(tmp_path)]
    )
    with pytest.raises(
        SystemExit, match=r"^hgpo-verl: --run: expected verl .* pip install "
    ) as ended:
        main()
    assert str(ended.value).endswith(install_command("vllm", "integrations/verl"))


def test_a_check_without_verl_says_what_to_install(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("hgpo_verl.check.find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"--check: expected verl .* pip install "):
        check(tmp_path / "verl.yaml", translate(config(), Cluster(), FOLDER))


def test_without_a_bound_nothing_is_bounded() -> None:
    launch = translate(
        config(update={"dual_clip": None}, optimiser={"gradient_clip": 0.0}),
        Cluster(),
        FOLDER,
    )
    actor = launch["actor_rollout_ref"]["actor"]
    assert min(actor["clip_ratio_c"], actor["optim"]["clip_grad"]) >= 1e9 > math.e


@pytest.mark.parametrize("name", NAMES)
def test_launch_files_of_the_7b_runs_are_up_to_date(name) -> None:
    file = ROOT / "integrations/verl/launch" / f"{name}.yaml"
    hint = "run: PYTHONPATH=integrations/verl python -m hgpo_verl.launch_files integrations/verl/launch"
    assert file.read_text("utf-8") == text_of(name), hint


def test_the_command_names_the_plugin_and_the_file() -> None:
    command = command_line(Path("/runs/with space/verl.yaml"))
    assert command.startswith(
        "VERL_USE_EXTERNAL_MODULES=hgpo_verl.plugin python -m verl.trainer.main_ppo "
    )
    folder = Path("/runs/with space").absolute().as_posix()
    assert f"--config-dir '{folder}' --config-name verl" in command
