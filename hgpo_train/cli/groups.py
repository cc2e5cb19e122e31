"""Command groups that read arguments in their own way."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup


class RunUnlessNamed(TyperGroup):
    """A group whose command `run` may be left out: `show RUN` is `show run RUN`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 (click's, or Typer's own copy)
        """Puts `run` before arguments that name no command of the group."""
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["run", *args]
        return super().parse_args(ctx, args)
