"""A memory plan as text, and what to change after the device ran out of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from hgpo_envs.wording import counted
from hgpo_train.training.memory_plan import CARDS, GIB, alternatives, plan_memory

if TYPE_CHECKING:
    from hgpo_train.models.shapes import ModelShape
    from hgpo_train.training.config import Config, SftConfig
    from hgpo_train.training.memory_plan import MemoryPlan

_ASSUMED: Final = "the engine's working memory and the reserve are assumptions, not measured on a GPU"


def plan_table(plan: MemoryPlan, shape: ModelShape) -> Group:
    """Return a table of a plan's parts during the rollout and during the update, its disk, and the verdict."""
    table = Table(
        title=f"{plan.config.name} on {plan.card.name}, {gib(plan.card.memory)} GiB",
        title_justify="left",
        box=None,
        pad_edge=False,
    )
    table.add_column("GiB")
    table.add_column("rollout", justify="right")
    table.add_column("update", justify="right")
    for name, rollout, update in _rows(plan):
        table.add_row(name, gib(rollout), gib(update))
    table.add_row("total", gib(plan.rollout), gib(plan.update))
    lines = [_engine_line(plan), _disk_line(plan), _ASSUMED, verdict(plan, shape)]
    return Group(table, *(Text(line) for line in lines if line))


def cards_table(config: Config, shape: ModelShape) -> Group:
    """Return a table of all known cards: whether a configuration fits, and otherwise what would."""
    table = Table(title=f"{config.name}, GiB", title_justify="left", box=None, pad_edge=False)
    for name in ("card", "memory", "rollout", "update"):
        table.add_column(name, justify="left" if name == "card" else "right")
    table.add_column("fits")
    lines = []
    for card in CARDS:
        plan = plan_memory(config, shape, card)
        table.add_row(card.name, *map(gib, (card.memory, plan.rollout, plan.update)), "yes" if plan.fits else "no")
        if not plan.fits:
            lines.append(Text(f"for {card.name}: {_joined(alternatives(plan, shape))}"))
    return Group(table, *lines)


def verdict(plan: MemoryPlan, shape: ModelShape) -> str:
    """Return whether a plan fits, and otherwise what it needs and what would fit, as one line."""
    if plan.fits:
        return f"fits on {plan.card.name}"
    learner = plan.learner
    parts = {
        "weights": learner.weights,
        "gradients": learner.gradients,
        "optimiser": learner.moments,
        "reference": learner.reference,
        f"activations of {plan.config.update.micro_batch_tokens:,} tokens": learner.activations,
        "engine": max(plan.share, plan.engine.least),
        "reserve": plan.reserve,
    }
    named = ", ".join(f"{name} {gib(size)}" for name, size in parts.items() if size)
    return (
        f"{plan.config.name} does not fit on {plan.card.name} of {gib(plan.card.memory)} GiB (in GiB: {named}); "
        f"what fits: {_joined(alternatives(plan, shape))}"
    )


def out_of_memory(config: Config | SftConfig) -> str:
    """Return an error message that names the settings that reduce the memory of an update, cheapest first.

    Settings that are already at their most economical value are left out.

    >>> from hgpo_train.training.config import Config, replace
    >>> config = replace(Config(), rollout={"engine": "vllm", "sleep": True}, update={"micro_batch_tokens": 8192})
    >>> out_of_memory(config)
    'out of memory with update.micro_batch_tokens = 8192; set update.micro_batch_tokens = 4096 (the result stays the
    same), or train adapters (model.lora.rank = 64); `hgpo train CONFIG --plan` prints what each part needs'
    """
    model, update = config.model, config.update
    rollout = getattr(config, "rollout", None)
    changes = []
    if not model.gradient_checkpointing:
        changes.append("model.gradient_checkpointing = true")
    if not 0 < update.logit_chunk <= 128:
        changes.append("update.logit_chunk = 128")
    if rollout is not None and rollout.engine == "vllm" and not rollout.sleep:
        changes.append("rollout.sleep = true (the engine and the update share the GPU)")
    if rollout is not None and "gpu_memory_utilization" in rollout.engine_options and not rollout.sleep:
        changes.append("a smaller gpu_memory_utilization in rollout.engine_options")
    changes.append(f"update.micro_batch_tokens = {max(1, update.micro_batch_tokens // 2)} (the result stays the same)")
    adapters = "" if model.lora.rank else ", or train adapters (model.lora.rank = 64)"
    plan = "; `hgpo train CONFIG --plan` prints what each part needs" if rollout is not None else ""
    return (
        f"out of memory with update.micro_batch_tokens = {update.micro_batch_tokens}; set "
        f"{', or '.join(changes)}{adapters}{plan}"
    )


def gib(size: float) -> str:
    """Return bytes in GiB.

    >>> gib(3 * 2**29)
    '1.5'
    """
    return f"{size / GIB:,.1f}"


def _joined(found: list[str]) -> str:
    return "; or ".join(found)


def _rows(plan: MemoryPlan) -> list[tuple[str, int, int]]:
    """Return the name of each part and its bytes during the rollout and the update."""
    config, learner, engine = plan.config, plan.learner, plan.engine
    moments = 0 if config.rollout.offload_optimiser else learner.moments
    kept = f"weights (float32 adapters, {config.model.compute_dtype} base)"
    rows = [
        (kept if config.model.lora.rank else "weights (float32)", learner.weights, learner.weights),
        ("gradients", 0, learner.gradients),
        ("optimiser (two moments)", moments, learner.moments),
        ("reference", learner.reference, learner.reference),
        (f"activations of {config.update.micro_batch_tokens:,} tokens", 0, learner.activations),
    ]
    for name, size in (
        ("engine: weights", engine.weights),
        ("engine: working memory", engine.working),
        ("engine: cache", max(0, plan.share - engine.weights - engine.working)),
    ):
        rows.append((name, size, size if plan.engine_stays else 0))
    return [row for row in rows if row[1] or row[2]] + [("reserve", plan.reserve, plan.reserve)]


def _engine_line(plan: MemoryPlan) -> str:
    if plan.config.rollout.engine != "vllm":
        return ""
    return (
        f"gpu_memory_utilization = {plan.utilization:.2f}; the cache holds {counted(plan.sequences, 'sequence')} of "
        f"the greatest length, of {plan.engine.sequences} that run at the same time"
    )


def _disk_line(plan: MemoryPlan) -> str:
    disk, checkpoint = plan.disk, plan.config.checkpoint
    kept = f"{checkpoint.keep} kept" if checkpoint.keep else "all kept"
    whose = "of every one" if checkpoint.optimiser == "all" else "of the last one only"
    return (
        f"disk: a checkpoint every {counted(checkpoint.every, 'iteration')}, {kept}: {gib(disk.weights)} GiB of "
        f"weights, and {gib(disk.moments)} of optimiser state, {whose}; at most {gib(disk.checkpoints)} GiB; step "
        f"tables: at most {gib(disk.steps)} GiB, at 6 KB a row"
    )
