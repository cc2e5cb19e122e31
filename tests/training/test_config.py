"""Settings: shipped files as the official scripts have them, printed ones are read back, invalid ones are one line."""

import dataclasses
import math
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused, refused_saying

from hgpo_datasets import StepWriter
from hgpo_train.advantages.registry import get
from hgpo_train.policies.generation import GenerationOptions
from hgpo_train.settings import build, field_docs, read_toml, to_toml
from hgpo_train.training.config import (
    SHIPPED,
    Config,
    SftConfig,
    configured_estimator,
    load_config,
    replace,
)
from hgpo_train.training.data import env_options
from tools import configurations_page


def test_shipped_configurations_are_valid():
    for name in SHIPPED:
        config = load_config(name)
        estimator = get(config.advantage.estimator)
        parameters = estimator.with_parameters(**config.advantage.parameters).parameters
        # in the papers, prompts and contexts match
        if estimator.name == "hgpo" and not name.startswith("tiny"):
            assert parameters.history_length == config.environment.history_length
        assert ("webshop" in name) == (config.environment.id == "HGPO/WebShop-v0")


def test_the_configurations_of_the_paper_are_shipped():
    for environment in ("alfworld", "webshop"):
        for size in ("1.5b", "7b"):
            for method in (
                "hgpo-k2",
                "hgpo-k4",
                "gigpo",
                "grpo",
                "g2po",
                "graphgpo",
                "hgpo-k2-lora",
            ):
                assert f"{environment}-{size}-{method}" in SHIPPED
    config = load_config("webshop-1.5b-hgpo-k4")
    assert config.advantage.parameters["mode"] == "mean_norm"
    assert (config.environment.history_length, config.environment.max_steps) == (4, 30)
    assert (config.update.mini_batch_size, config.optimiser.learning_rate) == (64, 1e-6)


@pytest.mark.parametrize("cls", [Config, SftConfig])
def test_every_field_has_a_docstring(cls):
    def walk(settings):
        docs = field_docs(type(settings))
        for field in dataclasses.fields(settings):
            assert docs.get(field.name), (
                f"{type(settings).__name__}.{field.name} has no docstring"
            )
            value = getattr(settings, field.name)
            if dataclasses.is_dataclass(value):
                walk(value)

    walk(cls())


@given(
    st.text(max_size=30),
    st.floats(1e-9, 1e9),
    st.one_of(st.none(), st.floats(1.5, 10)),
    st.dictionaries(
        st.text(max_size=8),
        st.one_of(st.integers(0, 9), st.booleans(), st.text(max_size=8)),
        max_size=3,
    ),
)
def test_written_settings_are_read_back_equal(name, rate, dual_clip, options):
    config = Config(
        name=name,
        optimiser=dataclasses.replace(Config().optimiser, learning_rate=rate),
        update=dataclasses.replace(Config().update, dual_clip=dual_clip),
        environment=dataclasses.replace(Config().environment, options=options),
    )
    for docs in (False, True):
        assert build(Config, tomllib.loads(to_toml(config, docs=docs))) == config


