"""Gradients of a language model's parameters: sketches of every step's gradient, and the cosines made of them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from command import invoke
from hypothesis import given, settings
from hypothesis import strategies as st
from tabular_world import play

from hgpo_datasets import StepWriter
from hgpo_envs.errors import InputError
from hgpo_research.comparison import compare_estimators, read_variants
from hgpo_research.comparison.families import intervals, resampled
from hgpo_research.comparison.inputs import TRUTH_REWARDS, draw, read_run
from hgpo_research.comparison.measures import measured
from hgpo_research.comparison.model_gradients import model_sums, per_task
from hgpo_research.comparison.row_gradients import Sketch, log_probability, row_gradients
from hgpo_train.analysis.resampling import task_weights
from hgpo_train.models.config import ModelConfig
from hgpo_train.models.loading import load_model, load_tokenizer
from hgpo_train.models.tiny import TinyShape, save_tiny

SIZE, TASKS = 4096, 6
PERFECT = "tabular_world:perfect"
SHAPE = TinyShape(vocabulary=300, width=32, layers=1, heads=1, key_value_heads=1, intermediate=32, initial=0.2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    texts = [f"room {state} door {action}" for state in range(9) for action in range(3)]
    return save_tiny(tmp_path_factory.mktemp("tiny"), texts * 3, SHAPE, seed=1)


@pytest.fixture(scope="module")
def model(folder):
    torch.set_num_threads(1)
    return load_model(ModelConfig(path=str(folder), device="cpu", gradient_checkpointing=False))


@pytest.fixture(scope="module")
def world(folder, model):
    """Steps with a model's tokens, and their truth. The worlds' actions stand for the model's responses."""
    steps, truth = play(tasks=TASKS, rollouts=8, seed=3, noise=0.0)
    tokenizer = load_tokenizer(str(folder))
    found = {}
    for prompt, response in steps.select(pl.format("{} {}", "task_id", "state"), "action").unique().iter_rows():
        tokens = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, response)]
        with torch.no_grad():
            logprob = float(log_probability(model, *tokens))
        found[prompt, response] = *tokens, [logprob / len(tokens[1])] * len(tokens[1])
    names = ("prompt_token_ids", "response_token_ids", "response_logprobs")
    keys = steps.select(pl.format("{} {}", "task_id", "state"), "action").iter_rows()
    columns = zip(*(found[key] for key in keys), strict=True)
    return steps.with_columns(
        pl.Series(name, list(values), dtype=pl.List(pl.Float32 if name == names[2] else pl.Int32))
        for name, values in zip(names, columns, strict=True)
    ), truth


@pytest.fixture(scope="module")
def gradients(world, model):
    return row_gradients(world[0].lazy(), model, size=SIZE)


def compared(world, gradients, *estimators: str, **options):
    fast = {"resamples": 200, "permutations": 3, "redraws": 2} | options
    return compare_estimators(*world, read_variants(estimators, {"reward_scale": 10.0}), gradients=gradients, **fast)


def test_perfect_advantages_have_the_cosine_1_and_negated_ones_minus_1(world, gradients):
    found = compared(world, gradients, PERFECT, f"{PERFECT}:scale=-1.0", "grpo")
    for name, expected in ((PERFECT, 1.0), (f"{PERFECT}:scale=-1.0", -1.0)):
        for size in (4, 8):
            rows = found.sums.filter(estimator=name, group_size=size).drop("task_id", "estimator", "group_size")
            values = measured({key: np.array(rows[key].sum()) for key in rows.columns})
            for measure in ("model_gradient", "model_gradient_within"):
                assert values[measure] == pytest.approx(expected, abs=1e-5)
    row = found.estimates.filter(measure="model_gradient_within", estimator="grpo", group_size=8).row(0, named=True)
    assert row["value"] is None or row["chance"] < row["value"] < 1 - 1e-3, "null: 6 tasks say too little"


