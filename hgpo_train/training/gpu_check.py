"""Checks of a GPU, a minute before a run depends on it: `hgpo check gpu`.

Every check returns a value, its bound and, if it fails, the repair. The models have random weights; nothing is
downloaded. What needs CUDA or vLLM is skipped without it, with the reason. On a CPU the other checks run as well.
"""

from __future__ import annotations

import copy
import itertools
import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import polars as pl
import torch

from hgpo_envs.errors import one_line
from hgpo_envs.plugins import install_command
from hgpo_train.models.checkpoint_files import TrainingState
from hgpo_train.models.hf import no_progress_bars
from hgpo_train.models.loading import add_adapters, checkpoint_layers, choose_device, compute_dtype, why_no_gpu
from hgpo_train.models.packed_attention import PACKED_SDPA
from hgpo_train.models.tiny import train_tokenizer
from hgpo_train.training.checkpoint import load_checkpoint, save_checkpoint
from hgpo_train.training.config import Config, OptimiserConfig, replace
from hgpo_train.training.memory_plan import GIB, meta_model, plan_memory, this_card
from hgpo_train.training.update.batches import samples_from_steps
from hgpo_train.training.update.learner import Fixed, Learner
from hgpo_train.training.update.optimiser import make_optimiser, move_state

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from hgpo_train.models.hf import Model
    from hgpo_train.policies.vllm import VLLMPolicy
    from hgpo_train.training.update.batches import Samples

