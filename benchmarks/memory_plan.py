"""Compare the learner's planned memory with fake-tensor measurements, and print plans for cards of 80 and 141 GB.

    python benchmarks/memory_plan.py              1.5B with all weights, 7B with adapters, 32 rows of 1,024 tokens
    python benchmarks/memory_plan.py --rows 16    smaller micro-batches

A fake tensor has a shape and no memory, so the update of a model of any size runs on a CPU in seconds. The peak is the
greatest number of bytes of storages that are alive at the same time, over the second of two optimiser steps of two
micro-batches each: Adam's moments exist, and the second micro-batch adds to gradients. Kernels' own workspace and the
allocator's fragmentation are not included. Results: benchmarks/results/memory_plan.json.
"""

from __future__ import annotations

import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import torch
from record import make_parser, print_table, store
from rich.console import Console
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hgpo_train.models.loading import add_adapters, checkpoint_layers, compute_dtype
from hgpo_train.training.config import Config, load_config, replace
from hgpo_train.training.memory_plan import GIB, meta_model, named_card, plan_memory
from hgpo_train.training.update.logprobs import response_logprobs
from hgpo_train.training.update.optimiser import make_optimiser

if TYPE_CHECKING:
    from collections.abc import Callable

    from hgpo_train.models.hf import Model

LENGTH = 1024
RUNS = ("alfworld-1.5b-hgpo-k2", "alfworld-7b-hgpo-k2-lora")
CARDS = ("H100-80", "H200-141")


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
    made: dict[int, nn.Parameter] = {}  # by the identity of the weight on the meta device, because some are tied
    for module in model.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            new = nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype), requires_grad=weight.requires_grad)
            setattr(module, name, made.setdefault(id(weight), new))
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, torch.empty(buffer.shape, dtype=buffer.dtype))
    if config.model.gradient_checkpointing:
        checkpoint_layers(model)
    return model.train()


def fake_peak(config: Config, rows: int, length: int = LENGTH, responses: int = 128) -> int:
    """Return the peak of the learner's update in bytes, without the reference model.

    Args:
        config: The run's configuration, in which no setting is "auto".
        rows: Rows of a micro-batch.
        length: Tokens of each row.
        responses: Response tokens of each row.
    """
    dtype, live = compute_dtype(config.model), LiveBytes()
    base = meta_model(config.model.path).to(dtype if config.model.lora.rank else torch.float32)
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
                        # The entropy has a gradient in every shipped configuration.
                        options = {"entropy_gradient": True, "chunk": config.update.logit_chunk}
                        logprob, entropy = response_logprobs(model, ids, positions, places, places, **options)
                    (logprob.sum() + entropy.sum()).backward()
                    del logprob, entropy
                torch.nn.utils.clip_grad_norm_([one for one in model.parameters() if one.grad is not None], 1.0)
                optimiser.step()
                optimiser.zero_grad(set_to_none=True)
    return live.peak


def compare(name: str, rows: int) -> dict[str, Any]:
    """Return the planned and the measured peak of a shipped configuration with `rows` rows a micro-batch."""
    config = replace(load_config(name), update={"micro_batch_tokens": rows * LENGTH})
    plan = plan_memory(config, meta_model(config.model.path), named_card(CARDS[0]))
    began = time.perf_counter()
    peak = fake_peak(plan.config, rows)  # which has numbers for "auto"
    seconds = time.perf_counter() - began
    planned = sum(plan.parts[name][1] for name in ("weights", "gradients", "optimiser", "activations"))
    return {
        "configuration": name,
        "rows": rows,
        "length": LENGTH,
        "planned_gib": planned / GIB,
        "fake_peak_gib": peak / GIB,
        "planned/fake": planned / peak,
        "reference_gib": plan.parts["reference"][1] / GIB,
        "seconds": seconds,
    }


def main() -> None:
    """Print the comparison, then the plans."""
    parser = make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=32, help="rows of 1,024 tokens of a micro-batch")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found = [compare(name, given.rows) for name in RUNS]
    print_table(found, title="peak of the learner's update, without the reference")
    for name in RUNS:
        config = load_config(name)
        model = meta_model(config.model.path)
        for card in CARDS:
            Console().print(plan_memory(config, model, named_card(card)).table(), soft_wrap=True)
    print(store("memory_plan", {"learner": found}, keep=given.keep))


if __name__ == "__main__":
    main()
