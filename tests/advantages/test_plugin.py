"""The documented example of an estimator from another distribution, installed as its entry point says."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

USE = """
import polars as pl
from hgpo_train.advantages import compute, names

assert "task_baseline" in names()
table = pl.DataFrame({"task": "a", "trajectory": ["x", "y"], "step": 0, "reward": [4.0, 0.0], "action_valid": True})
print(compute(table, "task_baseline", strength=0.5).collect()["advantage"].to_list())
"""


def test_the_documented_example(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "estimators.md").read_text("utf-8")
    code = re.search(r"```python\n# advantage_plugin\.py\n(.*?)```", text, re.DOTALL)
    entry = re.search(r'```toml\n\[project\.entry-points\."hgpo\.estimators"\]\n(.*?)```', text, re.DOTALL)
    assert code
    assert entry
    (tmp_path / "advantage_plugin.py").write_text(code[1])
    installed = tmp_path / "advantage_plugin-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: advantage-plugin\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text("[hgpo.estimators]\n" + entry[1].replace('"', ""))
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/datasets:{tmp_path}"}
    command = [sys.executable, "-c", USE]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == "[1.0, -1.0]", ran.stderr
