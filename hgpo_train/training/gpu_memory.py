"""GPU memory of a training run: check the plan before it starts, and move weights and moments between its phases."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from hgpo_envs.errors import InputError
from hgpo_train.models.loading import choose_device
from hgpo_train.training.memory_plan import GIB, MemoryPlan, meta_model, plan_memory, this_card

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hgpo_train.policies.generation import TrainablePolicy
    from hgpo_train.training.config import Config, RolloutConfig
    from hgpo_train.training.display import Display


def check_memory(config: Config, display: Display) -> MemoryPlan | None:
    """Print the memory plan for the GPU that a run will use; None without a GPU.

    Raises:
        InputError: The run does not fit and `check_memory` is set; the error names what needs less. Nothing is loaded.
    """
    card = this_card(choose_device(config.model.device))
    if card is None:
        return None
    plan = plan_memory(config, meta_model(config.model.path), card)
    display.show(plan.table())
    if config.check_memory and not plan.fits:
        raise InputError(f"{plan.verdict()}; check_memory = false starts nevertheless")
    return plan


def free_gpu(config: RolloutConfig, optimiser: torch.optim.Optimizer) -> None:
    """Give the engine what the learner does not need during the rollout."""
    if config.offload_optimiser:
        move_state(optimiser, torch.device("cpu"))
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def gpu_for_update(
    config: RolloutConfig, policy: TrainablePolicy, optimiser: torch.optim.Optimizer, device: torch.device
) -> Iterator[None]:
    """Within the block, the optimiser's state is on the device, and the engine sleeps if it can."""
    sleeper: Any = policy if config.sleep and hasattr(policy, "sleep") else None
    if sleeper is not None:
        sleeper.sleep()
    if config.offload_optimiser:
        move_state(optimiser, device)
    yield
    if sleeper is not None or config.offload_optimiser:
        free_gpu(config, optimiser)
    if sleeper is not None:
        sleeper.wake_up()


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


def move_state(optimiser: torch.optim.Optimizer, device: torch.device) -> None:
    """Move an optimiser's moments to a device; numbers of steps stay where they are.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> optimiser = torch.optim.AdamW([weight])
    >>> weight.grad = torch.ones(2)
    >>> optimiser.step()
    >>> move_state(optimiser, torch.device("meta"))
    >>> optimiser.state[weight]["exp_avg"].device.type, optimiser.state[weight]["step"].device.type
    ('meta', 'cpu')
    """
    for state in optimiser.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.dim() > 0:
                state[name] = value.to(device)
