"""The reference of values: arguments of environments, settings, parameters of estimators, options of policies.

Names, types, defaults and meanings are those of signatures, dataclasses and their docstrings.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import typing
from importlib import import_module
from inspect import Parameter, cleandoc, signature
from pathlib import Path
from pkgutil import resolve_name
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from griffe import (
    Docstring,
    DocstringSectionAttributes,
    DocstringSectionParameters,
    Parser,
)
from msgspec import Meta

from hgpo_envs.env import TextEnv
from hgpo_envs.environment_spec import (
    EnvironmentSpec,
    environment_ids,
    environment_spec,
    provider,
)
from hgpo_envs.plugins import installed
from hgpo_envs.registration import default_arguments
from hgpo_envs.vector import TextVectorEnv
from hgpo_train.advantages.parameters import Parameters
from hgpo_train.advantages.registry import get, names
from hgpo_train.policies.registry import ENTRY_POINTS, find_policy, policy_names
from hgpo_train.policies.server import ServerOptions
from hgpo_train.settings import descriptions, field_docs, types_of
from hgpo_train.training.config import Config, SftConfig
from tools.docs_markup import code, plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_BOUNDS: Final = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


class Value(NamedTuple):
    """A row of a table.

    Attributes:
        name: The name.
        kind: The type.
        default: The default, as it is written; empty if there is none.
        meaning: What a docstring says, in its markup.
    """

    name: str
    kind: str
    default: str
    meaning: str


# Environments


def environments_page() -> str:
    """Return the page of this package's environments with their keyword arguments."""
    parts = [
        "# Environments",
        (
            "The keyword arguments of `gymnasium.make` and `gymnasium.make_vec` for every environment of this package, "
            "with defaults and meaning. `hgpo envs` lists those of installed packages, too. Commands take them as "
            "`--env-option name=value`, configurations as `environment.options`. "
            "[Environments](../environments.md) describes observations, actions and info."
        ),
    ]
    for env_id in environment_ids():
        if provider(env_id) == "hgpo":
            spec = environment_spec(env_id)
            parts += [
                f"## {env_id}",
                _facts(spec),
                table("argument", environment_values(spec)),
            ]
    parts += [
        "## Vector environments",
        "`gymnasium.make_vec` has two more, and `render_mode` can only be `ansi`.",
        table("argument", _vector_values()),
    ]
    return "\n\n".join(parts) + "\n"


def environment_values(spec: EnvironmentSpec) -> Iterator[Value]:
    """Return the keyword arguments of an environment, its own first."""
    factory = resolve_name(spec.source) if isinstance(spec.source, str) else spec.source
    meanings = documented(TextEnv) | documented(factory)
    kinds = {**signature(TextEnv).parameters, **spec.parameters()}
    for name, default in default_arguments(spec).items():
        yield Value(name, str(kinds[name].annotation), _python(default), meanings[name])


def _vector_values() -> Iterator[Value]:
    meanings = documented(TextVectorEnv)
    for name, parameter in signature(TextVectorEnv).parameters.items():
        if name in ("num_envs", "group_size"):
            yield Value(
                name,
                str(parameter.annotation),
                _python(parameter.default),
                meanings[name],
            )


def _facts(spec: EnvironmentSpec) -> str:
    splits = ", ".join(f"`{name}`" for name in (*spec.splits, "all"))
    players = ", ".join(f"`{name}`" for name in spec.players)
    held_out = (
        f" `hgpo eval` plays `{spec.evaluation_split}` by default."
        if spec.evaluation_split
        else ""
    )
    return f"Splits: {splits}.{held_out} Scripted players: {players or 'none'}."


# Settings


def settings_page() -> str:
    """Return the page of all settings of `hgpo train` and `hgpo sft`."""
    parts = [
        "# Settings",
        (
            "Every setting of `hgpo train CONFIG` and `hgpo sft RUN --config FILE`: in a TOML file, or as "
            "`--set section.name=value`. `--print-config` prints them all with their values. "
            "[Training](../training.md) explains them; [the papers' configurations](../configurations.md) are examples."
        ),
    ]
    for command, config in (("hgpo train", Config()), ("hgpo sft", SftConfig())):
        parts += [f"## {command}", *_sections(config, "")]
    return "\n\n".join(parts) + "\n"


def _sections(settings: Any, prefix: str) -> Iterator[str]:  # noqa: ANN401 (a dataclass)
    """Return the table of a section, and those of the sections in it."""
    cls: type = type(settings)
    nested = {
        name: value
        for name, value in _fields(settings)
        if dataclasses.is_dataclass(value)
    }
    values = [one for one in dataclass_values(cls, settings) if one.name not in nested]
    yield table("setting", [one._replace(name=prefix + one.name) for one in values])
    for name, section in nested.items():
        yield f"### {prefix}{name}"
        yield plain(field_docs(cls)[name])
        yield from _sections(section, f"{prefix}{name}.")


