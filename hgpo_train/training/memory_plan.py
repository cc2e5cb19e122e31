"""The memory that a training run needs on a graphics card, computed before anything is loaded.

Two moments decide whether a run fits on a card: the rollout (the engine's weights and cache beside the learner's
weights and moments) and the update (gradients and activations, with the engine's memory still allocated unless it
sleeps). The engine's share of the card, vLLM's `gpu_memory_utilization`, is what remains.

The learner's part is compared with fake-tensor measurements (`benchmarks/memory_plan.py`). The engine's working memory
and the reserve are assumptions that have not been measured on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from hgpo_envs.errors import InputError
from hgpo_train.training.config import shipped

if TYPE_CHECKING:
    from hgpo_train.models.shapes import ModelShape
    from hgpo_train.training.config import Config, SftConfig

GIB: Final = 2**30


class Card(NamedTuple):
    """A graphics card: its name, and its memory in bytes as `torch.cuda.get_device_properties` reports it."""

    name: str
    memory: int


_GIB: Final = {"4090-24": 23.5, "A100-40": 39.4, "L40S-48": 44.4, "A100-80": 79.1, "H100-80": 79.1, "H200-141": 139.8}
"""Total memory in GiB as torch reports it ("total capacity" of its out-of-memory errors), in ascending order. It is
less than the number in the name, because the driver keeps a part."""
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
_ENGINE_GRAPHS: Final = GIB // 2
"""CUDA graphs and small buffers of the engine."""
_LOGIT_BYTES: Final = 20
"""Bytes per logit of a chunk in the backward pass: five float32 tensors."""

# Bytes per token that a layer needs, per unit of (hidden, intermediate, query, adapters' rank), and further bytes. They
# were determined by counting the storages that are alive in a pass of `ResponseScorer` with fake tensors, for models of
# other widths than the benchmark prints, with attention that stores no matrix of length × length.
_STORED: Final[dict[tuple[str, str], tuple[float, ...]]] = {
    ("weights", "bfloat16"): (28, 8, 8, 0, 0),
    ("adapters", "bfloat16"): (18, 8, 10, 144, 0),
    ("weights", "float32"): (28, 16, 16, 0, 0),
    ("adapters", "float32"): (18, 16, 16, 144, 0),
}
"""What each layer stores for the backward pass, without gradient checkpointing."""
_WORKING: Final[dict[tuple[str, str], tuple[float, ...]]] = {
    ("weights", "bfloat16"): (25, 0.5, 0, 0, 0),
    ("adapters", "bfloat16"): (16, 6, 0, 0, 0),
    ("weights", "float32"): (8, 8, 0, 0, 0),
    ("adapters", "float32"): (8, 8, 0, 0, 0),
}
"""What the layer at work needs beyond that, at the peak of the backward pass."""
_RECOMPUTED: Final[dict[tuple[str, str], tuple[float, ...]]] = {
    ("weights", "bfloat16"): (30, 12, 8, 0, 0),
    ("adapters", "bfloat16"): (28, 14, 10, 14, 3640),
    ("weights", "float32"): (30, 24, 16, 0, 0),
    ("adapters", "float32"): (16, 24, 16, 24, 6200),
}
"""What the layer at work needs at the peak of the backward pass with gradient checkpointing, with recomputed values."""


def named_card(text: str) -> Card:
    """Return the card of a name in `CARDS`, or one with a number of GB, of which 1.5% are the driver's.

    Raises:
        InputError: It is neither.

    >>> named_card("H200-141").memory // GIB, round(named_card("64").memory / GIB, 1)
    (139, 63.0)
    """
    for card in CARDS:
        if card.name.lower() == text.lower():
            return card
    try:
        size = float(text.lower().removesuffix("gb"))
    except ValueError:
        size = 0.0
    if not 1 <= size <= 10_000:
        known = ", ".join(card.name for card in CARDS)
        raise InputError(f"--card: expected {known} or a number of GB, received {text!r}")
    return Card(f"{size:g} GB", int(size * 0.985 * GIB))


def this_card(device: torch.device) -> Card | None:
    """Return the card of a CUDA device; None for any other device."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    return Card(str(properties.name), int(properties.total_memory))


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a run needs on a card, in bytes.

    Attributes:
        config: The run's configuration.
        card: The card.
        parts: The bytes of each part during the rollout and during the update, by its name.
        share: What the engine gets of the card.
        engine: The engine's weights and working memory; 0 if it generates with the learner's weights.
        sequence: Keys and values of one sequence of the greatest length.
        concurrent: Number of sequences that run at the same time at most.
    """

    config: Config
    card: Card
    parts: dict[str, tuple[int, int]]
    share: int
    engine: int
    sequence: int
    concurrent: int

    @property
    def rollout(self) -> int:
        """Bytes on the card during the rollout."""
        return sum(rollout for rollout, _ in self.parts.values())

    @property
    def update(self) -> int:
        """Bytes on the card during the update."""
        return sum(update for _, update in self.parts.values())

    @property
    def least(self) -> int:
        """The fewest bytes that the engine can work with."""
        return self.engine + min(self.concurrent, _FEWEST_SEQUENCES) * self.sequence

    @property
    def fits(self) -> bool:
        """Whether the card has enough memory at all times."""
        return max(self.update, self.rollout) <= self.card.memory and self.share >= self.least

    def engine_options(self) -> dict[str, Any]:
        """Return the arguments of `vllm.LLM` that follow from the plan; the configuration's own take precedence."""
        configured = self.config.rollout.engine_options
        if self.config.rollout.engine != "vllm" or "kv_cache_memory_bytes" in configured:  # that sets the cache's size
            return dict(configured)
        return {_UTILIZATION: round(self.share / self.card.memory, 2)} | configured


