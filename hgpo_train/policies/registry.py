"""Policies by name (``random``, ``mixture:expert=0.7,random=0.3``, plugins) and policies of one's own.

A policy is selected as ``<name>``, ``<name>:<argument>``, ``<module>:<object>`` or ``<module>:<object>:<argument>``.
Each name is one module with a `PolicySpec`: how to create the policy and, if it can be trained, how to create it for
the model that is trained. Other packages register a `PolicySpec`, or a policy of their own, in the entry-point group
``hgpo.policies``.

A policy of one's own is a function of a request, an object with `respond`, or an instance of the policy protocol:

    def first(request: Request) -> str:
        return request.admissible_actions[0]

A bug in it ends the collection and is raised with its traceback (`hgpo_train.policies.base.is_bug`); a `Failure` that
it returns fails one rollout.
"""

from __future__ import annotations

import inspect
from contextlib import suppress
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.environment_spec import spec_named
from hgpo_envs.errors import InputError, unknown
from hgpo_envs.hashing import text_hash
from hgpo_envs.plugins import distribution, import_object, installed, load
from hgpo_train.policies.base import Answer, AsyncPolicy, BatchPolicy, Policy, Request
from hgpo_train.policies.validation import preview
from hgpo_train.settings import types_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hgpo_train.models.config import ModelConfig
    from hgpo_train.models.hf import Model, Tokenizer
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
        check_engine: Checks `rollout.engine_options` before the model is loaded, and that the engine can start.
        options: The dataclass of the policy's options; None if it has none or validates them itself. Its class variable
            `EXECUTION` names those that do not affect replies, such as a server's address: a run can be resumed with
            other values of them.
        action_format: The default action format of its runs. A function of a request usually returns an action.
    """

    make: Factory
    make_trainable: TrainableFactory | None = None
    options: type | None = None
    action_format: str = "response"
    check_engine: Callable[[Mapping[str, Any]], None] | None = None

    @property
    def option_types(self) -> dict[str, Any]:
        """The annotations of the options by name; empty if they are not known."""
        return types_of(self.options) if self.options else {}


ENTRY_POINTS: Final = "hgpo.policies"

_SPECS: Final = {
    "random": "hgpo_train.policies.scripted:RANDOM",
    "expert": "hgpo_train.policies.scripted:EXPERT",
    "explorer": "hgpo_train.policies.scripted:EXPLORER",
    "outdated": "hgpo_train.policies.scripted:OUTDATED",
    "forgetful": "hgpo_train.policies.scripted:FORGETFUL",
    "mixture": "hgpo_train.policies.scripted:MIXTURE",
    "openai": "hgpo_train.policies.server:OPENAI",
    "vllm": "hgpo_train.policies.vllm:VLLM",
    "transformers": "hgpo_train.policies.transformers:TRANSFORMERS",
}
"""Name → ``module:PolicySpec``, imported on first use."""


def make_policy(text: str, context: PolicyContext) -> Policy:
    """Create the policy that is selected by a text.

    Raises:
        InputError: The name is unknown, or the argument or an option is not valid.
    """
    spec, argument = find_policy(text)
    return own_policy(spec.make(argument, context), text)


def policy_names() -> list[str]:
    """Return the names of all registered policies."""
    return [*_SPECS, *(name for name in installed(ENTRY_POINTS) if name not in _SPECS)]


def trainable_factory(
    name: str, engine_options: Mapping[str, Any] | None = None
) -> TrainableFactory:
    """Return the function that creates a policy for the model that is trained.

    Raises:
        InputError: The name is unknown, the policy cannot be trained, or it has no such engine options.
    """
    spec = find_policy(name)[0] if name in policy_names() else None
    if spec is not None and spec.make_trainable is not None:
        if spec.check_engine is not None:
            spec.check_engine(engine_options or {})
        return spec.make_trainable
    if name == "openai":
        raise InputError(
            "setting rollout.engine: openai cannot be trained with, because OpenAI's protocol has no call that "
            'replaces weights: all rollouts would be those of the first model; use "vllm", which runs in one process'
        )
    trainable = []
    for other in policy_names():
        with suppress(InputError):  # of a package that is broken
            if find_policy(other)[0].make_trainable is not None:
                trainable.append(other)
    raise InputError(unknown("rollout.engine", name, trainable))


def code_of(policy: str) -> str | None:
    """Return what a policy's name would import from outside of installed packages; None if it imports nothing."""
    name, _, rest = policy.partition(":")
    if name == "mixture":
        return policy if ":" in rest else None
    return policy if rest and name not in policy_names() else None


def find_policy(policy: object) -> tuple[PolicySpec, str]:
    """Return how to create a policy, and the argument after its name.

    Args:
        policy: A text as of `make_policy`, a `PolicySpec`, or a policy of one's own.

    Raises:
        InputError: The name is unknown, or the package that declares it is broken.
    """
    if not isinstance(policy, str):
        return _as_spec(policy, "policy"), ""
    name, _, rest = policy.partition(":")
    if name in _SPECS:
        return resolve_name(_SPECS[name]), rest
    if (point := installed(ENTRY_POINTS).get(name)) is not None:
        return _as_spec(
            load(point),
            f"{ENTRY_POINTS} {name!r} of the distribution {distribution(point)}",
        ), rest
    # Not a registered name: perhaps a module and an object of it.
    attribute, _, argument = rest.partition(":")
    if attribute.isidentifier():
        address = f"{name}:{attribute}"
        try:
            return _as_spec(
                import_object(address, "a policy of your own"), address
            ), argument
        except InputError as error:
            # otherwise there is no such module: a misspelt name
            is_file = name.endswith(".py")
            if is_file or getattr(error.__cause__, "name", None) != name:
                raise
    if "/" in name:
        raise InputError(
            f"unknown policy {name!r}; a model is named with its engine: vllm:{name} or transformers:{name}"
        )
    message = unknown("policy", name, policy_names())
    raise InputError(f"{message}; your own is module:object")


