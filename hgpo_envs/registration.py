"""Registration of benchmarks with Gymnasium.

    HGPO/ALFWorld-v0    HGPO/WebShop-v0    HGPO/AppWorld-v0

and the ids that other packages declare (`hgpo_envs.environment_spec`).

Every keyword argument is a JSON value, so that `gymnasium.envs.registration.EnvSpec.to_json` works. Task sources are
opened once per process (`hgpo_envs.sources`): a thousand environments over one data path share one.
"""

from __future__ import annotations

from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any

import gymnasium

from hgpo_envs.environment_spec import (
    EnvironmentSpec,
    add_spec,
    environment_ids,
    environment_spec,
)
from hgpo_envs.errors import InputError, check_known
from hgpo_envs.plugins import find_in_working_directory, import_object

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from hgpo_envs.env import TextEnv
    from hgpo_envs.sources import SharedSource
    from hgpo_envs.vector import TextVectorEnv


def register_environments() -> None:
    """Register all known benchmarks with Gymnasium, without importing their packages. Repeated calls have no effect."""
    for env_id in environment_ids():
        _register_id(env_id)


def register(spec: EnvironmentSpec) -> None:
    """Register a benchmark for this process, without an entry point. Repeated calls have no effect.

    Raises:
        InputError: If another benchmark has the same id or name.
    """
    add_spec(spec)
    _register_id(spec.id)


def resolve_id(environment: str) -> str:
    """Return the Gymnasium id of a benchmark that is given by its id or as ``module:object``.

    Args:
        environment: An id, or ``module:object`` of an `EnvironmentSpec`, which is registered. Modules are also found in
            the working directory, including those of Gymnasium's form ``module:Id-v0``.

    Raises:
        InputError: If there is no such module, or the object is not an `EnvironmentSpec`.
    """
    module, colon, name = environment.partition(":")
    if colon:
        find_in_working_directory()
    if not (name.isidentifier() and module):
        return environment
    try:
        spec = import_object(environment, "an EnvironmentSpec")
    except InputError:
        # importing the module has registered an id without a version
        if name in gymnasium.registry:
            return environment
        raise
    if not isinstance(spec, EnvironmentSpec):
        raise InputError(
            f"{environment}: expected an EnvironmentSpec, received {type(spec).__name__}"
        )
    register(spec)
    return spec.id


def code_of(environment: object, options: Mapping[str, Any]) -> dict[str, object]:
    """Return what `hgpo_envs.plugins.check_code_in_file` checks of an environment and its arguments."""
    return {
        "the environment": environment if ":" in str(environment) else None,
        "the memory": options.get("memory"),
        "the interpreter": options.get("python"),
        "the backend": options.get("backend")
        if options.get("backend") != "native"
        else None,
    }


def make_env(environment: str, **arguments: Any) -> TextEnv:
    """Make an environment.

    Args:
        environment: The id.
        arguments: Arguments of the benchmark's task source and of `hgpo_envs.env.TextEnv`. Without `max_steps`, or if
            it is None, the step limit is the benchmark's. Gymnasium gives `max_episode_steps` to a wrapper alone, so
            that it can only shorten episodes.

    Raises:
        InputError: If the id or an argument is unknown, or the data cannot be used.
    """
    from hgpo_envs.env import TextEnv

    source, others = open_source(environment, arguments, _arguments_of(TextEnv))
    return TextEnv(source, **others)


def make_vector_env(
    environment: str,
    *,
    num_envs: int = 1,
    max_episode_steps: int | None = None,
    **arguments: Any,
) -> TextVectorEnv:
    """Make a vector environment in this process; see `make_env` and `hgpo_envs.vector.TextVectorEnv`."""
    from hgpo_envs.env import TextEnv
    from hgpo_envs.vector import TextVectorEnv

    arguments.setdefault("max_steps", max_episode_steps)
    known = {*_arguments_of(TextEnv), *_arguments_of(TextVectorEnv)}
    source, others = open_source(environment, arguments, known)
    return TextVectorEnv(source, num_envs, **others)


_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def _register_id(env_id: str) -> None:
    if env_id not in gymnasium.registry:
        gymnasium.register(
            id=env_id,
            entry_point="hgpo_envs.registration:make_env",
            vector_entry_point="hgpo_envs.registration:make_vector_env",
            kwargs={"environment": env_id},
            order_enforce=False,  # `TextEnv.step` checks the order itself,
            # and these environments are checked by tests and `hgpo check env`: 3% of a step
            disable_env_checker=True,
        )


def default_arguments(spec: EnvironmentSpec) -> dict[str, Any]:
    """Return the keyword arguments of a benchmark's environments with their defaults, its own first.

    A required argument has the default ``inspect.Parameter.empty``.
    """
    from hgpo_envs.env import TextEnv

    own = spec.parameters()
    common = signature(TextEnv).parameters
    defaults = {
        name: one.default for name, one in own.items() if one.kind not in _VARIADIC
    }
    defaults |= {
        name: one.default
        for name, one in common.items()
        if name not in {"source", *defaults}
    }
    return defaults | {"max_steps": spec.max_steps}


def _arguments_of(env: type) -> list[str]:
    """Return the names of the keyword arguments of an environment's class."""
    parameters = signature(env).parameters.values()
    return [one.name for one in parameters if one.kind is Parameter.KEYWORD_ONLY]


def open_source(
    environment: str, arguments: Mapping[str, Any], common: Collection[str]
) -> tuple[SharedSource, dict[str, Any]]:
    """Open the task source of a benchmark.

    Args:
        environment: The id.
        arguments: Keyword arguments.
        common: The names of those that all benchmarks have.

    Returns:
        The source that its arguments select, and the remaining arguments, always with the step limit.

    Raises:
        InputError: If the id or an argument is unknown, or the data cannot be used.
    """
    spec = environment_spec(environment)
    if arguments.get("max_steps") is None:
        arguments = {**arguments, "max_steps": spec.max_steps}
    own = set(spec.parameters())
    for name in arguments:
        check_known("argument", name, sorted({*own, *common}), limit=30)
    source = spec.open_source(
        **{name: value for name, value in arguments.items() if name in own}
    )
    return source, {
        name: value
        for name, value in arguments.items()
        if name == "max_steps" or name not in own
    }
