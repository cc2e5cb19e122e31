"""Checks of a GPU, a minute before a run depends on it: `hgpo check gpu`.

The device, its memory, log-probabilities, one update of a configuration, and vLLM with the publication of weights.
Every check returns a value, its bound and, if it fails, the repair. The models have random weights; nothing is
downloaded. What needs CUDA or vLLM is skipped without it, with the reason. `tests/gpu` compares the numbers of all
kernels.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import numpy as np
import polars as pl
import torch

from hgpo_envs.engine import State, Task
from hgpo_envs.errors import one_line
from hgpo_envs.plugins import install_command
from hgpo_train.models.device import choose_device, why_no_gpu
from hgpo_train.models.hf import Model, no_progress_bars
from hgpo_train.models.loading import prepare_for_training
from hgpo_train.models.tiny import train_tokenizer
from hgpo_train.policies.base import Failure, Reply, Request
from hgpo_train.training.config import Config, replace
from hgpo_train.training.memory_plan import (
    GIB,
    MemoryPlan,
    first_card,
    meta_model,
    plan_memory,
    this_card,
)
from hgpo_train.training.update.batches import Samples, samples_from_steps
from hgpo_train.training.update.learner import Learner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hgpo_train.policies.vllm import VLLMPolicy

FREE_MEMORY: Final = "free memory"
VOCABULARY: Final = 512
RESPONSE: Final = 16
"""Tokens of a response of the small model."""
TEXTS: Final = (
    "You are in the middle of a room. Go to cabinet 1.",
    "take plate 1 from shelf 2",
) * 4

_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the file system in memory that vLLM's processes use
LARGEST_ON_A_CPU: Final = 50_000_000
"""Weights of the largest model whose update is tried on a CPU."""
_UPDATE: Final = "torch, its CUDA build and the driver disagree: update all three, and attach --json to an issue"


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
        word = {"pass": "ok", "fail": "FAIL", "skip": "skip"}[self.verdict]
        bound = f" (bound: {self.bound})" if self.bound else ""
        repair = f" → {self.repair}" if self.repair else ""
        return f"{word:<4} {self.check:<24} {self.value}{bound}{repair}"


class Skipped(Exception):  # noqa: N818 - it is no error
    """A check cannot run here; the message is the reason."""


Result = tuple[bool, str, str]
"""Whether a check passed, the value and its bound."""

Check: TypeAlias = "tuple[str, str, Callable[[], Result]]"
"""The name of a check, the repair if it fails, and what runs it."""


def check_gpu(
    config: Config | None = None, *, short: bool = False
) -> Iterator[Finding]:
    """Check the device of a configuration, or the one that ``auto`` selects.

    Args:
        config: The configuration whose memory and update are checked; None leaves these out.
        short: Only the checks of the machine and of short rows, which together take seconds.

    Yields:
        The results, in order. An exception in a check is its result: the others still run.
    """
    settings = config or Config()
    device = choose_device(settings.model.device)
    checks: list[Check] = [
        (
            "device",
            "use an Ampere GPU or newer, and a torch and a driver that agree",
            partial(_device, device),
        ),
        (
            FREE_MEMORY,
            "end other programs on the GPU, or see --plan",
            partial(_free_memory, device, config),
        ),
        (
            str(_SHARED_MEMORY),
            "start the container with --shm-size=16g or --ipc=host",
            _shared_memory,
        ),
        (
            "expandable_segments",
            "unset PYTORCH_CUDA_ALLOC_CONF: vLLM's sleep and CUDA IPC fail",
            _segments,
        ),
        ("KL and ratio, 64 tokens", _UPDATE, partial(first_step, device, settings, 64)),
    ]
    if not short:
        checks += [
            (
                "KL and ratio, 4096 tokens",
                _UPDATE,
                partial(first_step, device, settings, 4096),
            ),
            (
                "one update of CONFIG",
                "see `hgpo train CONFIG --plan` for what needs less",
                partial(_update, config),
            ),
            (
                "vLLM",
                "use vLLM 0.32 or 0.33, and attach --json to an issue",
                partial(_vllm, device),
            ),
        ]
    yield from _findings(checks)


def _findings(checks: list[Check]) -> Iterator[Finding]:
    for name, repair, check in checks:
        try:
            passed, value, bound = check()
        except Skipped as reason:
            yield Finding(name, "skip", str(reason))
        except Exception as error:  # noqa: BLE001 - any error of a library is a result
            yield Finding(
                name,
                "fail",
                f"{type(error).__name__}: {one_line(error, 200)}",
                "",
                repair,
            )
        else:
            yield Finding(
                name,
                "pass" if passed else "fail",
                value,
                bound,
                "" if passed else repair,
            )


def _device(device: torch.device) -> Result:
    card = this_card(device)
    if card is not None:
        value = f"{card.name}, {card.memory / GIB:.1f} GiB, torch {torch.__version__}"
        return (
            torch.cuda.is_bf16_supported(including_emulation=False),
            value,
            "bfloat16 in hardware",
        )
    if torch.version.cuda is None:
        raise Skipped(why_no_gpu())
    return False, why_no_gpu(), ""


def _free_memory(device: torch.device, config: Config | None) -> Result:
    card = this_card(device)
    if card is None:
        raise Skipped("needs CUDA")
    free, _ = torch.cuda.mem_get_info(device)
    value = f"{free / GIB:.1f} GiB"
    if config is None:
        return True, value, ""
    model = meta_model(config.model.path)
    needed = max(plan_memory(config, model, card, first_card()).totals)
    return free >= needed, value, f"at least {needed / GIB:.1f} GiB by the plan"


def _shared_memory() -> Result:
    if not _SHARED_MEMORY.is_dir():
        raise Skipped(f"no {_SHARED_MEMORY} on this system")
    free = shutil.disk_usage(_SHARED_MEMORY).free
    return free >= GIB, f"{free / GIB:.1f} GiB free", "at least 1 GiB"


def _segments() -> Result:
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    setting = ",".join(os.environ.get(name, "") for name in names).strip(",")
    return (
        "expandable_segments:true" not in setting.lower(),
        setting or "not set",
        "not set",
    )


def small_model(device: torch.device, attention: str = "sdpa") -> Model:
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
        model: Model = AutoModelForCausalLM.from_config(
            config, attn_implementation=attention
        )  # type: ignore[no-untyped-call]
    return model.to(device)


def random_samples(
    lengths: list[int],
    response: int = RESPONSE,
    vocabulary: int = VOCABULARY,
) -> Samples:
    """Return random rows of these numbers of tokens, of which the last `response` are the response."""
    rng = np.random.default_rng(0)

    def tokens(count: int) -> list[int]:
        drawn: list[int] = rng.integers(0, vocabulary, count).tolist()
        return drawn

    steps = {
        "prompt_token_ids": [tokens(max(1, length - response)) for length in lengths],
        "response_token_ids": [tokens(response) for _ in lengths],
        "response_logprobs": [[-1.0] * response for _ in lengths],
        "advantage": rng.normal(size=len(lengths)),
    }
    return samples_from_steps(pl.DataFrame(steps))


def first_step(device: torch.device, config: Config, length: int) -> Result:
    """Check that before the first step the policy equals the reference and the policy of the rollout.

    Args:
        device: The device.
        config: The configuration whose attention and layout of rows are taken, in bfloat16 as in training.
        length: The tokens of the longest row.
    """
    model = small_model(device, config.model.attention)
    layout = {"layout": config.update.layout, "kl_weight": 0.1}
    settings = replace(Config(), model={"compute_dtype": "bfloat16"}, update=layout)
    samples = random_samples([length, length - length // 16, length // 2])
    # One mini-batch: all rows are compared before the weights change.
    metrics = Learner(model, settings).update(samples, np.random.default_rng(0))
    kl = metrics["actor/kl_loss"]
    ratio = metrics["actor/ratio"]
    return (
        kl <= 1e-8 and abs(ratio - 1) <= 1e-4,
        f"KL {kl:.0e}, ratio 1{ratio - 1:+.0e}",
        "1e-8, 1 ± 1e-4",
    )


def _update(config: Config | None) -> Result:
    """Two updates with the longest rows of a configuration, of which the second is measured."""
    if config is None:
        raise Skipped("name a configuration: hgpo check gpu CONFIG")
    device = choose_device(config.model.device)
    meta = meta_model(config.model.path)
    card = this_card(device)
    plan: MemoryPlan | None = None
    if card is not None:
        plan = plan_memory(config, meta, card, first_card())
        config = plan.config  # in which no setting is "auto"
    size = sum(weight.numel() for weight in meta.parameters())
    if card is None and size > LARGEST_ON_A_CPU:
        raise Skipped(f"needs CUDA for {size / 1e9:.1f} billion weights")

    # Rows of the greatest length, enough for two micro-batches: the second adds to gradients.
    rollout = config.rollout
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    rows = 2 * max(1, config.update.micro_batch_tokens // longest)
    vocabulary = meta.config.get_text_config().vocab_size
    samples = random_samples([longest] * rows, rollout.max_response_tokens, vocabulary)
    settings = replace(config, update={"epochs": 1, "mini_batch_size": rows})
    learner = Learner(_random_model(config, meta, device), settings)
    for _ in range(2):
        metrics = learner.update(samples, np.random.default_rng(0), rate=0.0)

    speed = metrics["perf/update_tokens_per_s"]
    steps = (
        rollout.tasks
        * rollout.group_size
        * config.environment.max_steps
        * config.iterations
    )
    hours = steps * longest * config.update.epochs / speed / 3600
    value = f"{speed:,.0f} tokens/s, updates of the run at most {hours:,.1f} h"
    if "perf/mfu/actor" in metrics:
        value += f", MFU {metrics['perf/mfu/actor']:.0%}"
    if plan is None:
        return True, value, ""
    peak = torch.cuda.max_memory_allocated(device)
    learners = ("weights", "gradients", "optimiser", "reference", "activations")
    planned = sum(plan.parts[name][1] for name in learners)
    return (
        peak <= 1.1 * planned,
        f"peak {peak / GIB:.1f} GiB, {value}",
        f"{planned / GIB:.1f} GiB by the plan + 10%",
    )


def _random_model(config: Config, meta: Model, device: torch.device) -> Model:
    """Return the model of a configuration with random weights, in the dtypes of training."""
    from transformers import AutoModelForCausalLM

    settings = config.model
    is_frozen = settings.lora.rank > 0
    dtype = getattr(torch, settings.compute_dtype) if is_frozen else torch.float32
    with torch.device(device):
        model: Model = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            meta.config,
            attn_implementation=settings.attention,
            dtype=dtype,
        )
    return prepare_for_training(model, settings)


def _vllm(device: torch.device) -> Result:
    """Compare vLLM's log-probabilities with the learner's, before and after the publication of other weights."""
    if find_spec("vllm") is None:
        raise Skipped(f"vLLM is not installed: {install_command('vllm')}")
    model = small_model(device)
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(small_engine(device, model, folder)) as policy,
    ):
        return published_gap(policy, model)


def small_engine(
    device: torch.device,
    model: Model,
    folder: str,
    **options: Any,
) -> VLLMPolicy:
    """Return vLLM's engine with a small model, which is saved to a folder.

    Args:
        device: The device.
        model: The model, without adapters.
        folder: An empty folder.
        options: Further arguments of `vllm.LLM`.
    """
    from hgpo_train.policies.generation import GenerationOptions
    from hgpo_train.policies.vllm import VLLMPolicy

    with no_progress_bars():
        model.save_pretrained(folder)
    train_tokenizer(TEXTS, VOCABULARY).save_pretrained(folder)
    of_device = (
        {"enable_sleep_mode": True}
        if device.type == "cuda"
        else {"enforce_eager": True}
    )
    cache = {"gpu_memory_utilization": 0.1, "kv_cache_memory_bytes": 1 << 28}
    sampling = GenerationOptions(max_prompt_tokens=96, max_response_tokens=RESPONSE)
    return VLLMPolicy(
        folder,
        sampling,
        {
            "dtype": "bfloat16",
            **cache,
            **of_device,
            **options,
        },
    )


def published_gap(policy: VLLMPolicy, model: Model) -> Result:
    """Check that an engine computes the model's log-probabilities, also after all of its weights have changed."""
    first = logprob_gap(policy, model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in model.parameters():
            # As large as the weights themselves: an engine that keeps one of the old tensors shows.
            weights.add_(
                0.1 * torch.randn(weights.shape, generator=generator).to(weights)
            )
    policy.publish(model, 1)
    second = logprob_gap(policy, model)
    bound = Config().update.gap_warning
    way = (
        "CUDA IPC"
        if policy.by_device and torch.cuda.is_available()
        else "the host's memory"
    )
    value = f"mean gap of log-probabilities {first:.4f}; {second:.4f} after publication through {way}"
    return max(first, second) <= bound, value, str(bound)


def logprob_gap(policy: VLLMPolicy, model: Model) -> float:
    """Return the mean difference between the log-probabilities of the engine and of the learner."""
    replies = generated(policy)
    names = ("prompt_token_ids", "response_token_ids", "response_logprobs")
    columns = {name: [getattr(reply, name) for reply in replies] for name in names}
    samples = samples_from_steps(pl.DataFrame(columns))
    settings = replace(Config(), model={"compute_dtype": "bfloat16"})
    learner = Learner(model, settings, reference=False)
    return float(np.abs(learner.logprobs(samples) - samples.rollout_logprob).mean())


def generated(policy: VLLMPolicy) -> list[Reply]:
    """Return the replies of an engine to some prompts.

    Raises:
        RuntimeError: A request failed.
    """
    task = Task("check", "train", "", "")
    state = State("", ())
    prompts = [f"{text} {number}" for number, text in enumerate(TEXTS)]
    requests = []
    for number, prompt in enumerate(prompts):
        request = Request(
            id=number,
            prompt=prompt,
            seed=number,
            slot=number,
            step=0,
            task=task,
            state=state,
            engine=None,
            with_shorter_history=str,
        )
        requests.append(request)
    policy.submit(requests)
    answers: dict[int, Any] = {}
    while len(answers) < len(prompts):
        answers |= dict(policy.collect(None))
    for answer in answers.values():
        if isinstance(answer, Failure):
            raise RuntimeError(str(answer))  # noqa: TRY004 - the engine failed, not a type
    return [answers[number] for number in range(len(prompts))]