def _as_spec(policy: object, origin: str) -> PolicySpec:
    if isinstance(policy, PolicySpec):
        return policy

    def make(argument: str, context: PolicyContext) -> Policy:
        refuse_settings(name_of(policy), argument, context)
        return own_policy(policy, origin)

    return PolicySpec(
        make, action_format="response" if _has_protocol(policy) else "command"
    )


def refuse_settings(name: str, argument: str, context: PolicyContext) -> None:
    """Check that a policy without an argument and options received none.

    Raises:
        InputError: There is an argument or an option.
    """
    if argument:
        raise InputError(
            f"policy {name}: expected nothing after its name, received {argument!r}; write {name}"
        )
    if context.options:
        raise InputError(
            f"policy {name} has no options, received {', '.join(context.options)}; remove --policy-option"
        )


def check_admissible_actions(name: str, context: PolicyContext) -> None:
    """Check that a policy that chooses among admissible actions has some to choose from.

    Raises:
        InputError: The states of the benchmark do not list their admissible actions.
    """
    spec = spec_named(context.benchmark)
    if spec is None or spec.admissible_actions or (spec.tools and name == "random"):
        return
    players = f" or a player: {', '.join(spec.players)}" if spec.players else ""
    raise InputError(
        f"policy {name} chooses among admissible actions, which {context.benchmark} does not list; use a language "
        f"model{players}"
    )


class OwnBatchPolicy(BatchPolicy):
    """A function of one request, or an object with `respond`, which maps requests to texts, `Reply` or `Failure`.

    Its `name`, `reproducible`, `version`, `batch_size`, `raise_errors` and `close` are used, if it has them.
    """

    def __init__(self, own: Any) -> None:  # noqa: ANN401 (any function or object)
        super().__init__()
        self.name = name_of(own)
        self.reproducible = bool(getattr(own, "reproducible", False))
        self._own = own
        self._respond_to = getattr(own, "respond", None)
        self.raise_errors = getattr(own, "raise_errors", True)
        self.batch_size = getattr(own, "batch_size", None if self._respond_to else 1)
        self.close = getattr(own, "close", super().close)  # type: ignore[method-assign]

    def respond(self, requests: Sequence[Request]) -> Sequence[Answer]:
        """See `BatchPolicy`."""
        replies: Sequence[Answer] = (
            self._respond_to(requests)
            if self._respond_to
            else [self._own(request) for request in requests]
        )
        self.version = getattr(self._own, "version", 0)
        return replies


class OwnAsyncPolicy(AsyncPolicy):
    """An async function of one request. Up to 128 calls run concurrently."""

    raise_errors = True

    def __init__(self, function: Any) -> None:  # noqa: ANN401 (any async function or object)
        super().__init__()
        self.name = name_of(function)
        self.reproducible = bool(getattr(function, "reproducible", False))
        self._function = function

    async def reply(self, request: Request) -> Answer:
        """See `AsyncPolicy`."""
        answer: Answer = await self._function(request)
        return answer


def own_policy(policy: Any, origin: str = "policy") -> Policy:  # noqa: ANN401 (whatever the user passes)
    """Make a policy of a function, an object with `respond`, or an instance of the policy protocol.

    Args:
        policy: The function or object.
        origin: Its source, for error messages.

    Raises:
        InputError: It is none of these.

    >>> own_policy(lambda request: "look").name
    '<lambda>'
    """
    if _has_protocol(policy) and not isinstance(policy, type):
        is_own = not type(policy).__module__.startswith("hgpo_train.")
        if is_own and getattr(policy, "raise_errors", None) is None:
            # bugs of the user's own policy end the collection
            policy.raise_errors = True
        own: Policy = policy
        return own
    if isinstance(policy, type) or not (callable(policy) or hasattr(policy, "respond")):
        raise InputError(
            f"{origin}: expected a PolicySpec, a function of one request, an object with `respond`, or a Policy, "
            f"received {preview(policy)}"
        )
    method = getattr(policy, "__call__", None)  # noqa: B004
    if inspect.iscoroutinefunction(policy) or inspect.iscoroutinefunction(method):
        return OwnAsyncPolicy(policy)
    return OwnBatchPolicy(policy)


def _has_protocol(policy: object) -> bool:
    """Return whether an object has the methods of `hgpo_train.policies.base.Policy`."""
    return all(
        callable(getattr(policy, name, None)) for name in ("submit", "collect", "close")
    )


def name_of(policy: object) -> str:
    """Return the name of a function or of an object: its `name`, or that of its class."""
    for name in (getattr(policy, "name", None), getattr(policy, "__qualname__", None)):
        if isinstance(name, str) and name:
            return name.rpartition("<locals>.")[2]
    return type(policy).__name__


def source_hash(policy: object) -> str | None:
    """Return a hash of the code of a function or of an object's class; None if the code is unknown."""
    try:
        code = inspect.getsource(policy if inspect.isroutine(policy) else type(policy))
    except (OSError, TypeError):
        return None
    return f"{text_hash(code) % (1 << 64):016x}"
