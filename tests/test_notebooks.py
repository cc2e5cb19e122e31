"""The notebooks run from beginning to end, with their own data and with other runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hgpo_train import collect

pytest.importorskip("marimo")
pytest.importorskip("altair")

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "datasets")])
    environment = os.environ | {"PYTHONPATH": paths, "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=600, env=environment, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path) -> None:
    done = run(str(path))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_well_formed(path: Path) -> None:
    """No name in two cells, no cycle, no syntax error: marimo's own checks."""
    done = run("-m", "marimo", "check", "--strict", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["context_inconsistency", "seven_estimators"])
def test_a_notebook_reads_another_run(name: str, tmp_path: Path) -> None:
    collect("HGPO/ALFWorld-v0", "random", tmp_path / "run", tasks=3, group_size=3, max_steps=8)
    done = run(str(ROOT / "notebooks" / f"{name}.py"), "--", "--run", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
