"""The memory that a training run needs on a graphics card, computed before anything is loaded.

Two moments decide whether a run fits: the rollout (the engine's weights and cache beside the learner's weights and
moments) and the update (gradients and activations, with the engine's memory still allocated unless it sleeps). The
engine's share of the card, vLLM's `gpu_memory_utilization`, is what remains.

The learner's part is compared with fake-tensor measurements (`benchmarks/memory_plan.py`), the engine's with vLLM on
an H100 (docs/first_gpu_hour.md). The reserve is assumed.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import nn

from hgpo_envs.errors import InputError
from hgpo_train.models.checkpoint_files import resolve_model
from hgpo_train.models.loading import choose_device, why_no_gpu
from hgpo_train.models.preflight import check_loads_no_code
from hgpo_train.training.config import replace, shipped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hgpo_train.models.hf import Model
    from hgpo_train.training.config import Config, SftConfig
    from hgpo_train.training.display import Display

GIB: Final = 2**30

_SIZES: Final = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
PUBLISHED: Final[dict[str, tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "Qwen/Qwen2.5-1.5B-Instruct": (
        (151_936, 1536, 8960, 28, 12),
        {"num_key_value_heads": 2, "tie_word_embeddings": True},
    ),
    "Qwen/Qwen2.5-7B-Instruct": ((152_064, 3584, 18_944, 28, 28), {"num_key_value_heads": 4}),
}
"""Sizes of the models of the shipped runs, from `config.json` on the Hugging Face hub, which need no network."""


class Card(NamedTuple):
    """A graphics card: its name, and its memory in bytes as `torch.cuda.get_device_properties` reports it."""

    name: str
    memory: int


_GIB: Final = {"4090-24": 23.5, "A100-40": 39.4, "L40S-48": 44.4, "A100-80": 79.1, "H100-80": 79.1, "H200-141": 139.8}
"""Total memory in GiB as torch reports it, in ascending order; the driver keeps the rest of the number in the name."""
CARDS: Final = tuple(Card(name, int(size * GIB)) for name, size in _GIB.items())

_UTILIZATION: Final = "gpu_memory_utilization"
_CONTEXTS: Final = int(1.5 * GIB)
"""CUDA contexts and kernels of the learner's and the engine's process."""
_FRAGMENTED: Final = 0.03
"""Share of a card that the allocator cannot use."""
_LARGEST_SHARE: Final = 0.90
_FEWEST_SEQUENCES: Final = 8
"""The engine's cache must hold at least this number of sequences of the greatest length."""
_ENGINE_TOKENS: Final = 16_384
_ENGINE_SEQUENCES: Final = 1024
"""Tokens and sequences of one step of vLLM (its defaults for `LLM` on cards of 70 GiB and more)."""
_ENGINE_OTHERS: Final = GIB
"""CUDA libraries, graphs and small buffers of the engine: 1.0 and 0.25 GiB with Qwen2.5-1.5B on an H100, of which the
other estimates, which are a little too high, have 0.2."""
_LOGIT_BYTES: Final = 20
"""Bytes per logit of a chunk in the backward pass: five float32 tensors."""

_LAYER_BYTES: Final = {
    ("stored", "weights", "bfloat16"): (28, 8, 8, 0, 0),
    ("stored", "adapters", "bfloat16"): (18, 8, 10, 144, 0),
    ("stored", "weights", "float32"): (28, 16, 16, 0, 0),
    ("stored", "adapters", "float32"): (18, 16, 16, 144, 0),
    ("working", "weights", "bfloat16"): (25, 0.5, 0, 0, 0),
    ("working", "adapters", "bfloat16"): (16, 6, 0, 0, 0),
    ("working", "weights", "float32"): (8, 8, 0, 0, 0),
    ("working", "adapters", "float32"): (8, 8, 0, 0, 0),
    ("recomputed", "weights", "bfloat16"): (30, 12, 8, 0, 0),
    ("recomputed", "adapters", "bfloat16"): (28, 14, 10, 14, 3640),
    ("recomputed", "weights", "float32"): (30, 24, 16, 0, 0),
    ("recomputed", "adapters", "float32"): (16, 24, 16, 24, 6200),
}
"""Bytes per token that a layer needs per unit of (hidden, intermediate, query, adapters' rank), and further bytes:
what each layer stores for the backward pass without gradient checkpointing, what the layer at work needs beyond that
at the peak of the backward pass, and what it needs there with gradient checkpointing, recomputed values included.

They were determined by counting the storages that are alive in a pass of `response_logprobs` with fake tensors, for
models of other widths than the benchmark prints, with attention that stores no matrix of length × length."""


