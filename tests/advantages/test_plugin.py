"""Custom estimators: the examples against plain Python, and registration by entry point, decorator and function."""

import re
import statistics
import sys

import polars as pl
import pytest
from command import ROOT, environment, invoke, python
from distribution import write_distribution
from refusals import refused

from examples import own_estimator as examples
from hgpo_train.advantages import compute, estimator, get
from hgpo_train.advantages.windows import normalise, within

COLUMNS = {
    "task": ["a"] * 8 + ["b"],
    "trajectory": [*"xxyyzzzwv"],
    "step": [0, 1, 0, 1, 0, 1, 2, 0, 0],
}
COLUMNS |= {
    "state": [
        "hall",
        "attic",
        "hall",
        "attic",
        "hall",
        "cellar",
        "attic",
        "hall",
        "hall",
    ]
}
COLUMNS |= {
    "reward": [0.0, 10.0, 0.0, 0.0, 0.0, 0.0, 10.0, 0.0, 10.0],
    "action_valid": True,
}
TABLE = pl.DataFrame(COLUMNS)
RETURNS = [9.5, 10.0, 0.0, 0.0, 9.025, 9.5, 10.0, 0.0, 10.0]


BASELINES = {
    "hgpo_median": lambda values, value: statistics.median(values),
    "hgpo_leave_one_out": lambda values, value: (
        (sum(values) - value) / (len(values) - 1)
    ),
}


@pytest.mark.parametrize("name", BASELINES)
def test_example_estimators_match_plain_python(name):
    """With K = 0: what the deeper levels are is tested with HGPO."""
    states = TABLE.select("task", "state").rows()
    groups = {
        state: [RETURNS[i] for i, other in enumerate(states) if other == state]
        for state in states
    }
    want = [
        value - BASELINES[name](groups[state], value) if len(groups[state]) > 1 else 0.0
        for state, value in zip(states, RETURNS, strict=True)
    ]
    computed = compute(
        TABLE, getattr(examples, name), reward_scale=1.0, history_length=0
    ).collect()["advantage"]
    assert computed.to_list() == pytest.approx(want, abs=1e-5)
    assert any(want)


def test_credit_by_time_to_success():
    won = {"x", "z", "v"}
    length = {"x": 2, "y": 2, "z": 3, "w": 1, "v": 1}
    credit = [
        0.5 ** (length[trajectory] - 1 - step) if trajectory in won else 0.0
        for trajectory, step in TABLE.select("trajectory", "step").rows()
    ]
    task = credit[:8]
    want = [
        (value - statistics.fmean(task)) / (statistics.pstdev(task) + 1e-6)
        for value in task
    ] + [0.0]
    # by its decorator
    found = compute(
        TABLE, "time_to_success", gamma=0.5, reward_scale=1.0, details=True
    ).collect()
    assert found["advantage"].to_list() == pytest.approx(want)
    assert found["advantage_credit"].to_list() == credit


def test_the_command_line_accepts_a_function_as_estimator(tmp_path, monkeypatch):
    (tmp_path / "my_estimators.py").write_text(
        "import polars as pl\n"
        "def scaled(steps: pl.LazyFrame, *, strength: float = 0.5) -> pl.LazyFrame:\n"
        '    return steps.with_columns(advantage=strength * pl.col("return"))\n'
    )
    TABLE.write_parquet(tmp_path / "steps.parquet")
    monkeypatch.chdir(tmp_path)
    # importing adds the working directory
    monkeypatch.setattr(sys, "path", [*sys.path])
    invoke(
        "advantages",
        "steps.parquet",
        "-e",
        "my_estimators:scaled:strength=2",
        "--reward-scale",
        "1",
    )
    written = pl.read_parquet(tmp_path / "steps.advantages" / "scaled.parquet")
    assert written["advantage"].to_list() == pytest.approx(
        [2 * value for value in RETURNS], rel=1e-6
    )


def test_functions_that_are_not_estimators_are_reported():
    def positional(steps: pl.LazyFrame, strength: float) -> pl.LazyFrame:
        return steps

    for name, line in (
        ("no_such_module:function", "No module named 'no_such_module'"),
        ("examples.own_estimator:no_such_function", "no_such_function"),
        (
            "examples.own_estimator:__doc__",
            "expected a name, module:function, an Estimator or a function",
        ),
    ):
        with refused(line):
            get(name)
    with refused("registered already"):
        estimator("hgpo")(lambda steps: steps)
    with refused(
        r"expected keyword-only parameters with defaults .* received 'strength'"
    ):
        compute(TABLE, positional)
    for function, line in (
        (lambda steps: steps, r'a LazyFrame with advantage.*"advantage"'),
        (lambda steps: None, r"to return a LazyFrame.*NoneType"),
        (
            lambda steps: steps.with_columns(advantage=pl.col("no_such")),
            r"from columns that it receives .*no_such",
        ),
        (
            lambda steps: steps.with_columns(advantage=pl.lit(float("nan"))),
            r"finite advantage.*, received nan.*'a'",
        ),
    ):
        with refused(line):
            compute(TABLE, function).collect()
    with refused(r"also in singleton groups.*, received None at task='b'"):
        compute(
            TABLE.filter(task="b"),
            lambda steps: normalise(steps, "advantage", "return", within()),
        ).collect()


def test_entry_points_register_estimators_and_broken_ones_break_no_others(tmp_path):
    text = (ROOT / "docs" / "estimators.md").read_text("utf-8")
    code = re.search(r"```python\n# advantage_plugin\.py\n(.*?)```", text, re.DOTALL)[1]
    name, target = re.search(r'"hgpo\.estimators"\]\n(\w+) = "(.*?)"', text).groups()
    modules = {"advantage_plugin": code, "broken_estimators": "import absent_module"}
    points = {"broken": "broken_estimators:mine", name: target}
    write_distribution(tmp_path, "half-broken", modules, {"hgpo.estimators": points})
    script = f"""
import warnings
import polars as pl
from hgpo_envs.errors import InputError
from hgpo_train.advantages import compute, get, names

table = {{"task": "a", "trajectory": ["x", "y"], "step": 0, "reward": [4.0, 0.0], "action_valid": True}}
print(compute(pl.DataFrame(table), {name!r}, strength=0.5, reward_scale=1).collect()["advantage"].to_list())
try:
    get("broken")
except InputError as error:
    print(error)
with warnings.catch_warnings(record=True) as caught:
    assert {{{name!r}, "hgpo"}} < set(names())
print(*caught)
"""
    done = python(script, env=environment(tmp_path))
    assert done.returncode == 0, done.stderr
    advantages, error, warning = done.stdout.splitlines()
    assert advantages == "[1.0, -1.0]"
    message = "hgpo.estimators 'broken' of the distribution half-broken cannot be loaded from broken_estimators:mine"
    assert error.startswith(message)
    assert message in warning.replace('\\"', '"')
