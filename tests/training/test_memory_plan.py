"""The memory plan: against fake-tensor measurements, for known cards, and as a preflight of `hgpo train`."""

import dataclasses
import warnings
from functools import cache
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from architectures import ARCHITECTURES, SIZES
from lazily import Lazy
from refusals import refused
from rich.console import Console

from hgpo_train.training.config import SHIPPED, Config, load_config, replace
from hgpo_train.training.display import Display

torch = Lazy("torch")
transformers = Lazy("transformers")
memory_plan = Lazy("hgpo_train.training.memory_plan")
trainer = Lazy("hgpo_train.training.trainer")


@pytest.fixture
def fake_peak():
    from benchmarks import memory_plan as benchmark

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield benchmark.fake_peak


@cache
def model_of(path):
    return memory_plan.meta_model(path)


def plan(name, card, **changes):
    config = replace(load_config(name), **changes)
    return memory_plan.plan_memory(
        config, model_of(config.model.path), memory_plan.named_card(card)
    )


def small(folder, **sizes):
    """Return a configuration of a model of other proportions than Qwen's; only its config.json exists."""
    shape = {
        "vocab_size": 20_000,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 6,
    }
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    transformers.Qwen2Config(**{**shape, **heads, **sizes}).save_pretrained(folder)
    update = {"micro_batch_tokens": 8 * 1024, "kl_weight": 0.0, "logit_chunk": 128}
    return replace(Config(), model={"path": str(folder)}, update=update)


def planned(config):
    """Return the plan's configuration, and the bytes of the learner during the update without the reference."""
    plan = memory_plan.plan_memory(
        config, memory_plan.meta_model(config.model.path), memory_plan.CARDS[0]
    )
    return plan.config, sum(
        plan.parts[name][1]
        for name in ("weights", "gradients", "optimiser", "activations")
    )


def test_a_multimodal_model_has_the_plan_and_flops_of_its_text(tmp_path):
    """What its image tower adds are weights, which are loaded."""
    text = {**SIZES, **ARCHITECTURES["gemma3_text"]}
    vision = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    both = transformers.Gemma3Config(text_config=text, vision_config=vision)
    plans = []
    for config in (both, both.text_config):
        config.save_pretrained(tmp_path)
        of_it = replace(
            Config(),
            model={"path": str(tmp_path), "lora": {"rank": 2, "targets": "all-linear"}},
        )
        plans.append(
            memory_plan.plan_memory(
                of_it, memory_plan.meta_model(str(tmp_path)), memory_plan.CARDS[0]
            )
        )
    assert plans[0].sequence == plans[1].sequence == (4096 + 512) * 2 * 2 * 2 * 8 * 2
    assert plans[0].parts["activations"] == plans[1].parts["activations"]
    assert plans[0].parts["weights"] > plans[1].parts["weights"]


@pytest.mark.slow
def test_models_of_the_table_have_a_plan_and_flops(tmp_path):
    """Configurations name sizes in many ways, and some have one for each layer, or none."""
    import numpy as np

    from hgpo_train.training.update.throughput import model_flops

    lengths = np.array([64])
    for kind, shape in {**ARCHITECTURES, "mamba": {}, "rwkv": {}}.items():
        known = transformers.CONFIG_MAPPING[kind]()
        names = {*vars(known), *known.attribute_map} - {"intermediate_size"}
        sizes = {name: size for name, size in SIZES.items() if name in names}
        config = type(known)(**{**sizes, **shape})
        config.save_pretrained(tmp_path)
        settings = replace(Config(), model={"path": str(tmp_path)})
        model = memory_plan.meta_model(str(tmp_path))
        of_it = memory_plan.plan_memory(settings, model, memory_plan.CARDS[-1])
        assert of_it.fits, kind
        assert of_it.table(), kind
        assert model_flops(model, lengths, lengths) > 0, kind


def test_sizes_of_layers_that_differ_are_the_largest():
    from hgpo_train.models.hf import head_width, size_of

    class Heterogeneous:
        """As Transformers' configurations whose layers have their own sizes."""

        hidden_size = 64
        per_layer_config = (SimpleNamespace(head_dim=16), SimpleNamespace(head_dim=32))

        @property
        def head_dim(self):
            raise RuntimeError("'head_dim' varies across layers")

    assert head_width(Heterogeneous()) == 32
    listed = SimpleNamespace(hidden_size=64, intermediate_size=[96, 128], n_inner=None)
    assert size_of(listed, "n_inner", "intermediate_size") == 128
    assert size_of(listed, "n_inner") is None
    assert head_width(listed) == 64


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "rank", "checkpointing"),
    [
        ("bfloat16", 0, True),
        ("bfloat16", 16, True),
        ("bfloat16", 0, False),
        ("float32", 16, False),
    ],
)
def test_planned_peaks_are_those_of_fake_tensors(
    fake_peak, tmp_path, dtype, rank, checkpointing
):
    model = {
        "compute_dtype": dtype,
        "gradient_checkpointing": checkpointing,
        "lora": {"rank": rank},
    }
    config, expected = planned(
        replace(small(tmp_path, tie_word_embeddings=bool(rank)), model=model)
    )
    assert 0.98 < expected / fake_peak(config, 8) < 1.03


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("chunk", [128, 1024, 0])
def test_a_plan_covers_the_output_layer(fake_peak, tmp_path, tied, chunk):
    """A few tokens of a large vocabulary: the output layer decides the peak."""
    config = small(
        tmp_path, tie_word_embeddings=tied, vocab_size=150_000, num_hidden_layers=1
    )
    config, expected = planned(
        replace(config, update={"logit_chunk": chunk, "micro_batch_tokens": 1024})
    )
    # the plan assumes that all tokens are responses where chunks do not limit
    responses = chunk or 1024
    assert 0.98 < expected / fake_peak(config, 1, responses=responses) < 1.15


