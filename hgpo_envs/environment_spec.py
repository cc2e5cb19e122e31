"""Descriptions of benchmarks, found by Gymnasium id or by name.

ALFWorld, WebShop and AppWorld have the same kind of description as the benchmarks of other packages. A package adds a
benchmark by an entry point whose name is the Gymnasium id::

    [project.entry-points."hgpo.environments"]
    "BabyAI/Text-v0" = "own_environment:BABYAI"

The ids are listed without importing the packages (`hgpo_envs.plugins`).
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, field
from functools import cache, partial
from inspect import Parameter, signature
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final

import gymnasium
from gymnasium.envs.registration import parse_env_id

from hgpo_envs.errors import InputError, check_known, one_line, unknown
from hgpo_envs.plugins import answer_of, distribution, install_command, installed, load
from hgpo_envs.responses import parse, parse_tool_calls
from hgpo_envs.sources import open_shared
from hgpo_envs.tool_checks import tools_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from hgpo_envs.engine import Player, TaskSource
    from hgpo_envs.memory import Memory
    from hgpo_envs.responses import Response
    from hgpo_envs.sources import SharedSource
    from hgpo_envs.task_wordings import Wording

ENTRY_POINTS: Final = "hgpo.environments"

PLAYERS: Final = ("expert", "explorer")
"""The names that scripted players may have."""


BACKENDS: Final = ("native", "original")
"""What plays a benchmark: this package's own engine, or the original program for comparison."""


