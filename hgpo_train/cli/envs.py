"""`hgpo envs`: the environments that can be used here, with their arguments, splits and data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hgpo_train.cli import common, options  # cyclopts reads the annotations

if TYPE_CHECKING:
    from hgpo_envs.listing import FoundData, ListedEnvironment


def envs(*, as_json: options.Json = False) -> None:
    """List the environments: ids, arguments with defaults, splits with task counts, and the data that is here.

    Args:
        as_json: Whether to print JSON.
    """
    from hgpo_envs.listing import list_environments
    from hgpo_train.cli.display import print_json, print_table

    environments = list_environments()
    if as_json:
        print_json([_document(listed) for listed in environments])
        return
    for listed in environments:
        if not listed.install:
            _show(listed)
    if absent := [
        (listed.id, listed.install) for listed in environments if listed.install
    ]:
        print_table(["", ""], absent, title="Not installed", texts=2)
    print(
        f"\n{common.next_commands(['rollout', '--env', 'ID', '--policy', 'random', '--out', 'RUN'])}"
    )


def _document(listed: ListedEnvironment) -> dict[str, Any]:
    """Return a listed environment as JSON values. A required argument has no ``default``."""
    from dataclasses import asdict
    from inspect import Parameter

    arguments = [
        {"name": name}
        if default is Parameter.empty
        else {"name": name, "default": default}
        for name, default in listed.arguments.items()
    ]
    return asdict(listed) | {"arguments": arguments}


def _show(listed: ListedEnvironment) -> None:
    from inspect import Parameter

    from hgpo_train.cli.display import print_table

    rows = [("error", listed.error)] if listed.error else []
    rows += [("data", _describe(data, listed)) for data in listed.data]
    if absent := [
        path
        for path in listed.looked
        if path not in {data.path for data in listed.data}
    ]:
        rows.append(("data", f"nothing at {', '.join(absent)}"))
    arguments = [
        f"{name} (required)" if default is Parameter.empty else f"{name}={default!r}"
        for name, default in listed.arguments.items()
    ]
    rows += [("arguments", ", ".join(arguments))] if arguments else []
    print_table(
        ["", ""],
        rows,
        title=f"{listed.id} ({listed.provider or 'registered in this process'})",
        texts=2,
    )


def _describe(data: FoundData, listed: ListedEnvironment) -> str:
    bundled = "bundled" if "data" in listed.arguments else "tasks"
    name = bundled if data.path is None else f'data="{data.path}"'
    if data.error:
        return f"{name}: cannot be used: {data.error}"
    splits = ", ".join(f"{split} {count:,}" for split, count in data.splits.items())
    wordings = "".join(f"; {wording}" for wording in data.wordings)
    return f"{name}: {splits}{wordings}"
