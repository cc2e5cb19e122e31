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
    with pytest.raises(InputError, match=r"was written with training\.advantage\.parameters"):
        runs.trainer(other, resume=True)
