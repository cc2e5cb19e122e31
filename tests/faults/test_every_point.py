"""All fault scenarios: some points of each by default, every point with HGPO_TESTS=all (nightly)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from nightly import sample_or_all

from tests.faults import shim

ROOT = Path(__file__).parents[2]
MOST = sample_or_all(6, 0)  # 0: every point
NAMES = (
    "step table",
    "advantages",
    "page of the viewer",
    "advantages over an older table",
    "pack of games",
    "unpacked archive",
    "download of games",
    "catalogue",
    "checkpoints",
    "checkpoint saved again",
    "training begun",
    "training",
)
SLOWEST = ("training", "page of the viewer")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_fault_at_any_point_loses_nothing(tmp_path: Path, name: str) -> None:
    """It runs in a separate process, because a process that has computed with Polars cannot fork safely."""
    if reason := shim.unusable():
        pytest.skip(reason)
    most = MOST // 2 if name in SLOWEST else MOST
    command = [sys.executable, "-m", "tests.faults", "--exactly", name, "--most", most, "--json", tmp_path / "report"]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report").read_text())[name]
    assert report["failures"] == []
    assert sum(report["covered"].values()) >= min(most or report["points"], report["points"])
    assert report["missed"] == 0


@pytest.mark.slow
def test_every_scenario_is_listed() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.faults", "--list"], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines() == list(NAMES), done.stderr
