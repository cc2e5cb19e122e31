"""All fault scenarios: some points of each by default, every point with HGPO_TESTS=all (nightly)."""

import subprocess
import sys
from pathlib import Path

import pytest
from nightly import sample_or_all

from tests.faults import checkpoints, data, shim, tables

ROOT = Path(__file__).parents[2]
NAMES = [
    scenario.name
    for scenario in (*tables.SCENARIOS, *data.SCENARIOS, *checkpoints.SCENARIOS)
]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_fault_at_any_point_loses_nothing(name):
    """It runs in a separate process, because a process that has computed with Polars cannot fork safely."""
    if reason := shim.unusable():
        pytest.skip(reason)
    most = sample_or_all(3 if name == "training" else 6, 0)  # 0: every point
    command = [sys.executable, "-m", "tests.faults", name, "--most", str(most)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{name}: 0 faults" not in done.stdout
