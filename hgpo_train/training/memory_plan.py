"""The memory and the disk that a training run needs, computed before anything is loaded.

Two moments decide whether a run fits on a card: the rollout (the engine's weights and cache beside the learner's
weights and moments) and the update (gradients and activations, with the engine's memory still allocated unless it
sleeps). The engine's share of the card, vLLM's `gpu_memory_utilization`, is what remains.

The learner's part is compared with fake-tensor measurements (`benchmarks/memory_plan.py`). The engine's working memory
and the reserve are assumptions that have not been measured on a GPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import torch

from hgpo_envs.errors import InputError
from hgpo_train.training.activations import activation_bytes
from hgpo_train.training.config import replace, shipped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hgpo_train.models.shapes import ModelShape
    from hgpo_train.training.config import Config

GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class Card:
    """A graphics card.

    Attributes:
        name: Its name.
        memory: Its memory in bytes, as `torch.cuda.get_device_properties` reports it.
    """

    name: str
    memory: int


_GIB: Final = {"4090-24": 23.5, "A100-40": 39.4, "L40S-48": 44.4, "A100-80": 79.1, "H100-80": 79.1, "H200-141": 139.8}
"""Total memory in GiB as torch reports it ("total capacity" of its out-of-memory errors), in ascending order. It is
less than the number in the name, because the driver keeps a part."""

CARDS: Final = tuple(Card(name, int(size * GIB)) for name, size in _GIB.items())


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
    number = text.lower().removesuffix("gb").strip()
    try:
        size = float(number)
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
    found = torch.cuda.get_device_properties(device)
    return Card(str(found.name), int(found.total_memory))


UTILIZATION: Final = "gpu_memory_utilization"
_FIXED_SHARE: Final = "kv_cache_memory_bytes"
"""The other argument of `vllm.LLM` that sets the size of the cache."""

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
_ROW_BYTES: Final = 6_000
"""A generous size of a row of the step table: that of a row with texts and tokens as JSON lines. The same row takes 254
bytes in Parquet (docs/measurements.md)."""


@dataclass(frozen=True, slots=True)
class Learner:
    """Bytes of the learner on the card.

    Attributes:
        weights: The trained weights in float32; with adapters also the frozen base model in the compute dtype.
        gradients: Gradients in float32.
        moments: Adam's two moments in float32.
        reference: The frozen copy for the KL term, in the compute dtype.
        activations: The peak of one micro-batch.
    """

    weights: int
    gradients: int
    moments: int
    reference: int
    activations: int

    @property
    def update(self) -> int:
        """Bytes during the update."""
        return self.weights + self.gradients + self.moments + self.reference + self.activations

    def rollout(self, *, offload: bool) -> int:
        """Return the bytes during the rollout."""
        return self.weights + self.reference + (0 if offload else self.moments)


@dataclass(frozen=True, slots=True)
class Engine:
    """Bytes of the engine that generates rollouts.

    Attributes:
        weights: Its own copy of the weights; 0 if it uses the learner's.
        working: Memory of one step: activations, logits, CUDA graphs.
        sequence: Keys and values of one sequence of the greatest length.
        sequences: Number of sequences that can run at the same time at most.
    """

    weights: int
    working: int
    sequence: int
    sequences: int

    @property
    def least(self) -> int:
        """The fewest bytes that the engine can work with."""
        return self.weights + self.working + min(self.sequences, _FEWEST_SEQUENCES) * self.sequence

    @property
    def most(self) -> int:
        """The bytes with a cache for all sequences; more have no use."""
        return self.weights + self.working + self.sequences * self.sequence


@dataclass(frozen=True, slots=True)
class Disk:
    """Bytes on the disk.

    Attributes:
        weights: Weights of one checkpoint.
        moments: Adam's moments in one checkpoint.
        checkpoints: Bound on all checkpoints. A new one is written before an old one is removed.
        steps: Bound on the step tables of training and evaluation, for rows of `_ROW_BYTES`.
    """

    weights: int
    moments: int
    checkpoints: int
    steps: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a run needs on a card.

    Attributes:
        config: The run's configuration.
        card: The card.
        learner: The learner's parts.
        engine: The engine's parts.
        share: Bytes of the card that the engine gets.
        reserve: Bytes that neither uses: CUDA contexts, and what the allocator cannot use.
        disk: Bytes on the disk.
    """

    config: Config
    card: Card
    learner: Learner
    engine: Engine
    share: int
    reserve: int
    disk: Disk

    @property
    def update(self) -> int:
        """Bytes on the card during the update."""
        return self.learner.update + self.reserve + (self.share if self.engine_stays else 0)

    @property
    def rollout(self) -> int:
        """Bytes on the card during the rollout."""
        return self.learner.rollout(offload=self.config.rollout.offload_optimiser) + self.reserve + self.share

    @property
    def engine_stays(self) -> bool:
        """Whether the engine keeps its memory during the update."""
        return self.config.rollout.engine == "vllm" and not self.config.rollout.sleep

    @property
    def fits(self) -> bool:
        """Whether the card has enough memory at all times."""
        return max(self.update, self.rollout) <= self.card.memory and self.share >= self.engine.least

    @property
    def sequences(self) -> int:
        """Number of sequences of the greatest length that fit into the engine's cache."""
        return max(0, self.share - self.engine.weights - self.engine.working) // self.engine.sequence

    @property
    def utilization(self) -> float:
        """The engine's share of the card."""
        return self.share / self.card.memory

    def engine_options(self) -> dict[str, object]:
        """Return the arguments of `vllm.LLM` that follow from the plan; the configuration's own take precedence."""
        options: dict[str, object] = {}
        if self.config.rollout.engine == "vllm" and _FIXED_SHARE not in self.config.rollout.engine_options:
            options[UTILIZATION] = round(self.utilization, 2)
        return options | self.config.rollout.engine_options


