"""Gradients of a policy's parameters: sketches of every step's gradient, and gains made of them."""

import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from command import invoke
from tabular_world import play, store

from hgpo_envs.errors import InputError
from hgpo_research.comparison.row_gradients import (
    Sketch,
    log_probability,
    row_gradients,
)
from hgpo_train.models.config import ModelConfig
from hgpo_train.models.loading import load_model, load_tokenizer
from hgpo_train.models.tiny import TinyShape, save_tiny

TASKS = 12
"""Enough for five with both outcomes, without which nothing is ranked."""
SHAPE = TinyShape(
    vocabulary=300,
    width=32,
    layers=1,
    heads=1,
    key_value_heads=1,
    intermediate=32,
    initial=0.2,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    texts = [f"room {state} door {action}" for state in range(9) for action in range(3)]
    return save_tiny(tmp_path_factory.mktemp("tiny"), texts * 3, SHAPE, seed=1)


@pytest.fixture(scope="module")
def model(folder):
    torch.set_num_threads(1)
    return load_model(
        ModelConfig(path=str(folder), device="cpu", gradient_checkpointing=False)
    )


@pytest.fixture(scope="module")
def world(folder, model):
    """Steps with a model's tokens, and their truth. The worlds' actions stand for the model's responses."""
    steps, truth = play(tasks=TASKS, rollouts=8, seed=3, noise=0.0)
    tokenizer = load_tokenizer(str(folder))
    found = {}
    for prompt, response in (
        steps.select(pl.format("{} {}", "task_id", "state"), "action")
        .unique()
        .iter_rows()
    ):
        tokens = [
            tokenizer(text, add_special_tokens=False)["input_ids"]
            for text in (prompt, response)
        ]
        with torch.no_grad():
            logprob = float(log_probability(model, *tokens))
        found[prompt, response] = (
            *tokens,
            [logprob / len(tokens[1])] * len(tokens[1]),
        )
    names = ("prompt_token_ids", "response_token_ids", "response_logprobs")
    keys = steps.select(pl.format("{} {}", "task_id", "state"), "action").iter_rows()
    columns = zip(*(found[key] for key in keys), strict=True)
    return steps.with_columns(
        pl.Series(
            name,
            list(values),
            dtype=pl.List(pl.Float32 if name == names[2] else pl.Int32),
        )
        for name, values in zip(names, columns, strict=True)
    ), truth


def test_sketches_keep_cosines_within_their_error(world, model):
    """Of 60 seeds, the mean is the cosine of whole gradients, and their spread is what the documentation says."""
    tokens = list(
        world[0]
        .select("prompt_token_ids", "response_token_ids")
        .unique()
        .sort(pl.all())
        .head(8)
        .iter_rows()
    )
    whole = [Sketch(model).gradient(log_probability(model, *each)) for each in tokens]
    one = sum(whole[:4])
    two = sum(whole[2:])
    cosine = float(torch.nn.functional.cosine_similarity(one, two, dim=0))
    size = 512
    found = []
    for seed in range(60):
        sketch = Sketch(model, size, seed)
        a, b = (sketch(each).astype(float) for each in (one, two))
        found.append(a @ b / np.sqrt((a @ a) * (b @ b)))
    expected = (1 - cosine**2) / size**0.5
    assert np.std(found) < 1.4 * expected
    assert np.mean(found) == pytest.approx(
        cosine, abs=4 * expected / 60**0.5 + 2 / size
    )


def test_another_model_than_that_of_the_run_is_an_error(world, model, tmp_path):
    steps = world[0].head(4)
    wrong = steps.with_columns(pl.col("response_logprobs").list.eval(pl.element() - 1))
    with pytest.raises(InputError, match="expected the model that played the run"):
        row_gradients(wrong.lazy(), model, size=64)
    with pytest.raises(InputError, match="received one without prompt_token_ids"):
        row_gradients(steps.drop("prompt_token_ids").lazy(), model, size=64)
    empty = steps.with_columns(response_token_ids=pl.lit([], dtype=pl.List(pl.Int32)))
    with pytest.raises(InputError, match="whose steps have none"):
        row_gradients(empty.lazy(), model, size=64)


@pytest.mark.slow
def test_the_command_measures_gains_by_the_gradients_of_a_model(
    world, folder, tmp_path
):
    store(world[0], tmp_path / "first")
    output = invoke(
        "compare-estimators",
        tmp_path / "first",
        "--measure",
        "gain",
        "-e",
        "hgpo,grpo",
        "--model",
        folder,
    )
    assert "95% interval" in output
    assert re.search(r"(hgpo|grpo) (is above|and (hgpo|grpo) are not ranked)", output)


def test_gradients_of_features_are_those_of_the_logits(tmp_path):
    """log π of each step, with each weight moved a little: the differences are the gradients."""
    from hgpo_research.comparison.feature_gradients import feature_gradients
    from hgpo_research.features.webshop import ShopFeatures
    from hgpo_research.policies.softmax import SoftmaxOptions, SoftmaxPolicy
    from hgpo_train import collect

    run = collect(
        "HGPO/WebShop-v0",
        "softmax",
        tmp_path / "run",
        tasks=2,
        group_size=2,
        seed=1,
    )

    class Moved(ShopFeatures):
        def __init__(self, name="", by=0.0):
            self.weights = {
                key: weight + (by if key == name else 0.0)
                for key, weight in ShopFeatures.weights.items()
            }

    found = feature_gradients(
        run.steps,
        SoftmaxPolicy(ShopFeatures(), "response", SoftmaxOptions()),
        2,
    )
    steps = run.steps.sort("trajectory", "step").collect()
    assert found.rows.height == steps.height
    for place, name in enumerate(list(ShopFeatures.weights)[:6]):
        ends = []
        for by in (-1e-4, 1e-4):
            policy = SoftmaxPolicy(Moved(name, by), "response", SoftmaxOptions())
            logs = []

            class Spy:
                def distributions(self, requests, policy=policy, logs=logs):
                    (distribution,) = policy.distributions(requests)
                    logs.append(distribution)
                    return [distribution]

                features = policy.features

            feature_gradients(run.steps, Spy(), 2)
            chosen = [
                each.responses.index(response)
                for each, response in zip(logs, steps["response"], strict=True)
            ]
            ends.append(
                np.array(
                    [
                        np.log(each.probabilities[n])
                        for each, n in zip(logs, chosen, strict=True)
                    ]
                )
            )
        assert found.sketches[:, place] == pytest.approx(
            (ends[1] - ends[0]) / 2e-4, abs=1e-3
        )
