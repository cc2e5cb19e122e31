"""`hgpo compare-estimators`: correlation with truth, on worlds whose true advantages are known; intervals; errors."""

import math
import re
from pathlib import Path

import numpy as np
import orjson
import polars as pl
import pytest
from command import invoke, outcome
from polars.testing import assert_frame_equal
from tabular_world import play, store

from hgpo_datasets.row_tables import path_of, write_table
from hgpo_envs.errors import InputError
from hgpo_research.comparison.correlation import correlations
from hgpo_research.comparison.families import intervals
from hgpo_research.truth.table import METADATA, truth_rewards
from hgpo_train.advantages import compute, estimator
from hgpo_train.advantages.variants import read_variants

PERFECT = "tabular_world:perfect"


def compared(steps, truth, names, **parameters):
    """Return the rows of estimators by name."""
    variants = read_variants([names], {"reward_scale": 10.0} | parameters)
    table = correlations(steps.lazy(), truth.lazy(), variants)
    return {row["estimator"]: row for row in table.iter_rows(named=True)}


@pytest.fixture(scope="module")
def world():
    return play(tasks=24, rollouts=16, seed=1, noise=0.05)


def of_numbers(true, noise, estimate, rng):
    """Return a run of one step a rollout, tasks of four rollouts, with these true advantages, and its truth."""
    numbers = np.arange(len(true))
    steps = pl.DataFrame(
        {
            "task": numbers // 4,
            "trajectory": numbers.astype(str),
            "step": 0,
            "reward": 0.0,
            "action_valid": True,
            "stored": estimate,
        }
    )
    first = true + noise * rng.normal(size=len(true))
    second = true + noise * rng.normal(size=len(true))
    truth = steps.select(
        "trajectory",
        "step",
        advantage=pl.Series((first + second) / 2),
        advantage_error=pl.lit(noise / 2**0.5),
        advantage_first=pl.Series(first),
        advantage_second=pl.Series(second),
    )
    return steps, truth


def stored(steps):
    return steps.with_columns(advantage="stored")


STORED = f"{__name__}:stored"


def test_the_correlation_is_that_of_its_definition(world):
    """Computed with NumPy alone, on the run's own groups; another order of the rows changes nothing."""
    steps, truth = world
    advantage = (
        compute(steps, "hgpo", reward_scale=10.0).collect()["advantage"].to_numpy()
    )
    first, second = (
        truth[f"advantage_{half}"].to_numpy() for half in ("first", "second")
    )
    covariance = (
        np.mean(advantage * (first + second) / 2)
        - advantage.mean() * (first + second).mean() / 2
    )
    spread = np.mean(first * second) - first.mean() * second.mean()
    row = compared(steps, truth, "hgpo")["hgpo"]
    assert row["correlation"] == pytest.approx(
        covariance / (advantage.std() * math.sqrt(spread))
    )
    assert row["correlation_low"] < row["correlation"] < row["correlation_high"]
    mixed = compared(
        *(table.sample(fraction=1, shuffle=True, seed=1) for table in world), "hgpo"
    )["hgpo"]
    assert [mixed.pop("estimator"), mixed] == [
        row.pop("estimator"),
        pytest.approx(row, rel=1e-9),
    ]


def test_a_perfect_estimator_is_found_to_be_perfect():
    """Noise of the truth is left out: with the mean of its halves, this correlation would be about 0.7."""
    exact = compared(*play(tasks=6, rollouts=4, seed=1), PERFECT)[PERFECT]
    assert (exact["correlation"], exact["sign"]) == (pytest.approx(1), 1)
    steps, truth = play(tasks=24, rollouts=16, seed=2, noise=0.5)
    found = compared(steps, truth, f"grpo,{PERFECT}:scale=3")
    row = found[f"{PERFECT}:scale=3"]
    assert next(iter(found)) == f"{PERFECT}:scale=3"
    assert row["correlation_low"] <= 1 <= row["correlation_high"]
    assert found["grpo"]["correlation_high"] < row["correlation_low"]
    assert np.corrcoef(truth["advantage"], steps["true_advantage"])[0, 1] < 0.75