def plan_memory(config: Config, shape: ModelShape, card: Card) -> MemoryPlan:
    """Return the plan of a run on one card.

    Args:
        config: The run's configuration.
        shape: The sizes of its model.
        card: The card.
    """
    learner, engine = _learner(config, shape), _engine(config, shape)
    reserve = _CONTEXTS + int(_FRAGMENTED * card.memory)
    share = _share(config, learner, engine, card, reserve)
    return MemoryPlan(config, card, learner, engine, share, reserve, _disk(config, shape))


def alternatives(plan: MemoryPlan, shape: ModelShape) -> list[str]:
    """Return what would fit where a plan does not.

    These are settings for the same card that give the same result, adapters, and the smallest card of `CARDS` that the
    configuration fits on as it is.

    Args:
        plan: A plan that does not fit.
        shape: The sizes of its model.
    """
    found = []
    for changes in _same_results(plan.config):
        if plan_memory(replace(plan.config, **changes), shape, plan.card).fits:
            found.append(" ".join(_set(changes)))
            break
    if not plan.config.model.lora.rank:
        found += _adapters(plan, shape)
    larger = [card for card in CARDS if plan_memory(plan.config, shape, card).fits]
    if larger:
        found.append(f"a card of {larger[0].name} or more")
    else:
        name = plan.config.name if plan.config.name in shipped() else "CONFIG"
        found.append(
            f"several cards with verl, which shards the weights: `hgpo-verl {name} --gpus 4` (integrations/verl)"
        )
    return found


def _learner(config: Config, shape: ModelShape) -> Learner:
    half = 2 if config.model.compute_dtype == "bfloat16" else 4
    rank = config.model.lora.rank
    trained = shape.adapters(rank, config.model.lora.targets) if rank else shape.parameters
    frozen = half * shape.parameters if rank else 0
    reference = half * shape.parameters if config.update.kl_weight > 0 and not rank else 0
    return Learner(4 * trained + frozen, 4 * trained, 8 * trained, reference, activation_bytes(config, shape))


