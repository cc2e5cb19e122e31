"""The learner under torch's `fully_shard` has the gradients and weights of the learner in one process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from nightly import ALL

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.skipif(not ALL, reason="nightly: HGPO_TESTS=all")
def test_two_processes_have_the_gradients_and_weights_of_one() -> None:
    """What docs/scaling.md says: the mathematics shards (gloo, ten steps of AdamW, saved and resumed in between)."""
    command = [sys.executable, "benchmarks/sharded_learner.py", "--cases", "all weights", "--processes", "2"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=550)
    assert done.returncode == 0, done.stderr
    compared, resumed = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("{"))
    assert compared["gradient"] < 1e-6
    assert max(compared["weight"], resumed["weight"]) < 1e-5
    assert max(compared["actor/loss"], resumed["actor/loss"]) < 1e-6