def test_signs_are_compared_where_they_are_known():
    """Of true advantages 3, -3, 3 and 0.1 with an error of 1/√2, three are known; an estimate of 0 counts a half."""
    rng = np.random.default_rng(0)
    true = np.tile([3.0, -3.0, 3.0, 0.1], 6)
    estimates = np.tile([1.0, 2.0, 0.0, -1.0], 6)
    steps, truth = of_numbers(true, 0.0, estimates, rng)
    truth = truth.with_columns(advantage_error=pl.lit(0.5**0.5))
    row = compared(steps, truth, STORED)[STORED]
    assert row["sign"] == pytest.approx((1 + 0 + 0.5) / 3)


def test_a_ratio_whose_denominator_may_be_0_is_null():
    """With a noisy truth of few tasks, "correlations" of 2 and more are common; none is left."""
    rng = np.random.default_rng(11)
    kept = []
    for _ in range(15):
        true = rng.normal(size=32)
        steps, truth = of_numbers(true, 4.0, true + rng.normal(size=32), rng)
        kept.append(compared(steps, truth, STORED)[STORED]["correlation"])
    assert None in kept
    assert max((abs(value) for value in kept if value is not None), default=0) < 1.5


@pytest.mark.slow
def test_the_coverage_of_intervals_is_near_its_nominal_level():
    """300 runs of 24 tasks: 95% intervals contain the population's value in 92% to 98%, whatever the truth's noise."""
    rng = np.random.default_rng(8)
    # e = A + task + noise, with var A = 1.25 (0.25 of it between tasks), each of the others 1
    wanted = math.sqrt(1.25 / 3.25)
    hits = []
    for _ in range(300):
        task = np.repeat(rng.normal(size=(2, 24)), 16, axis=1)
        true = rng.normal(size=24 * 16) + 0.5 * task[0]
        steps, truth = of_numbers(
            true, 1.0, true + task[1] + rng.normal(size=24 * 16), rng
        )
        steps = steps.with_columns(task=pl.int_range(pl.len()) // 16)
        row = compared(steps, truth, STORED)[STORED]
        hits.append(row["correlation_low"] <= wanted <= row["correlation_high"])
    assert 0.92 <= np.mean(hits) <= 0.98


def test_a_family_has_wider_intervals_and_larger_p_values():
    rng = np.random.default_rng(9)
    values = np.full(40, 0.25)
    draws = 0.25 + 0.1 * rng.normal(size=(4000, 40))
    alone = intervals(values[:1], draws[:, :1], 50)
    family = intervals(values, draws, 50)
    assert family.high_all[0] > alone.high_all[0] > values[0]
    assert np.allclose(family.high, alone.high, atol=0.02)
    # a number 2.5 deviations from 0, of 50 tasks: p = 0.0168 by Student's t; of the largest of 40: 1 - 0.9832^40 = 0.49
    assert alone.p[0] == pytest.approx(0.0168, abs=0.008)
    assert family.p[0] == pytest.approx(0.49, abs=0.08)


def test_numbers_that_do_not_vary_or_do_not_exist_have_no_false_intervals():
    varying = np.random.default_rng(0).normal(size=500)
    draws = np.stack([np.zeros(500), np.full(500, np.nan), varying], axis=1)
    got = intervals(np.array([0.0, np.nan, 0.1]), draws, 20)
    assert (got.low[0], got.high[0], got.p[0]) == (0, 0, 1)
    assert np.isnan([got.low[1], got.high_all[1], got.p[1]]).all()
    assert np.isnan(intervals(np.array([0.1]), draws[:, 2:], 1).low).all()


def test_aborted_rollouts_and_steps_without_truth_are_left_out(world):
    steps, truth = world
    some = truth.filter(pl.int_range(pl.len()) % 3 != 0)
    broken = pl.col("trajectory") == steps["trajectory"][0]
    row = compared(steps.with_columns(aborted=broken), some, "grpo")["grpo"]
    assert row["steps"] == some.filter(~broken).height
    assert row["tasks"] == 24


def test_wrong_inputs_are_reported_in_one_line(world):
    steps, truth = world
    both = pl.concat([steps.with_columns(run=pl.lit(name)) for name in "ab"])
    missing = "the truth table has no advantage_first and advantage_second; write it with hgpo truth"
    for table, wrong, line in (
        (steps, truth.drop("advantage_first", "advantage_second"), missing),
        (steps, pl.concat([truth, truth[:1]]), "several rows for one step"),
        (
            steps,
            truth.with_columns(trajectory=pl.lit("x")).unique("step"),
            "no step of the run is in the truth",
        ),
        (both, truth, "unique in all runs"),
    ):
        with pytest.raises(InputError, match=line):
            compared(table, wrong, "grpo")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "expected different estimators"),
        ("hgpo,hgpo", "expected different estimators"),
        ("hgppo", "did you mean 'hgpo'"),
        ("hgpo:alfa=1", "did you mean 'alpha'"),
        ("hgpo:gamma=2", "parameter gamma: expected float <= 1.0, received 2"),
        ("tabular_world:absent", "expected an estimator as module:object"),
    ],
)
def test_wrong_estimators_are_reported(text, line):
    with pytest.raises(InputError, match=line):
        read_variants([text])


