"""Policies by name: ``random``, ``expert``, ``explorer``, ``mixture:expert=0.7,random=0.3``, and what others add.

A policy is named ``<name>`` or ``<name>:<argument>``. Other packages add theirs by the entry-point group
``hgpo.policies``: a callable of an argument (text) and a `PolicyContext` that returns a `Policy`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs import players
from hgpo_envs.errors import InputError, unknown
from hgpo_train.settings import types_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hgpo_train.policies.base import BatchPolicy, Policy

    Factory = Callable[[str, "PolicyContext"], Policy]


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


_FACTORIES: Final = {
    "random": "hgpo_train.policies.registry:_random",
    "expert": "hgpo_train.policies.registry:_expert",
    "explorer": "hgpo_train.policies.registry:_explorer",
    "stale": "hgpo_train.policies.registry:_outdated",
    "mixture": "hgpo_train.policies.registry:_mixture",
    "openai": "hgpo_train.policies.server:make",
    "vllm": "hgpo_train.policies.vllm:make",
    "transformers": "hgpo_train.policies.transformers:make",
}
"""Name → ``module:factory``, imported when asked for; a factory takes the argument after the colon and the context."""

_OPTIONS: Final = {
    "openai": "hgpo_train.policies.server:ServerOptions",
    "vllm": "hgpo_train.policies.vllm:VLLMOptions",
    "transformers": "hgpo_train.policies.transformers:TransformersOptions",
}
"""Name → ``module:dataclass`` of the options that a policy takes."""


def make_policy(spec: str, context: PolicyContext) -> Policy:
    """A policy by its name.

    Args:
        spec: ``<name>`` or ``<name>:<argument>``.
        context: What it must know of the run.

    Raises:
        InputError: The name is unknown, or the argument cannot be used.
    """
    name, _, argument = spec.partition(":")
    return _factory(name)(argument, context)


def option_annotations(spec: str) -> dict[str, Any]:
    """The annotations of a policy's options by name; empty for a policy that takes none, or of another package."""
    name = spec.partition(":")[0]
    return types_of(_load(_OPTIONS[name])) if name in _OPTIONS else {}


def policy_names() -> list[str]:
    """Every name that `make_policy` knows."""
    return [*_FACTORIES, *(point.name for point in entry_points(group="hgpo.policies"))]


def _factory(name: str) -> Factory:
    if name in _FACTORIES:
        own: Factory = _load(_FACTORIES[name])
        return own
    for point in entry_points(group="hgpo.policies"):
        if point.name == name:
            added: Factory = point.load()
            return added
    raise InputError(unknown("policy", name, policy_names()))


def _load(place: str) -> Any:  # noqa: ANN401 (a factory or a class)
    """What ``module:attribute`` names."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


def _refuse_settings(name: str, argument: str, context: PolicyContext) -> None:
    if argument:
        raise InputError(f"policy {name}: expected nothing after its name, got {argument!r}; write {name}")
    if context.options:
        raise InputError(f"policy {name} has no options, got {', '.join(context.options)}; leave --policy-option out")


def _random(argument: str, context: PolicyContext) -> BatchPolicy:
    from hgpo_train.policies.random_choice import RandomPolicy

    _refuse_settings("random", argument, context)
    return RandomPolicy(context.action_format)


def _outdated(argument: str, context: PolicyContext) -> BatchPolicy:
    from hgpo_train.policies.outdated import OutdatedActionPolicy

    _refuse_settings("stale", argument, context)
    return OutdatedActionPolicy(context.action_format)


def _expert(argument: str, context: PolicyContext) -> BatchPolicy:
    _refuse_settings("expert", argument, context)
    return _scripted("expert", context)


def _explorer(argument: str, context: PolicyContext) -> BatchPolicy:
    _refuse_settings("explorer", argument, context)
    return _scripted("explorer", context)


def _scripted(name: str, context: PolicyContext) -> BatchPolicy:
    from hgpo_train.policies.scripted import ScriptedPolicy

    players.make_player(name, context.benchmark)  # an unknown one is refused now, not in the middle of a run
    return ScriptedPolicy(name, lambda: players.make_player(name, context.benchmark), context.action_format)


def _mixture(argument: str, context: PolicyContext) -> BatchPolicy:
    from hgpo_train.policies.base import BatchPolicy
    from hgpo_train.policies.mixture import MixturePolicy, parse_weights

    parts = [(make_policy(name, context), weight) for name, weight in parse_weights(argument).items()]
    batch = [(policy, weight) for policy, weight in parts if isinstance(policy, BatchPolicy)]
    if len(batch) != len(parts):
        raise InputError(f"mixture: only policies that answer in this process can be mixed, got {argument!r}")
    return MixturePolicy(batch)