# Estimators and policies


def estimators_page() -> str:
    """Return the page of the parameters of this package's estimators."""
    parts = [
        "# Parameters of estimators",
        (
            "For `hgpo advantages` (`--set name=value`, `-e name:parameter=value`), `hgpo_train.advantages.compute`, "
            "`advantage.parameters` of a configuration, and the viewer. [Estimators](../estimators.md) explains them."
        ),
        "## Every estimator",
        table("parameter", dataclass_values(Parameters)),
    ]
    common = {one.name: one for one in dataclass_values(Parameters)}
    for name, found in ((name, get(name)) for name in names(scored=True)):
        if not found.function.__module__.startswith("hgpo_train."):
            continue  # of another package, or of the user
        own = [
            one
            for one in dataclass_values(type(found.parameters))
            if common.get(one.name) != one
        ]
        whole = "" if found.scope == "group" else " Needs all rows of an iteration."
        scores = (
            f" Reads the scores {', '.join(found.scores)} (`hgpo score`)."
            if found.scores
            else ""
        )
        parts += [f"## {name}", f"{plain(found.summary)}.{whole}{scores}"]
        parts += [table("parameter", own)] if own else []
    return "\n\n".join(parts) + "\n"


def policies_page() -> str:
    """Return the page of this package's policies with their options."""
    parts = [
        "# Options of policies",
        (
            "For `--policy NAME --policy-option name=value` of `hgpo rollout` and `hgpo eval`. "
            "[Rollouts](../rollouts.md#policies) describes the policies."
        ),
    ]
    specs = {
        name: find_policy(name)[0]
        for name in policy_names()
        if name not in installed(ENTRY_POINTS)
    }
    without = ", ".join(f"`{name}`" for name, spec in specs.items() if not spec.options)
    parts.append(f"Without options: {without}.")
    for name, spec in specs.items():
        if spec.options:
            trained = (
                ["It can be trained (`rollout.engine`)."] if spec.make_trainable else []
            )
            parts += [
                f"## {name}",
                *trained,
                table("option", dataclass_values(spec.options)),
            ]
    return "\n\n".join(parts) + "\n"


# Engines

_PLAYED: Final = "policy option"
_TRAINED: Final = "works (`hgpo train --steps`)"
_NOT_RAW: Final = 'at temperature 1 and top-p 1, or with the policy option `logprobs_mode = "processed"`; else refused'
_UPDATE: Final = "of the update; the engine has its own"
ENGINES: Final = {
    "rollout.engine": ("works", "works", "refused: a policy of `hgpo rollout` alone"),
    "rollout.engine_options": (
        "`max_batch_tokens`",
        "arguments of `vllm.LLM`, `request_seeds`",
        "`extra`",
    ),
    "rollout.overflow": ("works", "works", "policy option, `history` or `error`"),
    "rollout.stop": (
        "works",
        "works",
        "policy option; most servers leave the stop text out",
    ),
    "rollout.chat_template": (
        "works",
        "works",
        "the server's, as `vllm serve --chat-template`",
    ),
    "rollout.tasks": ("works", "works", "`hgpo rollout --tasks`"),
    "rollout.group_size": ("works", "works", "`hgpo rollout --group-size`"),
    "rollout.branch": ("works", "works", "`hgpo rollout --branch`"),
    "rollout.branch_width": ("works", "works", "`hgpo rollout --width`"),
    "rollout.slots": ("works", "works", "`hgpo rollout --slots`"),
    "rollout.filter_groups": ("works", "works", "`hgpo rollout --dynamic`"),
    "rollout.max_failed": ("works", "works", "`hgpo rollout --max-failed`"),
    "rollout.sleep": ("no effect", "works", "no effect"),
    "rollout.ahead": ("refused", "works", "no effect"),
    "model.device": ("works", _UPDATE, _TRAINED),
    "model.compute_dtype": (
        "works",
        "of the update; the engine's is the option `dtype`",
        _TRAINED,
    ),
    "model.attention": ("works", _UPDATE, _TRAINED),
    "model.compile": (
        "refused",
        "works",
        "works (`hgpo train --steps`, with `rollout.engine=vllm`)",
    ),
    "update.old_logprobs": ("works", "works", f"`rollout`: {_NOT_RAW}"),
    "update.rollout_is": ("works", "works", _NOT_RAW),
    "update.gap_warning": (
        "works",
        "works",
        "works; raw log-probabilities are left out",
    ),
}
"""What becomes of settings with transformers, vllm and openai, where it is not `capabilities`' rule."""