@pytest.mark.slow
def test_weights_and_adapters_are_counted(tmp_path):
    """Qwen2.5's model cards: 1.54 and 7.61 billion parameters; adapters are those that peft adds."""
    for size, billions in (("1.5b", 1.54), ("7b", 7.61)):
        weights = plan(f"alfworld-{size}-hgpo-k2", "H200-141").parts["weights"][0]
        assert weights == pytest.approx(4 * billions * 1e9, rel=0.005)
    from hgpo_train.models.adapters import add_adapters

    config = small(tmp_path)
    config = replace(config, model={"lora": {"rank": 8}})
    with torch.device("meta"):
        adapted = add_adapters(memory_plan.meta_model(str(tmp_path)), config.model.lora)
    trained = sum(
        weight.numel() for weight in adapted.parameters() if weight.requires_grad
    )
    planned = memory_plan.plan_memory(
        config, memory_plan.meta_model(str(tmp_path)), memory_plan.CARDS[0]
    )
    assert planned.parts["gradients"][1] == 4 * trained


@pytest.mark.slow
def test_full_7b_fits_on_no_card_and_everything_else_on_80_gb():
    for name in SHIPPED:
        if not name.startswith("tiny"):
            full_7b = "-7b-" in name and not name.endswith("-lora")
            for card in ("H100-80", "H200-141"):
                assert plan(name, card).fits is not full_7b, (name, card)


def test_layers_are_recomputed_only_where_their_activations_do_not_fit_beside_the_engines_cache():
    for card, tokens, sleep, expected in (
        ("A100-80", 8192, False, (True, 1024)),
        ("H200-141", 8192, False, (False, 1024)),
        # the engine's memory is free during the update
        ("A100-80", 8192, True, (False, 1024)),
        ("A100-80", 32768, True, (True, 1024)),
        ("4090-24", 32768, True, (True, 128)),
    ):
        changes = {
            "update": {"micro_batch_tokens": tokens},
            "rollout": {"sleep": sleep},
        }
        chosen = plan("alfworld-1.5b-hgpo-k2", card, **changes)
        assert (
            chosen.config.model.gradient_checkpointing,
            chosen.config.update.logit_chunk,
        ) == expected
        changes["update"]["logit_chunk"] = 128
        slowest = plan(
            "alfworld-1.5b-hgpo-k2",
            card,
            **changes,
            model={"gradient_checkpointing": True},
        )
        assert slowest.config.model.gradient_checkpointing is True
        assert (chosen.share, chosen.fits) == (slowest.share, slowest.fits)


def test_a_configured_share_is_used_as_it_is():
    options = {"gpu_memory_utilization": 0.5, "enforce_eager": True}
    configured = plan(
        "alfworld-1.5b-hgpo-k2", "A100-80", rollout={"engine_options": options}
    )
    assert configured.engine_options() == options
    assert configured.share == int(0.5 * configured.card.memory)
    fixed = plan(
        "alfworld-1.5b-hgpo-k2",
        "A100-80",
        rollout={"engine_options": {"kv_cache_memory_bytes": 1}},
    )
    assert fixed.engine_options() == {"kv_cache_memory_bytes": 1}


def test_an_engine_with_a_card_of_its_own_leaves_the_learners_card_alone():
    """vLLM takes the first card; `model.device` names the learner's."""
    name = "alfworld-1.5b-hgpo-k2"
    shared = plan(name, "H100-80")
    config = replace(load_config(name), model={"device": "cuda:1"})
    model = model_of(config.model.path)
    small = memory_plan.named_card("L40S-48")
    large = memory_plan.named_card("H100-80")
    assert not plan(name, "L40S-48").fits
    apart = memory_plan.plan_memory(config, model, small, large)
    assert apart.fits
    others = [part for name, part in shared.parts.items() if name != "engine"]
    saved = [part for name, part in apart.parts.items() if name != "engine"]
    assert sum(at_update for _, at_update in saved) == apart.totals[1]
    assert sum(at_rollout for at_rollout, _ in others) >= apart.totals[0]
    assert apart.engine_options() == {
        "gpu_memory_utilization": round(apart.share / large.memory, 2)
    }
    assert apart.share >= shared.share
    assert "48, 44.4 GiB, and the engine on H100-80, 79.1 GiB" in apart.table()
    # too little for the engine's weights there
    tiny = memory_plan.named_card("4")
    assert not memory_plan.plan_memory(config, model, large, tiny).fits
    # two cards for the engine are the first two
    both = {"engine_options": {"tensor_parallel_size": 2}}
    assert not memory_plan.has_own_card(replace(config, rollout=both))


