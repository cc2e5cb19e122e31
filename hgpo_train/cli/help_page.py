"""The layout of `--help`: names at the left, meanings beside them in full sentences, without boxes."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions, RenderableType

_NAMES: Final = 26
"""The width of the column of names. The meaning of a longer name begins below it."""
_LONGEST: Final = 100
"""The width of the longest line, which is easier to read than one across a wide screen."""

_HARD_SPACE: Final = "\N{NO-BREAK SPACE}"
_UNSAID: Final = ("True", "False", "[]", '""')
"""Defaults that are not shown: of flags, and those that mean nothing."""


@dataclass(frozen=True)
class HelpPage:
    """Renders the parts of a help page (`cyclopts.help.protocols.HelpFormatter`).

    Attributes:
        command: The function of a command, whose arguments the usage names; None for a group of commands.
    """

    command: Callable[..., object] | None = None

    def __call__(
        self, console: Console, options: ConsoleOptions, panel: HelpPanel
    ) -> None:
        """Print a panel: the commands, arguments or options."""
        del options
        if not panel.entries:
            return
        lines = [f"{_text(console, panel.title)}:"]
        for entry in panel.entries:
            is_option = panel.format == "parameter"
            names = (
                entry.display_labels_with_metavar
                if is_option
                else (*entry.positive_names, *entry.positive_shorts)
            )
            lines += _entry(
                ", ".join(names), _meaning(console, entry), min(console.width, _LONGEST)
            )
        _print(console, [*lines, ""])

    def render_usage(
        self, console: Console, options: ConsoleOptions, usage: RenderableType
    ) -> None:
        """Print how the command is called."""
        del options
        line = _text(console, usage)
        if self.command is not None:
            line = _with_arguments(line, self.command)
        lines = textwrap.wrap(
            f"Usage: {line}", min(console.width, _LONGEST), subsequent_indent="    "
        )
        _print(console, [*lines, ""])

    def render_description(
        self, console: Console, options: ConsoleOptions, description: RenderableType
    ) -> None:
        """Print what the command does, each paragraph wrapped."""
        del options
        width = min(console.width, _LONGEST)
        for paragraph in _text(console, description).split("\n\n"):
            _print(console, [*textwrap.wrap(paragraph, width), ""])


def _with_arguments(usage: str, command: Callable[..., object]) -> str:
    """Return a usage that names each argument, where cyclopts writes [ARGS] for all that are optional.

    An argument that may be repeated is followed by dots.
    """
    required: list[str] = []
    labels: list[str] = []
    for argument in signature(command).parameters.values():
        if argument.kind is not Parameter.POSITIONAL_ONLY:
            continue
        name = argument.name.upper()
        label = f"{name}..." if str(argument.annotation).startswith("list[") else name
        is_required = argument.default is Parameter.empty
        labels.append(label if is_required else f"[{label}]")
        if is_required:
            required.append(name)
    ending = [*required, "[ARGS]"] if len(labels) > len(required) else required
    before = usage.removesuffix(" ".join(ending)).rstrip()
    return " ".join([before, *labels])


def _meaning(console: Console, entry: HelpEntry) -> str:
    """Return what an option does, with its choices and its default."""
    parts = [" ".join(_text(console, entry.description).split())]
    if entry.choices:
        parts.append(f"[{' | '.join(entry.choices)}]")
    if entry.required:
        parts.append("[required]")
    elif entry.default and entry.default not in _UNSAID:
        parts.append(f"[default: {entry.default}]".replace(" ", _HARD_SPACE))
    return " ".join(filter(None, parts))


def _entry(names: str, meaning: str, width: int) -> list[str]:
    wrapped = textwrap.wrap(
        meaning, max(20, width - _NAMES), break_on_hyphens=False, break_long_words=False
    )
    lines = [line.replace(_HARD_SPACE, " ") for line in wrapped]
    first = f"  {names}"
    if len(first) <= _NAMES - 2 and lines:
        return [
            f"{first:<{_NAMES}}{lines[0]}",
            *(" " * _NAMES + line for line in lines[1:]),
        ]
    return [first, *(" " * _NAMES + line for line in lines)]


def _text(console: Console, part: RenderableType) -> str:
    """Return a part of a page as text, with the line breaks of its author."""
    rendered = console.render(part, console.options.update(width=10_000))
    return "".join(segment.text for segment in rendered).strip()


def _print(console: Console, lines: list[str]) -> None:
    console.print(
        "\n".join(lines), highlight=False, markup=False, emoji=False, soft_wrap=True
    )