INVALID = {
    "update.clip_hihg=0.3": "unknown setting 'update.clip_hihg'; did you mean 'update.clip_high'? Known: update.min",
    "updaet.clip_high=0.3": "unknown setting 'updaet'; did you mean 'update'? Known: name, seed, ",
    "update.clip_high=wide": "setting update.clip_high: expected float, received 'wide'",
    "update.epochs=1.5": "setting update.epochs: expected int, received 1.5",
    "update.epochs=2\udcff": r"setting update.epochs: expected text in UTF-8, received '2\udcff'",
    "update=3": "setting update: expected a table, received 3",
    "update.layout=paded": (
        "setting update.layout: unknown value 'paded'; did you mean 'padded'? "
        "Known: auto, padded, packed"
    ),
    "update.epochs": "--set: expected an override of the form section.field=value, received 'update.epochs'",
    "model..path=x": "unknown setting 'model.'; did you mean 'model.path'?",
    "rollout.group_size=0": "setting rollout.group_size: expected int >= 1, received 0",
    "rollout.group_size=1": "expected at least 2 for the estimator 'hgpo', received 1; a singleton group",
    "rollout.temperature=0": "setting rollout.temperature: expected float > 0.0, received 0",
    "update.dual_clip=off": "setting update.dual_clip: expected float or none, received 'off'",
    "optimiser.learning_rate=nan": "setting optimiser.learning_rate: expected float >= 0.0, received nan",
    "optimiser.betas=[0.9]": "setting optimiser.betas: expected a list of length 2, received [0.9]",
    "optimiser.betas=[0.9, 1]": "setting optimiser.betas[1]: expected float < 1.0, received [0.9, 1]",
    "model.lora.targets=[1]": "setting model.lora.targets[0]: expected str, received [1]",
    "seed=-1": "setting seed: expected int >= 0, received -1",
    "seed=99999999999999999999": "setting seed: expected int <= 4611686018427387903, received 9999",
    "optimiser.epsilon=-1": "setting optimiser.epsilon: expected float > 0.0, received -1",
    "optimiser.learning_rate=inf": "setting optimiser.learning_rate: expected float <= 1.7",
    "rollout.temperature=inf": "setting rollout.temperature: expected float <= 1.7",
    "rollout.max_failed=7": "setting rollout.max_failed: expected float <= 1.0, received 7",
    "model.lora.dropout=2": "setting model.lora.dropout: expected float < 1.0, received 2",
    "evaluation={ every = 0, patience = 2 }": "setting evaluation.patience: expected evaluations",
    "environment.options=7": "setting environment.options: expected a table, received 7",
}


def test_invalid_values_are_reported_in_one_line():
    for override, message in INVALID.items():
        with refused_saying(message):
            load_config("alfworld-1.5b-hgpo-k2", [override])


@pytest.mark.parametrize("engine", ["transformers", "vllm", "first"])
@pytest.mark.parametrize(
    ("option", "setting"),
    [
        ({"temperature": 0.3}, "rollout.temperature"),
        ({"max_prompt_tokens": 9}, "rollout.max_prompt_tokens"),
        ({"stop": ["x"]}, "rollout.stop"),
        ({"chat_template": "x.jinja"}, "rollout.chat_template"),
        ({"max_tokens": 9}, "rollout.max_response_tokens"),
        ({"override_generation_config": {"temperature": 0.3}}, "rollout.temperature"),
        ({"generation_config": "folder"}, "rollout.temperature"),
        ({"enable_sleep_mode": True}, "rollout.sleep"),
        ({"model": "other"}, "model.path"),
        ({"logprobs_mode": "raw_logprobs"}, "it is processed_logprobs"),
        ({"top_p": 0.9}, "the update computes"),
    ],
)
def test_engine_options_do_not_change_what_settings_determine(engine, option, setting):
    (name,) = option
    with refused(rf"^setting rollout\.engine_options\.{name}: .*\({setting}"):
        replace(Config(), rollout={"engine": engine, "engine_options": option})


def test_engine_options_of_the_engine_alone_are_accepted():
    options = {
        "max_model_len": 4096,
        "generation_config": "vllm",
        "max_batch_tokens": 9,
        "request_seeds": True,
    }
    assert (
        replace(Config(), rollout={"engine_options": options}).rollout.engine_options
        == options
    )


def test_invalid_values_are_rejected_in_python_as_well():
    get_hgpo = get("hgpo").with_parameters
    for make, line in (
        (
            lambda: Config(iterations=-1),
            "setting iterations: expected int >= 1, received -1",
        ),
        (
            lambda: Config(iterations="x"),
            "setting iterations: expected int, received 'x'",
        ),
        (
            lambda: dataclasses.replace(Config().update, epochs=0),
            "setting epochs: expected int >= 1, received 0",
        ),
        (
            lambda: replace(SftConfig(), update={"epochs": 0}),
            "setting update.epochs: expected int >= 1, received 0",
        ),
        (lambda: Config(update=3), "setting update: expected a table, received 3"),
        (
            lambda: GenerationOptions(temperature=-1),
            "policy option temperature: expected float >= 0.0, received -1",
        ),
        (
            lambda: GenerationOptions(temperature=float("inf")),
            "policy option temperature: expected float <= 1.7",
        ),
        (
            lambda: get_hgpo(gamma=1.5),
            "parameter gamma: expected float <= 1.0, received 1.5",
        ),
        (
            lambda: get_hgpo(alpha=math.nan),
            "parameter alpha: expected a finite number, received nan",
        ),
    ):
        with refused_saying(line):
            make()


