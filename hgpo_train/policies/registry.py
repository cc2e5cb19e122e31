"""Policies by name: ``random``, ``expert``, ``explorer``, ``mixture:expert=0.7,random=0.3``, and what others add.

A policy is named ``<name>`` or ``<name>:<argument>``. Each is one module with a `PolicySpec`, which says how the policy
is made and, if it can be trained, how it is made over the model that is trained. Other packages add theirs by the
entry-point group ``hgpo.policies``: a `PolicySpec`, or a function of an argument (text) and a `PolicyContext` that
returns a `Policy`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError, unknown
from hgpo_train.settings import types_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hgpo_train.models.config import ModelConfig
    from hgpo_train.models.hf import Model, Tokenizer
    from hgpo_train.policies.base import Policy, TrainablePolicy
    from hgpo_train.policies.generation import GenerationOptions

    Factory = Callable[[str, "PolicyContext"], Policy]
    TrainableFactory = Callable[[Model, Tokenizer, "TrainableContext"], TrainablePolicy]


@dataclass(frozen=True)
class PolicyContext:
    """What a policy must know of the run.

    Attributes:
        benchmark: The task source's name.
        action_format: ``command``, ``response`` or ``number``.
        options: What else the user set for the policy (temperature, top_p, max_tokens, …), by name.
    """

    benchmark: str
    action_format: str = "response"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainableContext:
    """What a policy that is trained must know of the run.

    Attributes:
        model: Which model is trained, and what it computes in.
        generation: How prompts are read and responses drawn.
        engine_options: Further settings, by name (`rollout.engine_options` of the configuration).
    """

    model: ModelConfig
    generation: GenerationOptions
    engine_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PolicySpec:
    """How a policy is made.

    Attributes:
        make: Makes the policy from the argument after the colon.
        make_trainable: Makes the policy over the model that is trained; None if it cannot be trained.
        options: The dataclass of the policy's options; None if it has none, or checks them itself.
    """

    make: Factory
    make_trainable: TrainableFactory | None = None
    options: type | None = None

    @property
    def trainable(self) -> bool:
        """Whether the policy's weights can be replaced, so that it can generate during training."""
        return self.make_trainable is not None


_SPECS: Final = {
    "random": "hgpo_train.policies.random_choice:RANDOM",
    "expert": "hgpo_train.policies.scripted:EXPERT",
    "explorer": "hgpo_train.policies.scripted:EXPLORER",
    "outdated": "hgpo_train.policies.outdated:OUTDATED",
    "stale": "hgpo_train.policies.outdated:OUTDATED",  # its name in version 0.1
    "mixture": "hgpo_train.policies.mixture:MIXTURE",
    "openai": "hgpo_train.policies.server:OPENAI",
    "vllm": "hgpo_train.policies.vllm:VLLM",
    "transformers": "hgpo_train.policies.transformers:TRANSFORMERS",
}
"""Name → ``module:PolicySpec``, imported when asked for."""


def make_policy(spec: str, context: PolicyContext) -> Policy:
    """A policy by its name.

    Args:
        spec: ``<name>`` or ``<name>:<argument>``.
        context: What it must know of the run.

    Raises:
        InputError: The name is unknown, or the argument cannot be used.
    """
    name, _, argument = spec.partition(":")
    return policy_spec(name).make(argument, context)


def make_trainable(name: str, model: Model, tokenizer: Tokenizer, context: TrainableContext) -> TrainablePolicy:
    """A policy that generates with the weights that are trained, by its name.

    Raises:
        InputError: As `check_trainable`, or a setting cannot be used.
    """
    return _trainable_factory(name)(model, tokenizer, context)


def check_trainable(name: str) -> None:
    """Checks that a policy can be trained.

    Raises:
        InputError: The name is unknown, or that of a policy that cannot be trained.
    """
    _trainable_factory(name)


def option_annotations(spec: str) -> dict[str, Any]:
    """The annotations of a policy's options by name; empty where they are not known.

    Raises:
        InputError: The policy's name is unknown.
    """
    options = policy_spec(spec.partition(":")[0]).options
    return types_of(options) if options else {}


def policy_names() -> list[str]:
    """Every name that `make_policy` knows."""
    return [*_SPECS, *(point.name for point in entry_points(group="hgpo.policies"))]


def policy_spec(name: str) -> PolicySpec:
    """How the policy of a name is made.

    Raises:
        InputError: The name is unknown.
    """
    if name in _SPECS:
        module, _, attribute = _SPECS[name].partition(":")
        own: PolicySpec = getattr(import_module(module), attribute)
        return own
    for point in entry_points(group="hgpo.policies"):
        if point.name == name:
            added = point.load()
            return added if isinstance(added, PolicySpec) else PolicySpec(added)
    raise InputError(unknown("policy", name, policy_names()))


def refuse_settings(name: str, argument: str, context: PolicyContext) -> None:
    """Raises an InputError if a policy that takes neither an argument nor options is given some."""
    if argument:
        raise InputError(f"policy {name}: expected nothing after its name, got {argument!r}; write {name}")
    if context.options:
        raise InputError(f"policy {name} has no options, got {', '.join(context.options)}; leave --policy-option out")


def _trainable_factory(name: str) -> TrainableFactory:
    names = policy_names()
    factory = policy_spec(name).make_trainable if name in names else None
    if factory is None:
        known = [other for other in names if policy_spec(other).trainable]
        raise InputError(unknown("rollout.engine", name, known))
    return factory