def named_card(name: str) -> Card:
    """Return the card of a name in `CARDS`, or one with a number of GB, of which 1.5% are the driver's.

    >>> named_card("H200-141").memory // GIB, round(named_card("64").memory / GIB, 1)
    (139, 63.0)
    """
    known = {card.name.lower(): card for card in CARDS}
    if name.lower() in known:
        return known[name.lower()]
    size = name.lower().removesuffix("gb")
    if not size.isdecimal() or not 1 <= int(size) <= 10_000:
        expected = ", ".join(card.name for card in CARDS)
        raise InputError(f"--card: expected {expected} or a number of GB, received {name!r}")
    return Card(f"{size} GB", int(int(size) * 0.985 * GIB))


def this_card(device: torch.device) -> Card | None:
    """Return the card of a CUDA device; None for any other device."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    return Card(str(properties.name), int(properties.total_memory))


def meta_model(path: str) -> Model:
    """Return a model on torch's meta device: it has sizes and no memory.

    Of a Hugging Face name that is not in `PUBLISHED`, `config.json` is downloaded unless it is in the cache.

    Raises:
        InputError: There is no configuration of a causal language model, or it names code to load.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config

    folder = resolve_model(path)
    is_published = not Path(folder).is_dir() and path in PUBLISHED
    if not is_published:
        check_loads_no_code(folder)
    try:
        if is_published:
            sizes, others = PUBLISHED[path]
            config: Any = Qwen2Config(**dict(zip(_SIZES, sizes, strict=True)), **others)
        else:
            config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        with torch.device("meta"):
            model: Model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)  # type: ignore[no-untyped-call]
        [getattr(model.config.get_text_config(), name) for name in _SIZES]
    except Exception as error:  # damaged files and the hub's client can raise any exception
        raise InputError(
            f"cannot plan the memory of {path!r} ({type(error).__name__}): expected the config.json of a causal "
            "language model in a model's folder, a run's folder, or a Hugging Face name"
        ) from error
    return model


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a run needs on a card, in bytes.

    Attributes:
        config: The run's configuration, in which no setting is "auto".
        card: The card.
        parts: The bytes of each part during the rollout and during the update, by its name.
        engine: The engine's weights and working memory; 0 if it generates with the learner's weights.
        sequence: Keys and values of one sequence of the greatest length.
        concurrent: Number of sequences that run at the same time at most.
    """

    config: Config
    card: Card
    parts: dict[str, tuple[int, int]]
    engine: int
    sequence: int
    concurrent: int

    @property
    def share(self) -> int:
        """What the engine gets of the card."""
        return self.parts["engine"][0]

    @property
    def totals(self) -> tuple[int, int]:
        """Bytes on the card during the rollout and during the update."""
        rollout, update = zip(*self.parts.values(), strict=True)
        return sum(rollout), sum(update)

    @property
    def least(self) -> int:
        """The fewest bytes that the engine can work with."""
        return self.engine + min(self.concurrent, _FEWEST_SEQUENCES) * self.sequence

    @property
    def fits(self) -> bool:
        """Whether the card has enough memory at all times."""
        return max(self.totals) <= self.card.memory and self.share >= self.least

    def engine_options(self) -> dict[str, Any]:
        """Return the arguments of `vllm.LLM` that follow from the plan; the configuration's own take precedence."""
        configured = self.config.rollout.engine_options
        if self.config.rollout.engine != "vllm" or "kv_cache_memory_bytes" in configured:  # that sets the cache's size
            return dict(configured)
        return {_UTILIZATION: round(self.share / self.card.memory, 2)} | configured

    def table(self) -> str:
        """Return the parts during the rollout and during the update, and the verdict, in lines."""
        lines = [f"{self.config.name} on {self.card.name}, {_gib(self.card.memory)} GiB"]
        lines.append(f"{'GiB':<12}  rollout   update")
        for name, (rollout, update) in {**self.parts, "total": self.totals}.items():
            lines.append(f"{name:<12}{_gib(rollout):>9}{_gib(update):>9}")
        if self.config.rollout.engine == "vllm":
            cached = max(0, self.share - self.engine) // self.sequence
            lines.append(
                f"gpu_memory_utilization = {self.share / self.card.memory:.2f}; the cache holds {cached} sequences of "
                f"the greatest length, of {self.concurrent} that run at the same time"
            )
        is_recomputed = str(self.config.model.gradient_checkpointing).lower()
        lines.append(
            f"model.gradient_checkpointing = {is_recomputed}, update.logit_chunk = {self.config.update.logit_chunk}"
        )
        lines.append("the reserve is an assumption; learner and engine were measured with a model of 1.5B on an H100")
        return "\n".join([*lines, self.verdict()])

    def verdict(self) -> str:
        """Return whether the run fits, and otherwise what it needs and which settings need less, as one line."""
        name, card = self.config.name, self.card
        if self.fits:
            return f"{name} fits on {card.name}"
        needed = self.parts | {"engine": (max(self.share, self.least), 0)}
        parts = ", ".join(f"{part} {_gib(max(sizes))}" for part, sizes in needed.items())
        return (
            f"{name} does not fit on {card.name} of {_gib(card.memory)} GiB (in GiB, with micro-batches of "
            f"{self.config.update.micro_batch_tokens:,} tokens: {parts}); what needs less: "
            f"{'; '.join(smaller_settings(self.config))}; or use several cards with verl, which shards the weights: "
            f"`hgpo-verl {name if name in shipped() else 'CONFIG'} --gpus 4` (integrations/verl)"
        )


