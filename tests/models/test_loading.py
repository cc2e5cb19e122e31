"""What a model's files may make the loader do, damaged files, and checks before a download."""

import json
import shutil
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
from lazily import Lazy, lazily
from refusals import refused

from hgpo_envs.errors import InputError
from hgpo_train.models.config import LoraConfig, ModelConfig
from hgpo_train.models.preflight import check_model_source
from hgpo_train.models.tiny import TinyShape, save_tiny

torch = Lazy("torch")
load_file = Lazy("safetensors.torch:load_file")
save_file = Lazy("safetensors.torch:save_file")
load_model, load_tokenizer = lazily(
    "hgpo_train.models.loading", "load_model load_tokenizer"
)
meta_model = Lazy("hgpo_train.training.memory_plan:meta_model")
SHAPE = TinyShape(
    vocabulary=300, width=32, layers=2, heads=1, key_value_heads=1, intermediate=32
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("tiny"), ["go to cabinet 1"] * 9, SHAPE)


def load(folder, call=load_model):
    path = str(folder)
    return call(
        ModelConfig(path=path, device="cpu", compute_dtype="float32")
        if call is load_model
        else path
    )


@pytest.mark.parametrize(
    "entry",
    [
        {"_attn_implementation": "evil/kernel"},
        {"attn_implementation": "evil/kernel:attention"},
        {"text_config": {"_attn_implementation": {"": "evil/kernel"}}},
        {"parts": [{"_attn_implementation": "evil/kernel"}], "scale": float("nan")},
    ],
)
def test_attention_code_of_the_hub_is_refused(tiny, tmp_path, entry):
    for folder in (tmp_path / "model", tmp_path / "adapter"):
        shutil.copytree(tiny, tmp_path / "model", dirs_exist_ok=True)
        path = tmp_path / "model" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | entry))
        if folder.name == "adapter":  # of that model
            folder.mkdir()
            (folder / "adapter_config.json").write_text(
                json.dumps({"base_model_name_or_path": str(path.parent)})
            )
        for call in (load_model, meta_model):
            with refused(r"names attention code on the hub, .*evil/kernel"):
                load(folder, call)


@pytest.mark.parametrize(
    "content", ["[" * 100_000, "{", "[]", "\xff", "{}" + " " * (16 << 20)]
)
def test_settings_that_cannot_be_checked_are_refused(tiny, tmp_path, content):
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").write_text(content, "latin-1")
    with refused(r"config\.json"):
        load(tmp_path)


def test_a_model_with_the_settings_of_an_adapter_is_refused(tiny, tmp_path):
    """Transformers would load another model instead, or an adapter as well."""
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)
    (tmp_path / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": "someone/else"})
    )
    with refused(r"contains a model and adapter_config\.json"):
        load(tmp_path)


@pytest.mark.slow
def test_adapters_are_merged_and_not_replaced_by_new_ones(tiny, tmp_path):
    import torch

    tokens = torch.arange(5)[None]
    config = ModelConfig(
        path=str(tiny), device="cpu", compute_dtype="float32", lora=LoraConfig(rank=4)
    )
    adapted = load_model(config)
    for name, weights in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=0.1)
    adapted.save_pretrained(tmp_path)
    loaded = load(tmp_path)
    with torch.inference_mode():
        expected = adapted(tokens).logits
        plain = load(tiny)(tokens).logits
        torch.testing.assert_close(
            loaded(tokens).logits, expected, atol=1e-5, rtol=1e-5
        )
        assert (expected - plain).abs().max() > 0.01
    assert all(weights.requires_grad for weights in loaded.parameters())
    with refused("expected a model without adapters"):
        load_model(replace(config, path=str(tmp_path)))


@pytest.mark.parametrize(
    "targets", [("lm_head",), ("q_proj", "lm_head"), ("embed_tokens",)]
)
def test_adapters_of_tied_layers_are_refused(tiny, targets):
    config = ModelConfig(
        path=str(tiny),
        device="cpu",
        compute_dtype="float32",
        lora=LoraConfig(rank=4, targets=targets),
    )
    with refused(
        rf"model\.lora\.targets change '.*{targets[-1]}', but input and output"
    ):
        load_model(config)


def test_targets_that_match_no_layer_are_named_and_all_linear_layers_can_be_taken(tiny):
    def adapted(targets):
        lora = LoraConfig(rank=2, targets=targets)
        model = load_model(
            ModelConfig(
                path=str(tiny), device="cpu", compute_dtype="float32", lora=lora
            )
        )
        return {name.rpartition(".")[2] for name in model.targeted_module_names}

    with pytest.warns(
        UserWarning,
        match=r"targets: Qwen3ForCausalLM has no layers k, qkv_proj, so .*linear layers: .*, v_proj\)",
    ) as noted:
        assert adapted(("q_proj", "k", "qkv_proj")) == {"q_proj"}
    assert not any("\n" in str(warning.message) for warning in noted)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert (
            adapted("all-linear")
            == adapted(LoraConfig().targets)
            == {*LoraConfig().targets}
        )


@pytest.mark.filterwarnings(
    "ignore:Model has `tie_word_embeddings=True`",
    "ignore:Setting `save_embedding_layers`",
)
@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
        {"target_modules": ".*lm_head"},
        {"target_modules": ["lm_head", "embed_tokens"], "ensure_weight_tying": True},
    ],
)
def test_a_folder_with_adapters_of_tied_layers_is_refused(tiny, tmp_path, settings):
    import peft

    settings = peft.LoraConfig(task_type="CAUSAL_LM", r=2, **settings)
    peft.get_peft_model(load(tiny), settings).save_pretrained(tmp_path)
    with refused(r"^the adapters of .* change .*tie_word_embeddings"):
        load(tmp_path)


