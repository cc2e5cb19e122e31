"""The registry of policies: ``random``, ``expert``, ``explorer``, ``mixture:expert=0.7,random=0.3``, plugins.

A policy is selected as ``<name>`` or ``<name>:<argument>``. Each is one module with a `PolicySpec`: how to create the
policy and, if it can be trained, how to create it for the model that is trained. Other packages register policies in
the entry-point group ``hgpo.policies``: a `PolicySpec`, or a policy of one's own (`hgpo_train.policies.own`).

Each of them can also be selected as ``<module>:<object>`` or ``<module>:<object>:<argument>``.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.environment_spec import spec_named
from hgpo_envs.errors import InputError, unknown
from hgpo_envs.plugins import distribution, import_object, installed, load
from hgpo_train.policies.own import has_protocol, name_of, own_policy
from hgpo_train.settings import types_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hgpo_train.models.config import ModelConfig
    from hgpo_train.models.hf import Model, Tokenizer
    from hgpo_train.policies.base import Policy
    from hgpo_train.policies.generation import GenerationOptions, TrainablePolicy

    Factory = Callable[[str, "PolicyContext"], Policy]
    TrainableFactory = Callable[[Model, Tokenizer, "TrainableContext"], TrainablePolicy]


@dataclass(frozen=True)
class PolicyContext:
    """The properties of a run that a policy needs.

    Attributes:
        benchmark: Name of the task source.
        action_format: ``command``, ``response`` or ``number``.
        options: The user's options of the policy (temperature, top_p, …) by name.
    """

    benchmark: str
    action_format: str = "response"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainableContext:
    """The properties of a training run that its policy needs.

    Attributes:
        model: The model that is trained, its device and dtype.
        generation: Options of tokenization and sampling.
        engine_options: Further options by name (`rollout.engine_options` of the configuration).
    """

    model: ModelConfig
    generation: GenerationOptions
    engine_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PolicySpec:
    """How to create a policy.

    Attributes:
        make: Creates the policy from the argument after the colon.
        make_trainable: Creates the policy for the model that is trained; None if the policy cannot be trained.
        options: The dataclass of the policy's options; None if it has none or validates them itself. Its class variable
            `EXECUTION` names those that do not affect replies, such as a server's address: a run can be resumed with
            other values of them.
        action_format: The default action format of its runs. A function of a request usually returns an action.
    """

    make: Factory
    make_trainable: TrainableFactory | None = None
    options: type | None = None
    action_format: str = "response"

    @property
    def option_types(self) -> dict[str, Any]:
        """The annotations of the options by name; empty if they are not known."""
        return types_of(self.options) if self.options else {}

    @property
    def execution_options(self) -> frozenset[str]:
        """The names of the options that do not affect replies."""
        return frozenset(getattr(self.options, "EXECUTION", ()))


ENTRY_POINTS: Final = "hgpo.policies"

_SPECS: Final = {
    "random": "hgpo_train.policies.scripted:RANDOM",
    "expert": "hgpo_train.policies.scripted:EXPERT",
    "explorer": "hgpo_train.policies.scripted:EXPLORER",
    "outdated": "hgpo_train.policies.scripted:OUTDATED",
    "mixture": "hgpo_train.policies.mixture:MIXTURE",
    "openai": "hgpo_train.policies.server:OPENAI",
    "vllm": "hgpo_train.policies.vllm:VLLM",
    "transformers": "hgpo_train.policies.transformers:TRANSFORMERS",
}
"""Name → ``module:PolicySpec``, imported on first use."""


def make_policy(text: str, context: PolicyContext) -> Policy:
    """Create a policy.

    Args:
        text: ``<name>``, ``<name>:<argument>``, ``<module>:<object>`` or ``<module>:<object>:<argument>``.
        context: The properties of the run.

    Raises:
        InputError: The name is unknown, or the argument or an option is not valid.
    """
    spec, argument = find_policy(text)
    return own_policy(spec.make(argument, context), text)


def policy_spec(text: str) -> PolicySpec:
    """Return how to create a policy, which is selected as for `make_policy`.

    Raises:
        InputError: The name is unknown, or the package that declares it is broken.
    """
    return find_policy(text)[0]


def policy_names() -> list[str]:
    """Return the names of all registered policies."""
    return [*_SPECS, *(name for name in installed(ENTRY_POINTS) if name not in _SPECS)]


def trainable_factory(name: str) -> TrainableFactory:
    """Return the function that creates a policy for the model that is trained.

    Raises:
        InputError: The name is unknown, or the policy cannot be trained.
    """
    if name in policy_names() and (factory := policy_spec(name).make_trainable) is not None:
        return factory
    trainable = []
    for other in policy_names():
        with suppress(InputError):  # of a package that is broken
            trainable += [other] if policy_spec(other).make_trainable else []
    raise InputError(unknown("rollout.engine", name, trainable))


def find_policy(policy: object) -> tuple[PolicySpec, str]:
    """Return how to create a policy, and the argument after its name.

    Args:
        policy: A name as of `make_policy`, a `PolicySpec`, or a policy of one's own (`hgpo_train.policies.own`).

    Raises:
        InputError: The name is unknown, or the package that declares it is broken.
    """
    if not isinstance(policy, str):
        return _as_spec(policy, "policy"), ""
    name, _, rest = policy.partition(":")
    if name in _SPECS:
        module, _, attribute = _SPECS[name].partition(":")
        return getattr(import_module(module), attribute), rest
    if (point := installed(ENTRY_POINTS).get(name)) is not None:
        return _as_spec(load(point), f"{ENTRY_POINTS} {name!r} of the distribution {distribution(point)}"), rest
    attribute, _, argument = rest.partition(":")
    if attribute.isidentifier():
        address = f"{name}:{attribute}"
        try:
            return _as_spec(import_object(address, "a policy of your own"), address), argument
        except InputError as error:
            if getattr(error.__cause__, "name", None) != name:  # otherwise there is no such module: a misspelt name
                raise
    if "/" in name:
        raise InputError(
            f"unknown policy {name!r}; a model is named with its engine: vllm:{name} or transformers:{name}"
        )
    raise InputError(unknown("policy", name, policy_names()))


def _as_spec(policy: object, origin: str) -> PolicySpec:
    if isinstance(policy, PolicySpec):
        return policy

    def make(argument: str, context: PolicyContext) -> Policy:
        refuse_settings(name_of(policy), argument, context)
        return own_policy(policy, origin)

    return PolicySpec(make, action_format="response" if has_protocol(policy) else "command")


def refuse_settings(name: str, argument: str, context: PolicyContext) -> None:
    """Check that a policy without an argument and options received none.

    Raises:
        InputError: There is an argument or an option.
    """
    if argument:
        raise InputError(f"policy {name}: expected nothing after its name, received {argument!r}; write {name}")
    if context.options:
        raise InputError(f"policy {name} has no options, received {', '.join(context.options)}; remove --policy-option")


def check_admissible_actions(name: str, context: PolicyContext) -> None:
    """Check that a policy that chooses among admissible actions has some to choose from.

    Raises:
        InputError: The states of the benchmark do not list their admissible actions.
    """
    spec = spec_named(context.benchmark)
    if spec is not None and not spec.admissible_actions:
        players = ", ".join(spec.players)
        raise InputError(
            f"policy {name} chooses among admissible actions, which {context.benchmark} does not list; use a language "
            f"model{f' or a player: {players}' if players else ''}"
        )
