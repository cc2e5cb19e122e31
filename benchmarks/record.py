"""Store a benchmark's results with machine, versions, commit and command."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
"""The kept results, which the repository contains."""
SCRATCH = ROOT / "runs" / "benchmarks"
"""The results of other runs, which git ignores."""
PACKAGES = ("gymnasium", "numpy", "polars", "pyarrow", "jinja2", "xxhash", "torch", "transformers", "vllm")


def add_keep(parser: argparse.ArgumentParser) -> None:
    """Add the flag `--keep`, without which the kept results are not replaced."""
    parser.add_argument("--keep", action="store_true", help="replace the kept results in benchmarks/results")


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
    """Return the conditions of a measurement."""
    return {
        "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "command": " ".join(["python", *map(_without_folder, sys.argv)]),
        "commit": _commit(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "load": os.getloadavg() if hasattr(os, "getloadavg") else None,
        "platform": platform.platform(),
        "python": platform.python_version(),
        "packages": {package: found for package in PACKAGES if (found := _version(package))},
    }


def _without_folder(argument: str) -> str:
    """Return only the last part of an absolute path, because results are published."""
    return f".../{Path(argument).name}" if Path(argument).is_absolute() else argument


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
