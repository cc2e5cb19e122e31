"""Commands and command groups: redacted output, errors in one line, and commands of other distributions.

Those are found by the entry point group `hgpo.commands`. The name of an entry point is the command's words joined by
dots, such as ``serve`` or ``data.synth.appworld``. Its object is a function, as Typer reads it. It is imported when the
command is called, so that help stays instant.
"""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass
from inspect import getdoc
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar, get_args

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from hgpo_train.cli.common import check_output_path
from hgpo_train.cli.redaction import redact_output

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

F = TypeVar("F", bound="Callable[..., Any]")
ENTRY_POINTS: Final = "hgpo.commands"

KNOWN: Final = {
    "serve": "integrations/openenv",
    **dict.fromkeys(("data.install.appworld", "data.fetch.appworld", "data.synth.appworld"), "integrations/appworld"),
}
"""Commands of the project's own distributions, with the folder in a checkout."""


@dataclass
class PlainValue:
    """Converts an option's text to a plain type, as Typer does with Pydantic, whose import takes 80 ms of CPU time."""

    type: Any
    is_folder: bool
    least: float | None

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:  # noqa: ANN401 (Typer's interface)
        """Return the value; None or an empty list if there is none."""
        if isinstance(value, list | tuple):
            return [self.coerce(item, param, ctx) for item in value]
        if value is None:
            return [] if param.multiple or param.nargs == -1 else None
        try:
            converted = self.type(value)
        except ValueError:
            noun = {int: "an integer", float: "a number"}.get(self.type, "another value")
            raise typer.BadParameter(f"expected {noun}, received {value!r}", ctx=ctx, param=param) from None
        if self.least is not None and converted < self.least:
            raise typer.BadParameter(f"expected at least {self.least}, received {value}", ctx=ctx, param=param)
        if self.is_folder and os.path.isfile(converted):  # noqa: PTH113 - False for a path that is too long
            raise typer.BadParameter(f"expected a folder, received the file {value}", ctx=ctx, param=param)
        return converted


class PlainOptions:
    """A mixin of commands whose options of plain types are converted by `PlainValue`."""

    def get_params(self, ctx: Any) -> list[Any]:  # noqa: ANN401 (click's, or Typer's own copy)
        """Return the arguments and options. Typer reads the attribute set here before it makes its own."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            descriptor = getattr(param, "type_descriptor", None)
            if descriptor is not None and descriptor.annotation in (bool, str, int, float, Path, list[str], list[Path]):
                plain = next(iter(get_args(descriptor.annotation)), descriptor.annotation)  # of a list, of its items
                is_folder = not getattr(descriptor.parameter_info, "file_okay", True)
                least = getattr(descriptor.parameter_info, "min", None)
                param._runtime_param = PlainValue(plain, is_folder, least)  # noqa: SLF001
        return params


class RedactedCommand(PlainOptions, TyperCommand):
    """A command whose output has secrets removed, whose warnings are one line each, and whose `--out` is checked."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 (click's, or Typer's own copy)
        """Refuse an empty path, which would be the working directory: often a shell variable that is not set."""
        if "--out=" in args or ("--out", "") in pairwise(args):
            from hgpo_envs.errors import InputError

            raise InputError("--out: expected a path, received an empty text; use . for the working directory")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 (see above)
        """Run the command. Help is printed without this method, and so without the imports that redaction needs."""
        redact_output()
        for name in ("out", "plot"):
            path = ctx.params.get(name)
            if path is not None and "://" not in str(path):
                check_output_path(Path(path), f"--{name}")
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: typer.echo(f"warning: {message}", err=True)
            return super().invoke(ctx)


def plugin_names(group: tuple[str, ...]) -> list[str]:
    """Return the last words of the commands of other distributions in a group, such as ``("data", "synth")``."""
    from importlib.metadata import entry_points  # slow to import

    words = {*KNOWN, *entry_points(group=ENTRY_POINTS).names}
    return sorted(name.rpartition(".")[2] for name in words if tuple(name.split(".")[:-1]) == group)


