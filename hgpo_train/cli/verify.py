"""`hgpo verify`: verify the bytes, files and rows of a run, and the bytes of its checkpoints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path  # noqa: TC003 - cyclopts reads the annotations
from typing import Any, Final

from hgpo_train.cli import common, options  # cyclopts reads the annotations

CHILD: Final = """
import importlib.util, sys
# the modules of the package, without what its __init__ does for environments: that imports Gymnasium
sys.modules["hgpo_envs"] = importlib.util.module_from_spec(importlib.util.find_spec("hgpo_envs"))
from hgpo_train.training.verify_run import print_reports
print_reports(sys.argv[1:])
"""
"""The program that decodes the files: a forged file can end it, and this process needs no Polars."""


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
    result = _verified([str(path) for path in run], processes)
    reports: list[dict[str, Any]] = result["reports"]
    if as_json:
        from hgpo_train.cli.display import print_json

        print_json([report["values"] for report in reports])
    for report in () if as_json else reports:
        print(report["line"])
        if rows := report["rows"]:
            from hgpo_train.cli.display import print_table

            print_table(["kind", "file", "message"], rows, texts=3)
    if result["refused"] is not None:
        from hgpo_envs.errors import InputError

        raise InputError(result["refused"])
    if not all(report["values"]["ok"] for report in reports):
        sys.exit(1)
    tables = [
        report["values"]["source"] for report in reports if report["values"]["rows"]
    ]
    if tables and not as_json:
        print(common.next_commands(("data", "show", tables[0])))


def _verified(paths: list[str], processes: int) -> dict[str, Any]:
    """Return the reports of all paths."""
    if processes == 1:
        command = [sys.executable, "-P", "-c", CHILD, *paths]
        done = subprocess.run(command, capture_output=True, check=False)  # noqa: S603 - its own program
        if done.returncode == 0:
            result: dict[str, Any] = json.loads(done.stdout)
            return result
    from hgpo_train.training.verify_run import verify_all

    # each file in a process whose end is a problem of this file
    return verify_all(paths, processes)
