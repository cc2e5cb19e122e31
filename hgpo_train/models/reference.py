"""The frozen reference model of the KL term: the policy as it was before training, equal to the last bit.

The policy has float32 weights and computes under autocast, which rounds the inputs and weights of linear layers to the
compute dtype; the residual stream, norms and rotary embeddings stay in float32. The copy stores in the compute dtype
only what autocast rounds anyway, so both models compute the same numbers with the same kernels. Casting the whole model
(`model.to(torch.bfloat16)`) would also round the residual stream, the norms and the frequencies of the rotary
embeddings, whose phases are then wrong by several radians after a few thousand tokens. A model with adapters needs no
copy: it is its own reference while they are disabled.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from hgpo_train.models.hf import Model


def frozen_copy(model: Model, dtype: torch.dtype) -> Model:
    """Return a copy without gradients that computes the same numbers as a float32 model under autocast.

    Linear layers are stored in the compute dtype. So is the input embedding if that changes none of its values, which
    is the case for checkpoints in bfloat16; its output is then converted to float32. All other weights, and all
    buffers, keep their dtype.

    Args:
        model: A causal language model of Transformers.
        dtype: The dtype that autocast computes in.
    """
    stored = {id(parameter): parameter.dtype for parameter in model.parameters()}
    for module in model.modules():
        if isinstance(module, nn.Linear):
            stored |= {
                id(parameter): dtype for parameter in module.parameters(recurse=False)
            }
    embedding = model.get_input_embeddings()  # can be tied to the output layer
    original = embedding.weight.dtype
    exact = torch.equal(embedding.weight.to(dtype).to(original), embedding.weight)
    stored[id(embedding.weight)] = dtype if exact else original
    # `deepcopy` takes objects that it finds in `memo` as copied, so no float32 copy of the weights is made first.
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(
            parameter.detach().to(stored[id(parameter)], copy=True), requires_grad=False
        )
        for parameter in model.parameters()
    }
    copied = copy.deepcopy(model, memo).eval()
    if exact:
        copied.get_input_embeddings().register_forward_hook(
            lambda _module, _inputs, output: output.to(original)
        )
    return copied
