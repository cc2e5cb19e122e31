"""Who generates during training: a policy whose weights can be replaced, by its name (`rollout.engine`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from hgpo_envs.errors import InputError, unknown
from hgpo_train.checkpoint_files import newest_model
from hgpo_train.policies.base import Policy
from hgpo_train.policies.generation import GenerationOptions
from hgpo_train.settings import build, merge, to_dict
from hgpo_train.update.model import compute_dtype

if TYPE_CHECKING:
    from collections.abc import Callable

    from hgpo_train.config import Config
    from hgpo_train.hf import Model, Tokenizer


class Engine(Policy, Protocol):
    """A policy whose weights can be replaced."""

    options: GenerationOptions

    def publish(self, model: Model, version: int) -> None:
        """Takes the weights as they are now; whatever was cached under the old ones is forgotten."""
        ...


def make_engine(config: Config, model: Model, tokenizer: Tokenizer) -> Engine:
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


def _maker(name: str) -> Callable[[Config, Model, Tokenizer, GenerationOptions], Engine]:
    if name not in ENGINES:
        raise InputError(unknown("rollout.engine", name, ENGINES))
    return ENGINES[name]


def _transformers(config: Config, model: Model, tokenizer: Tokenizer, options: GenerationOptions) -> Engine:
    """Samples from the very model that is trained: publishing costs nothing."""
    from hgpo_train.policies.transformers import TransformersPolicy

    given = merge(to_dict(options), config.rollout.engine_options)
    options = build(GenerationOptions, given, "setting", "rollout.engine_options.")
    return TransformersPolicy(model, tokenizer, options, compute_dtype(config.model))


def _vllm(config: Config, model: Model, tokenizer: Tokenizer, options: GenerationOptions) -> Engine:
    """Serves a copy of the weights; `rollout.engine_options` are arguments of `vllm.LLM`."""
    from hgpo_train.policies.vllm import VLLMPolicy

    del tokenizer
    path = newest_model(getattr(model, "name_or_path", "") or config.model.path)
    return VLLMPolicy(path, options, {"trust_remote_code": False, **config.rollout.engine_options})


ENGINES: Final[dict[str, Callable[[Config, Model, Tokenizer, GenerationOptions], Engine]]] = {
    "transformers": _transformers,
    "vllm": _vllm,
}
"""Engines by name."""
