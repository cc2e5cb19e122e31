"""Training with a custom estimator, configured as `module:function`."""

import sys

import polars as pl
import pytest

from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError
from hgpo_train.advantages import compute
from hgpo_train.training.config import load_config, replace
from hgpo_train.training.tracking import read_metrics

MINE = """
import polars as pl
from hgpo_train.advantages.windows import within


def late(steps: pl.LazyFrame, *, scale: float = 1.0, name: str = "x") -> pl.LazyFrame:
    number = pl.col("step")
    return steps.with_columns(advantage=scale * (number - number.mean().over(within())) + len(name) - 1)
"""


@pytest.fixture(autouse=True)
def mine(tmp_path, monkeypatch):
    """Write a user's module into the working directory."""
    (tmp_path / "my_estimators.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_estimators", raising=False)  # imported by another test
    yield
    monkeypatch.delitem(sys.modules, "my_estimators", raising=False)


@pytest.mark.slow
def test_training_with_a_custom_estimator(config, runs):
    estimator, parameters = "my_estimators:late", {"scale": 3, "name": "xyz"}
    config = replace(
        config, iterations=2, evaluation={"every": 0}, advantage={"estimator": estimator, "parameters": parameters}
    )
    runs.train(config)
    lines = read_metrics(runs.folder / "run" / "metrics.jsonl")
    assert [line["iteration"] for line in lines] == [1, 2]
    steps = scan_steps(runs.folder / "run" / "steps").filter(pl.col("iteration") == 0).collect()
    advantage = compute(steps, estimator, **parameters).collect()["advantage"]
    assert lines[0]["critic/advantages/max"] == pytest.approx(advantage.max())
    assert lines[0]["critic/advantages/min"] == pytest.approx(advantage.min())
    assert advantage.n_unique() > 5
    assert load_config(runs.folder / "run" / "config.toml") == config
    runs.train(replace(config, iterations=3), resume=True)
    other = replace(config, advantage={"parameters": {**parameters, "gamma": 0.5}})
    with pytest.raises(InputError, match=r"was started with advantage\.parameters"):
        runs.trainer(other, resume=True)


@pytest.mark.parametrize(
    ("estimator", "parameters", "line"),
    [
        ("my_estimators:lat", {}, "expected an estimator as module:object, received 'my_estimators:lat'"),
        ("my_estimator:late", {}, "No module named 'my_estimator'"),
        ("my_estimators:late", {"scal": 1}, "unknown parameter 'scal'; did you mean 'scale'?"),
        ("my_estimators:late", {"scale": "much"}, "parameter scale: expected float, received 'much'"),
        ("my_estimators:late", {"scale": float("inf")}, "parameter scale: expected a finite number, received inf"),
        ("my_estimators:late", {"gamma": 2}, "parameter gamma: expected float <= 1.0, received 2"),
        ("my_estimators:late", {"name": 3}, "parameter name: expected str, received 3"),
    ],
)
def test_a_faulty_estimator_is_reported_before_any_rollout(config, runs, estimator, parameters, line):
    config = replace(config, advantage={"estimator": estimator, "parameters": parameters})
    with pytest.raises(InputError) as caught:
        runs.trainer(config)
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(runs.folder.rglob("*.parquet"))
