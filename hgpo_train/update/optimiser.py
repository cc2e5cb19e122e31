"""AdamW with its schedule and clipping, and its state as plain named tensors for safetensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hgpo_train.config import OptimiserConfig

_MOMENTS = ("exp_avg", "exp_avg_sq")


def make_optimiser(model: nn.Module, config: OptimiserConfig) -> torch.optim.AdamW:
    """AdamW over the trainable parameters."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    first, second = config.betas
    return torch.optim.AdamW(
        parameters,
        lr=config.learning_rate,
        betas=(first, second),
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        fused=parameters[0].is_cuda,
    )


def learning_rate(config: OptimiserConfig, iteration: int, iterations: int) -> float:
    """The learning rate of an iteration (from 0): linear warm-up, then constant, linear or cosine to 0.

    >>> from hgpo_train.config import OptimiserConfig
    >>> config = OptimiserConfig(learning_rate=1.0, schedule="linear", warmup_iterations=2)
    >>> [round(learning_rate(config, i, 6), 2) for i in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    warmup = config.warmup_iterations
    if iteration < warmup:
        return config.learning_rate * (iteration + 1) / warmup
    progress = (iteration - warmup) / max(iterations - warmup, 1)
    shape = {"constant": 1.0, "linear": 1.0 - progress, "cosine": 0.5 * (1.0 + math.cos(math.pi * progress))}
    return config.learning_rate * shape[config.schedule]


def clip_gradient(model: nn.Module, largest: float) -> float:
    """Scales the gradient to at most this norm (0 leaves it) and returns its norm before."""
    parameters = [parameter for parameter in model.parameters() if parameter.grad is not None]
    return float(torch.nn.utils.clip_grad_norm_(parameters, largest if largest > 0 else math.inf))


def optimiser_tensors(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state as tensors named ``<moment>.<parameter>`` and ``step.<parameter>``."""
    tensors = {}
    for name, parameter in model.named_parameters():
        state = optimiser.state.get(parameter)
        if state:
            tensors[f"step.{name}"] = torch.as_tensor(state["step"], dtype=torch.float32).cpu().clone()
            tensors |= {f"{moment}.{name}": state[moment].detach().cpu().contiguous() for moment in _MOMENTS}
    return tensors


def restore_optimiser(model: nn.Module, optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Puts back what `optimiser_tensors` gave.

    Raises:
        InputError: The tensors belong to another model.
    """
    names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    saved = {name.partition(".")[2] for name in tensors}
    if saved and saved != names:
        odd = min(saved ^ names)
        raise InputError(f"the optimiser's state belongs to another model: {odd!r} is in one of them only")
    for name, parameter in model.named_parameters():
        if f"step.{name}" in tensors:
            state: dict[str, Tensor] = {"step": tensors[f"step.{name}"]}
            if optimiser.defaults.get("fused"):
                state["step"] = state["step"].to(parameter.device)
            state |= {moment: tensors[f"{moment}.{name}"].to(parameter.device) for moment in _MOMENTS}
            optimiser.state[parameter] = state
