"""Cross-validated gain of saved runs: unbiased, and ranked only where the interval says so."""

import re

import numpy as np
import orjson
import polars as pl
import pytest
from command import invoke
from tabular_world import play

from hgpo_datasets import StepWriter
from hgpo_envs.errors import InputError
from hgpo_research.comparison.files import GAIN_FILES
from hgpo_research.comparison.gain import TRUTH, cross_validated_gain, ranking, table_gradients
from hgpo_research.truth.table import METADATA
from hgpo_train.advantages.variants import read_variants

PERFECT = "tabular_world:perfect"


def noise(steps: pl.LazyFrame) -> pl.LazyFrame:
    """Return advantages that say nothing."""
    key = pl.col("trajectory_key") * 31 + pl.col("step")
    return steps.with_columns(advantage=(key % 7919).cast(pl.Float64) / 3959.5 - 1.0)


def measured(names, *, tasks=6, with_truth=False, seed=0, rollouts=16, worlds=1, folds=4, error=0.0):
    """Return the gains of estimators on several batches of the same worlds."""
    parts = [play(tasks, rollouts, seed, gamma=1.0, again=batch) for batch in range(worlds)]
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
    variants = read_variants(names, {"reward": "success", "invalid_action_penalty": 0.0, "reward_scale": 1.0})
    hashes = (pl.struct("prompt_hash", "choice").hash(half) for half in (1, 2))
    errors = [error * (each % 2001 / 1000.0 - 1.0) for each in hashes]  # of an action in a state
    first, second = (pl.col(f"advantage_{half}") + each for half, each in zip(("first", "second"), errors, strict=True))
    exact = truth.with_columns(advantage=(first + second) / 2, advantage_first=first, advantage_second=second).lazy()
    return cross_validated_gain(
        steps.lazy(), variants, table_gradients(exact), truth=exact if with_truth else None, folds=folds
    )


def gain_of(found, name):
    row = found.gains.row(by_predicate=pl.col("estimator") == name, named=True)
    return row["gain"], (row["high"] - row["low"]) / 4


@pytest.mark.slow
def test_the_gain_without_truth_is_that_with_truth():
    names = ["grpo:cross_steps=false", "gigpo", PERFECT]
    without, exact = (measured(names, with_truth=truth, worlds=30) for truth in (False, True))
    for name in names:
        (one, error), (two, other) = gain_of(without, name), gain_of(exact, name)
        assert two > 4 * other
        assert abs(one - two) < 4 * error
    assert gain_of(exact, PERFECT)[0] == pytest.approx(gain_of(exact, TRUTH)[0], rel=1e-5)
    assert exact.gains["estimator"][0] in (TRUTH, PERFECT)


def test_errors_that_rows_of_a_truth_share_are_no_gain():
    exact, noisy = (gain_of(measured([PERFECT], with_truth=True, worlds=8, error=each), TRUTH) for each in (0.0, 5.0))
    assert exact[0] > 4 * exact[1]
    assert abs(noisy[0]) < 4 * noisy[1]


def test_what_is_not_told_apart_is_not_ranked():
    found = measured([PERFECT, f"{__name__}:noise", f"{PERFECT}:scale=2.0"], worlds=8)
    lines = ranking(found)
    assert lines[0] == "Batches of 96 rollouts: below about 200, gains can be biased by a third."
    (same,) = [line for line in lines[1:] if "noise" not in line]
    assert "are not ranked" in same
    assert re.search(r"a million batches or more \(8 here\)", same)
    above = [line for line in lines if "is above" in line]
    assert len(above) == 2
    assert all(line.endswith("points.") and "noise" in line for line in above)
    gain, error = gain_of(found, f"{__name__}:noise")
    assert abs(gain) < 4 * error


def test_the_batches_needed_shrink_an_interval_to_its_difference():
    found = measured(["grpo:cross_steps=false", "gigpo"], worlds=4)
    (row,) = found.differences.iter_rows(named=True)
    half = (row["high"] - row["low"]) / 2
    assert row["low"] < 0 < row["value"]
    assert row["batches"] == int(np.ceil(4 * (half / row["value"]) ** 2))


def test_the_command_prints_gains_and_refuses_what_it_cannot_measure(tmp_path):
    steps, truth = play(tasks=6, rollouts=8, seed=3, gamma=1.0)
    rows = steps.drop("true_advantage", "^history_hash.*$").to_dicts()
    with StepWriter(tmp_path / "first") as writer:
        for task in sorted({row["task_id"] for row in rows}):
            writer.add_group([row for row in rows if row["task_id"] == task])
    table = tmp_path / "truth.parquet"
    given = ["compare-estimators", tmp_path / "first", "--measure", "gain", "-e", "grpo,gigpo"]
    truth.write_parquet(table)
    with pytest.raises(InputError, match="expected a truth of hgpo truth --reward success --gamma 1"):
        invoke(*given, "--truth", table)
    rewards = {"gamma": 1.0, "reward": "success", "reward_scale": 10.0}
    described = orjson.dumps({"rewards": rewards, "run": "first"}).decode()
    truth.with_columns(pl.col("advantage") * 10).write_parquet(table, metadata={METADATA: described})
    output = invoke(*given, "--truth", table)
    assert "true advantages" in output
    out = tmp_path / "first.comparison"
    assert sorted(path.name for path in out.iterdir()) == sorted(GAIN_FILES)
    assert orjson.loads((out / "comparison.json").read_bytes())["folds"] == 4
    assert pl.read_parquet(out / "differences.parquet").height == 3
    found = cross_validated_gain(
        steps.lazy(), read_variants(["grpo,gigpo"]), table_gradients(truth.lazy()), truth=truth.lazy()
    )
    assert pl.read_parquet(out / "gains.parquet")["gain"].to_list() == pytest.approx(
        found.gains["gain"].to_list(), rel=1e-4
    )
    with pytest.raises(InputError, match="exists already; replace it with --overwrite"):
        invoke(*given, "--truth", table)
    invoke(*given, "--truth", table, "--overwrite")
    given += ["--out", tmp_path / "out"]
    for options, line in (
        ((), "name the policy with --model, or give a --truth"),
        (("--truth", table, "--folds", 5), "--folds: expected 2 to half of a group's 8 rollouts, received 5"),
    ):
        with pytest.raises(InputError, match=re.escape(line)):
            invoke(*given, *options)
