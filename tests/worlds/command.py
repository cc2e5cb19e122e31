"""The `hgpo` command as a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import hgpo_envs

ROOT = Path(hgpo_envs.__file__).parent.parent
DOORS = ["rollout", "--env", "doors_env:HGPO-Test/Doors-v0", "--env-option", "count=400", "--max-steps", "20"]


def hgpo(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    paths = [str(ROOT), str(ROOT / "datasets"), str(Path(__file__).parent)]
    return subprocess.Popen(
        [sys.executable, "-c", "from hgpo_train.cli import main; main()", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
