"""Custom estimators: the examples against plain Python, and registration by entry point, decorator and function."""

import os
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import polars as pl
import pytest
from distribution import write_distribution
from typer.testing import CliRunner

from examples import own_estimator as examples
from hgpo_datasets import StepWriter
from hgpo_envs.errors import InputError
from hgpo_train.advantages import compute, get
from hgpo_train.advantages.windows import normalise, within
from hgpo_train.cli import app

ROOT = Path(__file__).parent.parent.parent

TABLE = pl.DataFrame(
    {
        "task": ["a"] * 8 + ["b"],
        "trajectory": ["x", "x", "y", "y", "z", "z", "z", "w", "v"],
        "step": [0, 1, 0, 1, 0, 1, 2, 0, 0],
        "state": ["hall", "attic", "hall", "attic", "hall", "cellar", "attic", "hall", "hall"],
        "reward": [0.0, 10.0, 0.0, 0.0, 0.0, 0.0, 10.0, 0.0, 10.0],
        "action_valid": True,
    }
)


def returns() -> list[float]:
    rows, found = TABLE.rows(named=True), []
    for row in rows:
        rest = [r for r in rows if r["trajectory"] == row["trajectory"] and r["step"] >= row["step"]]
        found.append(sum(0.95 ** (r["step"] - row["step"]) * r["reward"] for r in rest))
    return found


def levels(baseline, depth=2):
    """Return HGPO's weighted mean over levels, with any baseline computed from a row's group."""
    rows, value = TABLE.rows(named=True), returns()
    states = {(row["trajectory"], row["step"]): row["state"] for row in rows}
    items = defaultdict(list)
    for k in range(depth + 1):
        groups = defaultdict(list)
        for i, row in enumerate(rows):
            if row["step"] >= k:
                past = tuple(states[row["trajectory"], row["step"] - back] for back in range(k + 1))
                groups[row["task"], past].append(i)
        for members in groups.values():
            for i in members if len(members) > 1 else []:
                advantage = value[i] - baseline(value, members, i)
                if advantage:
                    items[i].append((k + 2, advantage))
    return [sum(w * a for w, a in items[i]) / (sum(w for w, _ in items[i]) or 1) for i in range(len(rows))]


def median(value, members, i):
    return statistics.median(value[j] for j in members)


def mean_of_others(value, members, i):
    return statistics.fmean(value[j] for j in members if j != i)


@pytest.mark.parametrize(
    ("function", "baseline"), [(examples.hgpo_median, median), (examples.hgpo_leave_one_out, mean_of_others)]
)
def test_example_estimators_match_plain_python(function, baseline) -> None:
    want = levels(baseline)
    assert any(want)
    assert compute(TABLE, function, reward_scale=1.0).collect()["advantage"].to_list() == pytest.approx(want, abs=1e-5)
    shuffled = TABLE.sample(fraction=1.0, shuffle=True, seed=1)
    assert (
        compute(shuffled, function, reward_scale=1.0)
        .collect()
        .sort("task", "trajectory", "step")
        .equals(compute(TABLE, function, reward_scale=1.0).collect().sort("task", "trajectory", "step"))
    )


def test_credit_by_time_to_success() -> None:
    won, length = {"x", "z", "v"}, {"x": 2, "y": 2, "z": 3, "w": 1, "v": 1}
    credit = [
        0.5 ** (length[trajectory] - 1 - step) if trajectory in won else 0.0
        for trajectory, step in TABLE.select("trajectory", "step").rows()
    ]
    task = credit[:8]
    want = [(value - statistics.fmean(task)) / (statistics.pstdev(task) + 1e-6) for value in task] + [0.0]
    found = compute(
        TABLE, "time_to_success", gamma=0.5, reward_scale=1.0, details=True
    ).collect()  # registered by its decorator
    assert found["advantage"].to_list() == pytest.approx(want)
    assert found["advantage_credit"].to_list() == credit