def plan_memory(config: Config, shape: ModelShape, card: Card) -> MemoryPlan:
    """Return the plan of a run on one card.

    Args:
        config: The run's configuration.
        shape: The sizes of its model.
        card: The card.
    """
    rollout, rank = config.rollout, config.model.lora.rank
    half = 2 if config.model.compute_dtype == "bfloat16" else 4
    adapters = shape.adapters(rank, config.model.lora.targets) if rank else 0
    trained = adapters or shape.parameters
    weights = 4 * trained + (half * shape.parameters if rank else 0)  # float32, and the frozen base of adapters
    reference = half * shape.parameters if config.update.kl_weight > 0 and not rank else 0
    reserve = _CONTEXTS + int(_FRAGMENTED * card.memory)
    parts = {
        "weights": (weights, weights),
        "gradients": (0, 4 * trained),
        "optimiser": (0 if rollout.offload_optimiser else 8 * trained, 8 * trained),
        "reference": (reference, reference),
        "activations": (0, activation_bytes(config, shape)),
        "reserve": (reserve, reserve),
    }
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    sequence = longest * shape.cache_per_token()
    concurrent = min(rollout.slots, rollout.tasks * rollout.group_size)
    if rollout.engine == "vllm":
        step = _ENGINE_TOKENS * 2 * (2 * shape.intermediate + 2 * shape.hidden)
        logits = _ENGINE_SEQUENCES * shape.vocabulary * 8
        engine = 2 * (shape.parameters + adapters) + step + logits + _ENGINE_GRAPHS
        at_rollout, at_update = (sum(sizes) for sizes in zip(*parts.values(), strict=True))
        free = card.memory - (at_rollout if rollout.sleep else max(at_rollout, at_update))
        percent = card.memory // 100  # the share is given in percent
        useful = engine + concurrent * sequence + percent
        share = max(0, min(free, int(_LARGEST_SHARE * card.memory), useful) // percent * percent)
        if _UTILIZATION in rollout.engine_options:
            share = int(float(rollout.engine_options[_UTILIZATION]) * card.memory)
    else:  # it generates with the learner's weights, in batches of a configured size
        batch = int(rollout.engine_options.get("max_batch_tokens", 131_072))
        concurrent = max(1, min(concurrent, batch // longest))
        engine, share = 0, concurrent * sequence
    parts["engine"] = (share, share if rollout.engine == "vllm" and not rollout.sleep else 0)
    return MemoryPlan(config, card, parts, share, engine, sequence, concurrent)


def activation_bytes(config: Config, shape: ModelShape) -> int:
    """Return the peak of a micro-batch of `update.micro_batch_tokens` beyond weights, gradients and moments, in bytes.

    The peak is the largest of four moments: the end of the forward pass (autocast keeps a copy of every trained weight
    in the compute dtype until then), the output layer's backward pass, the backward pass of the last layer, and that
    of the input embedding.
    """
    model, update, rank = config.model, config.update, config.model.lora.rank
    tokens, full, half = update.micro_batch_tokens, not rank, model.compute_dtype == "bfloat16"

    def layer_bytes(table: dict[tuple[str, str], tuple[float, ...]]) -> float:
        per_unit = table["weights" if full else "adapters", model.compute_dtype]
        units = (shape.hidden, shape.intermediate, shape.query, rank, 1)
        return tokens * sum(size * unit for size, unit in zip(per_unit, units, strict=True))

    if model.gradient_checkpointing:
        residual = 2 if half and not full else 4  # the input of each layer, which is stored
        stored, layer = float(tokens * shape.layers * shape.hidden * residual), layer_bytes(_RECOMPUTED)
    else:
        stored, layer = shape.layers * layer_bytes(_STORED), layer_bytes(_WORKING)
    logits = _LOGIT_BYTES * shape.vocabulary * (min(update.logit_chunk, tokens) or tokens)
    cast = 2 * shape.parameters if full and half else 0
    forward = stored + tokens * (10 * shape.hidden + (6 if half else 12) * shape.intermediate) + cast
    head = stored + tokens * 4 * shape.hidden + logits + (8 * shape.embedding if full else 0)
    # The gradient of tied embeddings waits for its second part until the end of the backward pass.
    last_layer = stored + layer + (4 * shape.embedding if full and shape.tied else 0)
    embedding = (12 if shape.tied else 8) * shape.embedding if full else 0
    # Without variable-length kernels the mask of packed rows is a matrix: booleans, and the additive mask.
    mask = 3 * tokens**2 if update.layout == "packed" and model.attention == "sdpa" else 0
    return int(max(forward, head, last_layer, embedding) + mask)


def plan_text(plan: MemoryPlan, shape: ModelShape) -> str:
    """Return a plan's parts during the rollout and during the update, and the verdict, in lines."""
    lines = [f"{plan.config.name} on {plan.card.name}, {_gib(plan.card.memory)} GiB", f"{'GiB':<12}  rollout   update"]
    sizes = plan.parts | {"total": (plan.rollout, plan.update)}
    lines += [f"{name:<12}{_gib(rollout):>9}{_gib(update):>9}" for name, (rollout, update) in sizes.items()]
    if plan.config.rollout.engine == "vllm":
        cached = max(0, plan.share - plan.engine) // plan.sequence
        lines.append(
            f"gpu_memory_utilization = {plan.share / plan.card.memory:.2f}; the cache holds {cached} sequences of the "
            f"greatest length, of {plan.concurrent} that run at the same time"
        )
    lines.append("the engine's working memory and the reserve are assumptions, not measured on a GPU")
    return "\n".join([*lines, verdict(plan, shape)])


def verdict(plan: MemoryPlan, shape: ModelShape) -> str:
    """Return whether a plan fits, and otherwise what it needs and what would fit, as one line."""
    config, card = plan.config, plan.card
    if plan.fits:
        return f"{config.name} fits on {card.name}"
    needed = plan.parts | {"engine": (max(plan.share, plan.least), 0)}
    parts = ", ".join(f"{name} {_gib(max(sizes))}" for name, sizes in needed.items())
    fitting = [larger.name for larger in CARDS if plan_memory(config, shape, larger).fits]
    cluster = f"`hgpo-verl {config.name if config.name in shipped() else 'CONFIG'} --gpus 4` (integrations/verl)"
    other = f"a card of {fitting[0]}" if fitting else f"several cards with verl, which shards the weights: {cluster}"
    return (
        f"{config.name} does not fit on {card.name} of {_gib(card.memory)} GiB (in GiB, with micro-batches of "
        f"{config.update.micro_batch_tokens:,} tokens: {parts}); what needs less: "
        f"{'; '.join(smaller_settings(config))}; or use {other}"
    )


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
        "update.logit_chunk = 128": not 0 < update.logit_chunk <= 128,
        "rollout.sleep = true": rollout is not None and rollout.engine == "vllm" and not rollout.sleep,
        "rollout.offload_optimiser = true": rollout is not None and not rollout.offload_optimiser,
        f"update.micro_batch_tokens = {update.micro_batch_tokens // 2}": update.micro_batch_tokens > 1,
        "adapters: model.lora.rank = 64": not model.lora.rank,
    }
    return [setting for setting, useful in settings.items() if useful]


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f}"
