"""What to change after the device ran out of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hgpo_train.training.config import Config, SftConfig


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