def test_products_are_those_of_the_batch_gradient_by_backward(world, gradients, model):
    """Sums per task equal the sketch of one backward pass through the weighted log-probabilities of all steps."""
    steps, truth = world
    x, y = (np.random.default_rng(place).normal(size=steps.height) for place in (1, 2))
    found = _draw(steps, truth, gradients)
    (sums,) = model_sums(replace(found, first=y, second=y), gradients.sketches, [(x, x)], TASKS)
    sketch, tokens = Sketch(model, SIZE), ["prompt_token_ids", "response_token_ids"]
    weights = steps.select(*tokens, x=pl.Series(x), y=pl.Series(y)).group_by(tokens).agg(pl.col("x", "y").sum())
    whole = {}
    for name in ("x", "y"):
        loss = sum(
            factor * log_probability(model, *each) for *each, factor in weights.select(*tokens, name).iter_rows()
        )
        whole[name] = sketch(sketch.gradient(loss)).astype(float)
        single = found.task == 0
        mine = sum(
            float(weight) * gradients.sketches[number].astype(float)
            for weight, number in zip((x if name == "x" else y)[single], found.sketch[single], strict=True)
        )
        assert sums[f"{name * 2}_within".replace("xx", "ee").replace("yy", "aa")][0] == pytest.approx(
            mine @ mine, rel=1e-4
        )
    for key, (one, two) in {"ee": ("x", "x"), "ea": ("x", "y"), "aa": ("y", "y")}.items():
        assert sums[f"{key}_batch"].sum() == pytest.approx(
            whole[one] @ whole[two], rel=1e-4, abs=1e-4 * np.abs(whole[one]).max()
        )


def test_sketches_keep_cosines_within_their_error(world, model):
    """Of 60 seeds, the mean is the cosine of whole gradients, and their spread is what the documentation says."""
    tokens = list(world[0].select("prompt_token_ids", "response_token_ids").unique().sort(pl.all()).head(8).iter_rows())
    whole = [Sketch(model).gradient(log_probability(model, *each)) for each in tokens]
    one, two = sum(whole[:4]), sum(whole[2:])
    cosine = float(torch.nn.functional.cosine_similarity(one, two, dim=0))
    size, found = 512, []
    for seed in range(60):
        sketch = Sketch(model, size, seed)
        a, b = (sketch(each).astype(float) for each in (one, two))
        found.append(a @ b / np.sqrt((a @ a) * (b @ b)))
    expected = (1 - cosine**2) / size**0.5
    assert np.std(found) < 1.4 * expected
    assert np.mean(found) == pytest.approx(cosine, abs=4 * expected / 60**0.5 + 2 / size)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_sums_of_tasks_are_a_linear_approximation_of_weighted_products(seed):
    """Their sum is the product, and their changes with a task's weight are those of Σ_{k ≠ l} w_k w_l <g_k, g_l>."""
    rng = np.random.default_rng(seed)
    tasks = int(rng.integers(2, 9))
    x, y = rng.normal(size=(2, tasks, 5))
    found = per_task(x @ y.T)

    def product(weights):
        whole = (weights @ x) @ (weights @ y)
        return whole - ((weights**2)[:, None] * x * y).sum()

    ones = np.ones(tasks)
    assert found.sum() == pytest.approx(product(ones))
    step = 1e-6 * (np.eye(tasks)[0] - np.eye(tasks)[-1])
    assert found @ step * 1e6 == pytest.approx((product(ones + step) - product(ones - step)) / 2e-6, abs=1e-6)


@pytest.mark.parametrize("common", [0.05, 0.4])
def test_intervals_contain_the_cosine_of_the_expected_products(common):
    """Of 400 simulated batches of 24 tasks, at least 92% have an interval that contains the true cosine."""
    rng, tasks, width, batches = np.random.default_rng(0), 24, 40, 400
    shared = rng.normal(size=width)
    square, pairs = shared @ shared, tasks * (tasks - 1)
    e_part, a_part = 0.75 * common, common  # of the common direction
    ea, ee, aa = (tasks * own * width + (tasks + pairs) * both * square for own, both in
                  ((0.5, e_part * a_part), (1.25, e_part**2), (1.0, a_part**2)))  # fmt: skip
    weights, inside = task_weights(tasks, 400, 0), 0
    for _ in range(batches):
        a = rng.normal(size=(tasks, width))
        e = 0.5 * a + rng.normal(size=(tasks, width)) + e_part * shared
        a += a_part * shared
        sums = {
            f"{name}_batch": (one * two).sum(1) + per_task((one @ two.T + two @ one.T) / 2)
            for name, one, two in (("ee", e, e), ("ea", e, a), ("aa", a, a))
        }
        value, draws = cosine(sums), cosine(resampled(sums, weights))
        found = intervals(value, draws[:, None], tasks)
        inside += bool(found.low[0] <= ea / np.sqrt(ee * aa) <= found.high[0])
    assert inside / batches >= 0.92