@dataclass(frozen=True, kw_only=True)
class EnvironmentSpec:
    """A text benchmark, described for Gymnasium, the command line and training.

    Attributes:
        id: The Gymnasium id, ``[Namespace/]Name-v0``. The name in it must equal `TaskSource.name` and be unique among
            all benchmarks.
        source: Opens the task source: a class or function at the top level of a module, or ``module:callable``, which
            is imported on first use. Its parameters become keyword arguments of ``gymnasium.make``; their values must
            be JSON values. If it has a parameter ``max_steps``, it also receives the step limit.
        max_steps: The default step limit.
        template: The text of the Jinja template for prompts (`hgpo_envs.prompts` lists its fields). None uses a
            template that shows task, history, state and admissible actions, and asks for a tool call, or for an action
            in the form of `format_response` or in the tag `action_tag`.
        parse_response: Finds the action in a model's response (``action_format="response"``) and decides whether the
            response is valid. It must be picklable. The default follows verl-agent's rules, without their lowercasing
            (`hgpo_envs.responses`) and with the tag `action_tag`; with `tools`, it is
            `hgpo_envs.responses.parse_tool_calls`.
        format_response: Writes an action as a response from which `parse_response` reads it again, for scripted players
            and the prompt; None writes it in the tag `action_tag`.
        state_key: What is compared of a state's text when steps are grouped: a function from text to text, or its name
            (`hgpo_envs.state_keys`); None compares the whole text. The policy reads the text in any case. States that
            have a key of their own (`hgpo_envs.engine.State.key`) keep it.
        memory: A function of the past pairs and the current state, or ``module:function``, which returns the text that
            stands for the past in the prompt (`hgpo_envs.memory.Memory`); None shows the last K pairs. Groups compare
            states, with or without it.
        action_tag: The tag around the action in a response, in which scripted players write theirs; empty if there is
            none.
        players: The scripted players ``expert`` and ``explorer``, each as a class (`hgpo_envs.engine.Player`) or as
            ``module:class``. Both are optional.
        stochastic: Whether the same commands may lead to other states. `hgpo check env` then does not compare them, and
            copies of an episode need an engine with `fork`.
        accepted: Findings of `hgpo check env` that the benchmark means so, by check, each with the reason.
        admissible_actions: Whether states list their admissible actions. Without them, ``action_format="number"`` is
            refused.
        tools: The tools that a policy may call, as JSON schemas of OpenAI's form: ``{"type": "function", "function":
            {"name": …, "description": …, "parameters": …}}``. Servers get them with every request, and chat templates
            render them. A Python function with annotations and a docstring becomes such a schema
            (`hgpo_envs.tools.tool_schema`).
        scenario: Returns the scenario of a task id, for benchmarks that also count scenarios as solved only if all of
            their tasks are.
        evaluation_split: The default split of ``hgpo eval``; None requires ``--split``.
        splits: The names of the splits, without ``all``, for `hgpo envs`.
        data_places: Returns the paths where the benchmark's data usually is, for `hgpo envs`, which opens those that
            exist as ``data``: a function or ``module:function``.
        needs_data: Whether the source has no data of its own. `hgpo envs` then lists only what it finds.
        data_command: The command that gets the benchmark's own data, for error messages; empty if there is none.
        wordings: The wordings of the benchmark (`hgpo_envs.task_wordings`) by ``name=value``: an argument of `source`
            that is also one of `hgpo_envs.engine.Task.versions`.
        name: The name in the id.
        takes_calls: Whether an action is a call of a tool, rather than a text in a tag or in the form of
            `format_response`.
        parser: `parse_response`, or the default for the specification's tools or tag.

    Raises:
        InputError: If the id is malformed, a player has another name, or a tool another form.
    """

    id: str
    source: Callable[..., TaskSource] | str
    max_steps: int = 50
    template: str | None = None
    parse_response: Callable[[str], Response] = parse
    format_response: Callable[[str], str] | None = None
    state_key: Callable[[str], str] | str | None = None
    memory: Memory | str | None = None
    action_tag: str = "action"
    players: Mapping[str, Callable[[], Player] | str] = field(default_factory=dict)
    stochastic: bool = False
    accepted: Mapping[str, str] = field(default_factory=dict)
    admissible_actions: bool = True
    tools: Sequence[Any] = ()
    scenario: Callable[[str], str] | None = None
    evaluation_split: str | None = None
    splits: tuple[str, ...] = ()
    data_places: Callable[[], Sequence[str | os.PathLike[str]]] | str = tuple
    needs_data: bool = False
    data_command: str = ""
    wordings: Mapping[str, Wording] = field(default_factory=dict)
    name: str = field(init=False, repr=False, compare=False)
    takes_calls: bool = field(init=False, repr=False, compare=False)
    parser: Callable[[str], Response] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", name_in(self.id))
        for name in self.players:
            if name not in PLAYERS:
                raise InputError(f"{self.id}: {unknown('player', name, PLAYERS)}")
        try:
            tools = tools_of(self.tools)
        except InputError as error:
            raise InputError(f"{self.id}: {error}") from error
        object.__setattr__(self, "tools", tools)
        # What follows from the fields is computed once, because it is asked at every step.
        is_usual = (
            self.parse_response in (parse, parse_tool_calls) or not self.action_tag
        )
        takes_calls = bool(tools) and self.format_response is None and is_usual
        object.__setattr__(self, "takes_calls", takes_calls)
        parser = self.parse_response
        if parser is parse:
            usual = _tag_parser(self.action_tag or "action")
            parser = parse_tool_calls if takes_calls else usual
        object.__setattr__(self, "parser", parser)

    def respond(self, action: str) -> str:
        """Return a response, without thoughts, from which `parser` reads an action."""
        if self.format_response is not None:
            return answer_of("format_response", self.format_response, action, str)
        if self.takes_calls or not self.action_tag:
            return f"<think></think>{action}"
        return f"<think></think><{self.action_tag}>{action}</{self.action_tag}>"

    def parameters(self) -> Mapping[str, Parameter]:
        """Return the parameters of `source` by name."""
        source = self.source
        return signature(
            resolve_name(source) if isinstance(source, str) else source
        ).parameters

    def open_source(self, **arguments: Any) -> SharedSource:
        """Open the task source, once per process for the same arguments (`hgpo_envs.sources.open_shared`).

        Raises:
            InputError: If an argument is missing or unknown, or the data cannot be used.
        """
        place = self.source
        if not isinstance(place, str):
            place = f"{place.__module__}:{place.__qualname__}"
            if not place.partition(":")[2].isidentifier():
                raise InputError(
                    f"{self.id}: expected a class or function at the top of a module as source, received {place}"
                )
        try:
            bound = signature(resolve_name(place)).bind(**arguments)
        except TypeError as error:
            raise InputError(f"{self.id}: {error}") from error
        bound.apply_defaults()
        values = {
            name: os.fspath(v) if isinstance(v, os.PathLike) else v
            for name, v in bound.arguments.items()
        }
        data = values.get("data")
        if not isinstance(data, str | None):
            without = "" if self.needs_data else " or None for the bundled set"
            raise InputError(f"data: expected a path{without}, received {data!r}")
        shared = open_shared(place, **values)
        if shared.source.name != self.name:
            raise InputError(
                f"{self.id}: expected a task source with the name {self.name!r}, as in the id; "
                f"received {shared.source.name!r}"
            )
        return shared


@cache
def _tag_parser(tag: str) -> Callable[[str], Response]:
    """Return verl-agent's rules for a tag: the same object every time, so that equal specifications are equal."""
    return parse if tag == "action" else partial(parse, tag=tag)


@cache
def name_in(env_id: str) -> str:
    """Return the name in a Gymnasium id.

    Raises:
        InputError: If the id is malformed.

    >>> name_in("HGPO/ALFWorld-v0")
    'ALFWorld'
    """
    try:
        return parse_env_id(env_id)[1]
    except gymnasium.error.Error as error:
        raise InputError(
            f"expected a Gymnasium id such as Mine/House-v0, received {env_id!r} ({one_line(error, 200)})"
        ) from error


_OWN: Final = {
    "HGPO/ALFWorld-v0": "hgpo_envs.alfworld.environment:ALFWORLD",
    "HGPO/WebShop-v0": "hgpo_envs.webshop.environment:WEBSHOP",
}
"""Id → ``module:EnvironmentSpec``, imported when asked for, as entry points are."""