class LazyCommand(TyperCommand):
    """A command as help lists it. Its options are read when it is called."""

    def __init__(self, name: str, about: str | None, function: Callable[[], Any]) -> None:
        super().__init__(name, help=about)
        self._function = function

    def load(self) -> Any:  # noqa: ANN401 (click's command, or Typer's own copy)
        """Return the command with its options."""
        from typer.main import get_command

        app = typer.Typer(add_completion=False)
        app.command(self.name, cls=RedactedCommand)(self._function())
        return get_command(app)


def plugin(name: str) -> LazyCommand:
    """Return a command of another distribution, of which the name is the words joined by dots."""

    def function() -> Any:  # noqa: ANN401 (the entry point's contract: a function)
        from hgpo_envs.errors import InputError
        from hgpo_envs.plugins import install_command, installed, load

        point = installed(ENTRY_POINTS).get(name)
        if point is None:
            folder = KNOWN[name]
            command = f"hgpo {name.replace('.', ' ')}"
            raise InputError(f"{command} needs hgpo-{folder.rpartition('/')[2]}: {install_command(folder=folder)}")
        return load(point)

    about = f"A command of {KNOWN.get(name, 'another distribution')}."
    return LazyCommand(name.rpartition(".")[2], about, function)


class CommandGroup(PlainOptions, TyperGroup):
    """A group with the commands of other distributions, whose wrong arguments are one line, as all other errors."""

    own: ClassVar[Mapping[str, LazyCommand]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {**self.own, **self.commands}

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401 (see above)
        """Return the names of the commands, of which help prints the first line each."""
        return [*super().list_commands(ctx), *plugin_names(tuple(ctx.command_path.split()[1:]))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 (see above)
        """Return a command. One of another distribution is not imported."""
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        group = ctx.command_path.split()[1:]
        return plugin(".".join([*group, cmd_name])) if cmd_name in plugin_names(tuple(group)) else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:  # noqa: ANN401 (see above)
        """Return the command that is called, imported."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, LazyCommand) else command, rest

    def main(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401 (as of `TyperGroup`)
        """Run a command. Wrong arguments end with exit code 2."""
        if not options.get("standalone_mode", True):
            return super().main(*args, **options)
        try:
            code = super().main(*args, **{**options, "standalone_mode": False})
        except typer.Abort:
            sys.exit(1)
        except TyperException as error:
            if type(error).__name__ != "NoArgsIsHelpError":  # the help is printed already
                message = " ".join(error.format_message().split()).rstrip(".").replace("'. Did", "'; did").rstrip("?")
                context = getattr(error, "ctx", None)
                hint = "" if context is None else f"; see {context.command_path} --help"
                print(f"error: {message}{hint}", file=sys.stderr)
            sys.exit(getattr(error, "exit_code", 2))
        sys.exit(code if isinstance(code, int) else 0)


class DefaultRunGroup(CommandGroup):
    """A group whose command `run` is optional: `show RUN` is `show run RUN`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 (see above)
        """Insert `run` if the first argument is not a command of the group, or a `run` that is the only path."""
        if args and args[0] != "--help":
            alone = args[0] == "run" and "--help" not in args and all(other[:1] == "-" for other in args[1:])
            if alone or self.get_command(ctx, args[0]) is None:
                args = ["run", *args]
        return super().parse_args(ctx, args)


class RedactedApp(typer.Typer):
    """A Typer application whose commands are of `RedactedCommand`, and whose errors are one line each."""

    def __init__(self, *, cls: type[CommandGroup] = CommandGroup, **options: Any) -> None:
        self._own: dict[str, LazyCommand] = {}
        super().__init__(cls=type(cls.__name__, (cls,), {"own": self._own}), **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[[F], F]:
        """Add a command, as `typer.Typer.command` does. Its options are read when it is called: all take 50 ms."""
        del options

        def add(function: F) -> F:
            words = name or function.__name__.replace("_", "-")
            self._own[words] = LazyCommand(words, getdoc(function), lambda: function)
            return function

        return add
