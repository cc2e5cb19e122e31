"""The notebooks run, from beginning to end, as a script and as a page, with their own data and with other runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hgpo_train import collect

pytest.importorskip("marimo")
pytest.importorskip("altair")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))


def ran(tmp_path: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/datasets", "TMPDIR": str(tmp_path)}
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_as_a_script(tmp_path: Path, notebook: Path) -> None:
    done = ran(tmp_path, str(notebook))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_is_in_order(tmp_path: Path, notebook: Path) -> None:
    done = ran(tmp_path, "-m", "marimo", "check", "--strict", str(notebook))
    assert done.returncode == 0, done.stdout + done.stderr


def test_opens_any_run(tmp_path: Path) -> None:
    """A folder that is given is read, and exported with every cell's output."""
    from hgpo_datasets import StepWriter

    rows = [
        {
            "task_id": f"task {task}",
            "trajectory": f"{task}/{rollout}",
            "step": step,
            "state": f"room {(task + rollout * step) % 3}",
            "action": "look",
            "task_type": "looking",
            "reward": float(step == 4 and rollout % 2),
            "terminated": step == 4,
            "won": step == 4 and rollout % 2 == 1,
        }
        for task in range(4)
        for rollout in range(4)
        for step in range(5)
    ]
    with StepWriter(tmp_path / "run") as writer:
        for task in range(4):
            writer.add_group([row for row in rows if row["task_id"] == f"task {task}"])
    page = tmp_path / "page.html"
    notebook = str(ROOT / "notebooks" / "context_inconsistency.py")
    done = ran(
        tmp_path, "-m", "marimo", "export", "html", notebook, "-o", str(page), "--", "--run", str(tmp_path / "run")
    )
    assert done.returncode == 0, done.stderr
    assert "80 steps of 16 rollouts" in page.read_text("utf-8")


def test_estimators_of_another_run(tmp_path: Path) -> None:
    """No rollout of this run wins, so all advantages are 0 and no signs differ."""
    collect("HGPO/ALFWorld-v0", "random", tmp_path / "run", tasks=3, group_size=3, max_steps=8, progress=False)
    notebook = str(ROOT / "notebooks" / "seven_estimators.py")
    done = ran(tmp_path, notebook, "--", "--run", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
