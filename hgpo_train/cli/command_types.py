"""Commands and command groups that read arguments in their own way."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand, TyperGroup


class DefaultRunGroup(TyperGroup):
    """A group whose command `run` may be left out: `show RUN` is `show run RUN`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 (click's, or Typer's own copy)
        """Puts `run` before arguments that name no command of the group."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["run", *args]
        return super().parse_args(ctx, args)


class WorkersCommand(TyperCommand):
    """A command whose flag `--workers` may be followed by how many: `--workers 2` is `--workers --slots 2`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 (see above)
        """Reads `--workers 2` and `--workers=2`; what follows is otherwise an argument of its own."""
        read: list[str] = []
        for arg in args:
            name, equals, number = arg.partition("=")
            if name == "--workers" and equals:
                read += ["--workers", "--slots", number]
            elif read and read[-1] == "--workers" and arg.isdecimal():
                read += ["--slots", arg]
            else:
                read.append(arg)
        return super().parse_args(ctx, read)