def test_a_configuration_extends_another(tmp_path):
    (tmp_path / "base.toml").write_text("[update]\nepochs = 2\nclip_high = 0.3\n")
    (tmp_path / "run.toml").write_text('extends = "base.toml"\n[update]\nepochs = 4\n')
    assert read_toml(tmp_path / "run.toml") == {
        "update": {"epochs": 4, "clip_high": 0.3}
    }
    content = (tmp_path / "run.toml").read_bytes()
    # a byte order mark, as editors on Windows write it
    (tmp_path / "run.toml").write_bytes(b"\xef\xbb\xbf" + content)
    assert read_toml(tmp_path / "run.toml") == {
        "update": {"epochs": 4, "clip_high": 0.3}
    }
    (tmp_path / "base.toml").write_text('extends = "run.toml"\n')
    with refused("extends itself"):
        read_toml(tmp_path / "run.toml")


def test_the_printed_configuration_can_be_loaded(tmp_path, hgpo):
    shown = hgpo.output(
        "train", "alfworld-7b-gigpo", "--set", "seed=5", "--print-config"
    )
    path = tmp_path / "shown.toml"
    path.write_text(shown)
    assert load_config(path) == load_config("alfworld-7b-gigpo", ["seed=5"])
    assert "webshop-7b-hgpo-k4" in hgpo("train", "--list")[1]


def test_files_that_are_not_configurations_are_reported(tmp_path):
    for text, line in (
        (b"a = ", "is not TOML"),
        (b"seed = 1\xff", "position 8"),
        ("seed = 1".encode("utf-16"), "is not TOML in UTF-8"),
        (b"extends = 3", "expected extends to name a file"),
        (b'extends = ["a", 1]', "expected extends to name a file"),
        (
            b"[optimiser]\nlearning_rate = 1" + b"0" * 400,
            "optimiser.learning_rate: expected a smaller number",
        ),
        (b"seed = " + b"9" * 5000, "is not TOML"),
        (b"[environment]\noptions = " + b"[" * 3000, "is not TOML"),
    ):
        (tmp_path / "run.toml").write_bytes(text)
        with refused(line):
            load_config(tmp_path / "run.toml")
    with refused("found a folder"):
        read_toml(tmp_path)


ON_PURPOSE = {
    "checkpoint.every",
    "advantage: step_weight",
    "model.gradient_checkpointing",
}
"""Values in which configurations differ from the scripts; the page explains them."""


def test_the_page_has_the_values_of_the_configurations():
    page = (Path(__file__).parents[2] / "docs/configurations.md").read_text("utf-8")
    assert configurations_page.rewrite(page) == page, (
        "run: python -m tools.configurations_page docs/configurations.md"
    )


def test_there_are_28_configurations_and_nothing_differs_by_accident():
    names = configurations_page.configurations()
    assert len(names) == 28
    different: dict[str, list[str]] = {}
    for name in names:
        for title, (ours, official) in configurations_page.compared(name).items():
            if ours != official:
                different.setdefault(title, []).append(name)
    assert different.keys() == ON_PURPOSE
    assert all(
        name.split("-")[2] in ("grpo", "gigpo", "g2po", "graphgpo")
        for name in different["checkpoint.every"]
    )
    assert different["advantage: step_weight"] == [
        "webshop-1.5b-g2po",
        "webshop-7b-g2po",
    ]


def test_configurations_without_an_official_script_say_so():
    for name in configurations_page.configurations():
        path = Path(configurations_page.SHIPPED[name])
        parts = (
            (path.parent / "parts" / "lora.toml").read_text()
            if name.endswith("lora")
            else ""
        )
        says = "no official script" in path.read_text() + parts
        assert says is not configurations_page.script_of(*name.split("-", 2)).exact, (
            name
        )


