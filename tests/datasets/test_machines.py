"""No need of what the core does not install."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WITHOUT = """
import sys
for name in ("pandas", "datasets.arrow_dataset", "torch", "duckdb", "minari"):
    sys.modules[name] = None
from groups import rich_group
from hgpo_datasets import StepWriter, scan_steps, verify
from hgpo_datasets.run_summary import summarize_run
with StepWriter(sys.argv[1]) as writer:
    writer.add_group(rich_group("t", 1))
assert verify(sys.argv[1]).ok
assert scan_steps(sys.argv[1]).collect().height == summarize_run(sys.argv[1]).steps == 15
"""


def python(code: str, folder: Path, **environment: str) -> str:
    paths = os.pathsep.join(str(ROOT / part) for part in (".", "datasets", "tests/worlds"))
    command = [sys.executable, "-c", code, str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths, **environment}, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_core_is_enough(tmp_path: Path) -> None:
    python(WITHOUT, tmp_path / "run")
