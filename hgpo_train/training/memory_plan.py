"""The memory that a training run needs on a graphics card, computed before anything is loaded.

Two moments decide whether a run fits: the rollout (the engine's weights and cache beside the learner's weights and
moments) and the update (gradients and activations, with the engine's memory still allocated unless it sleeps). The
engine's share of the card, vLLM's `gpu_memory_utilization`, is what remains.

The learner's part is compared with fake-tensor measurements (`benchmarks/memory_plan.py`), the engine's with vLLM on
an H100 (docs/first_gpu_hour.md). The reserve is assumed.
"""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch import nn

from hgpo_envs.errors import InputError
from hgpo_train.models.checkpoint_files import resolve_model
from hgpo_train.models.device import choose_device, why_no_gpu
from hgpo_train.models.hf import head_width, size_of
from hgpo_train.models.preflight import check_loads_no_code
from hgpo_train.training.config import SHIPPED, Config, SftConfig, replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hgpo_train.models.config import LoraConfig
    from hgpo_train.models.hf import Model
    from hgpo_train.training.display import Display

GIB: Final = 2**30

_SIZES: Final = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
)
PUBLISHED: Final[dict[str, tuple[tuple[Any, ...], dict[str, Any]]]] = {
    "Qwen/Qwen2.5-1.5B-Instruct": (
        (151_936, 1536, 8960, 28, 12),
        {"num_key_value_heads": 2, "tie_word_embeddings": True},
    ),
    "Qwen/Qwen2.5-7B-Instruct": (
        (152_064, 3584, 18_944, 28, 28),
        {"num_key_value_heads": 4},
    ),
}
"""Sizes of the models of the shipped runs, from `config.json` on the Hugging Face hub, which need no network."""


class Card(NamedTuple):
    """A graphics card: its name, and its memory in bytes as `torch.cuda.get_device_properties` reports it."""

    name: str
    memory: int


_GIB: Final = {
    "4090-24": 23.5,
    "A100-40": 39.4,
    "L40S-48": 44.4,
    "A100-80": 79.1,
    "H100-80": 79.1,
    "H200-141": 139.8,
}
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

# Bytes per token of a layer, per unit of (hidden, intermediate, query, adapters' rank), and further bytes.
#
# "stored" is what a layer keeps for the backward pass without gradient checkpointing. Counted by operation, where a
# tensor of float32 has 4 bytes a unit and one of bfloat16, which autocast makes for each product, 2:
#
#   all weights, bfloat16   hidden: two norms keep their input (4) and the normalised input (4), and five products a
#                           cast of the norm's output (2): 26, and 2 for rotary embeddings, statistics and small casts
#                           intermediate: gate, its SiLU, up, and their product, the input of down (2 each): 8
#                           query: queries, keys, values and the output of attention (2 each): 8
#   all weights, float32    nothing is cast: the norm's output is kept once (4), and every tensor has 4 bytes
#   adapters, bfloat16      norms are frozen and keep their input alone (4); casts as above (2 each): 18. The inputs of
#                           the adapters of o and down are cast once more: 10. Seven adapters, with copies for autocast
#   adapters, float32       two norms keep their input and output (4 each): 16
#
# "working" is what the layer at work needs beyond that at the peak of the backward pass, and "recomputed" what it needs
# there with gradient checkpointing, recomputed values included. Which gradients are alive together depends on the order
# in which autograd frees them; these rows were measured with fake tensors, for models of other proportions than those
# that `benchmarks/memory_plan.py` prints, with attention that stores no matrix of length x length. The whole plan is
# within 3% of the fake peak for layers of 512 to 1,024 units with 2 to 12 heads of keys.
_LAYER_BYTES: Final = {
    ("stored", "weights", "bfloat16"): (28, 8, 8, 0, 0),
    ("stored", "weights", "float32"): (28, 16, 16, 0, 0),
    ("stored", "adapters", "bfloat16"): (18, 8, 10, 144, 0),
    ("stored", "adapters", "float32"): (16, 16, 16, 144, 0),
    ("working", "weights", "bfloat16"): (25, 0.5, 0, 0, 0),
    ("working", "weights", "float32"): (8, 8, 0, 0, 0),
    ("working", "adapters", "bfloat16"): (16, 6, 0, 0, 0),
    ("working", "adapters", "float32"): (8, 8, 0, 0, 0),
    ("recomputed", "weights", "bfloat16"): (30, 12, 8, 0, 0),
    ("recomputed", "weights", "float32"): (30, 24, 16, 0, 0),
    ("recomputed", "adapters", "bfloat16"): (28, 14, 10, 14, 3640),
    ("recomputed", "adapters", "float32"): (16, 24, 16, 24, 6200),
}


