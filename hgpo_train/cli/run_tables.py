"""The tables that `hgpo data show` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from hgpo_envs.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hgpo_datasets.run_summary import RunSummary, TaskTypeSummary


def _number(value: float | None, form: str = ".1%") -> str:
    return "–" if value is None else format(value, form)


_VALUES: Final[dict[str, Callable[[TaskTypeSummary], str]]] = {
    "tasks": lambda results: f"{results.tasks:,}",
    "episodes": lambda results: f"{results.episodes:,}",
    "success": lambda results: _number(results.success),
    "at least": lambda results: _number(results.success_low),
    "at most": lambda results: _number(results.success_high),
    "score": lambda results: _number(results.score, ".3f"),
    "return": lambda results: _number(results.mean_return, ".3f"),
    "length": lambda results: _number(results.mean_length, ".1f"),
    "valid": lambda results: _number(results.valid),
    "aborted": lambda results: f"{results.aborted:,}",
}
"""The columns of the table of results."""


def print_run_summary(seen: RunSummary) -> None:
    """Print the summary of a run."""
    console = Console()
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(seen):
        facts.add_row(Text(name, style="bold"), Text(_plain(value)))
    console.print(facts, _kinds(seen), _sizes(seen))


def _plain(text: str) -> str:
    """Replace control characters in a text from a file, which a terminal would interpret."""
    return "".join(character if character.isprintable() else "�" for character in text)


def _table(first: str, others: Iterable[str]) -> Table:
    columns = [Column(first, no_wrap=True), *(Column(name, justify="right") for name in others)]
    return Table(*columns, box=box.SIMPLE, padding=(0, 1, 0, 0), show_edge=False)


def _kinds(seen: RunSummary) -> Table:
    hidden = set() if seen.total.aborted else {"aborted", "at least", "at most"}
    if seen.total.score is None or all(kind.score == kind.success for kind in seen.kinds):
        hidden.add("score")  # it repeats success
    shown = {name: value for name, value in _VALUES.items() if name not in hidden}
    table = _table("task type", shown)
    for kind in seen.kinds:
        table.add_row(Text(_plain(kind.task_type or "unknown")), *(value(kind) for value in shown.values()))
    if len(seen.kinds) > 1:
        table.add_section()
        table.add_row("all", *(value(seen.total) for value in shown.values()))
    return table


def _sizes(seen: RunSummary) -> Table:
    table = _table("columns", ("bytes", "share", "bytes a step"))
    for family, size in seen.family_bytes.items():
        table.add_row(family, f"{size:,}", f"{size / seen.bytes:.1%}", f"{size / seen.steps:.1f}")
    table.add_section()
    table.add_row("files", f"{seen.bytes:,}", "100.0%", f"{seen.bytes / seen.steps:.1f}")
    return table


def _facts(seen: RunSummary) -> list[tuple[str, str]]:
    first, last = seen.iterations
    sizes = ", ".join(f"{count:,} of {counted(size, 'rollout')} each" for size, count in seen.group_sizes.items())
    facts = [
        ("run", ", ".join(seen.runs)),
        ("environment", f"{', '.join(seen.env_ids) or 'unknown'} ({', '.join(seen.splits) or 'split unknown'})"),
        ("groups", sizes),
        ("steps", f"{seen.steps:,} (episodes of {seen.shortest} to {seen.longest}, median {seen.median:g})"),
        ("files", f"{seen.files:,}, hashes to depth {seen.depth}"),
    ]
    if last:
        facts.insert(2, ("iterations", f"{first} to {last}"))
    if seen.config:
        facts.append(("config", ", ".join(f"{name}={value}" for name, value in seen.config.items())))
    return facts
