"""The registry of policies: ``random``, ``expert``, ``explorer``, ``mixture:expert=0.7,random=0.3``, plugins.

A policy is selected as ``<name>`` or ``<name>:<argument>``. Each is one module with a `PolicySpec`: how to create the
policy and, if it can be trained, how to create it for the model that is trained. Other packages register policies in
the entry-point group ``hgpo.policies``. An entry point is one of

- a `PolicySpec`, or a function of an argument (text) and a `PolicyContext` that returns a `Policy`;
- a function of a request, an object with `respond`, or a policy (`hgpo_train.policies.own`).

Each of them can also be selected as ``<module>:<object>`` or ``<module>:<object>:<argument>``. A bug in a policy that
is selected in this way ends the collection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.environment_spec import spec_named
from hgpo_envs.errors import InputError, unknown
from hgpo_envs.plugins import distribution, import_object, installed, load
from hgpo_train.policies.own import has_protocol, own_policy, takes
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
        options: The dataclass of the policy's options; None if it has none or validates them itself.
        action_format: The default action format of its runs. A function of a request usually returns an action.
    """

    make: Factory
    make_trainable: TrainableFactory | None = None
    options: type | None = None
    action_format: str = "response"

    @property
    def trainable(self) -> bool:
        """Whether the policy's weights can be replaced, which training requires."""
        return self.make_trainable is not None


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


def make_policy(spec: str, context: PolicyContext) -> Policy:
    """Create a policy.

    Args:
        spec: ``<name>``, ``<name>:<argument>``, ``<module>:<object>`` or ``<module>:<object>:<argument>``.
        context: The properties of the run.

    Raises:
        InputError: The name is unknown, or the argument or an option is not valid.
    """
    found, argument = _found(spec)
    made = found.make(argument, context)
    return own_policy(made, spec) if _is_place(spec) else made


def default_action_format(spec: str) -> str:
    """Return the action format of runs with a policy if the user selects none.

    Raises:
        InputError: The policy's name is unknown.
    """
    return _found(spec)[0].action_format


def make_trainable(name: str, model: Model, tokenizer: Tokenizer, context: TrainableContext) -> TrainablePolicy:
    """Create a policy that generates with the weights that are trained.

    Args:
        name: The policy's name.
        model: The model that is trained.
        tokenizer: The model's tokenizer.
        context: The properties of the run.

    Raises:
        InputError: The name is unknown, the policy cannot be trained, or an option is not valid.
    """
    return _trainable_factory(name)(model, tokenizer, context)


def check_trainable(name: str) -> None:
    """Check that a policy can be trained.

    Raises:
        InputError: The name is unknown, or the policy cannot be trained.
    """
    _trainable_factory(name)


def option_annotations(spec: str) -> dict[str, Any]:
    """Return the annotations of a policy's options by name; empty if they are not known.

    Raises:
        InputError: The policy's name is unknown.
    """
    options = _found(spec)[0].options
    return types_of(options) if options else {}


def execution_options(spec: str) -> frozenset[str]:
    """Return the names of a policy's options that do not affect its replies, such as a server's address.

    A policy declares them as `EXECUTION` of its options' dataclass. A run can be resumed with other values of them.
    There are none for an object that was given to `hgpo_train.rollout.collect`: its name is not registered.
    """
    try:
        found, _ = _found(spec)
    except InputError:
        return frozenset()
    return frozenset(getattr(found.options, "EXECUTION", ()))


def policy_names() -> list[str]:
    """Return the names of all registered policies."""
    return [*_SPECS, *(name for name in installed(ENTRY_POINTS) if name not in _SPECS)]


def policy_spec(name: str) -> PolicySpec:
    """Return the `PolicySpec` that is registered under a name.

    Raises:
        InputError: The name is unknown, or the package that declares it is broken.
    """
    if name in _SPECS:
        module, _, attribute = _SPECS[name].partition(":")
        own: PolicySpec = getattr(import_module(module), attribute)
        return own
    if name not in installed(ENTRY_POINTS):
        raise InputError(unknown("policy", name, policy_names()))
    point = installed(ENTRY_POINTS)[name]
    return _as_spec(load(point), f"{ENTRY_POINTS} {name!r} of the distribution {distribution(point)}")


def _found(text: str) -> tuple[PolicySpec, str]:
    """Return the policy of ``<name>:<argument>`` or ``<module>:<object>:<argument>``, and the argument."""
    given: object = text
    if not isinstance(given, str):
        raise InputError(f"policy: expected a name such as 'random', received {given!r}")
    name, _, rest = text.partition(":")
    if not _is_place(text):
        return policy_spec(name), rest
    attribute, _, argument = rest.partition(":")
    place = f"{name}:{attribute}"
    try:
        return _as_spec(import_object(place, "a policy of your own"), place), argument
    except InputError as error:
        if getattr(error.__cause__, "name", None) == name:  # no such module: probably a misspelt policy name
            raise InputError(unknown("policy", name, policy_names())) from error
        raise


def _is_place(text: str) -> bool:
    """Return whether a policy is selected as ``<module>:<object>``."""
    name, _, rest = text.partition(":")
    return name not in policy_names() and rest.partition(":")[0].isidentifier()


def _as_spec(found: object, origin: str) -> PolicySpec:
    if isinstance(found, PolicySpec):
        return found
    if _is_factory(found):
        factory: Factory = found  # type: ignore[assignment]  # checked by its signature
        return PolicySpec(factory)

    def make(argument: str, context: PolicyContext) -> Policy:
        refuse_settings(origin, argument, context)
        return own_policy(found, origin)

    return PolicySpec(make, action_format="response" if has_protocol(found) else "command")


def _is_factory(found: object) -> bool:
    """Return whether an object is a function of an argument and a `PolicyContext`, rather than of a request."""
    if isinstance(found, type):
        return takes(found, 2)
    return callable(found) and not hasattr(found, "respond") and takes(found, 2) and not takes(found, 1)


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


def _trainable_factory(name: str) -> TrainableFactory:
    names = policy_names()
    factory = policy_spec(name).make_trainable if name in names else None
    if factory is None:
        known = [other for other in names if _trainable(other)]
        raise InputError(unknown("rollout.engine", name, known))
    return factory


def _trainable(name: str) -> bool:
    """Return whether a policy can be trained; False if its package is broken."""
    try:
        return policy_spec(name).trainable
    except InputError:
        return False