def _engine(config: Config, shape: ModelShape) -> Engine:
    rollout = config.rollout
    longest = rollout.max_prompt_tokens + rollout.max_response_tokens
    sequence = longest * shape.cache_per_token()
    sequences = min(rollout.slots, rollout.tasks * rollout.group_size)
    if rollout.engine != "vllm":  # the engine generates with the learner's weights, in batches of a bounded size
        batch = int(rollout.engine_options.get("max_batch_tokens", 131_072))
        return Engine(0, 0, sequence, max(1, min(sequences, batch // longest)))
    rank = config.model.lora.rank
    adapters = shape.adapters(rank, config.model.lora.targets) if rank else 0
    step = _ENGINE_TOKENS * 2 * (2 * shape.intermediate + 2 * shape.hidden)
    logits = _ENGINE_SEQUENCES * shape.vocabulary * 8
    return Engine(2 * (shape.parameters + adapters), step + logits + _ENGINE_GRAPHS, sequence, sequences)


def _share(config: Config, learner: Learner, engine: Engine, card: Card, reserve: int) -> int:
    """Return the engine's bytes: those configured, or what the learner leaves of the card, up to what has a use."""
    rollout = config.rollout
    if rollout.engine != "vllm":
        return engine.most  # its batches have a configured size
    if UTILIZATION in rollout.engine_options:
        return int(float(rollout.engine_options[UTILIZATION]) * card.memory)
    during_rollout = learner.rollout(offload=rollout.offload_optimiser)
    beside = during_rollout if rollout.sleep else max(during_rollout, learner.update)
    available = min(card.memory - reserve - beside, int(_LARGEST_SHARE * card.memory))
    percent = card.memory // 100  # the share is given in percent
    return max(0, min(available, engine.most + percent) // percent * percent)


def _disk(config: Config, shape: ModelShape) -> Disk:
    rank = config.model.lora.rank
    weights = 4 * (shape.adapters(rank, config.model.lora.targets) if rank else shape.parameters)
    written = math.ceil(config.iterations / config.checkpoint.every)
    kept = min(written, config.checkpoint.keep + 1) if config.checkpoint.keep else written
    rollout, evaluation = config.rollout, config.evaluation
    batches = rollout.max_generation_batches if rollout.filter_groups else 1
    trained = config.iterations * rollout.tasks * rollout.group_size * batches
    evaluations = 1 + config.iterations // evaluation.every if evaluation.every else 0
    played = trained + evaluations * evaluation.tasks * evaluation.group_size
    return Disk(
        weights,
        2 * weights,
        (kept + 2 * (kept if config.checkpoint.optimiser == "all" else min(written, 2))) * weights,
        played * config.environment.max_steps * _ROW_BYTES,
    )


def _same_results(config: Config) -> Iterator[dict[str, dict[str, object]]]:
    """Yield changes that need less memory and have the same result, from the cheapest to the slowest."""
    longest = config.rollout.max_prompt_tokens + config.rollout.max_response_tokens
    engine: list[dict[str, dict[str, object]]] = [{}]
    if config.rollout.engine == "vllm":
        engine.append({"rollout": {"sleep": True}})
    engine.append({"rollout": {**engine[-1].get("rollout", {}), "offload_optimiser": True}})
    tokens = config.update.micro_batch_tokens
    while tokens >= longest:
        smaller: dict[str, dict[str, object]] = {"update": {"micro_batch_tokens": tokens}}
        yield from ({**changes, **(smaller if tokens < config.update.micro_batch_tokens else {})} for changes in engine)
        tokens //= 2


def _adapters(plan: MemoryPlan, shape: ModelShape) -> list[str]:
    """Return the shipped configuration with adapters, or the setting, if it fits on the card."""
    changes: dict[str, dict[str, object]] = {"model": {"lora": {"rank": 64, "alpha": 64}}}
    for more in _same_results(plan.config):
        if plan_memory(replace(plan.config, **changes, **more), shape, plan.card).fits:
            name = f"{plan.config.name}-lora"
            shown = f"the configuration {name}" if name in shipped() else " ".join(_set(changes))
            return [" ".join(["adapters:", shown, *_set(more)])]
    return []


def _set(changes: dict[str, dict[str, object]]) -> list[str]:
    """Return changes as options of the command line."""
    found = []
    for section, values in changes.items():
        for name, value in values.items():
            nested = value if isinstance(value, dict) else {}
            found += [f"--set {section}.{name}.{inner}={inside}" for inner, inside in nested.items()]
            found += [] if nested else [f"--set {section}.{name}={str(value).lower()}"]
    return found
