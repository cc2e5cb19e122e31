"""The notebook runs as a script, and its cells are in order."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "research/notebooks/what_learns.py"


@pytest.mark.slow
@pytest.mark.parametrize("command", [[], ["-m", "marimo", "check", "--strict"]])
def test_the_notebook_runs(tmp_path, command):
    pytest.importorskip("marimo")
    pytest.importorskip("altair")
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}:{ROOT}/datasets:{ROOT}/research",
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, *command, NOTEBOOK],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
