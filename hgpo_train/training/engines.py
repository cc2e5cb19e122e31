"""Who generates during training: a policy whose weights can be replaced, by its name (`rollout.engine`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from hgpo_envs.errors import InputError, unknown
from hgpo_train.models.checkpoint_files import resolve_model
from hgpo_train.models.loading import compute_dtype
from hgpo_train.policies.base import Policy
from hgpo_train.policies.generation import GenerationOptions
from hgpo_train.settings import build, merge, to_dict

if TYPE_CHECKING:
    from collections.abc import Callable

    from hgpo_train.models.hf import Model, Tokenizer
    from hgpo_train.training.config import Config


class TrainablePolicy(Policy, Protocol):
    """A policy whose weights can be replaced."""

    options: GenerationOptions

    def publish(self, model: Model, version: int) -> None:
        """Takes the weights as they are now; whatever was cached under the old ones is forgotten."""
        ...


def make_engine(config: Config, model: Model, tokenizer: Tokenizer) -> TrainablePolicy:
    """The engine that a configuration names."""
    rollout = config.rollout
    options = GenerationOptions(
        temperature=rollout.temperature,
        max_prompt_tokens=rollout.max_prompt_tokens,
        max_response_tokens=rollout.max_response_tokens,
        overflow=rollout.overflow,
    )
    return _maker(rollout.engine)(config, model, tokenizer, options)


def check_engine(name: str) -> None:
    """Refuses a name that is not known.

    Raises:
        InputError: It is not.
    """
    _maker(name)


def _maker(name: str) -> Callable[[Config, Model, Tokenizer, GenerationOptions], TrainablePolicy]:
    if name not in ENGINES:
        raise InputError(unknown("rollout.engine", name, ENGINES))
    return ENGINES[name]


def _transformers(config: Config, model: Model, tokenizer: Tokenizer, options: GenerationOptions) -> TrainablePolicy:
    """Samples from the very model that is trained: publishing costs nothing."""
    from hgpo_train.policies.transformers import TransformersPolicy

    given = merge(to_dict(options), config.rollout.engine_options)
    options = build(GenerationOptions, given, "setting", "rollout.engine_options.")
    return TransformersPolicy(model, tokenizer, options, compute_dtype(config.model))


def _vllm(config: Config, model: Model, tokenizer: Tokenizer, options: GenerationOptions) -> TrainablePolicy:
    """Serves a copy of the weights; `rollout.engine_options` are arguments of `vllm.LLM`."""
    from hgpo_train.policies.vllm import VLLMPolicy

    del tokenizer
    path = resolve_model(getattr(model, "name_or_path", "") or config.model.path)
    return VLLMPolicy(path, options, {"trust_remote_code": False, **config.rollout.engine_options})


ENGINES: Final[dict[str, Callable[[Config, Model, Tokenizer, GenerationOptions], TrainablePolicy]]] = {
    "transformers": _transformers,
    "vllm": _vllm,
}
"""Engines by name."""