def test_pickled_weights_are_not_loaded(tiny, tmp_path):
    shutil.copytree(tiny, tmp_path, dirs_exist_ok=True)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with refused("cannot load a causal language model"):
        load(tmp_path)


DAMAGES = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "half": lambda path: path.write_bytes(
        path.read_bytes()[: path.stat().st_size // 2]
    ),
    "garbage": lambda path: path.write_bytes(b"\xff\x00{[" * 50),
    "list": lambda path: path.write_bytes(b"[1, 2]"),
    "object": lambda path: path.write_bytes(b'{"model_type": 3, "a": null}'),
    "nested": lambda path: path.write_bytes(b"[" * 100_000),
    "folder": lambda path: (path.unlink(), path.mkdir()),
    "dangling link": lambda path: (path.unlink(), path.symlink_to("nowhere")),
}
NEEDED = {
    "config.json": load_model,
    "model.safetensors": load_model,
    "tokenizer.json": load_tokenizer,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [*NEEDED, "generation_config.json", "tokenizer_config.json", "chat_template.jinja"],
)
def test_damaged_files_of_a_model_are_reported_in_one_line(
    tiny, tmp_path, monkeypatch, name
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for damage, spoil in DAMAGES.items():
        folder = tmp_path / damage
        shutil.copytree(tiny, folder)
        spoil(folder / name)
        refused = {}
        for call in (load_tokenizer, load_model):
            try:
                load(folder, call)
            except InputError as error:
                refused[call] = str(error)
        assert all(
            "\n" not in line and str(folder) in line for line in refused.values()
        )
        assert name not in NEEDED or NEEDED[name] in refused, damage


def test_missing_weights_are_not_initialised_randomly(tiny, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny, folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if "layers.1.mlp" in name]:
        del tensors[name]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with refused(
        r"no weights for 'model\.layers\.1\.mlp\.down_proj\.weight' and 2 more"
    ):
        load(folder)


hub = pytest.importorskip("huggingface_hub", reason="needs the extra `train`")


@pytest.fixture
def answer(monkeypatch, tmp_path):
    """Return a function that sets what the hub's client returns or raises; nothing is in the cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_: None)

    def answer(result):
        def download(*_args, dry_run, **_options):
            assert dry_run
            if isinstance(result, Exception):
                raise result
            return result

        monkeypatch.setattr(hub, "snapshot_download", download)

    return answer


def test_a_download_that_fits_passes_and_one_that_does_not_is_refused(answer, tmp_path):
    answer([SimpleNamespace(file_size=1000, will_download=True)] * 2)
    check_model_source("me/tiny")
    answer([SimpleNamespace(file_size=10**15, will_download=True)] * 2)
    with refused(r"^the download of me/tiny needs 2,000,000\.0 GB in "):
        check_model_source("me/tiny")


def raised(exception):
    """Return an error of the hub, without the HTTP response that its constructor wants, as a dry run wraps it."""
    error = hub.errors.DryRunError("no")
    error.__cause__ = exception.__new__(exception)
    return error


@pytest.mark.parametrize(
    ("exception", "line"),
    [
        ("RepositoryNotFoundError", "the hub has no public model of this name"),
        ("GatedRepoError", "it requires a permission"),
        ("OfflineModeIsEnabled", "HF_HUB_OFFLINE is set"),
        ("LocalEntryNotFoundError", "cannot be reached"),
    ],
)
def test_a_model_that_cannot_be_downloaded_is_one_line_unless_it_is_in_the_cache(
    answer, monkeypatch, exception, line
):
    answer(raised(getattr(hub.errors, exception)))
    with refused(f"^no folder 'me/tiny'; .*{line}"):
        check_model_source("me/tiny")
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_: "config.json")
    check_model_source("me/tiny")


def test_a_path_without_a_folder_is_not_looked_up():
    with refused(r"^no folder './no/folder'"):
        check_model_source("./no/folder")


def small(folder, kind, **settings):
    """Save a model of another architecture with random weights; return its settings."""
    from architectures import ARCHITECTURES, SIZES
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        kind, **{**SIZES, **ARCHITECTURES.get(kind, {}), **settings}
    )
    AutoModelForCausalLM.from_config(
        config, attn_implementation="eager"
    ).save_pretrained(folder)
    return ModelConfig(
        path=str(folder), device="cpu", compute_dtype="float32", attention="eager"
    )


def test_a_model_that_cannot_recompute_its_layers_names_the_setting(tmp_path):
    config = small(tmp_path, "openai-gpt", n_embd=32, n_layer=2, n_head=4)
    with refused("model.gradient_checkpointing: .* cannot recompute its layers"):
        load_model(config)
    load_model(replace(config, gradient_checkpointing=False))


def test_the_noise_of_routers_is_disabled_like_dropout(tmp_path):
    """Mixtral multiplies the inputs of its routers by 1 ± router_jitter_noise in training."""
    config = small(tmp_path, "mixtral", router_jitter_noise=0.5)
    with pytest.warns(UserWarning, match="routers' noise, is set to 0"):
        model = load_model(config)
    tokens = torch.arange(3, 40)[None]
    with torch.no_grad():
        expected = model.eval()(tokens).logits
        assert torch.equal(model.train()(tokens).logits, expected)
