"""`hgpo verify`: are the bytes, files and rows of a run, and the bytes of its checkpoints, right?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hgpo_datasets import Report


def verify(
    run: Annotated[
        list[Path], typer.Argument(help="a run's folder, a checkpoint, or a single file; several are taken")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="print the reports as JSON")] = False,
) -> None:
    """Finds every flipped byte, cut, missing or foreign file and broken rule. Exit code 1 when something is wrong."""
    import orjson
    from rich.console import Console
    from rich.table import Table

    from hgpo_train.verify import verify as verify_all

    console = Console(stderr=True)
    reports: list[Report] = []
    for one in run:
        with console.status(f"verifying {one}"):
            reports += verify_all(one)
    if as_json:
        typer.echo(orjson.dumps([report.to_dict() for report in reports], option=orjson.OPT_INDENT_2))
    for report in () if as_json else reports:
        rows = f"{report.rows:,} rows, " if report.rows else ""
        line = f"{report.source}: {report.files} files, {rows}{report.bytes:,} bytes"
        typer.echo(f"{line}: {'all right' if report.ok else f'{len(report.problems)} problems'}")
        if report.problems or report.notes:
            table = Table("kind", "file", "what is wrong")
            for problem in (*report.problems, *report.notes):
                table.add_row(problem.kind, Path(problem.file).name, problem.message)
            Console().print(table)
    if not all(report.ok for report in reports):
        raise typer.Exit(1)
    tables = [report.source for report in reports if report.rows]
    if tables and not as_json:
        typer.echo(f"Next: hgpo data show {tables[0]}")
