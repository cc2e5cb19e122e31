"""Keeps a benchmark's figures with what they depend on: machine, versions, commit, command."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("gymnasium", "numpy", "polars", "pyarrow", "jinja2", "xxhash", "torch", "transformers", "vllm")


def keep(name: str, figures: dict[str, Any]) -> Path:
    """Writes ``benchmarks/results/<name>.json`` and returns its path.

    Args:
        name: The benchmark.
        figures: Values of JSON.
    """
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"figures": figures, "made": made()}, indent=2, ensure_ascii=False) + "\n")
    return path


def made() -> dict[str, Any]:
    """What figures depend on."""
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
    """An absolute path's last name alone: results are published, and folders are this machine's."""
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
