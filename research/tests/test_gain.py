"""Cross-validated gain of saved runs: unbiased, and ranked only where the interval says so."""

import re
from dataclasses import replace
from importlib import import_module

import numpy as np
import orjson
import polars as pl
import pytest
from command import invoke
from tabular_world import play, store

from hgpo_envs.errors import InputError
from hgpo_research.comparison.gain import (
    TRUTH,
    cross_validated_gain,
    held_out,
    ranking,
    table_gradients,
)
from hgpo_research.comparison.row_gradients import fisher_of
from hgpo_research.truth.table import METADATA
from hgpo_train.advantages.variants import read_variants

PERFECT = "tabular_world:perfect"
NOISE = "tabular_world:noise"


def measured(
    names,
    *,
    tasks=6,
    with_truth=False,
    seed=0,
    rollouts=16,
    worlds=1,
    folds=4,
    error=0.0,
):
    """Return the gains of estimators on several batches of the same worlds."""
    parts = [
        play(tasks, rollouts, seed, gamma=1.0, again=batch) for batch in range(worlds)
    ]
    steps, truth = (
        pl.concat(
            each[part].with_columns(
                *([pl.lit(batch).alias("iteration")] if part == 0 else []),
                trajectory=pl.format("{}/{}", pl.lit(batch), "trajectory"),
            )
            for batch, each in enumerate(parts)
        )
        for part in (0, 1)
    )
    variants = read_variants(
        names,
        {
            "reward": "success",
            "invalid_action_penalty": 0.0,
            "reward_scale": 1.0,
        },
    )
    hashes = (pl.struct("prompt_hash", "choice").hash(half) for half in (1, 2))
    # of an action in a state
    errors = [error * (each % 2001 / 1000.0 - 1.0) for each in hashes]
    first, second = (
        pl.col(f"advantage_{half}") + each
        for half, each in zip(("first", "second"), errors, strict=True)
    )
    exact = truth.with_columns(
        advantage=(first + second) / 2,
        advantage_first=first,
        advantage_second=second,
    ).lazy()
    return cross_validated_gain(
        steps.lazy(),
        variants,
        table_gradients(exact),
        truth=exact if with_truth else None,
        folds=folds,
    )


def gain_of(found, name):
    row = found.gains.row(by_predicate=pl.col("estimator") == name, named=True)
    return row["gain"], (row["high"] - row["low"]) / 4


@pytest.mark.slow
def test_the_gain_without_truth_is_that_with_truth():
    names = ["grpo:cross_steps=false", "gigpo", PERFECT]
    without, exact = (
        measured(names, with_truth=truth, worlds=30) for truth in (False, True)
    )
    for name in names:
        (one, error) = gain_of(without, name)
        (two, other) = gain_of(exact, name)
        assert two > 4 * other
        assert abs(one - two) < 4 * error
    assert gain_of(exact, PERFECT)[0] == pytest.approx(
        gain_of(exact, TRUTH)[0], rel=1e-5
    )
    assert exact.gains["estimator"][0] in (TRUTH, PERFECT)


@pytest.mark.slow
def test_errors_that_rows_of_a_truth_share_are_no_gain():
    exact, noisy = (
        gain_of(
            measured([PERFECT], with_truth=True, worlds=8, error=each),
            TRUTH,
        )
        for each in (0.0, 5.0)
    )
    assert exact[0] > 4 * exact[1]
    assert abs(noisy[0]) < 4 * noisy[1]


@pytest.mark.slow
def test_what_is_not_told_apart_is_not_ranked():
    found = measured([PERFECT, NOISE, f"{PERFECT}:scale=2.0"], worlds=8)
    lines = ranking(found)
    assert lines[0].startswith(
        "Batches of 96 rollouts: below about 200, gains can be biased"
    )
    (same,) = [line for line in lines[1:] if "noise" not in line]
    assert "are not ranked" in same
    assert re.search(r"a million batches or more \(8 here\)", same)
    above = [line for line in lines if "is above" in line]
    assert len(above) == 2
    assert all(line.endswith("points.") and "noise" in line for line in above)
    gain, error = gain_of(found, NOISE)
    assert abs(gain) < 4 * error


def test_few_groups_with_both_outcomes_have_no_interval():
    """Wins in four groups of twelve are too few, and the command says so instead."""
    steps, truth = play(12, 8, 1, gamma=1.0)
    decided = pl.col("task_id").rank("dense") > 4
    steps = steps.with_columns(
        won=pl.when(decided).then(pl.lit(value=False)).otherwise("won")
    )
    mixed = (
        steps.group_by("task_id", "trajectory")
        .agg(pl.col("won").last())
        .group_by("task_id")
    )
    count = mixed.agg(pl.col("won").n_unique())["won"].eq(2).sum()
    assert 0 < count < 5
    found = cross_validated_gain(
        steps.lazy(),
        read_variants(["grpo,gigpo"]),
        table_gradients(truth.lazy()),
    )
    assert found.gains["low"].null_count() == found.gains.height == 2
    assert found.differences["batches"].null_count() == 1
    assert ranking(found)[-1].startswith(
        f"No intervals and no ranking: {count} of 12 groups have both outcomes"
    )


def test_a_truth_without_prompts_has_no_gradients():
    _, truth = play(2, 4, 1, gamma=1.0)
    without = truth.with_columns(prompt_hash=pl.lit(None, pl.Int64))
    with pytest.raises(InputError, match="need the prompts, which the run does not"):
        table_gradients(without.lazy())


