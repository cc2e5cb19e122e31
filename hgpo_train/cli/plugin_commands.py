"""Commands of other distributions, found by the entry point group `hgpo.commands`.

The name of an entry point is the command's words joined by dots, such as ``serve`` or ``data.synth.appworld``. Its
object is a function, as Typer reads it. It is imported when the command is called, so that help stays instant.
"""

from __future__ import annotations

from typing import Any, Final

from typer.core import TyperCommand

ENTRY_POINTS: Final = "hgpo.commands"

KNOWN: Final = {
    "serve": "integrations/openenv",
    **dict.fromkeys(("data.install.appworld", "data.fetch.appworld", "data.synth.appworld"), "integrations/appworld"),
}
"""Commands of the project's own distributions, with the folder in a checkout."""


def plugin_names(group: tuple[str, ...]) -> list[str]:
    """Return the last words of the commands of other distributions in a group, such as ``("data", "synth")``."""
    from importlib.metadata import entry_points  # slow to import

    words = {*(name for name in KNOWN), *entry_points(group=ENTRY_POINTS).names}
    return sorted(name.rpartition(".")[2] for name in words if tuple(name.split(".")[:-1]) == group)


class PluginCommand(TyperCommand):
    """A command of another distribution, as help lists it."""

    def __init__(self, name: str) -> None:
        super().__init__(name.rpartition(".")[2], help=f"A command of {KNOWN.get(name, 'another distribution')}.")
        self._entry_point = name

    def load(self) -> Any:  # noqa: ANN401 (click's command, or Typer's own copy)
        """Import the command.

        Raises:
            InputError: If its distribution is not installed or cannot be imported.
        """
        from typer.main import get_command

        from hgpo_envs.errors import InputError
        from hgpo_envs.plugins import installed, load
        from hgpo_train.cli.command_types import RedactedApp

        point = installed(ENTRY_POINTS).get(self._entry_point)
        if point is None:
            folder = KNOWN[self._entry_point]
            distribution = f"hgpo-{folder.rpartition('/')[2]}"
            raise InputError(
                f"hgpo {self._entry_point.replace('.', ' ')} needs {distribution}: pip install {distribution} "
                f"(in a checkout: pip install ./{folder})"
            )
        app = RedactedApp(add_completion=False)
        app.command(self.name)(load(point))  # type: ignore[type-var]  # the entry point's contract: a function
        return get_command(app)
