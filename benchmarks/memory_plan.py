"""Compare the learner's planned memory with fake-tensor measurements.

    python -m benchmarks memory_plan              1.5B with all weights, 7B with adapters, 32 rows of 1,024 tokens
    python -m benchmarks memory_plan --rows 16    smaller micro-batches

A fake tensor has a shape and no memory, so the update of a model of any size runs on a CPU in seconds. The peak is the
greatest number of bytes of storages that are alive at the same time, over the second of two optimiser steps of two
micro-batches each: Adam's moments exist, and the second micro-batch adds to gradients. Kernels' own workspace and the
allocator's fragmentation are not included. `hgpo train CONFIG --plan` prints a plan.
"""

from __future__ import annotations

import warnings
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.runner import Row
from hgpo_train.models.adapters import add_adapters
from hgpo_train.models.hf import checkpoint_layers
from hgpo_train.training.config import Config, load_config, replace
from hgpo_train.training.memory_plan import (
    GIB,
    meta_model,
    named_card,
    plan_memory,
)
from hgpo_train.training.update.logprobs import response_logprobs
from hgpo_train.training.update.optimiser import make_optimiser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from hgpo_train.models.hf import Model

LENGTH = 1024
RUNS = ("alfworld-1.5b-hgpo-k2", "alfworld-7b-hgpo-k2-lora")
CARD = "H100-80"
PARTS = ("weights", "gradients", "optimiser", "activations")
"""The parts of a plan that the learner's update has."""


class LiveBytes(TorchDispatchMode):
    """Count the bytes of storages that are alive; `peak` is the greatest number so far."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(
        self,
        function: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Any = None,  # noqa: ANN401
    ) -> object:
        """Run an operator and count the storages of its outputs."""
        del types
        made = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                self.count(leaf)
        return made

    def count(self, tensor: torch.Tensor) -> None:
        """Count the storage of a tensor until it is freed."""
        storage = tensor.untyped_storage()
        key = StorageWeakRef(storage).cdata
        if key not in self._sizes:
            self._sizes[key] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


def fake_model(config: Config, base: Model) -> Model:
    """Return a configuration's model with fake weights; call this in a fake-tensor mode."""
    model = base
    if config.model.lora.rank:
        with torch.device("meta"):
            model = add_adapters(base, config.model.lora)
    # by the identity of the weight on the meta device, because some are tied
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            new = nn.Parameter(
                torch.empty(weight.shape, dtype=weight.dtype),
                requires_grad=weight.requires_grad,
            )
            setattr(module, name, made.setdefault(id(weight), new))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype))
    if config.model.gradient_checkpointing:
        checkpoint_layers(model)
    return model.train()


def fake_peak(
    config: Config, rows: int, length: int = LENGTH, responses: int = 128
) -> int:
    """Return the peak of the learner's update in bytes, without the reference model.

    Args:
        config: The run's configuration, in which no setting is "auto".
        rows: Rows of a micro-batch.
        length: Tokens of each row.
        responses: Response tokens of each row.
    """
    dtype: torch.dtype = getattr(torch, config.model.compute_dtype)
    live = LiveBytes()
    base = meta_model(config.model.path).to(
        dtype if config.model.lora.rank else torch.float32
    )
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = fake_model(config, base)
        with live:
            for weight in model.parameters():
                live.count(weight)
            optimiser = make_optimiser(model, config.optimiser)
            for _ in range(2):
                live.peak = live.now
                for _ in range(2):
                    ids = torch.zeros(rows, length, dtype=torch.int64)
                    positions = torch.arange(length).repeat(rows, 1)
                    places = torch.zeros(rows * responses, dtype=torch.int64)
                    with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                        logprob, entropy = response_logprobs(
                            model,
                            ids,
                            positions,
                            places,
                            places,
                            # as in every shipped configuration
                            entropy_gradient=True,
                            chunk=config.update.logit_chunk,
                        )
                    (logprob.sum() + entropy.sum()).backward()
                    del logprob, entropy
                torch.nn.utils.clip_grad_norm_(
                    [one for one in model.parameters() if one.grad is not None],
                    1.0,
                )
                optimiser.step()
                optimiser.zero_grad(set_to_none=True)
    return live.peak


def run(rows: int = 32) -> Iterator[Row]:
    """Compare the peaks of the update, without the reference model, with `rows` rows of 1,024 tokens a micro-batch."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in RUNS:
        config = replace(
            load_config(name), update={"micro_batch_tokens": rows * LENGTH}
        )
        plan = plan_memory(config, meta_model(config.model.path), named_card(CARD))
        planned = sum(plan.parts[part][1] for part in PARTS) / GIB
        # the plan's configuration has numbers for "auto"
        floor = ("fake tensors", fake_peak(plan.config, rows) / GIB)
        yield Row("planned peak of the learner", planned, "GiB", floor=floor, case=name)