_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the file system in memory that vLLM's processes use
FREE_MEMORY: Final = "free memory"
VOCABULARY: Final = 512
LENGTHS: Final = (64, 1024, 4096)
UNEVEN: Final = [256, 240, 90]
RESPONSE: Final = 16
LARGEST_ON_A_CPU: Final = 50_000_000
"""Weights of the largest model whose step is tried on a CPU."""
TEXTS: Final = ("You are in the middle of a room. Go to cabinet 1.", "take plate 1 from shelf 2") * 4
UPDATE: Final = "torch, its CUDA build and the driver disagree: update all three, and attach --json to an issue"
_REPAIRS: Final = {
    PACKED_SDPA: 'set update.layout = "padded", and attach --json to an issue',
    "flash_attention_2": 'reinstall flash-attn for this torch, or use attention = "sdpa"',
}


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: Its name.
        verdict: ``pass``, ``fail``, or ``skip`` if it cannot run here.
        value: What was measured; or why the check was skipped, or the error that ended it.
        bound: What the value is compared with.
        repair: What to do if it failed.
    """

    check: str
    verdict: Literal["pass", "fail", "skip"]
    value: str
    bound: str = ""
    repair: str = ""

    def line(self) -> str:
        """Return the result as one line."""
        mark = {"pass": "✓", "fail": "✗", "skip": "-"}[self.verdict]
        bound = f" (bound: {self.bound})" if self.bound else ""
        return f"{mark} {self.check:<36} {self.value}{bound}{f' → {self.repair}' if self.repair else ''}"


class Skipped(Exception):  # noqa: N818 - it is no error
    """A check cannot run here; the message is the reason."""


Result = tuple[bool, str, str]
"""Whether a check passed, the value and its bound."""


def check_gpu(config: Config | None = None, *, short: bool = False) -> Iterator[Finding]:
    """Check the device of a configuration, or the one that ``auto`` selects.

    Args:
        config: The configuration whose memory and step are checked; None leaves these out.
        short: Only the checks of the machine, and one of the numbers, which together take seconds.

    Yields:
        The results, in order. An exception in a check is its result: the others still run.
    """
    device = choose_device("auto" if config is None else config.model.device)
    start = "KL and ratio"
    checks: list[tuple[str, str, Callable[[], Result]]] = [
        ("device", "install the driver, or another build of torch", partial(_device, device)),
        ("bfloat16", 'use an Ampere GPU or newer, or model.compute_dtype = "float32"', partial(_half, device)),
        (FREE_MEMORY, "end other programs on the GPU, or see --plan", partial(_free_memory, device, config)),
        (str(_MEMORY), "start the container with --shm-size=16g or --ipc=host", _shared_memory),
        ("expandable_segments", "unset PYTORCH_CUDA_ALLOC_CONF: vLLM's sleep and CUDA IPC fail", _segments),
        (f"{start}, sdpa 64", UPDATE, partial(_start, device, "sdpa", 64)),
    ]
    if short:
        yield from _findings(checks)
        return
    for attention in ("sdpa", PACKED_SDPA, "flash_attention_2"):
        repair = _REPAIRS.get(attention, UPDATE)
        checks += [
            (f"{start}, {attention.removeprefix('hgpo_')} {length}", repair, partial(_start, device, attention, length))
            for length in (LENGTHS if attention != "sdpa" else LENGTHS[1:])
        ]
    checks += [
        ("gradients, GPU and CPU", UPDATE, partial(_gradients_of_cpu, device)),
        ("gradients, packed", UPDATE, partial(_gradients, device, {"update": {"layout": "packed"}})),
        ("gradients, checkpointed", UPDATE, partial(_gradients, device, {"model": {"gradient_checkpointing": True}})),
        ("gradients, compiled", "set model.compile = false", partial(_compiled, device)),
        ("varlen_attn", _REPAIRS[PACKED_SDPA], partial(_varlen, device)),
        ("AdamW, offload and resume", "set rollout.offload_optimiser = false", partial(_optimiser, device)),
        ("one step of CONFIG", "see `hgpo train CONFIG --plan` for what needs less", partial(_step, device, config)),
    ]
    yield from _findings(checks)
    yield from _vllm_findings(device)


def _findings(checks: list[tuple[str, str, Callable[[], Result]]]) -> Iterator[Finding]:
    for name, repair, check in checks:
        try:
            passed, value, bound = check()
        except Skipped as reason:
            yield Finding(name, "skip", str(reason))
        except Exception as error:  # noqa: BLE001 - any error of a library is a result
            yield Finding(name, "fail", f"{type(error).__name__}: {one_line(error, 200)}", "", repair)
        else:
            yield Finding(name, "pass" if passed else "fail", value, bound, "" if passed else repair)


def _need_cuda(device: torch.device) -> None:
    if device.type != "cuda":
        raise Skipped("needs CUDA")


def _device(device: torch.device) -> Result:
    card = this_card(device)
    if card is not None:
        return True, f"{card.name}, {card.memory / GIB:.1f} GiB, torch {torch.__version__}", ""
    if torch.version.cuda is None:
        raise Skipped(why_no_gpu())
    return False, why_no_gpu(), ""


def _half(device: torch.device) -> Result:
    _need_cuda(device)
    return torch.cuda.is_bf16_supported(including_emulation=False), torch.cuda.get_device_name(device), "in hardware"


def _free_memory(device: torch.device, config: Config | None) -> Result:
    _need_cuda(device)
    free, _ = torch.cuda.mem_get_info(device)
    card = this_card(device)
    if config is None or card is None:
        return True, f"{free / GIB:.1f} GiB", ""
    needed = max(plan_memory(config, meta_model(config.model.path), card).totals)
    return free >= needed, f"{free / GIB:.1f} GiB", f"at least {needed / GIB:.1f} GiB by the plan"


def _shared_memory() -> Result:
    if not _MEMORY.is_dir():
        raise Skipped(f"no {_MEMORY} on this system")
    free = shutil.disk_usage(_MEMORY).free
    return free >= GIB, f"{free / GIB:.1f} GiB free", "at least 1 GiB"


def _segments() -> Result:
    setting = ",".join(os.environ.get(name, "") for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"))
    return "expandable_segments:true" not in setting.lower(), setting.strip(",") or "not set", "not set"


def _tiny(device: torch.device, attention: str = "sdpa") -> Model:
    """Return a small Qwen2 with random weights, and heads of 64 like Qwen2.5-0.5B: all kernels have that size."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        initializer_range=0.1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)  # type: ignore[no-untyped-call]
    return model.to(device)