_APART: Final = {
    "HGPO/AppWorld-v0": "appworld",
    "HGPO/ScienceWorld-v0": "scienceworld",
    "HGPO/Tau2Retail-v0": "tau2",
    "HGPO/TextArena-v0": "textarena",
    "HGPO/TextWorld-v0": "textworld",
}
"""Benchmarks of the project's own distributions, by their folders in `integrations`; listed also if not installed."""

_added: dict[str, EnvironmentSpec] = {}
"""The benchmarks of this process by id: those that were asked for, and those without an entry point."""


def add_spec(spec: EnvironmentSpec) -> None:
    """Add a benchmark for this process. `hgpo_envs.registration.register` also registers it with Gymnasium.

    Raises:
        InputError: If another benchmark has the same id or name.
    """
    known = _added.get(spec.id)
    if known is not None and known != spec:
        raise InputError(
            f"another environment {spec.id!r} is registered already; choose another id"
        )
    first = next(
        (other for other in environment_ids() if name_in(other) == spec.name), spec.id
    )
    if first != spec.id:
        raise InputError(
            f"{spec.id!r} has the same name as {first!r}; choose another name"
        )
    _added[spec.id] = spec


class NotInstalled(InputError):  # noqa: N818 (reads like UnknownTask)
    """A benchmark of this project whose distribution is not installed.

    Attributes:
        command: The command that installs it.
    """

    def __init__(self, env_id: str, name: str, command: str) -> None:
        super().__init__(f"{env_id} needs {name}: {command}")
        self.command = command


def environment_ids() -> list[str]:
    """Return the ids of all benchmarks: those of this package, of entry points, and those added in this process."""
    return list(dict.fromkeys([*_OWN, *_APART, *_installed_ids(), *_added]))


def unknown_environment(env_id: str) -> str:
    """Return the error line for an unknown id."""
    message = unknown("environment", env_id, environment_ids())
    return f"{message}; your own is module:object"


def environment_spec(env_id: str) -> EnvironmentSpec:
    """Return the benchmark with this Gymnasium id.

    Raises:
        NotInstalled: If the benchmark's distribution is not installed.
        InputError: If the id is unknown or the package that declares it is broken.
    """
    if env_id in _added:
        return _added[env_id]
    if env_id in _OWN:
        _added[env_id] = resolve_name(_OWN[env_id])
        return _added[env_id]
    if env_id not in _installed_ids():
        if folder := _APART.get(env_id):
            raise NotInstalled(
                env_id,
                f"hgpo-{folder}",
                install_command(folder=f"integrations/{folder}"),
            )
        raise InputError(unknown_environment(env_id))
    point = installed(ENTRY_POINTS)[env_id]
    spec = load(point)
    origin = f"{ENTRY_POINTS} {env_id!r} of the distribution {distribution(point)}"
    if not isinstance(spec, EnvironmentSpec):
        raise InputError(
            f"{origin}: expected an EnvironmentSpec, received {type(spec).__name__}"
        )
    if spec.id != env_id:
        raise InputError(
            f"{origin}: received the id {spec.id!r}; the entry point must have it as its name"
        )
    add_spec(spec)
    return spec


def provider(env_id: str) -> str:
    """Return the name of the distribution that declares a benchmark; empty for one that was added in this process."""
    if env_id in _OWN:
        return "hgpo"
    if env_id in _installed_ids():
        return distribution(installed(ENTRY_POINTS)[env_id])
    return f"hgpo-{_APART[env_id]}" if env_id in _APART else ""


def spec_named(name: str) -> EnvironmentSpec | None:
    """Return the benchmark with this name, such as ``ALFWorld``, or None if none is registered.

    Raises:
        InputError: If the package that declares it is broken.
    """
    ids = (env_id for env_id in environment_ids() if name_in(env_id) == name)
    match = next(ids, None)
    return None if match is None else environment_spec(match)


def make_player(name: str, benchmark: str) -> Player:
    """Create a scripted player, for example ``make_player("explorer", "ALFWorld")``.

    Raises:
        InputError: The benchmark is unknown, or has no such player.
    """
    spec = spec_named(benchmark)
    if spec is None:
        raise InputError(
            unknown("benchmark", benchmark, map(name_in, environment_ids()))
        )
    check_known(f"{benchmark} player", name, spec.players)
    player = spec.players[name]
    created: Player = (resolve_name(player) if isinstance(player, str) else player)()
    return created


@cache
def _installed_ids() -> tuple[str, ...]:
    """Return the ids of entry points. Malformed ids are skipped with a warning."""
    ids = []
    for env_id, point in installed(ENTRY_POINTS).items():
        try:
            name_in(env_id)
        except InputError as error:
            warnings.warn(
                f"{ENTRY_POINTS} of the distribution {distribution(point)}: {error}",
                stacklevel=2,
            )
        else:
            ids.append(env_id)
    return tuple(ids)
