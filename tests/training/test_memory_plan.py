"""The memory plan: against fake-tensor measurements, for known cards, and as a preflight of `hgpo train`."""

import dataclasses
import warnings
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from rich.console import Console
from transformers import Qwen2Config
from typer.testing import CliRunner

from hgpo_envs.errors import InputError
from hgpo_train.cli import app
from hgpo_train.models.loading import add_adapters
from hgpo_train.models.shapes import PUBLISHED, ModelShape, model_shape
from hgpo_train.training import gpu_memory
from hgpo_train.training.config import Config, load_config, replace, shipped
from hgpo_train.training.display import Display
from hgpo_train.training.gpu_memory import SharedGpu, check_memory
from hgpo_train.training.memory_plan import CARDS, GIB, Card, MemoryPlan, alternatives, named_card, plan_memory
from hgpo_train.training.plan_text import plan_table

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PAPERS = [name for name in shipped() if not name.startswith("tiny")]


@pytest.fixture
def fake_peak(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import memory_plan

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield memory_plan.fake_peak


@pytest.fixture(scope="module")
def shapes() -> dict[str, ModelShape]:
    return {path: model_shape(path) for path in PUBLISHED}


def plan(name: str, card: str, shapes: dict[str, ModelShape], **changes: object) -> MemoryPlan:
    config = replace(load_config(name), **changes)
    return plan_memory(config, shapes[config.model.path], named_card(card))


def small(folder: Path, **sizes: object) -> Config:
    """Return a configuration of a model of other proportions than Qwen's; only its config.json exists."""
    shape = {"vocab_size": 20_000, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    Qwen2Config(**{**shape, **heads, **sizes}).save_pretrained(folder)
    return replace(Config(), model={"path": str(folder)}, update={"micro_batch_tokens": 8 * 1024})


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("rank", [0, 16])
@pytest.mark.parametrize("checkpointing", [True, False])
def test_planned_peaks_are_those_of_fake_tensors(fake_peak, tmp_path, dtype, rank, checkpointing) -> None:
    config = small(tmp_path, tie_word_embeddings=bool(rank))
    model = {"compute_dtype": dtype, "gradient_checkpointing": checkpointing, "lora": {"rank": rank}}
    config = replace(config, model=model, update={"kl_weight": 0.0})
    planned = plan_memory(config, model_shape(config.model.path), CARDS[0]).learner.update
    assert 0.98 < planned / fake_peak(config, 8) < 1.06


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("chunk", [128, 0])
def test_a_plan_covers_the_output_layer(fake_peak, tmp_path, tied, chunk) -> None:
    """A few tokens of a large vocabulary: the output layer decides the peak."""
    config = small(tmp_path, tie_word_embeddings=tied, vocab_size=150_000, num_hidden_layers=1)
    config = replace(config, update={"kl_weight": 0.0, "logit_chunk": chunk, "micro_batch_tokens": 1024})
    planned = plan_memory(config, model_shape(config.model.path), CARDS[0]).learner.update
    responses = 1024 if chunk == 0 else 128  # the plan assumes that all tokens are responses where chunks do not limit
    assert 0.98 < planned / fake_peak(config, 1, responses=responses) < 1.15


@pytest.mark.slow
@pytest.mark.parametrize(("name", "audited"), [("alfworld-1.5b-hgpo-k2", 28.5), ("alfworld-7b-hgpo-k2-lora", 0.0)])
def test_planned_peaks_at_the_papers_size(fake_peak, shapes, name, audited) -> None:
    config = replace(load_config(name), update={"micro_batch_tokens": 32 * 1024})
    learner = plan_memory(config, shapes[config.model.path], named_card("80")).learner
    peak = fake_peak(config, 32)
    assert 0.98 < (learner.update - learner.reference) / peak < 1.03
    if audited:  # an earlier measurement, of a first micro-batch, when there are no gradients yet
        assert (peak - learner.gradients) / GIB == pytest.approx(audited, abs=0.1)


def test_weights_and_adapters_are_counted(shapes) -> None:
    """Qwen2.5's model cards: 1.54 and 7.61 billion parameters."""
    assert shapes["Qwen/Qwen2.5-1.5B-Instruct"].parameters == pytest.approx(1.54e9, rel=0.005)
    assert shapes["Qwen/Qwen2.5-7B-Instruct"].parameters == pytest.approx(7.61e9, rel=0.005)


def test_adapters_are_those_that_peft_adds(tmp_path) -> None:
    from transformers import AutoModelForCausalLM

    config = small(tmp_path)
    with torch.device("meta"):
        bare = AutoModelForCausalLM.from_config(Qwen2Config.from_pretrained(tmp_path))
        adapted = add_adapters(bare, dataclasses.replace(config.model.lora, rank=8))
    trained = sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
    assert model_shape(str(tmp_path)).adapters(8, config.model.lora.targets) == trained


@pytest.mark.parametrize("name", PAPERS)
def test_full_7b_fits_on_no_card_and_everything_else_on_80_gb(name, shapes) -> None:
    full_7b = "-7b-" in name and not name.endswith("-lora")
    assert plan(name, "H100-80", shapes).fits is not full_7b
    assert plan(name, "H200-141", shapes).fits is not full_7b


@pytest.mark.parametrize("name", PAPERS)
@pytest.mark.parametrize("card", [card.name for card in CARDS])
def test_what_is_said_to_fit_fits(name, card, shapes) -> None:
    made = plan(name, card, shapes)
    if made.fits:
        assert max(made.rollout, made.update) <= made.card.memory
        assert made.sequences >= 8
        return
    shape = shapes[made.config.model.path]
    for line in alternatives(made, shape):
        if line.startswith("--set "):
            config = load_config(name, [part.strip() for part in line.split("--set ")[1:]])
            assert plan_memory(config, shape, made.card).fits


def test_more_memory_never_makes_a_plan_worse(shapes) -> None:
    plans = [plan("alfworld-1.5b-hgpo-k2", str(size), shapes) for size in range(20, 160, 4)]
    assert [made.fits for made in plans] == sorted(made.fits for made in plans)
    assert all(made.sequences <= other.sequences + 8 for made, other in pairwise(plans))


def test_sleep_and_offloading_need_less(shapes) -> None:
    awake = plan("alfworld-1.5b-hgpo-k2", "A100-40", shapes)
    asleep = plan("alfworld-1.5b-hgpo-k2", "A100-40", shapes, rollout={"sleep": True})
    both = plan("alfworld-1.5b-hgpo-k2", "A100-40", shapes, rollout={"sleep": True, "offload_optimiser": True})
    assert asleep.update == awake.update - awake.share
    assert both.learner.rollout(offload=True) == asleep.learner.rollout(offload=False) - asleep.learner.moments
    assert both.share > asleep.share > awake.share


def test_a_configured_share_is_used_as_it_is(shapes) -> None:
    options = {"gpu_memory_utilization": 0.5, "enforce_eager": True}
    made = plan("alfworld-1.5b-hgpo-k2", "A100-80", shapes, rollout={"engine_options": options})
    assert made.engine_options() == options
    assert made.share == int(0.5 * made.card.memory)
    fixed = plan("alfworld-1.5b-hgpo-k2", "A100-80", shapes, rollout={"engine_options": {"kv_cache_memory_bytes": 1}})
    assert fixed.engine_options() == {"kv_cache_memory_bytes": 1}


def test_the_disk_is_bounded(shapes) -> None:
    """1.5B: 4 bytes a weight and 8 for the moments; three checkpoints at a time with keep = 2, two with moments."""
    disk = plan("alfworld-1.5b-hgpo-k2", "80", shapes, checkpoint={"every": 1, "keep": 2}).disk
    assert disk.checkpoints == (3 * 4 + 2 * 8) * 1_543_714_304
    everything = plan("alfworld-1.5b-hgpo-k2", "80", shapes, checkpoint={"every": 40, "keep": 0}).disk
    assert everything.checkpoints == (4 * 4 + 2 * 8) * 1_543_714_304


def test_unknown_cards_are_rejected() -> None:
    for wrong in ("B300", "-3", "nan", ""):
        with pytest.raises(InputError, match="--card: expected 4090-24"):
            named_card(wrong)


def test_hgpo_train_prints_the_plan() -> None:
    done = CliRunner().invoke(app, ["train", "alfworld-7b-grpo", "--plan", "--card", "H200-141"])
    assert done.exit_code == 1
    assert "does not fit on H200-141" in done.output
    assert "model.lora.rank=64" in done.output
    assert "with verl, which shards the weights: `hgpo-verl alfworld-7b-grpo --gpus 4`" in done.output
    fitting = CliRunner().invoke(app, ["train", "alfworld-1.5b-grpo", "--plan", "--card", "H200-141"])
    assert fitting.exit_code == 0
    assert "fits on H200-141" in fitting.output
    every = CliRunner().invoke(app, ["train", "alfworld-7b-grpo", "--plan"])
    assert every.exit_code == 0
    assert all(card.name in every.output for card in CARDS)


def test_a_run_that_does_not_fit_is_refused_before_anything_is_loaded(monkeypatch) -> None:
    monkeypatch.setattr(gpu_memory, "choose_device", lambda name: torch.device("cpu"))
    monkeypatch.setattr(gpu_memory, "this_card", lambda device: Card("stand-in", int(79.1 * GIB)))
    config = load_config("webshop-7b-hgpo-k4")
    shown = Console(record=True, width=200)
    line = r"does not fit on stand-in.*lora\.rank=64.*hgpo-verl webshop-7b-hgpo-k4 --gpus 4.*check_memory = false"
    with pytest.raises(InputError, match=line):
        check_memory(config, Display(shown, 1))
    assert "activations of 16,384 tokens" in shown.export_text()
    made = check_memory(replace(config, check_memory=False), Display(shown, 1))
    assert made is not None


def test_without_a_gpu_there_is_no_preflight() -> None:
    config = replace(load_config("alfworld-7b-grpo"), model={"device": "cpu"})
    assert check_memory(config, Display(Console(), 1)) is None


def test_a_plan_prints_its_parts(shapes) -> None:
    console = Console(record=True, width=200)
    made = plan("alfworld-1.5b-hgpo-k2", "H100-80", shapes)
    console.print(plan_table(made, shapes[made.config.model.path]))
    shown = console.export_text()
    for part in ("weights (float32)", "gradients", "optimiser", "reference", "engine: cache", "5.8 GiB of weights"):
        assert part in shown


class Recorder:
    """A stand-in for a policy, which records calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def sleep(self) -> None:
        self.calls.append("sleep")

    def wake_up(self) -> None:
        self.calls.append("wake_up")


def stepped() -> torch.optim.Optimizer:
    weight = torch.nn.Parameter(torch.ones(3))
    optimiser = torch.optim.AdamW([weight])
    weight.grad = torch.ones(3)
    optimiser.step()
    return optimiser


def test_the_engine_sleeps_and_the_state_returns_for_the_update(monkeypatch) -> None:
    rollout = dataclasses.replace(load_config("alfworld-1.5b-grpo").rollout, sleep=True, offload_optimiser=True)
    policy = Recorder()
    monkeypatch.setattr(gpu_memory, "move_state", lambda optimiser, device: policy.calls.append(f"state to {device}"))
    gpu = SharedGpu(rollout, stepped(), torch.device("cuda"))
    gpu.free()
    with gpu.update(policy):
        policy.calls.append("update")
    assert policy.calls == ["state to cpu", "sleep", "state to cuda", "update", "state to cpu", "wake_up"]


def test_without_the_settings_nothing_moves() -> None:
    policy, optimiser = Recorder(), stepped()
    gpu = SharedGpu(load_config("alfworld-1.5b-grpo").rollout, optimiser, torch.device("meta"))
    with gpu.update(policy):
        (state,) = optimiser.state.values()
        assert state["exp_avg"].device.type == "cpu"
    assert policy.calls == []


def test_an_engine_that_does_not_start_names_its_share(monkeypatch) -> None:
    from hgpo_train.policies import vllm
    from hgpo_train.policies.generation import GenerationOptions
    from hgpo_train.policies.registry import TrainableContext

    def full(*args: object, **kwargs: object) -> None:
        raise RuntimeError("Engine core initialization failed.\nSee root cause above.")

    monkeypatch.setattr(vllm, "check_vllm", lambda: None)
    monkeypatch.setattr(vllm, "VLLMPolicy", full)
    model = replace(Config(), model={"path": "tiny"}).model
    context = TrainableContext(model, GenerationOptions(), {"gpu_memory_utilization": 0.27})
    with pytest.raises(
        InputError, match=r"gpu_memory_utilization = 0.27 \(Engine core .*rollout.sleep = true"
    ) as caught:
        vllm.make_trainable(None, None, context)
    assert "\n" not in str(caught.value)
