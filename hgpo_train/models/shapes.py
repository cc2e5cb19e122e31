"""Sizes of a language model from its configuration alone: it is built on torch's meta device, which has no memory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from hgpo_envs.errors import InputError
from hgpo_train.models.checkpoint_files import resolve_model

if TYPE_CHECKING:
    from collections.abc import Iterable

PUBLISHED: Final[dict[str, dict[str, Any]]] = {
    "Qwen/Qwen2.5-1.5B-Instruct": {
        "vocab_size": 151_936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
    },
    "Qwen/Qwen2.5-7B-Instruct": {
        "vocab_size": 152_064,
        "hidden_size": 3584,
        "intermediate_size": 18_944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": False,
    },
}
"""Configurations of the models of the shipped runs, from `config.json` of these repositories on the Hugging Face hub.
They need no network."""


class ModelShape(NamedTuple):
    """Sizes of a decoder, in elements.

    Attributes:
        layers: Number of layers.
        hidden: Width of the residual stream.
        intermediate: Width of the feed-forward layer.
        query: Width of all query heads together.
        key_value: Width of all key heads together, which equals that of all value heads.
        vocabulary: Rows of the embedding.
        parameters: Number of weights; those of tied embeddings count once.
        tied: Whether input and output embedding are the same weights.
        linear: (name, inputs, outputs) of each linear layer, where the name is the last part of the module's.
    """

    layers: int
    hidden: int
    intermediate: int
    query: int
    key_value: int
    vocabulary: int
    parameters: int
    tied: bool
    linear: tuple[tuple[str, int, int], ...]

    @property
    def embedding(self) -> int:
        """Number of weights of the input embedding."""
        return self.vocabulary * self.hidden

    def adapters(self, rank: int, targets: Iterable[str]) -> int:
        """Return the number of weights of low-rank adapters: rank · (inputs + outputs) of each target layer."""
        return sum(rank * (inputs + outputs) for name, inputs, outputs in self.linear if name in targets)

    def cache_per_token(self) -> int:
        """Return the bytes of keys and values of one token in all layers, in 16 bits."""
        return 2 * self.layers * self.key_value * 2


def model_shape(path: str) -> ModelShape:
    """Return the sizes of a model.

    Args:
        path: A model's folder, the folder of a training run, or a Hugging Face name. Of a name that is not in
            `PUBLISHED`, `config.json` (about 1 KB) is downloaded unless it is in the cache.

    Raises:
        InputError: There is no configuration of a causal language model.

    >>> shape = model_shape("Qwen/Qwen2.5-1.5B-Instruct")
    >>> shape.parameters, shape.cache_per_token()
    (1543714304, 28672)
    """
    from transformers import AutoModelForCausalLM

    config = model_config(path)
    try:
        with torch.device("meta"):
            model: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
                config, trust_remote_code=False
            )
        heads = config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // heads
        linear = [(name, part) for name, part in model.named_modules() if isinstance(part, torch.nn.Linear)]
        return ModelShape(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            intermediate=config.intermediate_size,
            query=heads * width,
            key_value=(getattr(config, "num_key_value_heads", None) or heads) * width,
            vocabulary=model.get_input_embeddings().weight.shape[0],
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            tied=model.get_output_embeddings().weight is model.get_input_embeddings().weight,
            linear=tuple((name.rpartition(".")[2], part.in_features, part.out_features) for name, part in linear),
        )
    except (AttributeError, ValueError) as error:
        raise InputError(f"cannot plan the memory of {path!r}: {str(error).splitlines()[0]}") from error


def model_config(path: str) -> Any:  # noqa: ANN401 (a configuration class of Transformers)
    """Return the configuration of a model; see `model_shape`."""
    from transformers import AutoConfig, Qwen2Config

    folder = resolve_model(path)
    if not Path(folder).is_dir() and path in PUBLISHED:
        return Qwen2Config(**PUBLISHED[path])
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # damaged files and the hub's client can raise any exception
        raise InputError(
            f"cannot read config.json of {path!r} ({type(error).__name__}): expected a model's folder, a run's folder "
            "or a Hugging Face name"
        ) from error