def named_card(name: str) -> Card:
    """Return the card of a name in `CARDS`, or one with a number of GB, of which 1.5% are the driver's.

    >>> named_card("H200-141").memory // GIB, round(named_card("64").memory / GIB, 1)
    (139, 63.0)
    """
    for card in CARDS:
        if card.name.lower() == name.lower():
            return card
    size = name.lower().removesuffix("gb")
    if not size.isdecimal() or not 1 <= int(size) <= 10_000:
        expected = ", ".join(card.name for card in CARDS)
        raise InputError(
            f"--card: expected {expected} or a number of GB, received {name!r}"
        )
    return Card(f"{size} GB", int(int(size) * 0.985 * GIB))


def this_card(device: torch.device) -> Card | None:
    """Return the card of a CUDA device; None for any other device."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    return Card(str(properties.name), int(properties.total_memory))


def first_card() -> Card | None:
    """Return the first CUDA device, which vLLM takes; None without one."""
    return this_card(torch.device("cuda:0")) if torch.cuda.is_available() else None


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
            model: Model = AutoModelForCausalLM.from_config(
                config, trust_remote_code=False
            )  # type: ignore[no-untyped-call]
        sizes = model.config.get_text_config()
        [getattr(sizes, name) for name in ("hidden_size", "num_hidden_layers")]
    except Exception as error:
        # damaged files and the hub's client can raise any exception
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
        engine_card: The engine's card, if that is another one (`has_own_card`).
    """

    config: Config
    card: Card
    parts: dict[str, tuple[int, int]]
    engine: int
    sequence: int
    concurrent: int
    engine_card: Card | None = None

    @property
    def share(self) -> int:
        """What the engine gets of the card."""
        return self.parts["engine"][0]

    @property
    def utilization(self) -> float:
        """The engine's share as a part of its card: vLLM's `gpu_memory_utilization`."""
        return self.share / (self.engine_card or self.card).memory

    @property
    def totals(self) -> tuple[int, int]:
        """Bytes on the learner's card during the rollout and during the update."""
        there = self.parts
        if self.engine_card is not None:
            there = {name: part for name, part in there.items() if name != "engine"}
        rollout, update = zip(*there.values(), strict=True)
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
        # that sets the cache's size
        if (
            self.config.rollout.engine != "vllm"
            or "kv_cache_memory_bytes" in configured
        ):
            return dict(configured)
        return {_UTILIZATION: round(self.utilization, 2)} | configured

    def table(self) -> str:
        """Return the parts during the rollout and during the update, and the verdict, in lines."""
        config = self.config
        beside = ""
        if self.engine_card is not None:
            beside = f", and the engine on {self.engine_card.name}, {_gib(self.engine_card.memory)} GiB"
        lines = [
            f"{config.name} on {self.card.name}, {_gib(self.card.memory)} GiB{beside}",
            f"{'GiB':<12}  rollout   update",
        ]
        for name, (rollout, update) in {**self.parts, "total": self.totals}.items():
            lines.append(f"{name:<12}{_gib(rollout):>9}{_gib(update):>9}")
        if config.rollout.engine == "vllm":
            cached = max(0, self.share - self.engine) // self.sequence
            lines.append(
                f"gpu_memory_utilization = {self.utilization:.2f}; the cache holds {cached} sequences of "
                f"the greatest length, of {self.concurrent} that run at the same time"
            )
        is_recomputed = str(config.model.gradient_checkpointing).lower()
        lines += [
            f"model.gradient_checkpointing = {is_recomputed}, update.logit_chunk = {config.update.logit_chunk}",
            "the reserve is an assumption; learner and engine were measured with a model of 1.5B on an H100",
            self.verdict(),
        ]
        return "\n".join(lines)

    def verdict(self) -> str:
        """Return whether the run fits, and otherwise what it needs and which settings need less, as one line."""
        name = self.config.name
        card = self.card
        if self.fits:
            return f"{name} fits on {card.name}"
        needed = self.parts | {"engine": (max(self.share, self.least), 0)}
        parts = ", ".join(
            f"{part} {_gib(max(sizes))}" for part, sizes in needed.items()
        )
        return (
            f"{name} does not fit on {card.name} of {_gib(card.memory)} GiB (in GiB, with micro-batches of "
            f"{self.config.update.micro_batch_tokens:,} tokens: {parts}); what needs less: "
            f"{'; '.join(smaller_settings(self.config))}; or use several cards with verl, which shards the weights: "
            f"`hgpo-verl {name if name in SHIPPED else 'CONFIG'} --gpus 4` (integrations/verl)"
        )


