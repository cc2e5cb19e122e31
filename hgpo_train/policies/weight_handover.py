"""Weights handed from the trainer to the engine's processes on the same machine, without a file on disk.

On a GPU the engine's process maps the trainer's own tensors by CUDA IPC handles and copies from them into its weights:
nothing is staged. Elsewhere the weights are written to anonymous memory (`memfd_create`), which the other process maps.
Either way the engine rounds to its dtype when it loads them, as it does with the weights of a checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from hgpo_train.models.hf import Model, unwrap_peft

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor


_ALIGNMENT: Final = 64
"""Every tensor begins at a multiple of so many bytes, which all dtypes accept."""


def checkpoint_weights(
    model: Model, merged_dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    """Return a model's weights by the names of its checkpoint: the model's own tensors, tied ones once.

    Adapters are merged in float32, layer by layer, and rounded once. The merged tensors are in the host's memory. In
    bfloat16 the sum loses every change that is smaller than half a unit in the last place of the weight, which early in
    training are most: adapters should be served as adapters.

    Args:
        model: A causal language model, with or without adapters.
        merged_dtype: The dtype of merged weights.
    """
    from transformers.core_model_loading import revert_weight_conversion

    plain = unwrap_peft(model)
    adapted = {
        name: module
        for name, module in plain.named_modules()
        if hasattr(module, "get_delta_weight")
    }
    weights: dict[str, Tensor] = {}
    seen: set[int] = set()
    # `keep_vars` returns the parameters themselves, so that tied ones are recognised by their identity.
    for name, tensor in plain.state_dict(keep_vars=True).items():
        if ".lora_" in name or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        value = tensor.detach()
        # peft keeps the weights of a layer with adapters one level below it.
        layer, _, parameter = name.rpartition(".base_layer.")
        if layer in adapted and parameter == "weight":
            change = adapted[layer].get_delta_weight("default")
            value = (value.float() + change.float()).to("cpu", merged_dtype)
        weights[name.replace(".base_layer.", ".")] = value
    named: dict[str, Tensor] = revert_weight_conversion(plain, weights)
    return named


@contextlib.contextmanager
def share_tensors(
    weights: Mapping[str, Tensor], *, by_device: bool
) -> Iterator[dict[str, Any]]:
    """Share tensors with other processes of this machine within the block.

    Args:
        weights: Tensors by name. They must not change within the block.
        by_device: Share tensors of a CUDA device in place. The other processes must not be this process.

    Yields:
        What `open_tensors` needs, of plain types. It is valid within the block.
    """
    from torch.multiprocessing.reductions import reduce_tensor

    in_place: dict[str, Tensor] = {}
    staged: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if by_device and tensor.is_cuda:
            # a copy, if it is one, lives until the block ends
            in_place[name] = tensor.contiguous()
        else:
            staged[name] = tensor
    # The other process reads what has been computed by now, on a device that need not be the current one.
    for device in {tensor.device for tensor in in_place.values()}:
        torch.cuda.synchronize(device)
    handles = {}
    for name, tensor in in_place.items():
        reduced = reduce_tensor(tensor)  # type: ignore[no-untyped-call]
        handles[name] = pickle.dumps(reduced)
    file = os.memfd_create("hgpo-weights")
    try:
        layouts = _write(file, staged)
        yield {
            "path": f"/proc/{os.getpid()}/fd/{file}",
            "layouts": layouts,
            "handles": handles,
        }
    finally:
        os.close(file)
        if handles:
            torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]


def open_tensors(handle: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors that another process shares, as views of its memory. They must not be written to.

    Args:
        handle: What `share_tensors` yielded.
    """
    weights: dict[str, Tensor] = {}
    # One mapping for all tensors in the host's memory. Private pages: a worker that writes would not change the file.
    layouts = handle["layouts"]
    if layouts:
        size = Path(handle["path"]).stat().st_size
        memory = torch.from_file(
            handle["path"], shared=False, size=size, dtype=torch.uint8
        )
        for name, (dtype, shape, begin, length) in layouts.items():
            data = memory[begin : begin + length]
            weights[name] = data.view(getattr(torch, dtype)).view(shape)
    for name, pickled in handle["handles"].items():
        rebuild, arguments = pickle.loads(pickled)  # noqa: S301 - written by the parent process, in `share_tensors`
        weights[name] = rebuild(*arguments)
    return weights


class WeightUpdate:
    """A mixin of vLLM's workers (`worker_extension_cls`), whose methods `collective_rpc` calls."""

    reload_weights: Any  # a method of the worker
    model_runner: Any

    def take_weights(self, handle: Mapping[str, Any]) -> None:
        """Load the weights that the trainer shares into the running model, from what `share_tensors` yielded.

        vLLM's `reload_weights` finds no weights for an output layer that is tied to the embedding. The layer then keeps
        its processed copy of the old weights (on a CPU, a packed one). It is tied and processed again here.
        """
        weights = open_tensors(handle)
        self.reload_weights(weights_iterator=iter(weights.items()))
        model = self.model_runner.model
        head: Any = getattr(model, "lm_head", None)
        embedding: Any = getattr(getattr(model, "model", None), "embed_tokens", None)
        are_two = head is not None and embedding is not None and head is not embedding
        if are_two and model.config.tie_word_embeddings:
            head.tie_weights(embedding)
            head.quant_method.process_weights_after_loading(head)
        # The trainer may change its tensors once this method has returned. They can be on another device.
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        for device in {tensor.device for tensor in weights.values() if tensor.is_cuda}:
            torch.cuda.synchronize(device)


def _write(
    file: int, weights: Mapping[str, Tensor]
) -> dict[str, tuple[str, list[int], int, int]]:
    """Write tensors to a file and return each one's dtype, shape, first byte and length in bytes."""
    layouts = {}
    end = 0
    for name, tensor in weights.items():
        data = tensor.cpu().contiguous().flatten().view(torch.uint8)
        begin = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = begin + len(data)
        os.ftruncate(file, end)
        view = data.numpy().data
        written = 0
        while written < len(view):  # one call writes at most 2 GiB
            written += os.pwrite(file, view[written:], begin + written)
        dtype = str(tensor.dtype).removeprefix("torch.")
        layouts[name] = (dtype, list(tensor.shape), begin, len(data))
    return layouts
