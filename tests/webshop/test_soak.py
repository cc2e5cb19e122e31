"""A short soak test: several processes play the same episodes as one, and no files stay open.

`benchmarks/webshop_soak.py` is the full soak test.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from nightly import sample_or_all

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="memory is read from Linux's /proc")
def test_processes_agree_and_stay_small():
    command = [sys.executable, "benchmarks/webshop_soak.py", "--processes", "2", "--environments", "16"]
    minutes = sample_or_all(1, 40) / 4
    paths = os.pathsep.join([str(ROOT), str(ROOT / "datasets")])
    done = subprocess.run(
        [*command, "--minutes", str(minutes)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all checks passed" in done.stdout
