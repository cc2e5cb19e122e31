"""Checks that a loaded model computes what training expects of it, on 64 random tokens.

Training runs a model's decoder and output layer itself, on rows that are padded or packed one after another, with
`train()` switched on. Whether that gives the model's own logits depends on its architecture and its configuration.
Names of architectures and settings are no guide: new ones appear with every release of Transformers. So it is tried.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

import torch
from torch import Tensor, nn

from hgpo_envs.errors import InputError, one_line
from hgpo_train.models.hf import Model, unwrap_peft
from hgpo_train.models.packed_attention import has_packed_kernel, last_hidden_states

if TYPE_CHECKING:
    from collections.abc import Iterator


LENGTHS: Final = (24, 40)
"""The lengths of the two sequences that are tried, in tokens."""
_LARGEST_LOGIT: Final = 100.0
"""Logits are scaled to this size for the comparison: a soft cap changes only large ones."""
_TOLERANCE: Final = 3e-5
"""The greatest relative error in float32, a multiple of what rounding makes."""
_TOLERANCE_HALF: Final = 0.05
"""The same in bfloat16."""
_NOISES: Final = ("jitter_noise", "input_jitter_noise")
"""Attributes of layers that multiply inputs of routers by noise, in training alone."""


def check_forward(model: Model) -> bool:
    """Check that a model computes in training what it computes elsewhere, and set its dropout to 0.

    Its logits must be those of its output layer on the decoder's last hidden states, and a token's hidden states must
    not depend on what follows it, such as the padding of its row. Every dropout, and the noise of routers' inputs, is
    set to 0, so that the update computes the probabilities that the rollout sampled from.

    Args:
        model: A causal language model of Transformers without adapters, on its device.

    Returns:
        Whether the model had any dropout or noise.

    Raises:
        InputError: Its logits are others, for example because they are capped or scaled afterwards; its hidden states
            depend on what follows, as in decoders of Transformers that are made of encoders, or are others in training
            for another reason; or it cannot be run.
    """
    name = type(model).__name__
    head = model.get_output_embeddings()

    # 1. The logits of the model, and of its output layer. They are large, where a soft cap would change them.
    try:
        with trying(model) as trial:
            first, second = (ids[None] for ids in trial.sequences)
            expected = last_hidden_states(model, second)
            logits = head(expected).float()
            scale = _LARGEST_LOGIT / logits.abs().max()
            hook = head.register_forward_hook(
                lambda _module, _arguments, output: output * scale
            )
            try:
                whole = model(input_ids=second, use_cache=False).logits.float()
            finally:
                hook.remove()
    except Exception as error:  # of the model's own code
        raise InputError(
            f"model.path: {name} cannot compute the logits of {LENGTHS[1]} tokens: {type(error).__name__}: "
            f"{one_line(error, 200)}; choose another model, or another model.attention"
        ) from error
    difference = float((whole - scale * logits).abs().max()) / _LARGEST_LOGIT
    if not difference < trial.tolerance:
        raise InputError(
            f"expected a model whose logits are those of its output layer, such as the Qwen family, received {name}, "
            "which changes them afterwards (a soft cap or a scale); choose another model.path"
        )

    # 2. The hidden states of a row alone, and with another one after it.
    with trying(model):
        alone = last_hidden_states(model, first)
        followed = last_hidden_states(model, torch.cat([first, second], 1))
    # Most tokens: in half precision, rounding can send a token of a mixture to another expert.
    errors = _relative_errors(alone, followed[:, : LENGTHS[0]])
    if not errors.median() < trial.tolerance:
        raise InputError(
            f"expected a model in which a token depends on those before it alone, received {name}; choose another "
            "model.path"
        )

    # 3. Training without dropout, which computes what evaluation does.
    had_dropout = False
    for module in model.modules():
        for attribute, value in vars(module).items():
            is_rate = "drop" in attribute or attribute in _NOISES
            is_rate |= isinstance(module, nn.Dropout) and attribute == "p"
            if is_rate and isinstance(value, float) and value > 0:
                setattr(module, attribute, 0.0)
                had_dropout = True
    with trying(model):
        model.train()
        received = last_hidden_states(model, second)
    if _relative_errors(expected, received).max() > trial.tolerance:
        raise InputError(
            f"expected a model that computes the same in training and in evaluation, received {name}; choose another "
            "model.path"
        )
    return had_dropout


def can_pack(model: Model) -> bool:
    """Return whether sequences that are packed into one row have the hidden states of separate rows.

    Layers that carry a state from token to token, and attention that ignores where a sequence begins, let a sequence
    see the one before it.

    Args:
        model: A causal language model of Transformers, bare or wrapped by peft, on its device.
    """
    try:
        with trying(model) as trial:
            sequences = trial.sequences
            places = [torch.arange(len(ids), device=ids.device) for ids in sequences]
            separate = [last_hidden_states(model, ids[None]) for ids in sequences]
            packed = last_hidden_states(
                model, torch.cat(sequences)[None], torch.cat(places)[None]
            )
    except Exception:  # noqa: BLE001 - the model's own code refuses packed rows
        return False
    errors = _relative_errors(torch.cat(separate, 1), packed)
    return bool(errors.max() < trial.tolerance)


class Trial(NamedTuple):
    """What a model is tried on.

    Attributes:
        sequences: Two sequences of random token ids on the model's device, always the same.
        tolerance: The greatest relative error that rounding can explain.
    """

    sequences: list[Tensor]
    tolerance: float


@contextmanager
def trying(model: Model) -> Iterator[Trial]:
    """Within the block, compute as in evaluation, without gradients, in float32 if the model can."""
    embedding = unwrap_peft(model).get_input_embeddings().weight
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(embedding.shape[0], (sum(LENGTHS),), generator=generator)
    sequences = list(torch.split(ids.to(embedding.device), list(LENGTHS)))

    # Otherwise its weights are float32, and its attention is no kernel for half
    is_half = has_packed_kernel(model) or any(
        weights.dtype != torch.float32 for weights in model.parameters()
    )
    half = torch.autocast(embedding.device.type, torch.bfloat16, enabled=is_half)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), half:
            yield Trial(sequences, _TOLERANCE_HALF if is_half else _TOLERANCE)
    finally:
        model.train(was_training)


def _relative_errors(expected: Tensor, received: Tensor) -> Tensor:
    """Return the relative errors of the states of tokens, infinity where one is not finite."""
    away = (received - expected).float().norm(dim=-1)
    error: Tensor = away / expected.float().norm(dim=-1)
    return error.nan_to_num(torch.inf)