def engines_page() -> str:
    """Return the page of what every engine does with the settings of rollouts, the update and the model."""
    parts = [
        "# Engines",
        (
            "What becomes of the settings of [`hgpo train`](settings.md) with each engine: `transformers` and `vllm` "
            "(`rollout.engine`), rollouts of an `openai` server, and [verl](../scaling.md). A refusal is one line, "
            "before anything is loaded."
        ),
        "| setting | transformers | vllm | openai | verl |\n|---|---|---|---|---|",
    ]
    lines = [
        f"| {code(name)} | {' | '.join(map(plain, cells))} |"
        for name, cells in capabilities().items()
    ]
    return "\n\n".join(parts) + "\n" + "\n".join(lines) + "\n"


def capabilities() -> dict[str, tuple[str, str, str, str]]:
    """Return what becomes of each setting with transformers, vllm, openai and verl (the plug-in's rules)."""
    sys.path.append(str(Path(__file__).parents[1] / "integrations/verl"))
    rules = import_module("hgpo_verl.translate").RULES
    options = {each.name for each in dataclasses.fields(ServerOptions)}
    found = {}
    for name, rule in rules.items():
        section, _, field = name.partition(".")
        if section in ("rollout", "update", "model"):
            played = _PLAYED if field in options else "no effect"
            others = ENGINES.get(
                name, ("works", "works", played if section == "rollout" else _TRAINED)
            )
            found[name] = (*others, f"{rule.kind}: {rule.how}")
    return found


# Docstrings and types


def documented(described: Callable[..., Any]) -> dict[str, str]:
    """Return what the docstring of a function or class says of its arguments or attributes, by name."""
    found: dict[str, str] = {}
    for section in Docstring(cleandoc(described.__doc__ or "")).parse(
        Parser.google, warnings=False
    ):
        if isinstance(section, DocstringSectionParameters | DocstringSectionAttributes):
            found |= {
                one.name: " ".join(one.description.split()) for one in section.value
            }
    return found


def dataclass_values(cls: type, settings: object = None) -> Iterator[Value]:
    """Return the fields of a dataclass, with the defaults of the class or the values of an instance.

    Meanings are the docstrings below the fields, or the attributes in the docstrings of the class and its bases.
    """
    meanings = documented(cls) or descriptions(cls)
    for field in dataclasses.fields(cls):
        default = getattr(settings, field.name) if settings else _default(field)
        yield Value(
            field.name,
            kind_of(types_of(cls)[field.name]),
            _toml(default),
            meanings[field.name],
        )


def kind_of(hint: Any) -> str:  # noqa: ANN401 (any annotation)
    """Return an annotation in words: its choices, or its type with its bounds.

    >>> kind_of(Literal["a", "b"] | None)
    '"a" | "b" | none'
    >>> kind_of(typing.Annotated[int, Meta(ge=1)])
    'int ≥ 1'
    """
    origin = typing.get_origin(hint)
    inner = typing.get_args(hint)
    if origin is Literal:
        return " | ".join(json.dumps(one) for one in inner)
    if origin in (typing.Union, UnionType):
        return " | ".join(map(kind_of, inner))
    if origin is typing.Annotated:
        bounds = [
            f"{sign} {getattr(meta, name):g}"
            for meta in inner[1:]
            if isinstance(meta, Meta)
            for name, sign in _BOUNDS.items()
            if getattr(meta, name) is not None and abs(getattr(meta, name)) < 1e300
        ]
        return " ".join([kind_of(inner[0]), ", ".join(bounds)]).strip()
    if origin is tuple:
        return f"list of {kind_of(inner[0])}"
    if origin is dict:
        return "table"
    return "none" if hint is type(None) else str(getattr(hint, "__name__", hint))


def table(head: str, values: Iterable[Value]) -> str:
    """Return values as a table in Markdown."""
    rows = [
        f"| {code(one.name)} | {code(one.kind)} | {code(one.default)} | {plain(one.meaning.replace('``', '`'))} |"
        for one in values
    ]
    return "\n".join(
        [f"| {head} | type | default | meaning |", "|---|---|---|---|", *rows]
    )


def _fields(settings: Any) -> list[tuple[str, Any]]:  # noqa: ANN401 (a dataclass)
    return [
        (field.name, getattr(settings, field.name))
        for field in dataclasses.fields(settings)
    ]


def _default(field: dataclasses.Field[Any]) -> Any:  # noqa: ANN401 (any value)
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _python(value: object) -> str:
    return "" if value is Parameter.empty else repr(value)


def _toml(value: object) -> str:
    """Return a value as in a configuration."""
    if value is dataclasses.MISSING:
        return ""
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return json.dumps(list(value))
    return (
        json.dumps(value, ensure_ascii=False)
        if isinstance(value, bool | str | dict)
        else repr(value)
    )
