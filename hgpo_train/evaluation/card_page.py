"""The page of a card, as Markdown: the head that Hugging Face reads, tables, and at its end what is not known.

It is made from the document alone, and is the same on every machine: whoever has the run writes it again and compares.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping

BAR: Final = 30
"""Characters of a success of 100%."""
POINTS: Final = 10
"""Lines of the learning curve; the document has all of them."""

_TAGS: Final = ("tags:", "- hgpo", "- reinforcement-learning", "- llm-agent")
_LONGEST: Final = 4000
"""Characters of a value on the page."""
_ESCAPED: Final = str.maketrans({"|": "/", "<": "‹", "`": "'", "[": "\\["})


def card_page(card: Mapping[str, Any]) -> str:
    """Return the page of a card, as Markdown."""
    head = [f"{name}: {json.dumps(value)}" for name, value in card["head"].items()]
    lines = ["---", *head, *_TAGS, "---", ""]

    question = card["question"] or "not given"
    lines += [f"# {_cell(card['name'])}", ""]
    for text in (card["title"], *card["notes"]):
        lines += [_cell(text), ""]
    lines += [f"**Question:** {_cell(question)}", ""]
    settings = {name: {"": value} for name, value in card["settings"].items() if value}
    lines += _table(settings, "setting")

    # Success, from the rules to its parts.
    sections = {
        f"Success by rule (of other figures: {card['reporting_rule']})": card["rules"],
        "Spread of success": card["spread"],
        "Success by seed or iteration": _points(card),
        "Other measures": card["measures"],
        "Rollouts and what was dropped": _transposed(card["rollouts"]),
    }
    for title, table in sections.items():
        if table:
            lines += [f"## {title}", "", *_table(table)]

    # Files, and the ids of the tasks as if they were one.
    tasks = "".join(f"{task}\n" for task in card["tasks"])
    files = dict(card["files"])
    files[f"ids of the {len(card['tasks'])} tasks, one a line"] = hashlib.sha256(tasks.encode()).hexdigest()
    rows = {name: {"SHA-256": digest} for name, digest in files.items()}
    lines += ["## Files", "", *_table(rows)]

    commands = [one_line(command, _LONGEST) for command in card["commands"]]
    lines += ["## Commands", ""]
    lines += [f"    hgpo {command}" for command in commands]
    lines += ["", "## Not known", ""]
    lines += [f"- {text}" for text in card["open"]]
    return "\n".join([*lines, ""])


def _points(card: Mapping[str, Any]) -> dict[str, Any]:
    """Return the success of seeds or iterations with bars: the first, the last, the checkpoint, and some between."""
    points = list(card["by_seed"].items())
    last = len(points) - 1
    every = max(1, len(points) // POINTS)
    shown = {}
    for place, (number, point) in enumerate(points):
        is_chosen = number == str(card["iteration"])
        if not is_chosen and place % every and place != last:
            continue
        bar = "█" * round(BAR * point["success"])
        mark = " this model" if is_chosen else ""
        shown[number] = {**point, "": bar + mark}
    return shown


def _transposed(table: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return a table with its columns as rows; what a row lacks is left out."""
    turned: dict[str, dict[str, Any]] = {}
    for row, values in table.items():
        for column, value in values.items():
            turned.setdefault(column.replace("_", " "), {})[row] = value
    return turned


def _table(rows: Mapping[str, Mapping[str, Any]], corner: str = "") -> list[str]:
    """Return the lines of a table, and an empty one."""
    columns: dict[str, None] = {}
    for values in rows.values():
        columns |= dict.fromkeys(values)
    table = [[corner, *columns], ["---"] * (1 + len(columns))]
    for name, values in rows.items():
        cells = [_cell(values.get(column, "")) for column in columns]
        table.append([_cell(name), *cells])
    lines = [" | ".join(cells) for cells in table]
    return [*(f"| {line} |" for line in lines), ""]


def _cell(value: Any) -> str:  # noqa: ANN401 - JSON
    """Return a JSON value in words, as one line that is neither a cell, a tag, a link nor code of its own."""
    if isinstance(value, str):
        return one_line(value, _LONGEST).translate(_ESCAPED)
    if isinstance(value, dict):
        entries = [f"{_cell(name)} = {_nested(inner)}" for name, inner in value.items()]
        return ", ".join(entries)
    if isinstance(value, list):
        entries = [_nested(inner) for inner in value]
        return f"[{', '.join(entries)}]"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "unknown" if value is None else json.dumps(value)


def _nested(value: Any) -> str:  # noqa: ANN401 - JSON
    """Return a value inside of a table or a list: a setting, whose digits all count, and which can be none."""
    if isinstance(value, dict):
        return f"({_cell(value)})"
    if isinstance(value, float):
        return json.dumps(value)
    return "none" if value is None else _cell(value)
