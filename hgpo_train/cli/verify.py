"""`hgpo verify`: verify the bytes, files and rows of a run, and the bytes of its checkpoints."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hgpo_train.cli import common, options  # cyclopts reads the annotations

if TYPE_CHECKING:
    from hgpo_datasets import VerifyReport


def verify(
    run: list[Path],
    /,
    *,
    processes: options.Processes = 1,
    as_json: options.Json = False,
) -> None:
    """Find changed bytes, truncated, missing or foreign files, and rows that violate a rule.

    The exit code is 1 if there is a problem, and 2 if a path contains nothing that can be verified.

    Args:
        run: Runs, folders of runs, checkpoints or single files.
        processes: Number of processes.
        as_json: Whether to print JSON.
    """
    from hgpo_envs.errors import InputError
    from hgpo_envs.wording import counted
    from hgpo_train.cli.display import print_json, print_table
    from hgpo_train.training.verify_run import verify_run

    reports: list[VerifyReport] = []
    refused = None
    for path in run:
        try:
            reports += verify_run(path, processes)
        except InputError as error:
            refused = refused or error
    if as_json:
        print_json([report.to_dict() for report in reports])
    for report in () if as_json else reports:
        problems = len(report.problems)
        verdict = counted(problems, "problem") if problems else "no problems"
        print(f"{report.source}: {report.summary()}: {verdict}")
        rows = [
            [found.kind, Path(found.file).name, found.message]
            for found in (*report.problems, *report.notes)
        ]
        if rows:
            print_table(["kind", "file", "message"], rows, texts=3)
    if refused is not None:
        raise refused
    if not all(report.ok for report in reports):
        sys.exit(1)
    tables = [report.source for report in reports if report.rows]
    if tables and not as_json:
        print(common.next_commands(("data", "show", tables[0])))