def test_sampled_lengths_are_of_all_folds_and_exact_ones_of_none():
    """A length that follows the steps which it is divided by biases the ratio."""
    steps, truth = play(6, 16, 1, gamma=1.0)
    exact = table_gradients(truth.lazy())
    variants = read_variants(["grpo:cross_steps=false"])
    relative = []
    squares = []
    for part in held_out(steps.lazy(), variants, replace(exact, fisher=None)):
        norm = np.linalg.norm(part.directions[0])
        relative.append(part.lengths[0] / norm)
        squares.extend((part.slopes[:, 0] * relative[-1]) ** 2)
    assert relative == pytest.approx([np.mean(squares) ** 0.5] * 4, rel=1e-5)
    # The outcome of a fold's own steps changes nothing: without them, the length of its gradient is the same.
    # the steps of the last fold
    last = pl.col("trajectory").rank("dense").over("task_id") % 4 == 0
    altered = replace(
        exact,
        sketches=np.where(
            steps.select(last).to_numpy(),
            5 * exact.sketches,
            exact.sketches,
        ),
    )
    found, other = (
        held_out(steps.lazy(), variants, each)[-1] for each in (exact, altered)
    )
    assert other.lengths == pytest.approx(found.lengths, rel=1e-5)
    assert other.slopes == pytest.approx(5 * found.slopes, rel=1e-4)
    assert 0 < found.bound[0, 0] <= found.products[0, 0]


def test_the_exact_fisher_information_is_the_mean_over_actions():
    """At probabilities 1/4 and 3/4, logits changed by 4 and 0 have the variance 3; the second step counts twice."""
    fisher = fisher_of(
        lambda x, number: (
            np.array([0.25, 0.75]),
            np.array([[4.0], [0.0]]) @ x * (number + 1),
        )
    )
    assert fisher(
        np.ones((1, 1)), np.array([0, 1]), np.array([1.0, 2.0])
    ) == pytest.approx(3 + 2 * 12)


def test_the_batches_needed_shrink_an_interval_to_its_difference():
    found = measured(["grpo:cross_steps=false", "gigpo"], worlds=4)
    (row,) = found.differences.iter_rows(named=True)
    half = (row["high"] - row["low"]) / 2
    assert row["low"] < 0 < row["value"]
    assert row["batches"] == int(np.ceil(4 * (half / row["value"]) ** 2))


def test_the_command_prints_gains_and_refuses_what_it_cannot_measure(
    tmp_path,
):
    steps, truth = play(tasks=6, rollouts=8, seed=3, gamma=1.0)
    store(steps, tmp_path / "first")
    table = tmp_path / "truth.parquet"
    given = [
        "compare-estimators",
        tmp_path / "first",
        "--measure",
        "gain",
        "-e",
        "grpo,gigpo",
    ]
    truth.write_parquet(table)
    with pytest.raises(
        InputError,
        match="expected a truth of hgpo truth --reward success --gamma 1",
    ):
        invoke(*given, "--truth", table)
    rewards = {"gamma": 1.0, "reward": "success", "reward_scale": 10.0}
    described = orjson.dumps({"rewards": rewards, "run": "first"}).decode()
    truth.with_columns(pl.col("^advantage.*$") * 10).write_parquet(
        table, metadata={METADATA: described}
    )
    output = invoke(*given, "--truth", table)
    assert "true advantages" in output
    out = tmp_path / "first.comparison"
    assert {path.name for path in out.iterdir()} == {
        "gains.parquet",
        "differences.parquet",
        "comparison.json",
    }
    assert orjson.loads((out / "comparison.json").read_bytes())["folds"] == 4
    assert pl.read_parquet(out / "differences.parquet").height == 3
    found = cross_validated_gain(
        steps.lazy(),
        read_variants(["grpo,gigpo"]),
        table_gradients(truth.lazy()),
        truth=truth.lazy(),
    )
    assert pl.read_parquet(out / "gains.parquet")["gain"].to_list() == pytest.approx(
        found.gains["gain"].to_list(), rel=1e-4
    )
    with pytest.raises(InputError, match="exists already; replace it with --overwrite"):
        invoke(*given, "--truth", table)
    invoke(*given, "--truth", table, "--overwrite")
    given += ["--out", tmp_path / "out"]
    for options, line in (
        ((), "or name the model that played the run with --model"),
        (
            ("--truth", table, "--folds", 5),
            "--folds: expected 2 to half of a group's 8 rollouts, received 5",
        ),
    ):
        with pytest.raises(InputError, match=re.escape(line)):
            invoke(*given, *options)


def test_the_simulation_has_exact_gradients():
    """The success of a policy whose logit is raised a little rises by the gradient."""
    module = import_module("research.benchmarks.gain_simulation")
    worlds = module.Worlds(0.5, 2, 3, np.random.default_rng(0))
    policy = worlds.policy
    success = worlds.success
    gradient = worlds.gradient
    raised = np.where(np.arange(module.ACTIONS) == 1, np.exp(1e-6), 1.0)
    for state in range(module.STATES):
        worlds.policy = policy.copy()
        power = policy[:, :, state] * raised
        worlds.policy[:, :, state] = power / power.sum(-1, keepdims=True)
        worlds._solve()
        assert (worlds.success - success) / 1e-6 == pytest.approx(
            gradient[:, :, state, 1], abs=1e-6
        )
