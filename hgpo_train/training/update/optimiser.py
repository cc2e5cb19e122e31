"""AdamW, its learning-rate schedule and gradient clipping, and its state as named tensors for safetensors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hgpo_train.training.config import OptimiserConfig

_MOMENTS: Final = ("exp_avg", "exp_avg_sq")
_STATE: Final = ("step", *_MOMENTS)


def make_optimiser(model: nn.Module, config: OptimiserConfig) -> torch.optim.AdamW:
    """Return an AdamW optimiser over the trainable parameters.

    Its moments are allocated here and not in the first step, so that a lack of memory shows before any rollout.
    """
    parameters = [
        parameter for parameter in model.parameters() if parameter.requires_grad
    ]
    fused = parameters[0].is_cuda  # one kernel for all parameters; faster on GPUs
    optimiser = torch.optim.AdamW(
        parameters,
        lr=config.learning_rate,
        betas=config.betas,
        eps=config.epsilon,
        weight_decay=config.weight_decay,
        fused=fused,
    )
    for parameter in parameters:
        step = torch.tensor(0.0, device=parameter.device if fused else "cpu")
        zeros = [
            torch.zeros_like(parameter, memory_format=torch.preserve_format)
            for _ in range(2)
        ]
        optimiser.state[parameter] = dict(zip(_STATE, [step, *zeros], strict=True))
    return optimiser


def learning_rate(config: OptimiserConfig, iteration: int, iterations: int) -> float:
    """Return the learning rate of an iteration: a linear warm-up, then constant, or linear or cosine decay to 0.

    Args:
        config: The optimiser's configuration.
        iteration: The iteration, counted from 0.
        iterations: Total number of iterations.

    >>> from hgpo_train.training.config import OptimiserConfig
    >>> config = OptimiserConfig(learning_rate=1.0, schedule="linear", warmup_iterations=2)
    >>> [round(learning_rate(config, i, 6), 2) for i in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    warmup = config.warmup_iterations
    if iteration < warmup:
        return config.learning_rate * (iteration + 1) / warmup
    progress = (iteration - warmup) / max(iterations - warmup, 1)
    shape = {
        "constant": 1.0,
        "linear": 1.0 - progress,
        "cosine": 0.5 * (1.0 + math.cos(math.pi * progress)),
    }
    return config.learning_rate * shape[config.schedule]


def move_state(optimiser: torch.optim.Optimizer, device: torch.device) -> None:
    """Move an optimiser's moments to a device; numbers of steps stay where they are."""
    for state in optimiser.state.values():
        for name in _MOMENTS:
            state[name] = state[name].to(device)


def optimiser_tensors(
    model: nn.Module, optimiser: torch.optim.Optimizer
) -> dict[str, Tensor]:
    """Return the optimiser's state by the names ``state.<parameter>.<part>``."""
    return {
        f"state.{name}.{part}": value.detach().cpu()
        for name, parameter in model.named_parameters()
        for part, value in optimiser.state.get(parameter, {}).items()
    }


def restore_optimiser(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    tensors: dict[str, Tensor],
) -> None:
    """Restore the state that `optimiser_tensors` returned; raise `InputError` if it is another model's."""
    trained = [
        name for name, parameter in model.named_parameters() if parameter.requires_grad
    ]
    expected = {f"state.{name}.{part}" for name in trained for part in _STATE}
    if odd := tensors.keys() ^ expected:
        parameter = min(odd).removeprefix("state.").rpartition(".")[0]
        raise InputError(
            f"the optimiser's state belongs to another model: {parameter!r} is in only one of them"
        )
    # torch numbers parameters in the optimiser's order, which is the model's, and moves the state to their devices.
    state = {
        number: {part: tensors[f"state.{name}.{part}"] for part in _STATE}
        for number, name in enumerate(trained)
    }
    optimiser.load_state_dict({**optimiser.state_dict(), "state": state})
