"""A platform of verl for CPUs, which verl does not have: it takes a logical GPU of Ray and computes with gloo.

verl chooses its platform when it is first asked for one, so this module has to be imported before all others.
"""

from __future__ import annotations

import types
from contextlib import contextmanager
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


class _Device(types.ModuleType):
    """`torch.cpu` with the functions of `torch.cuda` that verl calls."""

    get_rng_state = staticmethod(torch.get_rng_state)
    set_rng_state = staticmethod(torch.set_rng_state)

    def get_device_name(self) -> str:
        return "cpu"

    def mem_get_info(self) -> tuple[int, int]:
        return 1, 1

    def __getattr__(self, name: str) -> Any:
        if hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: 0


@PlatformRegistry.register(platform="cpu")
class CpuPlatform(PlatformBase):
    device_name = vendor_name = "cpu"
    device_module = _Device("torch.cpu")

    def is_available(self):
        return True

    def current_device(self):
        return "cpu"

    def device_count(self):
        return 1

    def set_device(self, device_index):
        pass

    def synchronize(self, device_index=None):
        pass

    def manual_seed(self, seed):
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def set_allocator_settings(self, settings):
        pass

    def empty_cache(self):
        pass

    def get_device_capability(self, device_index=0):
        return None, None

    def communication_backend_name(self):
        return "gloo"

    def visible_devices_envvar(self):
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg):
        yield

    def profiler_start(self):
        pass

    def profiler_stop(self):
        pass

    def ray_resource_name(self):
        return "GPU"  # a logical one: ray.init(num_gpus=1)

    def ray_noset_envvars(self):
        return []

    def is_ipc_supported(self):
        return False

    def cudart(self):
        return None


_init_process_group = torch.distributed.init_process_group


def _one_backend(backend: str | None = None, **options: Any) -> None:
    """Begin a process group: verl asks for one backend of the CPU and one of the device, which is the CPU here."""
    return _init_process_group(
        "gloo" if backend == "cpu:gloo,cpu:gloo" else backend, **options
    )


torch.distributed.init_process_group = _one_backend
# verl's reference model waits in pinned memory
torch.Tensor.pin_memory = lambda tensor, *_, **__: tensor