def has_own_card(config: Config) -> bool:
    """Return whether the engine is on another card than the learner: vLLM takes the first ones of the machine.

    >>> from hgpo_train.training.config import Config, replace
    >>> config = replace(Config(), model={"device": "cuda:1"}, rollout={"engine": "vllm"})
    >>> has_own_card(config), has_own_card(replace(config, model={"device": "cuda"}))
    (True, False)
    """
    kind, _, index = config.model.device.partition(":")
    engines = int(config.rollout.engine_options.get("tensor_parallel_size", 1))
    is_gpu = kind == "cuda" and index.isdecimal()
    return config.rollout.engine == "vllm" and is_gpu and int(index) >= engines


def plan_memory(
    config: Config, model: Model, card: Card, engine_card: Card | None = None
) -> MemoryPlan:
    """Return the plan of a run on one card, or on two; the model is that of `meta_model`.

    The plan's configuration has the fastest of the settings that are "auto" with which the run fits, and which take
    nothing from the engine's cache.

    Args:
        config: The run's configuration.
        model: Its model, without memory.
        card: The learner's card.
        engine_card: The engine's, if it has its own (`has_own_card`); None for one like the learner's.
    """
    engines = None
    if has_own_card(config):
        engines = engine_card or card
    # From the fastest to the smallest: what is recomputed, or computed in smaller chunks, takes longer.
    recomputed = (
        (False, True) if config.model.gradient_checkpointing == "auto" else (None,)
    )
    chunks = (1024, 128) if config.update.logit_chunk == "auto" else (None,)
    plans = []
    for recompute, chunk in itertools.product(recomputed, chunks):
        model_settings = (
            {} if recompute is None else {"gradient_checkpointing": recompute}
        )
        update_settings = {} if chunk is None else {"logit_chunk": chunk}
        plans.append(
            _plan(
                replace(config, model=model_settings, update=update_settings),
                model,
                card,
                engines,
            )
        )
    smallest = plans[-1]
    return next(
        (plan for plan in plans if plan.fits and plan.share >= smallest.share), smallest
    )


