"""What benchmarks share: options, measuring, tables, and results with machine, versions, commit and command."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import multiprocessing
import os
import platform
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from hgpo_envs.plugins import installed_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
"""The kept results, which the repository contains."""
SCRATCH = ROOT / "runs" / "benchmarks"
"""The results of other runs, which git ignores."""
PACKAGES = ("gymnasium", "numpy", "polars", "pyarrow", "jinja2", "xxhash", "torch", "transformers", "vllm")


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the docstring of a benchmark as its help, and with the flag `--keep`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_keep(parser)
    return parser


def add_keep(parser: argparse.ArgumentParser) -> None:
    """Add the flag `--keep`, without which the kept results are not replaced."""
    parser.add_argument("--keep", action="store_true", help="replace the kept results in benchmarks/results")


def seconds(call: Callable[[], object], clock: Callable[[], float] = time.process_time) -> float:
    """Return the seconds of a call; by default, CPU seconds of this process."""
    began = clock()
    call()
    return clock() - began


def in_turns(repeats: int, measures: Mapping[str, Callable[[], Any]]) -> dict[str, list[Any]]:
    """Measure each of several things `repeats` times, in turns, so that other programs affect all of them alike."""
    values: dict[str, list[Any]] = {name: [] for name in measures}
    for _ in range(repeats):
        for name, measure in measures.items():
            values[name].append(measure())
    return values


def in_new_process(work: Callable[..., Any], *arguments: object) -> Any:  # noqa: ANN401 - the result of the work
    """Call a function in a new process, which imports the modules of this one again."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def memory_mb(kind: str) -> float:
    """Return the memory of this process in MB (Linux): now (`VmRSS`), at its peak (`VmHWM`), or unshared (`Private`).

    The peak that `resource.getrusage` returns would include that of the process that started this one.
    """
    files = [Path("/proc/self", name).read_text("utf-8") for name in ("status", "smaps_rollup")]
    return sum(int(line.split()[1]) for text in files for line in text.splitlines() if line.startswith(kind)) / 1024


def print_table(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str] | None = None, title: str = "") -> None:
    """Print a table.

    Args:
        rows: The rows.
        columns: The format of each column by its title, as in ``{"CPU ms": "{cpu_s:.1f}"}``; by default all values.
        title: Title of the table.
    """
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row)) if columns is None else list(columns)
    table = Table(title=title)
    for number, name in enumerate(names):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        cells = (columns[name].format_map(row) if columns else _shown(row.get(name, "")) for name in names)
        table.add_row(*cells)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value) if isinstance(value, bool | str) else f"{value:,}"


def results_folder(*, keep: bool) -> Path:
    """Return the folder for results: that of the kept results, or one that git ignores."""
    folder = RESULTS if keep else SCRATCH
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def store(name: str, figures: dict[str, Any], *, keep: bool) -> str:
    """Write results as ``<name>.json`` and return a line that says where.

    Args:
        name: Name of the benchmark.
        figures: Results as JSON values.
        keep: Whether to replace the kept results, from which the tables of the documentation are written.
    """
    path = results_folder(keep=keep) / f"{name}.json"
    path.write_text(json.dumps({"figures": figures, "made": made()}, indent=2, ensure_ascii=False) + "\n")
    shown = path.relative_to(ROOT)
    if keep:
        return f"stored in {shown}; `python benchmarks/readme.py` updates the documentation"
    return f"stored in {shown}; the kept results in {(RESULTS / path.name).relative_to(ROOT)} are unchanged (--keep)"


def made() -> dict[str, Any]:
    """Return the conditions of a measurement. Of absolute paths, which are published, only the last part is kept."""
    arguments = (f".../{Path(argument).name}" if Path(argument).is_absolute() else argument for argument in sys.argv)
    return {
        "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", *arguments]),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": {package: found for package in PACKAGES if (found := installed_version(package))},
    }


def _commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
