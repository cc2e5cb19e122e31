"""`hgpo verify`: verify the bytes, files and rows of a run, and the bytes of its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hgpo_train.cli import common  # noqa: TC001 - typer reads the annotations

if TYPE_CHECKING:
    from hgpo_datasets import VerifyReport


def verify(
    run: Annotated[list[Path], typer.Argument(help="Runs, folders of runs, checkpoints or single files.")],
    processes: common.Processes = 1,
    as_json: common.Json = False,
) -> None:
    """Find changed bytes, truncated, missing or foreign files, and rows that violate a rule.

    The exit code is 1 if there is a problem, and 2 if a path contains nothing that can be verified.
    """
    if processes == 1:
        _start_decoder()
    from hgpo_envs.errors import InputError
    from hgpo_envs.unicode_text import clean_text
    from hgpo_envs.wording import counted
    from hgpo_train.cli.display import print_json, print_table
    from hgpo_train.training.verify_run import verify_run

    reports: list[VerifyReport] = []
    refused: InputError | None = None
    for path in run:
        try:
            reports += verify_run(path, processes)
        except InputError as error:
            refused = refused or error
    if as_json:
        print_json([report.to_dict() for report in reports])
    else:
        for report in reports:
            verdict = counted(len(report.problems), "problem") if report.problems else "no problems"
            typer.echo(f"{report.source}: {report.summary()}: {verdict}")
            if problems := [*report.problems, *report.notes]:
                rows = [[problem.kind, Path(problem.file).name, problem.message] for problem in problems]
                print_table(["kind", "file", "problem"], rows, texts=3)
    if refused is not None:
        raise refused
    if not all(report.ok for report in reports):
        raise typer.Exit(1)
    tables = [report.source for report in reports if report.rows]
    if tables and not as_json:
        typer.echo(f"Next: hgpo data show {clean_text(tables[0])}")


def _start_decoder() -> None:
    """Start the server of the process that decodes files, which imports its modules while this process imports its."""
    import multiprocessing

    if "forkserver" in multiprocessing.get_all_start_methods():
        from multiprocessing import forkserver

        forkserver.set_forkserver_preload(["hgpo_datasets.partitions"])
        forkserver.ensure_running()