def _plan(
    config: Config, model: Model, card: Card, engine_card: Card | None
) -> MemoryPlan:
    rollout = config.rollout
    sizes = model.config.get_text_config()

    # The learner. Trained weights, gradients and AdamW's two moments are float32; a frozen base has the compute dtype.
    half = 2 if config.model.compute_dtype == "bfloat16" else 4
    parameters = sum(weight.numel() for weight in model.parameters())
    adapters = _adapter_weights(config.model.lora, model)
    trained = adapters or parameters
    weights = 4 * trained + (half * parameters if adapters else 0)
    moments = 8 * trained
    reference = half * parameters if config.update.kl_weight > 0 and not adapters else 0
    reserve = _CONTEXTS + int(_FRAGMENTED * card.memory)
    parts = {
        "weights": (weights, weights),
        "gradients": (0, 4 * trained),
        "optimiser": (0 if rollout.offload_optimiser else moments, moments),
        "reference": (reference, reference),
        "activations": (0, activation_bytes(config, model)),
        "reserve": (reserve, reserve),
    }

    # A sequence's keys and values, in 16 bits.
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    heads = size_of(sizes, "num_key_value_heads", "num_attention_heads") or 1
    sequence = longest * sizes.num_hidden_layers * 2 * heads * head_width(sizes) * 2
    concurrent = min(rollout.slots, rollout.tasks * rollout.group_size)
    # it generates with the learner's weights, in batches of a configured size
    if rollout.engine != "vllm":
        batch = int(rollout.engine_options.get("max_batch_tokens", 131_072))
        concurrent = max(1, min(concurrent, batch // longest))
        return MemoryPlan(
            config,
            card,
            parts | {"engine": (concurrent * sequence, 0)},
            0,
            sequence,
            concurrent,
        )

    # vLLM: its weights in 16 bits, one step's activations and logits, and a share of the rest for its cache.
    step = _ENGINE_TOKENS * 2 * (2 * _feed_forward(sizes) + 2 * sizes.hidden_size)
    engine = (
        2 * (parameters + adapters)
        + step
        + _ENGINE_SEQUENCES * sizes.vocab_size * 8
        + _ENGINE_OTHERS
    )
    others = sum(at_rollout for at_rollout, _ in parts.values())
    if not rollout.sleep:  # its memory is taken during the update, too
        others = max(others, sum(at_update for _, at_update in parts.values()))
    memory = card.memory
    if engine_card is not None:
        memory = engine_card.memory
        others = _CONTEXTS + int(_FRAGMENTED * memory)
    free = memory - others
    percent = memory // 100  # the share is given in percent
    useful = engine + concurrent * sequence + percent
    share = min(free, int(_LARGEST_SHARE * memory), useful)
    share = max(0, share // percent * percent)
    if _UTILIZATION in rollout.engine_options:
        share = int(float(rollout.engine_options[_UTILIZATION]) * memory)
    parts["engine"] = (share, 0 if rollout.sleep else share)
    return MemoryPlan(config, card, parts, engine, sequence, concurrent, engine_card)


def _adapter_weights(lora: LoraConfig, model: Model) -> int:
    """Return the number of weights of the adapters; 0 without adapters."""
    if not lora.rank:
        return 0
    count = 0
    for name, layer in model.named_modules():
        if not isinstance(layer, nn.Linear):
            continue
        if lora.targets == "all-linear":
            is_adapted = layer is not model.get_output_embeddings()
        else:
            is_adapted = name.rpartition(".")[2] in lora.targets
        if is_adapted:
            count += lora.rank * (layer.in_features + layer.out_features)
    return count


def activation_bytes(config: Config, model: Model) -> int:
    """Return the peak of a micro-batch of `update.micro_batch_tokens` beyond weights, gradients and moments, in bytes.

    The peak is the largest of four moments: the end of the forward pass (autocast keeps a copy of every trained weight
    in the compute dtype until then), the output layer's backward pass, the backward pass of the last layer, and that
    of the input embedding.
    """
    update = config.update
    sizes = model.config.get_text_config()
    rank = config.model.lora.rank
    half = config.model.compute_dtype == "bfloat16"
    tokens = update.micro_batch_tokens
    hidden = sizes.hidden_size
    layers = sizes.num_hidden_layers
    trained = 0 if rank else sum(weight.numel() for weight in model.parameters())
    embedding = 0 if rank else sizes.vocab_size * hidden
    tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight

    query = (size_of(sizes, "num_attention_heads") or 1) * head_width(sizes)
    intermediate = _feed_forward(sizes)
    units = (hidden, intermediate, query, rank, 1)
    kind = "adapters" if rank else "weights"

    def layer_bytes(moment: str) -> float:
        per_unit = _LAYER_BYTES[moment, kind, config.model.compute_dtype]
        products = [size * unit for size, unit in zip(per_unit, units, strict=True)]
        return float(tokens * sum(products))

    if config.model.gradient_checkpointing:
        residual = 2 if half and rank else 4  # the input of each layer, which is stored
        stored = float(tokens * layers * hidden * residual)
        layer = layer_bytes("recomputed")
    else:
        stored = layers * layer_bytes("stored")
        layer = layer_bytes("working")
    of_last_layer = 10 * hidden + (6 if half else 12) * intermediate
    forward = stored + tokens * of_last_layer + (2 * trained if half else 0)
    assert update.logit_chunk != "auto"  # a plan has a number in its place
    chunk = min(update.logit_chunk, tokens) or tokens
    logits = _LOGIT_BYTES * sizes.vocab_size * chunk
    head = stored + tokens * 4 * hidden + logits + 8 * embedding
    # The gradient of tied embeddings waits for its second part until the end of the backward pass.
    last_layer = stored + layer + (4 * embedding if tied else 0)
    first_layer = (12 if tied else 8) * embedding
    peak = max(forward, head, last_layer, first_layer)
    if update.layout == "packed" and config.model.attention == "sdpa" and not half:
        # In float32 there is no kernel for packed rows, whose mask is then a matrix: booleans, and the additive mask.
        peak += 3 * tokens**2
    return int(peak)


def _feed_forward(sizes: Any) -> int:  # noqa: ANN401
    """Return the width of a feed-forward layer; of a mixture without another, that of the experts of a token."""
    width = size_of(sizes, "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    if width is not None:
        return width
    of_expert = size_of(sizes, "moe_intermediate_size")
    if of_expert is not None:
        return of_expert * (size_of(sizes, "num_experts_per_tok") or 1)
    return 4 * int(sizes.hidden_size)


def smaller_settings(config: Config | SftConfig) -> list[str]:
    """Return the settings that reduce the memory of a run, cheapest first, without those that are in effect.

    All but the last, adapters, have the same result.

    >>> from hgpo_train.training.config import Config, replace
    >>> smaller_settings(replace(Config(), rollout={"engine": "vllm", "sleep": True}))
    ['rollout.offload_optimiser = true', 'update.micro_batch_tokens = 8192', 'adapters: model.lora.rank = 64']
    """
    model = config.model
    update = config.update
    rollout = getattr(config, "rollout", None)  # None in supervised training
    chunk = update.logit_chunk
    is_small = chunk == "auto" or 0 < chunk <= 128
    settings = {
        "model.gradient_checkpointing = true": not model.gradient_checkpointing,
        "update.logit_chunk = 128": not is_small,
        "rollout.sleep = true": rollout is not None
        and rollout.engine == "vllm"
        and not rollout.sleep,
        "rollout.offload_optimiser = true": rollout is not None
        and not rollout.offload_optimiser,
        f"update.micro_batch_tokens = {update.micro_batch_tokens // 2}": update.micro_batch_tokens
        > 1,
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
        for_gpu = (
            config.rollout.engine == "vllm"
            or config.model.attention == "flash_attention_2"
        )
        if (
            for_gpu
            and config.model.device == "auto"
            and not torch.accelerator.is_available()
        ):
            raise InputError(
                f'{config.name} needs a GPU, and {why_no_gpu()}; model.device = "cpu" trains without one'
            )
        return None
    plan = plan_memory(config, meta_model(config.model.path), card, first_card())
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
    """Return the peak of the learner's memory on its GPU in GiB, under verl's names.

    vLLM's engine, another process, is not included. Reserved memory is what the allocator holds, used or not.
    """
    return {
        "perf/max_memory_allocated_gb": torch.cuda.max_memory_allocated(device) / GIB,
        "perf/max_memory_reserved_gb": torch.cuda.max_memory_reserved(device) / GIB,
    }


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f}"