def test_estimators_have_their_own_and_common_parameters():
    texts = ["hgpo:alpha=2:mode=mean_norm", f"{PERFECT}:scale=2,grpo"]
    found = read_variants(texts, {"reward_scale": 10}, ["alpha=3", "gamma=0.9"])
    assert [variant.name for variant in found] == [
        "hgpo:alpha=2:mode=mean_norm",
        f"{PERFECT}:scale=2",
        "grpo",
    ]
    first, second, third = (variant.estimator.parameters for variant in found)
    assert (first.alpha, first.mode, second.scale) == (2, "mean_norm", 2)
    assert first.gamma == second.gamma == third.gamma == 0.9
    assert first.reward_scale == second.reward_scale == third.reward_scale == 10
    with pytest.raises(InputError, match="unknown parameter 'alpha'"):
        read_variants(["grpo"], {}, ["alpha=3"])


# The command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run, `first`, and its truth table, `truth.parquet`."""
    steps, truth = play(tasks=12, rollouts=8, seed=3, noise=0.1)
    store(steps, tmp_path / "first")
    truth.with_columns(run=pl.lit("first")).write_parquet(tmp_path / "truth.parquet")
    return tmp_path


def compare(
    folder: Path, *more: object, estimators: str = "hgpo,grpo:cross_steps=false"
) -> str:
    given = [folder / "first", "--truth", folder / "truth.parquet", "-e", estimators]
    return invoke("compare-estimators", *given, *more)


