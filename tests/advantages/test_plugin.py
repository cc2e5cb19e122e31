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
from command import invoke
from distribution import write_distribution

from examples import own_estimator as examples
from hgpo_envs.errors import InputError
from hgpo_train.advantages import compute, estimator, get
from hgpo_train.advantages.windows import normalise, within

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


RETURNS = [9.5, 10.0, 0.0, 0.0, 9.025, 9.5, 10.0, 0.0, 10.0]


def levels(baseline, depth=2):
    """Return HGPO's weighted mean over levels, with any baseline computed from the returns of a row's group."""
    rows = TABLE.rows(named=True)
    items = defaultdict(list)
    for k in range(depth + 1):
        groups = defaultdict(list)
        for i, row in enumerate(rows):
            if row["step"] >= k:
                groups[row["task"], *(past["state"] for past in rows[i - k : i + 1])].append(i)
        for members in groups.values():
            for i in members if len(members) > 1 else []:
                items[i].append((k + 2, RETURNS[i] - baseline(members, i)))
    counted = [[(w, a) for w, a in items[i] if a] for i in range(len(rows))]
    return [sum(w * a for w, a in some) / (sum(w for w, _ in some) or 1) for some in counted]


def median(members, i):
    return statistics.median(RETURNS[j] for j in members)


def mean_of_others(members, i):
    return statistics.fmean(RETURNS[j] for j in members if j != i)


@pytest.mark.parametrize(
    ("function", "baseline"), [(examples.hgpo_median, median), (examples.hgpo_leave_one_out, mean_of_others)]
)
def test_example_estimators_match_plain_python(function, baseline) -> None:
    want = levels(baseline)
    assert any(want)
    assert compute(TABLE, function, reward_scale=1.0).collect()["advantage"].to_list() == pytest.approx(want, abs=1e-5)


def test_credit_by_time_to_success() -> None:
    won, length = {"x", "z", "v"}, {"x": 2, "y": 2, "z": 3, "w": 1, "v": 1}
    credit = [
        0.5 ** (length[trajectory] - 1 - step) if trajectory in won else 0.0
        for trajectory, step in TABLE.select("trajectory", "step").rows()
    ]
    task = credit[:8]
    want = [(value - statistics.fmean(task)) / (statistics.pstdev(task) + 1e-6) for value in task] + [0.0]
    found = compute(TABLE, "time_to_success", gamma=0.5, reward_scale=1.0, details=True).collect()  # by its decorator
    assert found["advantage"].to_list() == pytest.approx(want)
    assert found["advantage_credit"].to_list() == credit


def test_the_command_line_accepts_a_function_as_estimator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_estimators.py").write_text(
        "import polars as pl\n"
        "def scaled(steps: pl.LazyFrame, *, strength: float = 0.5) -> pl.LazyFrame:\n"
        '    return steps.with_columns(advantage=strength * pl.col("return"))\n'
    )
    TABLE.write_parquet(tmp_path / "steps.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # importing adds the working directory
    invoke("advantages", "steps.parquet", "-e", "my_estimators:scaled:strength=2", "--reward-scale", "1")
    written = pl.read_parquet(tmp_path / "steps.advantages" / "scaled.parquet")
    assert written["advantage"].to_list() == pytest.approx([2 * value for value in RETURNS], rel=1e-6)


def test_functions_that_are_not_estimators_are_reported() -> None:
    def positional(steps: pl.LazyFrame, strength: float) -> pl.LazyFrame:
        return steps

    for name, line in (
        ("no_such_module:function", "No module named 'no_such_module'"),
        ("examples.own_estimator:no_such_function", "no_such_function"),
        ("examples.own_estimator:__doc__", "expected a name, module:function, an Estimator or a function"),
    ):
        with pytest.raises(InputError, match=line):
            get(name)
    with pytest.raises(InputError, match="registered already"):
        estimator("hgpo")(lambda steps: steps)
    with pytest.raises(InputError, match=r"expected keyword-only parameters with defaults .* received 'strength'"):
        compute(TABLE, positional)
    with pytest.raises(InputError, match="to add the column 'advantage'"):
        compute(TABLE, lambda steps: steps)
    with pytest.raises(InputError, match="returns no LazyFrame"):
        compute(TABLE, lambda steps: None)
    with pytest.raises(InputError, match=r"reads a column that is not there.*no_such_column"):
        compute(TABLE, lambda steps: steps.with_columns(advantage=pl.col("no_such_column")))
    with pytest.raises(InputError, match=r"expected a finite advantage of .*, received nan.*task='a'"):
        compute(TABLE, lambda steps: steps.with_columns(advantage=pl.lit(float("nan")))).collect()
    with pytest.raises(InputError, match=r"also in singleton groups.*, received None at task='b'"):
        compute(TABLE.filter(task="b"), lambda steps: normalise(steps, "advantage", "return", within())).collect()


def in_a_process(code: str, path: Path) -> str:
    environment = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT}/datasets:{path}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_documented_entry_point_registers_an_estimator(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "estimators.md").read_text("utf-8")
    code = re.search(r"```python\n# advantage_plugin\.py\n(.*?)```", text, re.DOTALL)[1]
    name, target = re.search(r'"hgpo\.estimators"\]\n(\w+) = "(.*?)"', text).groups()
    write_distribution(tmp_path, "plugin", {"advantage_plugin": code}, {"hgpo.estimators": {name: target}})
    use = (
        "import polars as pl; from hgpo_train.advantages import compute, names\n"
        f"assert {name!r} in names()\n"
        "table = {'task': 'a', 'trajectory': ['x', 'y'], 'step': 0, 'reward': [4.0, 0], 'action_valid': True}\n"
        f"found = compute(pl.DataFrame(table), {name!r}, strength=0.5, reward_scale=1.0).collect()\n"
        "print(found['advantage'].to_list())"
    )
    assert in_a_process(use, tmp_path) == "[1.0, -1.0]"


def test_broken_packages_break_no_others(tmp_path: Path) -> None:
    modules = {"broken_estimators": "import absent_module", "fine_estimators": "def fine(steps):\n    return steps\n"}
    points = {"broken": "broken_estimators:mine", "fine": "fine_estimators:fine"}
    write_distribution(tmp_path, "half-broken", modules, {"hgpo.estimators": points})
    script = """
import warnings
from hgpo_envs.errors import InputError
from hgpo_train.advantages import get, names

get("fine")
try:
    get("broken")
except InputError as error:
    message = str(error)
with warnings.catch_warnings(record=True) as caught:
    assert {"fine", "hgpo"} < set(names())
assert [str(warning.message) for warning in caught] == [message]
print(message)
"""
    line = "hgpo.estimators 'broken' of the distribution half-broken cannot be loaded from broken_estimators:mine"
    assert in_a_process(script, tmp_path).startswith(line)
