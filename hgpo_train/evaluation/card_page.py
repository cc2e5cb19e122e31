"""The page of a card, and the check of a page or a document.

The page has the head that Hugging Face reads, tables, and at its end what is not known. It is made from the document
alone. To check either, the card is computed again from the run and compared: of a document every value, of a page every
line, because lines are what readers see; a document inside of the page could be right where a table is not. The head (a
license, tags) and the end of the page are the author's, and are not compared.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_envs.wording import counted
from hgpo_train.evaluation.card import list_sum
from hgpo_train.evaluation.json_difference import differences
from hgpo_train.evaluation.reporting_rules import RULES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

BAR: Final = 30
"""Characters of a success of 100% in the learning curve."""
POINTS: Final = 10
"""The largest number of lines of the learning curve; the document has all."""

_MARK: Final = "<!-- "
_END: Final = " -->"
_OPEN: Final = "## Not known"
_FREE: Final = ("head", "open")
"""The entries of a document that are the author's."""
_BEFORE: Final = 20
"""Characters of a line that are shown before a difference."""
_SHOWN: Final = 80
"""Characters of a line that are shown."""
_LONGEST: Final = 4000
"""Characters of a value on the page."""
_BYTES: Final = 64 << 20
_ESCAPED: Final = str.maketrans({"|": "/", "<": "‹", "`": "'", "[": "\\["})


# --------------------------------------------------------------------------------------------------------------- page


def card_page(card: Mapping[str, Any]) -> str:
    """Return the page of a card, as Markdown."""
    lines = ["---"]
    lines += [f"{name}: {json.dumps(value)}" for name, value in card["head"].items()]
    lines += ["tags:", "- hgpo", "- reinforcement-learning", "- llm-agent", "---", "", _mark(card), ""]
    lines += [f"# {_text(card['name'])}", "", f"{_text(card['title'])}", ""]
    lines += [f"**Question:** {_text(card['question'] or 'not given')}", ""]
    settings = {name: value for name, value in card["settings"].items() if value not in (None, "", {}, [])}
    lines += _table(["", ""], [[name, _cell(value)] for name, value in settings.items()])
    if card["rules"]:
        lines += _success(card)
    if card["curve"]:
        lines += _curve(card)
    if card["rollouts"]:
        lines += _rollouts(card["rollouts"])
    lines += _files(card["files"])
    commands = [one_line(command, _LONGEST) for command in card["commands"]]
    lines += ["## Commands", "", *(f"    hgpo {command}" for command in commands), ""]
    return "\n".join([*lines, _OPEN, "", *(f"- {text}" for text in card["open"]), ""])


def _mark(card: Mapping[str, Any]) -> str:
    """Return the line that names the format and what the author chose, with which the card is computed again."""
    given = msgspec.json.encode(msgspec.convert(card, Given)).decode()
    return _MARK + given.replace(">", "\\u003e") + _END  # a question cannot end the comment


def _text(value: object) -> str:
    """Return a value as a text that is one line, and neither a cell, a tag, a link nor code of its own."""
    return one_line(value, _LONGEST).translate(_ESCAPED)


def _cell(value: Any) -> str:  # noqa: ANN401 - JSON
    """Return a JSON value in words, of tables and lists one entry after another."""
    if isinstance(value, dict):
        return ", ".join(f"{_text(name)} = {_inner(inner)}" for name, inner in value.items())
    if isinstance(value, list):
        return f"[{', '.join(_cell(inner) for inner in value)}]"
    if isinstance(value, str):
        return _text(value)
    return "none" if value is None else json.dumps(value)


def _inner(value: Any) -> str:  # noqa: ANN401 - JSON
    """Return a JSON value in words, in brackets if it has several."""
    return f"({_cell(value)})" if isinstance(value, dict) else _cell(value)


def _table(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    """Return the lines of a table, and an empty one."""
    lines = [head, ["---"] * len(head), *rows]
    return [*(f"| {' | '.join(cells)} |" for cells in lines), ""]


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.1%}"


def _interval(counts: Mapping[str, Any]) -> str:
    return "" if counts["low"] is None else f"{_share(counts['low'])} to {_share(counts['high'])}"


def _deviation(value: float | None) -> str:
    return "standard deviation unknown" if value is None else f"standard deviation {100 * value:.1f} points"


def _success(card: Mapping[str, Any]) -> list[str]:
    """Return success under every rule, and its variance."""
    rows = []
    for name, counts in card["rules"].items():
        shown = f"**{name}**" if name == card["reporting_rule"] else name
        rows.append([shown, _share(counts["success"]), _interval(counts), f"{counts['episodes']:,}", RULES[name][0]])
    lines = ["## Success", "", *map(_text, card["notes"])]
    lines.append("The rule in bold is that of all other figures of this run; intervals have tasks as trials.")
    lines += ["", *_table(["rule", "success", "95%", "rollouts", ""], rows)]

    found = card["variance"]
    shares = found["of"].values()
    if shares:
        spread = f"{_share(min(shares))} to {_share(max(shares))}, {_deviation(found['std'])}"
        lines.append(f"- Over {counted(len(shares), found['unit'])}: {spread}.")
    mixed = found["tasks"] - found["always_solved"] - found["never_solved"]
    solved = f"{found['always_solved']:,} always solved, {mixed:,} sometimes, {found['never_solved']:,} never"
    lines.append(f"- Over {counted(found['tasks'], 'task')}: {solved}, {_deviation(found['std_over_tasks'])}.")
    for name, measured in card["measures"].items():
        if measured is not None:
            bounds = "" if measured["low"] is None else f" ({measured['low']:.3g} to {measured['high']:.3g})"
            lines.append(f"- {name.replace('_', ' ').capitalize()}: {measured['value']:.3g}{bounds}.")
    tasks = card["tasks"]
    return [*lines, f"- Played: {counted(len(tasks), 'task id')}, SHA-256 of their list `{list_sum(tasks)}`.", ""]


