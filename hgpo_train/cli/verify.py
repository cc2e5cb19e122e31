"""`hgpo verify`: are a run's bytes, files and rows right?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


class Finding(Protocol):
    """One thing that is wrong, or odd but harmless."""

    @property
    def kind(self) -> str:
        """A word for it."""
        ...

    @property
    def file(self) -> str:
        """The file it is in."""
        ...

    @property
    def message(self) -> str:
        """What is wrong, in one line."""
        ...


class Verified(Protocol):
    """What was found in one path; `hgpo_datasets.verify` gives it for runs and files."""

    source: str

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        ...

    @property
    def problems(self) -> Sequence[Finding]:
        """What is wrong."""
        ...

    @property
    def notes(self) -> Sequence[Finding]:
        """What is harmless."""
        ...

    def summary(self) -> str:
        """How much was read."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        ...


def reports_of(path: Path) -> Iterator[Verified]:
    """Verifies whatever a path holds: each kind of data that the command knows is one branch here.

    Raises:
        InputError: It holds nothing of ours.
    """
    import hgpo_datasets

    yield hgpo_datasets.verify(path)


def verify(
    run: Annotated[list[Path], typer.Argument(help="a run's folder, or a single file; several are taken")],
    as_json: Annotated[bool, typer.Option("--json", help="print the reports as JSON")] = False,
) -> None:
    """Finds every changed byte, truncated, missing or foreign file, and broken rule.

    Exit code 1 when something is wrong, 2 when a path holds nothing that can be verified.
    """
    import orjson
    from rich.console import Console
    from rich.markup import escape

    from hgpo_datasets.rows import clean_text
    from hgpo_envs.errors import InputError

    console = Console(stderr=True)
    reports: list[Verified] = []
    refused: InputError | None = None
    for one in run:
        with console.status(f"verifying {escape(clean_text(str(one)))}"):
            try:
                reports += reports_of(one)
            except InputError as error:
                refused = refused or error
    if as_json:
        typer.echo(orjson.dumps([report.to_dict() for report in reports], option=orjson.OPT_INDENT_2))
    else:
        for report in reports:
            _show(report)
    if refused is not None:
        raise refused
    if not all(report.ok for report in reports):
        raise typer.Exit(1)
    if not as_json:
        typer.echo(f"Next: hgpo data show {clean_text(str(run[0]))}")


def _show(report: Verified) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    found = f"{len(report.problems)} problems" if report.problems else "all right"
    typer.echo(f"{report.source}: {report.summary()}: {found}")
    if not (report.problems or report.notes):
        return
    table = Table("kind", "file", "what is wrong")
    for problem in (*report.problems, *report.notes):
        table.add_row(*(Text(text) for text in (problem.kind, Path(problem.file).name, problem.message)))
    Console().print(table)