def test_hgpo_train_prints_the_plan(hgpo):
    code, output, _ = hgpo("train", "alfworld-7b-grpo", "--plan", "--card", "H200-141")
    assert code == 1
    assert "does not fit on H200-141" in output
    assert "model.lora.rank = 64" in output
    assert (
        "with verl, which shards the weights: `hgpo-verl alfworld-7b-grpo --gpus 4`"
        in output
    )
    output = hgpo.output("train", "alfworld-1.5b-grpo", "--plan", "--card", "H200-141")
    for part in (
        "fits on H200-141",
        "gradients",
        "optimiser",
        "reference",
        "the cache holds",
    ):
        assert part in output
    output = hgpo.output("train", "alfworld-7b-grpo", "--plan")
    assert all(card.name in output for card in memory_plan.CARDS)


def test_a_run_that_does_not_fit_is_refused_before_anything_is_loaded(monkeypatch):
    monkeypatch.setattr(
        "hgpo_train.training.memory_plan.choose_device",
        lambda name: torch.device("cpu"),
    )
    card = memory_plan.Card("stand-in", int(79.1 * memory_plan.GIB))
    monkeypatch.setattr(
        "hgpo_train.training.memory_plan.this_card", lambda device: card
    )
    config = load_config("webshop-7b-hgpo-k4")
    shown = Console(record=True, width=200)
    message = (
        r"does not fit on stand-in.*16,384 tokens: weights.*lora\.rank = 64.*"
        r"hgpo-verl webshop-7b-hgpo-k4 --gpus 4.*check_memory = false"
    )
    with refused(message):
        memory_plan.check_memory(config, Display(shown, 1))
    assert "activations" in shown.export_text()
    assert (
        memory_plan.check_memory(replace(config, check_memory=False), Display(shown, 1))
        is not None
    )


def test_a_configuration_for_gpus_is_refused_without_one(monkeypatch):
    monkeypatch.setattr("torch.accelerator.is_available", lambda: False)
    config = load_config("alfworld-1.5b-grpo")
    display = Display(Console(), 1)
    for version, reason in (
        (None, "is not built for CUDA"),
        ("12.8", "CUDA 12.8 needs an NVIDIA driver 525 or newer"),
    ):
        monkeypatch.setattr("torch.version.cuda", version)
        with refused(f"alfworld-1.5b-grpo needs a GPU, and torch .*{reason}"):
            memory_plan.check_memory(config, display)
    assert (
        memory_plan.check_memory(replace(config, model={"device": "cpu"}), display)
        is None
    )


def test_the_engine_sleeps_and_the_state_returns_for_the_update(monkeypatch):
    plain = load_config("alfworld-1.5b-grpo").rollout
    rollout = dataclasses.replace(plain, sleep=True, offload_optimiser=True)
    calls = []
    policy = SimpleNamespace(
        sleep=lambda: calls.append("sleep"), wake_up=lambda: calls.append("wake_up")
    )
    learner = SimpleNamespace(optimiser=None, device=torch.device("cuda"))
    moved = "hgpo_train.training.trainer.move_state"
    monkeypatch.setattr(
        moved, lambda optimiser, device: calls.append(f"state to {device}")
    )
    with trainer.gpu_for_update(rollout, policy, learner):
        calls.append("update")
    assert calls == [
        "sleep",
        "state to cuda",
        "update",
        "state to cpu",
        "wake_up",
    ]
    calls.clear()
    with trainer.gpu_for_update(plain, policy, learner):
        assert calls == []


def test_an_engine_that_does_not_start_names_its_share(monkeypatch):
    from hgpo_train.policies import vllm
    from hgpo_train.policies.generation import GenerationOptions
    from hgpo_train.policies.registry import TrainableContext

    full = RuntimeError("Engine core initialization failed.\nSee root cause above.")
    monkeypatch.setattr(vllm, "check_vllm", lambda: None)
    monkeypatch.setattr(vllm, "VLLMPolicy", Mock(side_effect=full))
    model = replace(Config(), model={"path": "tiny"}).model
    context = TrainableContext(
        model, GenerationOptions(), {"gpu_memory_utilization": 0.27}
    )
    message = r"gpu_memory_utilization = 0.27 \(Engine core .*rollout.sleep = true"
    with refused(message):
        vllm.make_trainable(None, None, context)
