"""The `model` section of configurations: which model is loaded, and how."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from hgpo_envs.errors import InputError
from hgpo_train.settings import MAY_CHANGE, NonNegativeInt, Settings, check


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate(Settings):
    """The chat template, which renders the messages of a prompt; part of several settings."""

    chat_template: str = ""
    """A Jinja file that replaces the model's chat template; rendered in Jinja's sandbox. Empty keeps the model's."""
    chat_template_options: dict[str, Any] = field(default_factory=dict)
    """Further arguments of the chat template, for example { enable_thinking = false }."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig(Settings):
    """Low-rank adapters (arXiv 2106.09685) of peft. Without them all weights are trained."""

    rank: NonNegativeInt = 0
    """r of the adapters; 0 trains all weights."""
    alpha: int = 32
    """The adapters' output is scaled by alpha / rank."""
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Dropout before the adapters. Any but 0 makes rollout and update disagree."""
    targets: tuple[str, ...] | Literal["all-linear"] = (
        *("q_proj", "k_proj", "v_proj", "o_proj"),
        *("gate_proj", "up_proj", "down_proj"),
    )
    """Names of the linear layers that get an adapter; "all-linear" takes all but the output layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(Settings):
    """The policy."""

    path: str = "Qwen/Qwen2.5-1.5B-Instruct"
    """A folder or a Hugging Face name of a causal language model with a chat template; the folder of a run of
    hgpo sft or hgpo train stands for its newest checkpoint; tiny-alfworld and tiny-webshop are in the package."""
    device: str = field(default="auto", metadata=MAY_CHANGE)
    """A torch device; auto takes an accelerator if there is one."""
    compute_dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """What autocast computes in. Trained weights are always float32: at rates of 1e-6 bfloat16 loses updates."""
    attention: Literal["sdpa", "flash_attention_2", "flex_attention", "eager"] = "sdpa"
    """Transformers' attention implementation. flash_attention_2 needs the package flash-attn, a GPU and bfloat16."""
    gradient_checkpointing: bool | Literal["auto"] = field(
        default="auto", metadata=MAY_CHANGE
    )
    """Recompute layers in the backward pass: a third more time for much less memory. auto does so unless the memory
    plan of a GPU has room for all activations beside the engine's cache."""
    compile: bool = field(default=False, metadata=MAY_CHANGE)
    """Compile each layer of the update with torch.compile, which fuses its elementwise kernels. The first iteration
    takes a minute or more longer. Needs an engine with weights of its own."""
    lora: LoraConfig = LoraConfig()
    """Low-rank adapters."""

    def __post_init__(self) -> None:
        check(self)
        if self.attention == "flash_attention_2" and self.compute_dtype == "float32":
            raise InputError(
                'setting model.attention: "flash_attention_2" has no kernels for model.compute_dtype = "float32"; set '
                'compute_dtype = "bfloat16", or attention = "sdpa"'
            )
