"""The page of a card, and the check of a page or a document.

The page has the head that Hugging Face reads, tables, and at its end what is not known. It is made from the document
alone. To check either, the card is computed again from the run and compared: of a document every value, of a page every
line, because lines are what readers see; a document inside of the page could be right where a table is not. The head (a
license, tags) and the end of the page are the author's, and are not compared.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_train.evaluation.json_difference import differences

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

BAR: Final = 30
"""Characters of a success of 100%."""
POINTS: Final = 10
"""Lines of the learning curve; the document has all of them."""

_TAGS: Final = ("tags:", "- hgpo", "- reinforcement-learning", "- llm-agent")
_MARK: Final = "<!-- "
_END: Final = " -->"
_OPEN: Final = "## Not known"
_FREE: Final = ("head", "open")
"""The entries of a document that are the author's."""
_LONGEST: Final = 4000
"""Characters of a value on the page."""
_BYTES: Final = 64 << 20
_ESCAPED: Final = str.maketrans({"|": "/", "<": "‹", "`": "'", "[": "\\["})


# --------------------------------------------------------------------------------------------------------------- page


def card_page(card: Mapping[str, Any]) -> str:
    """Return the page of a card, as Markdown."""
    # What Hugging Face reads, and what the check reads.
    head = [f"{name}: {json.dumps(value)}" for name, value in card["head"].items()]
    given = msgspec.json.encode(msgspec.convert(card, Given)).decode()
    # a question cannot end the comment
    mark = _MARK + given.replace(">", "\\u003e") + _END
    lines = ["---", *head, *_TAGS, "---", "", mark, ""]

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
    files[f"ids of the {len(card['tasks'])} tasks, one a line"] = hashlib.sha256(
        tasks.encode()
    ).hexdigest()
    rows = {name: {"SHA-256": digest} for name, digest in files.items()}
    lines += ["## Files", "", *_table(rows)]

    commands = [one_line(command, _LONGEST) for command in card["commands"]]
    lines += ["## Commands", ""]
    lines += [f"    hgpo {command}" for command in commands]
    lines += ["", _OPEN, ""]
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


# -------------------------------------------------------------------------------------------------------------- check


class Given(msgspec.Struct):
    """What the author of a card chose.

    Attributes:
        format: The format of the card.
        question: The question; None if none was given.
        iteration: The iteration of a training run's checkpoint; None of other runs.
    """

    format: Literal["hgpo card 1"]
    question: str | None
    iteration: int | None


def read_card(path: Path) -> tuple[str | dict[str, Any], Given]:
    """Return a page, or a document, and what its author chose.

    Raises:
        InputError: The file cannot be read, or is no card.
    """
    data = read_bytes(path, _BYTES, "card")
    found: str | dict[str, Any]
    try:
        if data.lstrip().startswith(b"{"):
            found = msgspec.json.decode(data, type=dict[str, Any])
            given = msgspec.convert(found, Given)
        else:
            found = data.decode()
            mark = next(line for line in found.splitlines() if line.startswith(_MARK))
            given = msgspec.json.decode(
                mark.removeprefix(_MARK).removesuffix(_END), type=Given
            )
    except (ValueError, StopIteration, RecursionError):
        raise InputError(
            f"{path}: expected a card as `hgpo card RUN -o {path.name}` writes it"
        ) from None
    return found, given


def card_problems(card: Mapping[str, Any], found: str | Mapping[str, Any]) -> list[str]:
    """Return where a page or a document differs from a run's card; nothing if it is that card.

    Args:
        card: The run's card, with what the author of the other chose (`read_card`).
        found: The page or the document.

    Returns:
        Of a page, its lines that are not of the run after a minus, and lines that the run's card has after a plus. Of a
        document, the paths of values, with both values.
    """
    if isinstance(found, dict):
        free: dict[str, Any] = dict.fromkeys(_FREE)
        return [
            str(difference)
            for difference in differences({**card, **free}, {**found, **free})
        ]
    received = _compared_lines(str(found))
    expected = _compared_lines(card_page(card))
    changes = difflib.unified_diff(received, expected, n=0, lineterm="")
    lines = [one_line(line, _LONGEST) for line in changes if not line.startswith("@@")]
    return lines[2:]  # after the names of two files


def _compared_lines(page: str) -> list[str]:
    """Return the lines of a page between its head and what is not known."""
    lines = page.splitlines()
    if lines[:1] == ["---"] and "---" in lines[1:]:
        lines = lines[lines.index("---", 1) + 1 :]
    if _OPEN in lines:
        lines = lines[: lines.index(_OPEN)]
    return [line for line in lines if line.strip()]