@pytest.mark.slow
def test_the_files_contain_what_is_printed_and_are_replaced_only_on_request(
    folder: Path,
) -> None:
    stored_run = {
        path: path.read_bytes()
        for path in (folder / "first").rglob("*")
        if path.is_file()
    }
    printed = compare(folder)
    out = folder / "first.comparison"
    assert {path.name for path in out.iterdir()} == {
        "correlations.parquet",
        "comparison.json",
    }
    row = pl.read_parquet(out / "correlations.parquet").row(
        by_predicate=pl.col("estimator") == "hgpo", named=True
    )
    assert (
        f"{row['correlation']:.2f}  {row['correlation_low']:.2f} to {row['correlation_high']:.2f}"
        in printed
    )
    details = orjson.loads((out / "comparison.json").read_bytes())
    assert (
        details["estimators"]["grpo:cross_steps=false"]["parameters"]["cross_steps"]
        is False
    )
    assert details["estimators"]["hgpo"]["parameters"]["reward_scale"] == 10
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(InputError, match="exists already; replace it with --overwrite"):
        compare(folder)
    compare(folder, "--overwrite")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before, (
        "the same seed, the same bytes"
    )
    (out / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="exists already; it is not a comparison"):
        compare(folder, "--overwrite")
    with pytest.raises(
        InputError, match="expected an output file outside of the input"
    ):
        compare(folder, "--out", folder / "first" / "here")
    assert stored_run == {
        path: path.read_bytes()
        for path in (folder / "first").rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_wrong_options_and_truths_are_reported(folder: Path) -> None:
    truth = pl.read_parquet(folder / "truth.parquet")
    for options, line in (
        (["--set", "betta=1"], "unknown parameter 'betta'"),
        (["--kl", -1], "--kl: expected a number above 0 and at most 1, received -1"),
        (["--model", "softmax"], "--model is an option of --measure gain"),
        (["--device", "cpu"], "--device is an option of --model"),
        (
            ["--measure", "gain"],
            "expected a truth of hgpo truth --reward success --gamma 1",
        ),
    ):
        with pytest.raises(InputError, match=re.escape(line)):
            compare(folder, *options)
    with pytest.raises(
        InputError, match="expected a --truth for --measure correlation"
    ):
        invoke("compare-estimators", folder / "first", "-e", "hgpo")
    described = orjson.dumps({"rewards": {"gamma": 0.95}, "run": "another"}).decode()
    truth.write_parquet(folder / "truth.parquet", metadata={METADATA: described})
    with pytest.raises(InputError, match=r"is not the truth of .*first; compute"):
        compare(folder)
    (folder / "truth.parquet").unlink()
    with pytest.raises(InputError, match="expected a truth table, received no file"):
        compare(folder)
    assert not (folder / "first.comparison").exists()


@pytest.mark.parametrize("scale", [10.0, -10.0])
def test_the_truth_is_read_in_its_own_unit_and_rewards(
    folder: Path, scale: float
) -> None:
    """A truth of scaled rewards gives the same figures as one of rewards. Errors are widths."""
    compare(folder, "--out", folder / "one")
    truth = pl.read_parquet(folder / "truth.parquet").with_columns(
        pl.col("^(value|q|advantage).*$") * scale
    )
    truth = truth.with_columns(pl.col("^.*_error$").abs())
    described = {
        "rewards": {"gamma": 0.9, "reward_scale": scale, "reward": "success"},
        "run": "first",
    }
    truth.write_parquet(
        folder / "truth.parquet", metadata={METADATA: orjson.dumps(described).decode()}
    )
    rewards = truth_rewards(folder / "truth.parquet", folder / "first")
    assert (rewards.reward_scale, rewards.gamma, rewards.reward) == (
        scale,
        0.9,
        "success",
    )
    compare(folder, "--out", folder / "ten")
    one, ten = (
        pl.read_parquet(folder / name / "correlations.parquet")
        for name in ("one", "ten")
    )
    # In these worlds, the reward is success.
    assert_frame_equal(one, ten, rel_tol=1e-9)
    details = orjson.loads((folder / "ten" / "comparison.json").read_bytes())
    assert details["estimators"]["hgpo"]["parameters"]["reward"] == "success"


def test_the_gain_of_a_policy_that_did_not_play_the_run_is_refused(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    invoke("rollout", "--tasks", 1, "--group-size", 8, "--max-steps", 3, "--out", run)
    line = r"--model: expected the policy that played .*run, random, received softmax"
    with pytest.raises(InputError, match=line):
        invoke(
            "compare-estimators",
            run,
            "--measure",
            "gain",
            "--model",
            "softmax",
            "-e",
            "hgpo",
        )


@pytest.mark.slow
def test_estimators_that_read_scores_are_compared(tmp_path: Path) -> None:
    """With a score that is the true advantage, which correlates with the truth perfectly."""
    steps, truth = play(tasks=12, rollouts=4, seed=3)
    run = tmp_path / "first"
    store(steps, run)
    truth.with_columns(run=pl.lit("first")).write_parquet(tmp_path / "truth.parquet")
    chosen = f"grpo,empg:k=0:zeta=0,{__name__}:of_score"
    line = (
        r"first has no scores entropy; add them with: hgpo score .*first .* -s entropy"
    )
    with pytest.raises(InputError, match=line):
        compare(tmp_path, estimators=chosen)
    scores = truth.select(
        pl.lit("first").alias("run"), "trajectory", "step", entropy="advantage"
    )
    write_table(path_of(run, "scores", 1), scores, {})
    compare(tmp_path, estimators=chosen)
    found = pl.read_parquet(tmp_path / "first.comparison" / "correlations.parquet")
    values = dict(found.select("estimator", "correlation").iter_rows())
    assert values[f"{__name__}:of_score"] == pytest.approx(1)
    # Without modulation, empg is grpo minus the mean of the batch.
    assert values["empg:k=0:zeta=0"] == pytest.approx(values["grpo"])


@estimator("of_score", reads=(), scores=("entropy",))
def of_score(steps: pl.LazyFrame) -> pl.LazyFrame:
    """Take the score as the advantage."""
    return steps.with_columns(advantage=pl.col("entropy").fill_null(0.0))


def interrupted(steps: pl.LazyFrame) -> pl.LazyFrame:
    raise KeyboardInterrupt


def test_an_interruption_leaves_no_files(folder: Path) -> None:
    before = sorted(folder.rglob("*"))
    given = [
        folder / "first",
        "--truth",
        folder / "truth.parquet",
        "-e",
        f"{__name__}:interrupted",
    ]
    assert outcome("compare-estimators", *given)[0] == 130
    assert sorted(folder.rglob("*")) == before