def cosine(sums):
    sums = {name: np.atleast_1d(np.sum(values) if name.endswith("_batch") and np.shape(values) == (24,) else values)
            for name, values in sums.items()}  # fmt: skip
    squares = sums["ee_batch"] * sums["aa_batch"]
    return sums["ea_batch"] / np.sqrt(np.where(squares > 0, squares, np.nan))


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
def test_the_command_compares_the_gradients_of_a_model(world, folder, tmp_path):
    steps, truth = world
    rows = steps.drop("true_advantage", "^history_hash.*$").to_dicts()
    with StepWriter(tmp_path / "first") as writer:
        for task in sorted({row["task_id"] for row in rows}):
            writer.add_group([row for row in rows if row["task_id"] == task])
    truth.with_columns(run=pl.lit("first")).write_parquet(tmp_path / "truth.parquet")
    given = [tmp_path / "first", "--truth", tmp_path / "truth.parquet", "-e", "hgpo,grpo", "--model", folder]
    output = invoke("compare-estimators", *given, "--resamples", 100, "--permutations", 2, "--redraws", 1)
    assert "model gradient" in output
    assert "model gradient" in (tmp_path / "first.comparison" / "report.html").read_text("utf-8")
    measures = pl.read_parquet(tmp_path / "first.comparison" / "estimates.parquet").filter(dimension="all")["measure"]
    assert {"model_gradient", "model_gradient_limit"} < set(measures)


def _draw(steps, truth, gradients):
    run = read_run(steps.lazy(), truth.lazy(), read_variants(["grpo"]), 1, gradients)
    found = draw(run, 8, 1, 0, depth=1, context="states", rewards=TRUTH_REWARDS)
    assert len(found.task) == steps.height
    return found


def test_gradients_of_features_are_those_of_the_logits(tmp_path):
    """log π of each step, with each weight moved a little: the differences are the gradients."""
    from hgpo_research.comparison.feature_gradients import feature_gradients
    from hgpo_research.features.webshop import ShopFeatures
    from hgpo_research.policies.softmax import SoftmaxOptions, SoftmaxPolicy
    from hgpo_train import collect

    run = collect("HGPO/WebShop-v0", "softmax", tmp_path / "run", tasks=2, group_size=2, seed=1)

    class Moved(ShopFeatures):
        def __init__(self, name="", by=0.0):
            self.weights = {key: weight + (by if key == name else 0.0) for key, weight in ShopFeatures.weights.items()}

    found = feature_gradients(run.steps, SoftmaxPolicy(ShopFeatures(), "response", SoftmaxOptions()), 2)
    steps = run.steps.sort("trajectory", "step").collect()
    assert found.rows.height == steps.height
    for place, name in enumerate(list(ShopFeatures.weights)[:6]):
        ends = []
        for by in (-1e-4, 1e-4):
            policy, logs = SoftmaxPolicy(Moved(name, by), "response", SoftmaxOptions()), []

            class Spy:
                def distributions(self, requests, policy=policy, logs=logs):
                    (distribution,) = policy.distributions(requests)
                    logs.append(distribution)
                    return [distribution]

                features = policy.features

            feature_gradients(run.steps, Spy(), 2)
            chosen = [each.responses.index(response) for each, response in zip(logs, steps["response"], strict=True)]
            ends.append(np.array([np.log(each.probabilities[n]) for each, n in zip(logs, chosen, strict=True)]))
        assert found.sketches[:, place] == pytest.approx((ends[1] - ends[0]) / 2e-4, abs=1e-3)
