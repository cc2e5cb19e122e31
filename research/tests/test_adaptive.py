"""The mixture of two estimators in the training of a language model."""

from itertools import combinations

import numpy as np
import polars as pl
import pytest
import torch
from rich.console import Console

from hgpo_datasets import scan_steps
from hgpo_envs.errors import InputError
from hgpo_research.adaptive import Mixing
from hgpo_research.comparison.gain import cross_validated_gain
from hgpo_research.comparison.row_gradients import row_gradients
from hgpo_research.mixture import PARTNERS
from hgpo_train.advantages import compute, get
from hgpo_train.advantages.variants import read_variants
from hgpo_train.models.loading import load_model
from hgpo_train.training.config import load_config, replace
from hgpo_train.training.display import Display
from hgpo_train.training.tracking import read_metrics
from hgpo_train.training.trainer import Trainer

SETTINGS = (
    "advantage.estimator=adaptive",
    "rollout.tasks=2",
    "environment.max_steps=16",
    "evaluation.every=0",
    "tracking.tensorboard=false",
)


@pytest.fixture(scope="module")
def config():
    torch.set_num_threads(1)
    return load_config("tiny-alfworld", SETTINGS)


def train(config, folder, *, resume=False):
    Trainer(
        config,
        folder,
        Display(Console(quiet=True), config.iterations),
        resume=resume,
    ).run()
    return read_metrics(folder / "metrics.jsonl")


@pytest.fixture(scope="module")
def run(config, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    train(replace(config, iterations=2), folder)
    return folder


@pytest.fixture(scope="module")
def steps(run):
    return (
        scan_steps(run)
        .filter(pl.col("iteration") == 0)
        .sort("trajectory", "step")
        .collect()
    )


def of_batch(lines):
    return [
        {name: value for name, value in line.items() if name.startswith("adaptive/")}
        for line in lines
    ]


@pytest.mark.slow
def test_a_resumed_run_has_the_same_weights(config, run, tmp_path):
    train(replace(config, iterations=1), tmp_path / "run")
    resumed = train(replace(config, iterations=2), tmp_path / "run", resume=True)
    assert of_batch(resumed) == of_batch(read_metrics(run / "metrics.jsonl"))
    assert resumed[1]["adaptive/error_shrinkage_gae"] > 0


@pytest.mark.slow
def test_slopes_are_the_cross_validated_gains_of_the_batch(config, run, steps):
    """A gain at the divergence 1/2 is the slope itself; the model of the first iteration is the initial one."""
    gradients = row_gradients(steps.lazy(), load_model(config.model))
    names = ["discounted_grpo", "shrinkage_gae", "discounted_grpo:gamma=1"]
    variants = read_variants(
        names, settings=["reward=success", "invalid_action_penalty=0"]
    )
    outcomes = (
        pl.col("won").last().over("trajectory").n_unique().over("task_id", "group")
    )
    mixed = steps.filter(outcomes > 1)
    found = dict(
        cross_validated_gain(mixed.lazy(), variants, gradients, kl=0.5)
        .gains.select("estimator", "gain")
        .rows()
    )
    line = read_metrics(run / "metrics.jsonl")[0]
    slopes = [line[f"adaptive/batch_slope_{name}"] for name in PARTNERS]
    assert slopes == pytest.approx([found[name] for name in names], rel=1e-4)


@pytest.mark.slow
def test_the_mixture_has_the_weight_and_the_scale_of_its_parts(config, steps):
    """Earlier batches in which bootstrapping was worth more make its weight 1, and others make it 0."""
    line = {
        f"adaptive/batch_slope_{name}": 9.0 * (name == "shrinkage_gae")
        for name in PARTNERS
    }
    line |= {
        f"adaptive/cosine_{one}_{other}": 0.0
        for one, other in combinations(PARTNERS, 2)
    }
    parameters = (
        get("adaptive").with_parameters(**config.advantage.parameters).parameters
    )
    model = load_model(config.model)
    unbiased, bootstrapped = (
        compute(steps, name, **config.advantage.parameters)
        .collect()["advantage"]
        .to_numpy()
        for name in ("discounted_grpo", "shrinkage_gae")
    )
    rows, metrics = Mixing(parameters, model, [line] * 40)(steps)
    assert metrics["adaptive/weight_shrinkage_gae"] == 1.0
    scale = rows["advantage"].to_numpy() @ bootstrapped / (bootstrapped @ bootstrapped)
    assert scale > 0
    np.testing.assert_allclose(
        rows["advantage"].to_numpy(),
        scale * bootstrapped,
        rtol=1e-9,
        atol=1e-12,
    )
    rows, metrics = Mixing(parameters, model, [])(steps)
    assert metrics["adaptive/weight_discounted_grpo"] == 1.0
    np.testing.assert_allclose(rows["advantage"].to_numpy(), unbiased, rtol=1e-12)


@pytest.mark.slow
def test_a_batch_without_both_outcomes_changes_nothing(config, steps):
    lost = steps.with_columns(won=pl.lit(value=False), reward=pl.lit(0.0))
    parameters = (
        get("adaptive").with_parameters(**config.advantage.parameters).parameters
    )
    rows, metrics = Mixing(parameters, load_model(config.model), [])(lost)
    assert (rows["advantage"] == 0).all()
    assert {name for name, value in metrics.items() if value} == {
        "adaptive/weight_discounted_grpo"
    }


def test_small_groups_are_refused_before_training(config, tmp_path):
    with pytest.raises(
        InputError,
        match=r"rollout.group_size: expected at least 8 for .* 'adaptive', received 4",
    ):
        train(replace(config, rollout={"group_size": 4}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_table_alone_is_not_enough():
    table = pl.DataFrame(
        {
            "task": "a",
            "trajectory": ["x", "y"],
            "step": 0,
            "reward": [1.0, 0.0],
            "state": "s",
        }
    )
    with pytest.raises(
        InputError,
        match=r"adaptive: expected `hgpo train`, received a table alone",
    ):
        compute(table.with_columns(action_valid=True), "adaptive").collect()