def _curve(card: Mapping[str, Any]) -> list[str]:
    """Return the learning curve: its ends, the checkpoint, the highest point, and some between."""
    curve = card["curve"]
    chosen = [point["iteration"] == card["iteration"] for point in curve]
    highest = max(range(len(curve)), key=lambda number: curve[number]["success"] or 0.0)
    every = -(-len(curve) // (POINTS - 3))
    rows = []
    for number, point in enumerate(curve):
        if not (chosen[number] or number in (highest, len(curve) - 1) or number % every == 0):
            continue
        bar = "█" * round(BAR * (point["success"] or 0.0))
        mark = " this model" if chosen[number] else ""
        numbers = [str(point["iteration"]), str(point["tasks"]), _share(point["success"]), _interval(point)]
        rows.append([*numbers, bar + mark])
    title = ["## Learning curve", ""]
    return [*title, *_table(["iteration", "tasks", "success", "95%", ""], rows)]


def _rollouts(parts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what was played, and what of it was dropped, with a column for each table of steps."""
    names = list(dict.fromkeys(name for part in parts.values() for name in part))
    rows = []
    for name in names:
        values = [part.get(name, {}) for part in parts.values()]
        rows.append([name.replace("_", " "), *(_count(value) for value in values)])
    return ["## Rollouts and what was dropped", "", *_table(["", *parts], rows)]


def _count(value: Any) -> str:  # noqa: ANN401 - JSON
    """Return a number, or the reasons of failures with theirs."""
    if isinstance(value, dict):
        return "; ".join(f"{times:,} × {_text(reason)}" for reason, times in value.items()) or "–"
    return "unknown" if value is None else f"{value:,}"


def _files(files: Mapping[str, str]) -> list[str]:
    """Return the files by folder. The SHA-256 of a folder is that of the lines that sha256sum prints for its files."""
    folders: dict[str, dict[str, str]] = {}
    for name, digest in sorted(files.items()):
        folders.setdefault(str(PurePosixPath(name).parent), {})[name] = digest
    rows = []
    for folder, sums in folders.items():
        if folder == ".":
            rows += [[_text(name), digest] for name, digest in sums.items()]
            continue
        digest = list_sum([f"{digest}  {name}" for name, digest in sums.items()])
        rows.append([f"{folder}/: {counted(len(sums), 'file')}, their list", digest])
    return ["## Files", "", *_table(["file", "SHA-256"], rows)]


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
            given = msgspec.json.decode(mark.removeprefix(_MARK).removesuffix(_END), type=Given)
    except (ValueError, StopIteration, RecursionError):
        raise InputError(f"{path}: expected a card as `hgpo card RUN -o {path.name}` writes it") from None
    return found, given


def card_problems(card: Mapping[str, Any], found: str | Mapping[str, Any]) -> list[str]:
    """Return where a page or a document differs from a run's card; nothing if it is that card.

    Args:
        card: The run's card, with what the author of the other chose (`read_card`).
        found: The page or the document.
    """
    if isinstance(found, str):
        return list(_other_lines(_labelled_lines(card_page(card)), _labelled_lines(found)))
    free: dict[str, Any] = dict.fromkeys(_FREE)
    return [str(difference) for difference in differences({**card, **free}, {**found, **free})]


def _labelled_lines(page: str) -> dict[str, str]:
    """Return the lines of a page that are compared, by their heading and their first cell or word."""
    lines = page.splitlines()
    if lines[:1] == ["---"] and "---" in lines[1:]:
        lines = lines[lines.index("---", 1) + 1 :]
    labelled: dict[str, str] = {}
    times: Counter[str] = Counter()
    heading = "page"
    for line in filter(str.strip, lines):
        if line == _OPEN:
            break
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        words = line.removeprefix("- ").split(" ")
        name = line.split("|", 2)[1].strip(" *") if line.startswith("| ") else words[0]
        label = f"{heading}, {name}"
        times[label] += 1
        if times[label] > 1:  # a second line of that name can be a false one
            label = f"{label} ({times[label]})"
        labelled[label] = line
    return labelled


def _other_lines(expected: Mapping[str, str], found: Mapping[str, str]) -> Iterator[str]:
    """Describe the lines that differ, from shortly before the first letter that does."""
    for label in dict.fromkeys([*expected, *found]):
        sides = [side.get(label, "no such line") for side in (expected, found)]
        if sides[0] == sides[1]:
            continue
        same = [first == second for first, second in zip(*sides, strict=False)]
        start = max(0, (same.index(False) if False in same else len(same)) - _BEFORE)
        shown = [repr(side[start : start + _SHOWN]) for side in sides]
        yield f"{one_line(label, _SHOWN)}: expected {shown[0]}, found {shown[1]}"