def plan_memory(config: Config, model: Model, card: Card) -> MemoryPlan:
    """Return the plan of a run on one card; the model is that of `meta_model`.

    The plan's configuration has the fastest of the settings that are "auto" with which the run fits, and which take
    nothing from the engine's cache.
    """
    model_settings = [{"gradient_checkpointing": value} for value in (False, True)]
    update_settings = [{"logit_chunk": value} for value in (1024, 128)]
    plans = [
        _plan(replace(config, model=recomputed, update=chunk), model, card)
        for recomputed in (model_settings if config.model.gradient_checkpointing == "auto" else [{}])
        for chunk in (update_settings if config.update.logit_chunk == "auto" else [{}])
    ]
    smallest = plans[-1]
    return next((plan for plan in plans if plan.fits and plan.share >= smallest.share), smallest)


def _plan(config: Config, model: Model, card: Card) -> MemoryPlan:
    rollout, lora, sizes = config.rollout, config.model.lora, model.config.get_text_config()
    half = 2 if config.model.compute_dtype == "bfloat16" else 4
    parameters = sum(weight.numel() for weight in model.parameters())
    linear = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear)}
    if lora.targets == "all-linear":
        adapted = [part for part in linear.values() if part is not model.get_output_embeddings()]
    else:
        adapted = [part for name, part in linear.items() if name.rpartition(".")[2] in lora.targets]
    adapters = lora.rank * sum(part.in_features + part.out_features for part in adapted)
    trained = adapters or parameters
    weights = 4 * trained + (half * parameters if lora.rank else 0)  # float32, and the frozen base of adapters
    reference = half * parameters if config.update.kl_weight > 0 and not lora.rank else 0
    reserve = _CONTEXTS + int(_FRAGMENTED * card.memory)
    parts = {
        "weights": (weights, weights),
        "gradients": (0, 4 * trained),
        "optimiser": (0 if rollout.offload_optimiser else 8 * trained, 8 * trained),
        "reference": (reference, reference),
        "activations": (0, activation_bytes(config, model)),
        "reserve": (reserve, reserve),
    }
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    heads = getattr(sizes, "num_key_value_heads", None) or sizes.num_attention_heads
    sequence = longest * sizes.num_hidden_layers * 2 * heads * _head_width(sizes) * 2  # keys and values in 16 bits
    concurrent = min(rollout.slots, rollout.tasks * rollout.group_size)
    if rollout.engine != "vllm":  # it generates with the learner's weights, in batches of a configured size
        batch = int(rollout.engine_options.get("max_batch_tokens", 131_072))
        concurrent = max(1, min(concurrent, batch // longest))
        return MemoryPlan(config, card, parts | {"engine": (concurrent * sequence, 0)}, 0, sequence, concurrent)
    step = _ENGINE_TOKENS * 2 * (2 * sizes.intermediate_size + 2 * sizes.hidden_size)
    engine = 2 * (parameters + adapters) + step + _ENGINE_SEQUENCES * sizes.vocab_size * 8 + _ENGINE_OTHERS
    at_rollout, at_update = (sum(bytes_of) for bytes_of in zip(*parts.values(), strict=True))
    free = card.memory - (at_rollout if rollout.sleep else max(at_rollout, at_update))
    percent = card.memory // 100  # the share is given in percent
    useful = engine + concurrent * sequence + percent
    share = max(0, min(free, int(_LARGEST_SHARE * card.memory), useful) // percent * percent)
    if _UTILIZATION in rollout.engine_options:
        share = int(float(rollout.engine_options[_UTILIZATION]) * card.memory)
    parts["engine"] = (share, 0 if rollout.sleep else share)
    return MemoryPlan(config, card, parts, engine, sequence, concurrent)


def activation_bytes(config: Config, model: Model) -> int:
    """Return the peak of a micro-batch of `update.micro_batch_tokens` beyond weights, gradients and moments, in bytes.

    The peak is the largest of four moments: the end of the forward pass (autocast keeps a copy of every trained weight
    in the compute dtype until then), the output layer's backward pass, the backward pass of the last layer, and that
    of the input embedding.
    """
    update, sizes, rank = config.update, model.config.get_text_config(), config.model.lora.rank
    tokens, full, half = update.micro_batch_tokens, not rank, config.model.compute_dtype == "bfloat16"
    hidden, intermediate, layers = sizes.hidden_size, sizes.intermediate_size, sizes.num_hidden_layers
    trained = sum(weight.numel() for weight in model.parameters()) if full else 0
    embedding = sizes.vocab_size * hidden if full else 0
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight

    def layer_bytes(moment: str) -> float:
        per_unit = _LAYER_BYTES[moment, "weights" if full else "adapters", config.model.compute_dtype]
        units = (hidden, intermediate, sizes.num_attention_heads * _head_width(sizes), rank, 1)
        return float(tokens * sum(size * unit for size, unit in zip(per_unit, units, strict=True)))

    if config.model.gradient_checkpointing:
        residual = 2 if half and not full else 4  # the input of each layer, which is stored
        stored, layer = float(tokens * layers * hidden * residual), layer_bytes("recomputed")
    else:
        stored, layer = layers * layer_bytes("stored"), layer_bytes("working")
    forward = stored + tokens * (10 * hidden + (6 if half else 12) * intermediate) + (2 * trained if half else 0)
    logits = _LOGIT_BYTES * sizes.vocab_size * (min(update.logits_at_a_time, tokens) or tokens)
    head = stored + tokens * 4 * hidden + logits + 8 * embedding
    # The gradient of tied embeddings waits for its second part until the end of the backward pass.
    last_layer = stored + layer + (4 * embedding if tied else 0)
    # In float32 there is no kernel for packed rows, whose mask is then a matrix: booleans, and the additive mask.
    mask = 3 * tokens**2 if update.layout == "packed" and config.model.attention == "sdpa" and not half else 0
    return int(max(forward, head, last_layer, (12 if tied else 8) * embedding) + mask)


def _head_width(sizes: Any) -> int:  # noqa: ANN401 (a configuration class of Transformers)
    return int(getattr(sizes, "head_dim", None) or sizes.hidden_size // sizes.num_attention_heads)


def smaller_settings(config: Config | SftConfig) -> list[str]:
    """Return the settings that reduce the memory of a run, cheapest first, without those that are in effect.

    All but the last, adapters, have the same result.

    >>> from hgpo_train.training.config import Config, replace
    >>> smaller_settings(replace(Config(), rollout={"engine": "vllm", "sleep": True}))
    ['rollout.offload_optimiser = true', 'update.micro_batch_tokens = 8192', 'adapters: model.lora.rank = 64']
    """
    model, update, rollout = config.model, config.update, getattr(config, "rollout", None)
    settings = {
        "model.gradient_checkpointing = true": not model.gradient_checkpointing,
        "update.logit_chunk = 128": not 0 < update.logits_at_a_time <= 128,
        "rollout.sleep = true": rollout is not None and rollout.engine == "vllm" and not rollout.sleep,
        "rollout.offload_optimiser = true": rollout is not None and not rollout.offload_optimiser,
        f"update.micro_batch_tokens = {update.micro_batch_tokens // 2}": update.micro_batch_tokens > 1,
        "adapters: model.lora.rank = 64": not model.lora.rank,
    }
    return [setting for setting, useful in settings.items() if useful]


def check_memory(config: Config, display: Display) -> MemoryPlan | None:
    """Print the memory plan for the GPU that a run will use; None without a GPU.

    Raises:
        InputError: The run does not fit and `check_memory` is set; the error names what needs less. Or there is no GPU,
            and the configuration is one for GPUs (vLLM, flash attention), whose `model.device` is "auto".
    """
    card = this_card(choose_device(config.model.device))
    if card is None:
        for_gpu = config.rollout.engine == "vllm" or config.model.attention == "flash_attention_2"
        if for_gpu and config.model.device == "auto" and not torch.accelerator.is_available():
            raise InputError(f'{config.name} needs a GPU, and {why_no_gpu()}; model.device = "cpu" trains without one')
        return None
    plan = plan_memory(config, meta_model(config.model.path), card)
    display.show(plan.table())
    if config.check_memory and not plan.fits:
        raise InputError(f"{plan.verdict()}; check_memory = false starts nevertheless")
    return plan


@contextlib.contextmanager
def memory_advice(config: Config | SftConfig) -> Iterator[None]:
    """Raise `InputError` with advice if the device runs out of memory within the block."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"out of memory with update.micro_batch_tokens = {config.update.micro_batch_tokens}; set "
            f"{', or '.join(smaller_settings(config))}; `hgpo train CONFIG --plan` prints what each part needs"
        ) from error


def memory_metrics(device: torch.device) -> dict[str, float]:
    """Return the peak of the learner's memory on a GPU in GiB, under verl's names; empty on other devices.

    vLLM's engine, another process, is not included. Reserved memory is what the allocator holds, used or not.
    """
    if device.type != "cuda":
        return {}
    return {
        "perf/max_memory_allocated_gb": torch.cuda.max_memory_allocated(device) / GIB,
        "perf/max_memory_reserved_gb": torch.cuda.max_memory_reserved(device) / GIB,
    }


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f}"