def _config(device: torch.device, dtype: str, changes: dict[str, Any] | None = None) -> Config:
    """Return a configuration for `_tiny`."""
    model = {"device": str(device), "compute_dtype": dtype, "gradient_checkpointing": False}
    return replace(replace(Config(), model=model, update={"kl_weight": 0.1}), **(changes or {}))


def _samples(lengths: list[int], response: int = RESPONSE, vocabulary: int = VOCABULARY) -> Samples:
    """Return random rows of these numbers of tokens."""
    rng, rows = np.random.default_rng(0), len(lengths)
    prompts = [max(1, length - response) for length in lengths]
    steps = {
        "prompt_token_ids": [rng.integers(0, vocabulary, number).tolist() for number in prompts],
        "response_token_ids": [rng.integers(0, vocabulary, response).tolist() for _ in prompts],
        "response_logprobs": [[-1.0] * response for _ in prompts],
        "advantage": rng.normal(size=rows),
    }
    return samples_from_steps(pl.DataFrame(steps))


def _start(device: torch.device, attention: str, length: int) -> Result:
    """Before the first step, the policy is the reference and the policy of the rollout."""
    if attention != "sdpa":
        _need_cuda(device)
    if attention == "flash_attention_2" and find_spec("flash_attn") is None:
        raise Skipped("flash-attn is not installed")
    layout = "padded" if attention == "sdpa" else "packed"
    model = _tiny(device, attention.replace(PACKED_SDPA, "sdpa"))  # the learner enables torch's kernel
    learner = Learner(model, _config(device, "bfloat16", {"update": {"layout": layout}}))
    samples = _samples([length, length - length // 16, length // 2])
    fixed = Fixed(learner.logprobs(samples), learner.reference_logprobs(samples))
    metrics = learner.step(samples, np.arange(len(samples)), fixed)
    kl, ratio = metrics["actor/kl_loss"], metrics["actor/ratio"]
    return kl <= 1e-8 and abs(ratio - 1) <= 1e-4, f"KL {kl:.0e}, ratio 1{ratio - 1:+.0e}", "1e-8, 1 ± 1e-4"


def _gradient(model: Model, config: Config, samples: Samples) -> Tensor:
    model = copy.deepcopy(model)
    if config.model.gradient_checkpointing:
        checkpoint_layers(model)
    learner = Learner(model, config, reference=False)
    learner.accumulate(samples, np.arange(len(samples)), Fixed())
    gradients = [parameter.grad for parameter in learner.model.parameters() if parameter.grad is not None]
    return torch.cat([gradient.double().cpu().flatten() for gradient in gradients])


def _compared(gradient: Tensor, expected: Tensor, bound: float) -> Result:
    difference = float((gradient - expected).norm() / expected.norm())
    return difference <= bound, f"relative difference {difference:.0e}", f"{bound:.0e}"


def _gradients_of_cpu(device: torch.device) -> Result:
    _need_cuda(device)
    cpu, samples = torch.device("cpu"), _samples(UNEVEN)
    expected = _gradient(_tiny(cpu), _config(cpu, "float32"), samples)
    return _compared(_gradient(_tiny(device), _config(device, "float32"), samples), expected, 1e-3)


def _gradients(device: torch.device, changes: dict[str, Any]) -> Result:
    model, samples = _tiny(device), _samples(UNEVEN)
    expected = _gradient(model, _config(device, "float32"), samples)
    return _compared(_gradient(model, _config(device, "float32", changes), samples), expected, 1e-4)


def _compiled(device: torch.device) -> Result:
    _need_cuda(device)
    return _gradients(device, {"model": {"compile": True}, "rollout": {"engine": "vllm"}})


def _varlen(device: torch.device) -> Result:
    """Torch's kernel for packed rows, against its attention of each row."""
    _need_cuda(device)
    from torch.nn.attention.varlen import varlen_attn

    generator = torch.Generator(device).manual_seed(0)
    lengths = [64, 1024, 300]
    shape = (sum(lengths), 4, 64)
    query, key, value = (torch.randn(shape, generator=generator, device=device).bfloat16() for _ in range(3))
    bounds = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=device)
    longest, causal = max(lengths), (-1, 0)
    packed: Any = varlen_attn(query, key, value, bounds, bounds, longest, longest, window_size=causal)
    rows = []
    for begin, end in itertools.pairwise(bounds.tolist()):
        q, k, v = (part[begin:end].transpose(0, 1)[None] for part in (query, key, value))
        rows.append(torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)[0].transpose(0, 1))
    return _compared(packed.double().cpu().flatten(), torch.cat(rows).double().cpu().flatten(), 1e-2)