def test_the_command_line_accepts_a_function_as_estimator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_estimators.py").write_text(
        "import polars as pl\n"
        "def halves(steps: pl.LazyFrame, *, strength: float = 0.5) -> pl.LazyFrame:\n"
        '    return steps.with_columns(advantage=strength * pl.col("return"))\n'
    )
    with StepWriter(tmp_path / "steps") as writer:
        for _, group in TABLE.rename({"task": "task_id"}).group_by("task_id", maintain_order=True):
            last = pl.col("step") == pl.col("step").max().over("trajectory")
            writer.add_group(group.with_columns(action=pl.lit("look"), terminated=last).rows(named=True))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # importing adds the working directory
    command = ["advantages", "steps", "-e", "my_estimators:halves", "--set", "strength=2", "--reward-scale", "1"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    written = pl.read_parquet(tmp_path / "steps.advantages" / "halves.parquet").sort("trajectory", "step")
    want = TABLE.with_columns(want=pl.Series(returns())).sort("trajectory", "step")["want"]
    assert written["advantage"].to_list() == pytest.approx([2 * value for value in want], rel=1e-6)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("no_such_module:function", "No module named 'no_such_module'"),
        ("examples.own_estimator:no_such_function", "no_such_function"),
        ("examples.own_estimator:__doc__", "expected a name, module:function, an Estimator or a function"),
    ],
)
def test_invalid_function_names_are_reported(name: str, line: str) -> None:
    with pytest.raises(InputError, match=line):
        get(name)


def test_functions_that_are_not_estimators_are_reported() -> None:
    def positional(steps: pl.LazyFrame, strength: float) -> pl.LazyFrame:
        return steps

    with pytest.raises(InputError, match=r"expected keyword-only parameters with defaults .* received 'strength'"):
        compute(TABLE, positional)
    with pytest.raises(InputError, match="to add a column 'advantage', received none"):
        compute(TABLE, lambda steps: steps)
    with pytest.raises(InputError, match=r"reads a column that is not there: .*no_such_column"):
        compute(TABLE, lambda steps: steps.with_columns(advantage=pl.col("no_such_column")))
    with pytest.raises(InputError, match=r"expected a finite advantage of .*, received nan.*task='a'"):
        compute(TABLE, lambda steps: steps.with_columns(advantage=pl.lit(float("nan")))).collect()
    with pytest.raises(InputError, match=r"also in singleton groups.*, received None at task='b'"):
        compute(TABLE.filter(task="b"), lambda steps: normalise(steps, "advantage", "return", within())).collect()


USE = """
import polars as pl
from hgpo_train.advantages import compute, names

assert "task_baseline" in names()
table = pl.DataFrame({"task": "a", "trajectory": ["x", "y"], "step": 0, "reward": [4.0, 0.0], "action_valid": True})
print(compute(table, "task_baseline", strength=0.5, reward_scale=1.0).collect()["advantage"].to_list())
"""


def test_the_documented_entry_point_registers_an_estimator(tmp_path: Path) -> None:
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


def test_broken_packages_break_no_others(tmp_path: Path) -> None:
    modules = {"broken_estimators": "import absent_module", "fine_estimators": "def fine(steps):\n    return steps\n"}
    points = {"broken": "broken_estimators:mine", "fine": "fine_estimators:fine"}
    write_distribution(tmp_path, "half-broken", modules, {"hgpo.estimators": points})
    script = """
from hgpo_envs.errors import InputError
from hgpo_train.advantages import get, names

get("fine")
try:
    get("broken")
except InputError as error:
    print(error)
assert {"fine", "hgpo"} < set(names())
"""
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/datasets:{tmp_path}"}
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    line = "hgpo.estimators 'broken' of the distribution half-broken cannot be loaded from broken_estimators:mine"
    assert ran.returncode == 0, ran.stderr
    assert line in ran.stdout
    assert line in ran.stderr  # names() warns
