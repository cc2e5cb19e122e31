"""GPU memory of a training run: check the plan before it starts, and move weights and moments between its phases."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch

from hgpo_envs.errors import InputError
from hgpo_train.models.loading import choose_device
from hgpo_train.models.shapes import model_shape
from hgpo_train.training.memory_plan import GIB, MemoryPlan, plan_memory, this_card
from hgpo_train.training.plan_text import plan_table, verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hgpo_train.policies.base import TrainablePolicy
    from hgpo_train.training.config import Config, RolloutConfig
    from hgpo_train.training.display import Display


def check_memory(config: Config, display: Display) -> MemoryPlan | None:
    """Print the memory plan for the GPU that a run will use; None without a GPU.

    Raises:
        InputError: The run does not fit and `check_memory` is set; the error names what would fit. Nothing is loaded.
    """
    card = this_card(choose_device(config.model.device))
    if card is None:
        return None
    shape = model_shape(config.model.path)
    plan = plan_memory(config, shape, card)
    display.show(plan_table(plan, shape))
    if config.check_memory and not plan.fits:
        raise InputError(f"{verdict(plan, shape)}; check_memory = false starts nevertheless")
    return plan


class SharedGpu:
    """Moves the engine's and the optimiser's memory off the GPU while the other part of an iteration runs.

    Args:
        config: The settings, of which `sleep` and `offload_optimiser` are used.
        optimiser: The learner's optimiser.
        device: The device of its state during the update.
    """

    def __init__(self, config: RolloutConfig, optimiser: torch.optim.Optimizer, device: torch.device) -> None:
        self._config, self._optimiser, self._device = config, optimiser, device

    def free(self) -> None:
        """Give the engine what the learner does not need during the rollout."""
        if self._config.offload_optimiser:
            move_state(self._optimiser, torch.device("cpu"))
        release_cache()

    @contextmanager
    def update(self, policy: TrainablePolicy) -> Iterator[None]:
        """Within the block, the optimiser's state is on the device, and the engine sleeps if it can.

        Args:
            policy: The policy that generates rollouts. `sleep` and `wake_up` are called if it has them.
        """
        sleeper = policy if self._config.sleep and isinstance(policy, Sleeper) else None
        if sleeper is not None:
            sleeper.sleep()
        if self._config.offload_optimiser:
            move_state(self._optimiser, self._device)
        yield
        if sleeper is not None or self._config.offload_optimiser:
            self.free()
        if sleeper is not None:
            sleeper.wake_up()


@runtime_checkable
class Sleeper(Protocol):
    """A policy whose engine can free its memory on the GPU."""

    def sleep(self) -> None:
        """Free the memory; no requests run and none are submitted until `wake_up`."""
        ...

    def wake_up(self) -> None:
        """Allocate the memory again, with the weights of before."""
        ...


def reset_peak(device: torch.device) -> None:
    """Start a new measurement of the peak that `memory_metrics` returns."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def memory_metrics(device: torch.device) -> dict[str, float]:
    """Return the peak of the learner's memory on a GPU in GiB, under verl's names; empty on other devices.

    The engine of vLLM runs in another process and is not included. Reserved memory is what the allocator holds, used or
    not; `perf/gpu_memory_used_gb` is the memory of all processes at this moment.
    """
    if device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    return {
        "perf/max_memory_allocated_gb": torch.cuda.max_memory_allocated(device) / GIB,
        "perf/max_memory_reserved_gb": torch.cuda.max_memory_reserved(device) / GIB,
        "perf/gpu_memory_used_gb": (total - free) / GIB,
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


def release_cache() -> None:
    """Return the allocator's unused memory to the GPU, where another process, such as the engine's, can use it."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