def _optimiser(device: torch.device) -> Result:
    """Steps with random gradients: moments that were on the host or on the disk meanwhile give the same weights."""
    base = _tiny(device)
    tokenizer = train_tokenizer(TEXTS, VOCABULARY)

    def weights(interruption: str) -> Tensor:
        generator, model = torch.Generator().manual_seed(1), copy.deepcopy(base)
        optimiser = make_optimiser(model, OptimiserConfig(learning_rate=1e-2))
        for number in range(4):
            for parameter in model.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=generator).to(device)
            optimiser.step()
            if number == 1 and interruption == "offload":
                move_state(optimiser, torch.device("cpu"))
                move_state(optimiser, device)
            if number == 1 and interruption == "resume":
                with tempfile.TemporaryDirectory() as folder:
                    checkpoint = save_checkpoint(Path(folder), TrainingState(1), model, tokenizer, optimiser)
                    model = copy.deepcopy(base)
                    optimiser = make_optimiser(model, OptimiserConfig(learning_rate=1e-2))
                    load_checkpoint(checkpoint, model, optimiser)
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    expected = weights("")
    others = [name for name in ("offload", "resume") if not torch.equal(weights(name), expected)]
    fused = "fused" if device.type == "cuda" else "not fused"
    return (
        not others,
        f"{fused}, {'other weights after ' + ' and '.join(others) if others else 'same weights'}",
        "equal",
    )