@pytest.mark.parametrize(
    ("world", "command"),
    [("alfworld", "hgpo data fetch alfworld"), ("webshop", "hgpo data build")],
)
def test_without_the_official_data_a_run_stops_with_the_command(
    world, command, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "nothing"))
    config = load_config(f"{world}-1.5b-grpo")
    with refused(f"official tasks of .* are not on this machine.*{command}"):
        env_options(config, config.environment.split)
    bundled = load_config(f"{world}-1.5b-grpo", ["environment.data=bundled"])
    assert "data" not in env_options(bundled, "train")
    for override in (
        "environment.data=/some/where",
        "environment.options.data=/some/where",
    ):
        named = load_config(f"{world}-1.5b-grpo", [override])
        assert env_options(named, "train")["data"] == "/some/where"


def test_official_games_are_found_where_alfworld_keeps_them(tmp_path, monkeypatch):
    pack = Path(__file__).parents[1] / "alfworld" / "official.pack"
    if not pack.exists():
        pytest.skip("no pack of official games")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "alfworld.pack").write_bytes(pack.read_bytes())
    config = load_config("alfworld-1.5b-grpo", ["environment.split=all"])
    assert env_options(config, config.environment.split)["data"] == "alfworld.pack"


def test_another_estimator_drops_the_parameters_that_it_does_not_have(tmp_path):
    dropped = load_config(
        "tiny-alfworld", ["advantage.parameters.gamma=0.9", "advantage.estimator=grpo"]
    ).advantage
    assert dropped.estimator == "grpo"
    assert dropped.parameters == {
        "reward": "success", "reward_scale": 10.0, "invalid_action_penalty": 0.0, "gamma": 0.9
    }  # fmt: skip
    own = tmp_path / "own.toml"
    own.write_text('extends = ["tiny-alfworld"]\n[advantage]\nestimator = "rloo"\n')
    assert "history_length" not in load_config(own).advantage.parameters
    for override in (
        "advantage.parameters.history_length=1",
        "advantage.parameters.gama=1",
    ):
        with refused(r"advantage\.parameters of rloo: unknown parameter"):
            configured_estimator(load_config(own, [override]))
    penalty = [
        "advantage.parameters.overlong_penalty=1",
        "rollout.max_response_tokens=8",
    ]
    with refused(
        r"expected overlong_limit = 8, the value of rollout.max_response_tokens"
    ):
        configured_estimator(load_config(own, penalty))
    # a run of another machine can be read
    own.write_text('[advantage]\nestimator = "elsewhere:mine"\n')
    assert load_config(own).advantage.estimator == "elsewhere:mine"


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ('[environment]\nid = "evil:ENV"', "evil:ENV"),
        ('[environment]\noptions = { python = "./evil" }', "./evil"),
        ('[advantage]\nestimator = "evil:estimate"', "evil:estimate"),
        ('[advantage]\nparameters = { state_key = "evil:key" }', "evil:key"),
        ("[rollout]\nengine_options = { trust_remote_code = true }", "True"),
        ('[rollout]\nengine_options = { worker_cls = "evil.Worker" }', "evil.Worker"),
        (
            'extends = "other.toml"\n[advantage]\nestimator = "evil:estimate"',
            "evil:estimate",
        ),
    ],
)
def test_the_configuration_of_a_run_of_others_runs_no_code(
    tmp_path, monkeypatch, hgpo, settings, name
):
    """Whether the run is resumed or its configuration is named: one line says what to add, and nothing is imported."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text(
        "import pathlib\npathlib.Path('started').touch()\n"
    )
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.toml").write_text(settings)
    (tmp_path / "run/other.toml").write_text(
        "[advantage]\nparameters = { gamma = 0.5 }"
    )
    expected = f"if you trust it, add --allow {name}"
    code, _, error = hgpo("train", "--resume", "--out", "run", "--print-config")
    assert code == 2
    assert expected in error
    StepWriter("run").close()
    code, _, error = hgpo("train", "run/config.toml", "--print-config")
    assert code == 2
    assert expected in error
    assert not (tmp_path / "started").exists()
    if name == "evil:ENV":
        for given in (["--allow", name], ["--set", f"environment.id={name}"]):
            assert (
                hgpo("train", "--resume", "--out", "run", "--print-config", *given)[0]
                == 0
            )
