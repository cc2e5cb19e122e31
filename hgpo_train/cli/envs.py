"""`hgpo envs`: the environments that can be used here, with their arguments, splits and data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from hgpo_envs.listing import FoundData, ListedEnvironment


def envs(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the environments: ids, arguments with defaults, splits with task counts, and the data that is here."""
    from hgpo_envs.listing import list_environments

    listed = list_environments()
    if as_json:
        import orjson

        typer.echo(orjson.dumps([to_json(one) for one in listed], option=orjson.OPT_INDENT_2).decode())
        return
    from rich.console import Console

    console = Console(highlight=False)
    for one in listed:
        _show(console, one)


def to_json(listed: ListedEnvironment) -> dict[str, Any]:
    """Return a listed environment as JSON values. A required argument has no ``default``."""
    from inspect import Parameter

    return {
        "id": listed.id,
        "provider": listed.provider,
        "arguments": [
            {"name": name} if default is Parameter.empty else {"name": name, "default": default}
            for name, default in listed.arguments.items()
        ],
        "data": [{"path": one.path, "splits": dict(one.splits), "error": one.error} for one in listed.data],
        "looked": list(listed.looked),
        "error": listed.error,
    }


def _show(console: Console, listed: ListedEnvironment) -> None:
    from inspect import Parameter

    from rich.table import Column, Table
    from rich.text import Text

    from hgpo_envs.unicode_text import clean_text

    console.print(Text.assemble((listed.id, "bold"), f"  ({listed.provider or 'registered in this process'})"))
    table = Table(Column(no_wrap=True), Column(overflow="fold"), box=None, show_header=False, padding=(0, 2, 0, 2))
    if listed.error:
        table.add_row("error", Text(clean_text(listed.error), style="red"))
    for number, one in enumerate(listed.data):
        table.add_row("data" if not number else "", Text(clean_text(_data_line(one, listed))))
    if absent := [place for place in listed.looked if place not in {one.path for one in listed.data}]:
        table.add_row("" if listed.data else "data", Text(f"nothing at {', '.join(absent)}", style="dim"))
    written = [
        f"{name} (required)" if default is Parameter.empty else f"{name}={default!r}"
        for name, default in listed.arguments.items()
    ]
    if written:
        table.add_row("arguments", Text(", ".join(written)))
    console.print(table)


def _data_line(found: FoundData, listed: ListedEnvironment) -> str:
    bundled = "bundled" if "data" in listed.arguments else "tasks"
    what = f"{bundled}:" if found.path is None else f'data="{found.path}":'
    if found.error:
        return f"{what} cannot be used: {found.error}"
    return f"{what} " + ", ".join(f"{split} {count:,}" for split, count in found.splits.items())