def _step(device: torch.device, config: Config | None) -> Result:
    """Two updates with the longest rows of a configuration, of which the second is measured."""
    if config is None:
        raise Skipped("name a configuration: hgpo check gpu CONFIG")
    from transformers import AutoModelForCausalLM

    meta, card = meta_model(config.model.path), this_card(device)
    parts = {}
    if card is not None:
        plan = plan_memory(config, meta, card)
        config, parts = plan.config, plan.parts
    size = sum(weight.numel() for weight in meta.parameters())
    if device.type != "cuda" and size > LARGEST_ON_A_CPU:
        raise Skipped(f"needs CUDA for {size / 1e9:.1f} billion weights")
    dtype = compute_dtype(config.model) if config.model.lora.rank else torch.float32
    with torch.device(device):
        model: Model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            meta.config, attn_implementation=config.model.attention, dtype=dtype
        )
    if config.model.lora.rank:
        model = add_adapters(model, config.model.lora)
    if config.model.gradient_checkpointing:
        checkpoint_layers(model)
    rollout, update = config.rollout, config.update
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    rows = 2 * max(1, update.micro_batch_tokens // longest)
    samples = _samples([longest] * rows, rollout.max_response_tokens, meta.config.get_text_config().vocab_size)
    learner = Learner(model, replace(config, update={"epochs": 1, "mini_batch_size": rows}))
    learner.update(samples, np.random.default_rng(0), rate=0.0)
    metrics = learner.update(samples, np.random.default_rng(0), rate=0.0)
    speed = metrics["perf/update_tokens_per_s"]
    tokens = rollout.tasks * rollout.group_size * config.environment.max_steps * longest * update.epochs
    value = f"{speed:,.0f} tokens/s, updates of the run at most {tokens * config.iterations / speed / 3600:,.1f} h"
    if "perf/mfu/actor" in metrics:
        value += f", MFU {metrics['perf/mfu/actor']:.0%}"
    if card is None:
        return True, value, ""
    peak = torch.cuda.max_memory_allocated(device)
    planned = sum(parts[name][1] for name in ("weights", "gradients", "optimiser", "reference", "activations"))
    return peak <= 1.1 * planned, f"peak {peak / GIB:.1f} GiB, {value}", f"{planned / GIB:.1f} GiB by the plan + 10%"


def _vllm_findings(device: torch.device) -> Iterator[Finding]:
    """Check vLLM's engine with the small model: its numbers, and that it serves what was published."""
    if find_spec("vllm") is None:
        yield Finding("vLLM", "skip", f"vLLM is not installed: {install_command('vllm')}")
        return
    with tempfile.TemporaryDirectory() as folder:
        model = _tiny(device)
        with no_progress_bars():
            model.save_pretrained(folder)
        train_tokenizer(TEXTS, VOCABULARY).save_pretrained(folder)
        adapted = add_adapters(_tiny(device), replace(Config(), model={"lora": {"rank": 8}}).model.lora)
        repair = "use vLLM 0.32, and attach --json to an issue"
        # The second engine captures no CUDA graphs, which takes most of a minute.
        lora = {"enable_lora": True, "max_loras": 1, "max_lora_rank": 8, "enforce_eager": True}
        for name, served, options, checks in (
            ("vLLM", model, {}, _ENGINE_CHECKS),
            ("vLLM with adapters", adapted, lora, _ADAPTER_CHECKS),
        ):
            try:
                engine = _Engine(device, folder, served, options)
            except Exception as error:  # noqa: BLE001 - any error of vLLM is a result
                yield Finding(name, "fail", f"{type(error).__name__}: {one_line(error, 200)}", "", repair)
                continue
            try:
                yield from _findings([(f"{name}: {title}", repair, partial(check, engine)) for title, check in checks])
            finally:
                engine.policy.close()


class _Engine:
    """vLLM's engine with a small model.

    Args:
        device: The device.
        folder: The folder of the model.
        model: The learner's model, with adapters or without.
        options: Further arguments of `vllm.LLM`.
    """

    def __init__(self, device: torch.device, folder: str, model: Model, options: dict[str, Any]) -> None:
        from hgpo_train.policies.generation import GenerationOptions
        from hgpo_train.policies.vllm import VLLMPolicy

        options = {"gpu_memory_utilization": 0.1, "kv_cache_memory_bytes": 1 << 28, **options}
        options |= {"enable_sleep_mode": True} if device.type == "cuda" else {"enforce_eager": True}
        sampling = GenerationOptions(max_prompt_tokens=96, max_response_tokens=RESPONSE)
        self.device, self.model = device, model
        self.policy: VLLMPolicy = VLLMPolicy(folder, sampling, {"dtype": "bfloat16", **options})

    def call(self, method: str) -> Any:  # noqa: ANN401 - what the worker's method returns
        """Call a method of the first worker."""
        return self.policy._llm.collective_rpc(method)[0]  # noqa: SLF001

    def generate(self, temperature: float) -> list[tuple[list[int], list[int], list[float]]]:
        """Return prompts, responses and the log-probabilities of the responses."""
        from vllm import SamplingParams

        rng = np.random.default_rng(0)
        prompts = [rng.integers(0, VOCABULARY, 64).tolist() for _ in range(8)]
        params = SamplingParams(temperature=temperature, max_tokens=RESPONSE, logprobs=0, ignore_eos=True)
        outputs = self.policy._llm.generate(  # noqa: SLF001
            [{"prompt_token_ids": prompt} for prompt in prompts],
            params,
            use_tqdm=False,
            lora_request=self.policy._adapter,  # noqa: SLF001
        )
        answers = []
        for prompt, output in zip(prompts, outputs, strict=True):
            tokens = list(output.outputs[0].token_ids)
            pairs = zip(output.outputs[0].logprobs, tokens, strict=True)
            answers.append((prompt, tokens, [at[token].logprob for at, token in pairs]))
        return answers

    def gap(self) -> float:
        """Return the mean difference between the log-probabilities of the engine and of the learner."""
        names = ("prompt_token_ids", "response_token_ids", "response_logprobs")
        samples = samples_from_steps(pl.DataFrame(dict(zip(names, zip(*self.generate(1.0), strict=True), strict=True))))
        learner = Learner(self.model, _config(self.device, "bfloat16"), reference=False)
        return float(np.abs(learner.logprobs(samples) - samples.rollout_logprob).mean())


def _runner(engine: _Engine) -> Result:
    return True, engine.call("runner_name"), ""


def _gap(engine: _Engine) -> Result:
    bound = Config().update.gap_warning
    return (gap := engine.gap()) <= bound, f"mean gap of log-probabilities {gap:.4f}", str(bound)


def _published(engine: _Engine, *, by_device: bool) -> Result:
    """The engine's weights are destroyed, and published again: their checksums are those of before."""
    if by_device:
        _need_cuda(engine.device)
    policy = engine.policy
    before_setting, policy._by_device = policy._by_device, by_device  # noqa: SLF001
    policy.publish(engine.model, 0)
    before = engine.call("compute_weight_checksums")
    engine.call("reset_weights")
    destroyed = engine.call("compute_weight_checksums")
    policy.publish(engine.model, 0)
    after = engine.call("compute_weight_checksums")
    kept, policy._by_device = policy._by_device, before_setting  # noqa: SLF001
    equal = sum(after[name] == value for name, value in before.items())
    passed = equal == len(before) and destroyed != before and kept == by_device
    way = "CUDA IPC" if kept else "the host's memory"
    return passed, f"{equal} of {len(before)} checksums equal, through {way}", "all equal"


def _slept(engine: _Engine) -> Result:
    """The engine sleeps, the weights change, it wakes up, and they are published: greedy tokens are theirs."""
    _need_cuda(engine.device)
    policy = engine.policy
    with torch.no_grad():
        for parameter in engine.model.parameters():
            parameter.mul_(1.01)
    policy.publish(engine.model, 0)
    expected = [tokens for _, tokens, _ in engine.generate(0.0)]
    before, _ = torch.cuda.mem_get_info(engine.device)
    policy.sleep()
    freed = torch.cuda.mem_get_info(engine.device)[0] - before
    policy.wake_up()
    policy.publish(engine.model, 0)
    same = [tokens for _, tokens, _ in engine.generate(0.0)] == expected
    return same and freed > 0, f"{freed / GIB:.2f} GiB freed, greedy tokens {'equal' if same else 'differ'}", "equal"


def _adapted(engine: _Engine) -> Result:
    """Adapters with random weights, served as adapters."""
    with torch.no_grad():
        for name, parameter in engine.model.named_parameters():
            if ".lora_B." in name:
                parameter.normal_(std=0.05)
    engine.policy.publish(engine.model, 1)
    return _gap(engine)


_ENGINE_CHECKS: Final[tuple[tuple[str, Callable[[_Engine], Result]], ...]] = (
    ("runner", _runner),
    ("log-probabilities", _gap),
    ("publication, CUDA IPC", partial(_published, by_device=True)),
    ("publication, host", partial(_published, by_device=False)),
    ("sleep and wake", _slept),
)
_ADAPTER_CHECKS: Final[tuple[tuple[str, Callable[[_Engine], Result]], ...]] = (("log-probabilities", _adapted),)
