"""`hgpo panels`: the panels that can be played, and all that one fixes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hgpo_train.cli import common, options  # cyclopts reads the annotations

if TYPE_CHECKING:
    from hgpo_train.panels import Panel


def list_all(*, as_json: options.Json = False) -> None:
    """List the panels: environment, tasks, seeds, and whether their data are on this machine.

    Args:
        as_json: Whether to print JSON.
    """
    from hgpo_train.cli.display import print_json, print_table
    from hgpo_train.panels import list_panels

    panels = list_panels()
    if as_json:
        print_json([_document(panel) for panel in panels])
        return
    rows = []
    for panel in panels:
        size = f"{len(panel.tasks)} × {len(panel.seeds)}"
        rows.append((panel.title, str(panel.environment["env"]), size, _data(panel)[0]))
    print_table(["panel", "environment", "tasks × seeds", "data"], rows, texts=4)
    name = panels[0].title
    show_one = ("panels", "show", name)
    print(
        f"\n{common.next_commands(show_one, ('eval', '--panel', name, '--policy', 'random', '--out', 'RUN'))}"
    )


def show(panel: str, /, *, as_json: options.Json = False) -> None:
    """Show everything that a panel fixes, and its hash.

    Args:
        panel: A name of hgpo panels or a TOML file, also with overrides: name+setting=value.
        as_json: Whether to print JSON.
    """
    from hgpo_train.cli.display import print_json, print_table
    from hgpo_train.panels import load_panel

    found = load_panel(panel)
    if as_json:
        print_json(_document(found) | {"settings": found.canonical()})
        return
    rows = []
    for name, value in found.flat().items():
        if name not in ("name", "version", "tasks"):
            rows.append((name, value if isinstance(value, str) else repr(value)))
    state, why = _data(found)
    rows += [
        ("tasks", f"{len(found.tasks)}, from {found.tasks[0]} to {found.tasks[-1]}")
    ]
    rows += [
        ("on this machine", f"{state}; {why}" if why else state),
        ("hash", found.digest),
    ]
    if found.about:
        print(found.about)
    print_table(["", ""], rows, title=found.title, texts=2)
    print(
        common.next_commands(
            ("eval", "--panel", panel, "--policy", "random", "--out", "RUN")
        )
    )


def _document(panel: Panel) -> dict[str, object]:
    state, why = _data(panel)
    return {
        "panel": panel.title,
        "about": panel.about,
        "environment": panel.environment["env"],
        "tasks": len(panel.tasks),
        "seeds": list(panel.seeds),
        "pinned": panel.is_pinned,
        "data": state,
        "problem": why,
        "digest": panel.digest,
    }


def _data(panel: Panel) -> tuple[str, str]:
    """Return whether a panel's data are on this machine, and why not."""
    from hgpo_envs.errors import InputError, one_line
    from hgpo_train.panels.data import NoDataError, find_data

    try:
        find_data(panel)
    except NoDataError:
        return "not here", panel.data
    except InputError as error:
        return "cannot be used", one_line(error, 300)
    return "here" if panel.data else "bundled", ""
