"""The comparison of estimators with truth, on worlds whose true advantages and right answers are known."""

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tabular_world import play

from hgpo_envs.errors import InputError
from hgpo_research.comparison import (
    compare_estimators,
    comparison,
    read_variants,
)
from hgpo_research.comparison.contexts import numbered
from hgpo_research.comparison.families import intervals, resampled
from hgpo_research.comparison.inputs import (
    REFERENCE,
    Draw,
    read_run,
    redraw,
)
from hgpo_research.comparison.measures import (
    MEASURES,
    measured,
    row_sums,
    task_sums,
)
from hgpo_research.resampling import task_weights
from hgpo_train.advantages import compute
from hgpo_train.resampling import student_quantile

PERFECT = "tabular_world:perfect"


def drawn(
    rng,
    *,
    tasks=30,
    groups=4,
    steps=6,
    prompts=3,
    actions=3,
    noise=0.0,
    **given,
):
    """Return steps with random truth: every task has `groups` disjoint groups of one redraw."""
    n = tasks * groups * steps
    task = np.repeat(np.arange(tasks), groups * steps)
    true = rng.normal(size=n) + 0.5 * rng.normal(size=tasks)[task]
    policy = rng.dirichlet(np.ones(actions), size=tasks * prompts)
    prompt = task * prompts + rng.integers(0, prompts, n)
    choice = rng.integers(0, actions, n)
    columns = {
        "size": 4,
        "task": task,
        "redraw": task,
        "group": np.repeat(np.arange(tasks * groups), steps),
        "first": true + noise * rng.normal(size=n),
        "second": true + noise * rng.normal(size=n),
        "sure": np.ones(n, bool),
        "level": rng.integers(-1, 3, n),
        "step": np.tile(np.arange(steps), tasks * groups),
        "prompt": prompt,
        "choice": choice,
        "estimates": {},
    }
    return Draw(**(columns | given)), true, policy


def sums_of(found, estimate):
    return task_sums(
        row_sums(found, (estimate, estimate)),
        found.task,
        found.task.max() + 1,
    )


def measures_of(found, estimate):
    return {
        name: float(value)
        for name, value in measured({k: v.sum() for k, v in sums_of(found, estimate).items()}).items()
    }


# The measures


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_errors_at_a_fixed_context_match_their_definition(seed):
    rng = np.random.default_rng(seed)
    found, true, _ = drawn(rng, tasks=3, groups=3)
    estimate = rng.normal(size=len(true))
    rows = row_sums(found, (estimate, estimate))
    error = estimate - true
    for i in range(len(true)):
        partners = [
            error[j]
            for j in range(len(true))
            if (found.prompt[j], found.choice[j]) == (found.prompt[i], found.choice[i])
            and found.group[j] != found.group[i]
        ]
        assert rows["paired"][i] == bool(partners)
        assert rows["cross"][i] == pytest.approx(error[i] * np.mean(partners) if partners else 0.0)


@pytest.mark.slow
def test_the_noise_of_the_truth_is_taken_out():
    """Over 150 noisy truths of the same steps, each measure's mean is its value with the exact truth."""
    rng = np.random.default_rng(1)
    exact, true, _ = drawn(rng, tasks=60, groups=4)
    estimate = 0.5 * true + rng.normal(size=len(true)) + 0.1
    sums = sums_of(exact, estimate)
    wanted = measures_of(exact, estimate)
    noisy = defaultdict(list)
    noisy_sums = defaultdict(list)
    for _ in range(150):
        halves = {half: true + rng.normal(size=len(true)) for half in ("first", "second")}
        found = replace(exact, **halves)
        for name, value in measures_of(found, estimate).items():
            noisy[name].append(value)
        for name, values in sums_of(found, estimate).items():
            noisy_sums[name].append(values.sum())
    for name in (
        "ea",
        "aa",
        "error",
        "cross",
        "paired_error",
        "paired_aa",
    ):
        values = np.array(noisy_sums[name])
        assert abs(values.mean() - sums[name].sum()) < 4 * values.std() / math.sqrt(len(values)), name
    for name in set(MEASURES) - {"sign"}:  # smooth in sums that are unbiased
        values = np.array(noisy[name])
        assert abs(values.mean() - wanted[name]) < 4 * values.std() / math.sqrt(len(values)) + 0.01, name


def test_what_is_not_corrected_would_fail_this_test():
    """The naive error, with the mean of the halves for the truth, is larger by the noise's variance."""
    rng = np.random.default_rng(2)
    found, true, _ = drawn(rng, tasks=200, noise=1.0)
    naive = np.mean((true - (found.first + found.second) / 2) ** 2) / np.mean(true**2)
    assert naive > 0.3
    assert abs(measures_of(found, true)["error"]) < 0.1


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_perfect_estimator_has_perfect_measures(noise):
    found, true, _ = drawn(np.random.default_rng(3), tasks=400, noise=noise)
    got = measures_of(found, true)
    tolerance = 1e-9 if noise == 0 else 0.05
    for name, value in {"correlation": 1, "slope": 1, "affine_error": 0,
                        "bias": 0, "error": 0, "squared_bias": 0, "variance": 0}.items():  # fmt: skip
        assert got[name] == pytest.approx(value, abs=tolerance), name
    assert noise or got["sign"] == 1


def test_bias_and_variance_of_known_size():
    """e = A + b(context) + noise: squared bias, variance and error are those of the construction."""
    rng = np.random.default_rng(4)
    found, true, _ = drawn(rng, tasks=800, groups=4, noise=0.5)
    cell = numbered(found.prompt, found.choice)
    shift = rng.normal(size=cell.max() + 1)[cell] * 0.7 + 0.3
    estimate = true + shift + 0.6 * rng.normal(size=len(true))
    got = measures_of(found, estimate)
    square = np.mean(true**2)
    assert got["bias"] == pytest.approx(0.3, abs=0.05)
    assert got["squared_bias"] * square == pytest.approx(0.49 + 0.09, rel=0.1)
    assert got["variance"] * square == pytest.approx(0.36, rel=0.1)
    assert got["error"] * square == pytest.approx(0.49 + 0.09 + 0.36, rel=0.1)


def test_signs_are_compared_where_they_are_known():
    found, true, _ = drawn(np.random.default_rng(7))
    known = np.abs(true) > 0.5
    found = replace(found, sure=known)
    assert measures_of(found, np.where(known, true, -true))["sign"] == 1
    assert measures_of(found, np.zeros(len(true)))["sign"] == 0.5


# The intervals


def test_student_quantiles():
    """Tables of Student's t distribution."""
    tabled = {
        1: 12.706,
        2: 4.303,
        3: 3.182,
        4: 2.776,
        5: 2.571,
        8: 2.306,
        15: 2.131,
        23: 2.069,
        60: 2.000,
    }
    for freedom, quantile in tabled.items():
        assert student_quantile(0.975, freedom) == pytest.approx(quantile, rel=0.02 if freedom < 5 else 0.002)


@pytest.mark.slow
def test_the_coverage_of_intervals_is_near_its_nominal_level():
    """1,000 simulated comparisons of 24 tasks: 95% intervals contain the population's value in 92% to 98%."""
    rng = np.random.default_rng(8)
    # e = A + task + noise, with var A = 1.25 (0.25 of it between tasks), each of the others 1
    population = {
        "correlation": math.sqrt(1.25 / 3.25),
        "bias": 0.0,
        "slope": 1.0,
        "error": 2 / 1.25,
    }
    wanted = np.array(list(population.values()))
    hits = []
    for trial in range(1000):
        # two estimators with the same values, whose errors are correlated within tasks
        found, true, _ = drawn(rng, tasks=24, groups=2, steps=5)
        common = rng.normal(size=24)[found.task]
        sums = [sums_of(found, true + common + rng.normal(size=len(true))) for _ in range(2)]
        weights = task_weights(24, 500, trial)
        whole = [measured({name: values.sum() for name, values in each.items()}) for each in sums]
        again = [measured(resampled(each, weights)) for each in sums]
        values = [np.array([each[name] for name in population]) for each in whole]
        draws = [np.stack([each[name] for name in population], axis=1) for each in again]
        single = intervals(values[0], draws[0], 24)
        pair = intervals(values[0] - values[1], draws[0] - draws[1], 24)
        family = ((single.low_all <= wanted) & (wanted <= single.high_all)).all()
        inside = [
            (single.low <= wanted) & (wanted <= single.high),
            (pair.low <= 0) & (pair.high >= 0),
            [family],
        ]
        hits.append(np.concatenate(inside))
    coverage = np.mean(hits, axis=0)
    assert ((coverage >= 0.92) & (coverage <= 0.98)).all(), coverage


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
    draws = np.stack(
        [
            np.zeros(500),
            np.full(500, np.nan),
            np.random.default_rng(0).normal(size=500),
        ],
        axis=1,
    )
    got = intervals(np.array([0.0, np.nan, 0.1]), draws, 20)
    assert (got.low[0], got.high[0], got.p[0]) == (0, 0, 1)
    assert np.isnan([got.low[1], got.high_all[1], got.p[1]]).all()
    assert np.isnan(intervals(np.array([0.1]), draws[:, 2:], 1).low).all()


# A run and its truth


@pytest.fixture(scope="module")
def world():
    return play(tasks=24, rollouts=16, seed=1, noise=0.05)


def compare(steps, truth, names="grpo", **how):
    variants = read_variants([names], {"reward_scale": 10.0})
    return compare_estimators(
        steps,
        truth,
        variants,
        **{"resamples": 100, "permutations": 0, **how},
    )


EVERY = {
    "names": f"hgpo,hgpo:history_length=1,grpo,{PERFECT}",
    "resamples": 400,
    "permutations": 20,
}


@pytest.fixture(scope="module")
def compared(world):
    return compare(*world, **EVERY)


def one(table, **where):
    found = table.filter(**{"dimension": "all", **where})
    assert found.height == 1
    return found.row(0, named=True)


@pytest.mark.parametrize(
    ("estimator", "size", "measures"),
    [
        *(
            (
                PERFECT,
                size,
                {"correlation": 1, "slope": 1, "error": 0, "bias": 0},
            )
            for size in (4, 8, 16)
        ),
        (REFERENCE, 4, {"slope": 1, "bias": 0}),
    ],
)
def test_a_perfect_estimator_is_found_to_be_perfect_and_the_reference_unbiased(compared, estimator, size, measures):
    for measure, value in measures.items():
        row = one(
            compared.estimates,
            estimator=estimator,
            group_size=size,
            measure=measure,
        )
        assert row["low_all"] <= value <= row["high_all"], measure
        assert estimator == REFERENCE or abs(row["value"] - value) < 0.03, measure
    row = one(
        compared.estimates,
        estimator=REFERENCE,
        group_size=8,
        measure="correlation",
    )
    assert row["high_all"] < 1, "one return is noise"


def test_chance_is_near_zero(compared):
    for estimator in ("hgpo", "grpo"):
        row = one(
            compared.estimates,
            estimator=estimator,
            group_size=8,
            measure="correlation",
        )
        assert abs(row["chance"]) < 0.05
        assert row["chance_low"] < row["chance"] < row["chance_high"] < row["low"]


def test_the_parts_are_complete(compared):
    whole = one(compared.estimates, estimator="hgpo", group_size=8, measure="error")
    for dimension in ("level", "position"):
        parts = compared.estimates.filter(
            estimator="hgpo",
            group_size=8,
            dimension=dimension,
            measure="error",
        )
        assert parts["steps"].sum() == whole["steps"]


def test_a_ratio_whose_denominator_may_be_0_is_null():
    """With a noisy truth of few tasks, "correlations" of 2 and more are common; none is left."""
    rng = np.random.default_rng(11)
    plain = []
    kept = []
    for trial in range(60):
        found, true, _ = drawn(rng, tasks=8, groups=2, noise=2.5)
        sums = sums_of(found, true + rng.normal(size=len(true)))
        plain.append(float(measured({name: values.sum() for name, values in sums.items()})["correlation"]))
        kept.append(comparison.measures_of(sums, task_weights(8, 300, trial))[0]["correlation"])
    plain = np.array(plain)
    kept = np.array(kept)
    assert (np.abs(plain) > 1.5).any()
    assert np.nanmax(np.abs(kept)) < 1.5
    assert np.isfinite(kept).any()
    clear, true, _ = drawn(rng, tasks=100)
    values, _ = comparison.measures_of(
        sums_of(clear, true + rng.normal(size=len(true))),
        task_weights(100, 300, 0),
    )
    assert 0.2 < values["correlation"] < 1


def test_sums_give_the_measures_again(compared):
    """What a study computes from the kept sums are the figures of the comparison."""
    rows = compared.sums.filter(estimator="hgpo", group_size=8).drop("task_id", "estimator", "group_size")
    sums = {name: rows[name].to_numpy() for name in rows.columns}
    values, _ = comparison.measures_of(sums, task_weights(24, 400, 0))
    for measure in ("correlation", "slope"):
        row = one(
            compared.estimates,
            estimator="hgpo",
            group_size=8,
            measure=measure,
        )
        assert row["value"] == pytest.approx(values[measure], rel=1e-12)


def test_differences_are_paired(compared):
    of = {"group_size": 16, "measure": "correlation"}
    row = one(compared.differences, first="grpo", second=PERFECT, **of)
    grpo, perfect = (one(compared.estimates, estimator=name, **of)["value"] for name in ("grpo", PERFECT))
    assert row["value"] == pytest.approx(grpo - perfect)
    assert row["p"] < 0.05
    assert row["low_all"] < row["low"] < row["high"] < row["high_all"] < 0


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers(world, compared):
    again = compare(*world, **EVERY)
    assert again.estimates.equals(compared.estimates)
    assert again.differences.equals(compared.differences)
    mixed = (table.sample(fraction=1, shuffle=True, seed=seed) for seed, table in enumerate(world))
    got, want = (table.estimates["value"].fill_null(9).to_numpy() for table in (compare(*mixed, **EVERY), compared))
    assert np.allclose(got, want, rtol=1e-9, atol=1e-12)


def test_estimates_of_the_given_groups_are_those_of_the_command(world):
    """The correlation of the run's own groups, computed without this package's code."""
    steps, truth = world
    advantage = compute(steps, "hgpo", reward_scale=10.0).collect()["advantage"].to_numpy()
    first, second = (truth[f"advantage_{half}"].to_numpy() for half in ("first", "second"))
    covariance = np.mean(advantage * (first + second) / 2) - advantage.mean() * (first + second).mean() / 2
    spread = np.mean(first * second) - first.mean() * second.mean()
    found = compare(steps, truth, "hgpo", group_sizes=[16])
    row = one(found.estimates, estimator="hgpo", measure="correlation")
    assert row["value"] == pytest.approx(covariance / (advantage.std() * math.sqrt(spread)))


def test_redrawn_groups_are_disjoint_and_complete(world):
    run = read_run(world[0].lazy(), world[1].lazy(), read_variants(["grpo"]), 1)
    table = redraw(run, 4, 3, np.random.default_rng(0))
    rollouts = table.select("(redraw)", "(group)", "(part)", "task_id", "trajectory").unique()
    assert rollouts.height == 24 * 16 * 3
    assert (rollouts.group_by("(group)").agg(pl.len(), pl.col("task_id").n_unique())["len"] == 4).all()
    assert rollouts["trajectory"].n_unique() == rollouts.height
    assert table.group_by("(group)").agg(pl.col("task_id").n_unique())["task_id"].max() == 1
    uneven = redraw(run, 5, 1, np.random.default_rng(0)).select("(group)", "trajectory").unique()
    assert uneven.height == 24 * 15


def test_steps_without_truth_are_counted_and_left_out(world):
    steps, truth = world
    row = pl.int_range(pl.len())
    some = truth.filter(row % 3 != 0).with_columns(choice=pl.when(row % 5 != 0).then("choice"))
    broken = pl.col("trajectory") == steps["trajectory"][0]
    found = compare(steps.with_columns(aborted=broken), some, group_sizes=[4], redraws=1).details
    whole = steps.filter(~broken)
    kept = some.filter(~broken)
    assert (found["aborted"], found["steps"]) == (1, whole.height)
    assert found["without_truth"] == whole.height - kept.height
    assert found["without_probabilities"] == kept["choice"].null_count()


def test_wrong_inputs_are_reported_in_one_line(world):
    steps, truth = world
    both = pl.concat([steps.with_columns(run=pl.lit(name)) for name in "ab"])
    missing = "the truth table has no value_first and choice; write it with hgpo truth"
    for table, wrong, how, line in (
        (steps, truth.drop("choice", "q", "value_first"), {}, missing),
        (
            steps,
            pl.concat([truth, truth[:1]]),
            {},
            "several rows for one step",
        ),
        (
            steps,
            truth.with_columns(trajectory=pl.lit("x")).unique("step"),
            {},
            "no step of the run is in the truth",
        ),
        (both, truth, {}, "unique in all runs"),
        (
            steps,
            truth,
            {"group_sizes": [32]},
            "group_sizes: expected numbers from 2 to the run's 16, received 32",
        ),
        (
            steps,
            truth,
            {"resamples": 3},
            "resamples: expected an integer of at least 100, received 3",
        ),
    ):
        with pytest.raises(InputError, match=line):
            compare(table, wrong, **how)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "expected different estimators"),
        ("hgpo,hgpo", "expected different estimators"),
        ("hgppo", "did you mean 'hgpo'"),
        ("hgpo:alfa=1", "did you mean 'alpha'"),
        (
            "hgpo:gamma=2",
            "parameter gamma: expected float <= 1.0, received 2",
        ),
        ("tabular_world:absent", "expected an estimator as module:object"),
    ],
)
def test_wrong_estimators_are_reported(text, line):
    with pytest.raises(InputError, match=line):
        read_variants([text])


def test_estimators_have_their_own_and_common_parameters():
    found = read_variants(
        ["hgpo:alpha=2:mode=mean_norm", f"{PERFECT}:scale=2,grpo"],
        {"reward_scale": 10},
        ["alpha=3", "gamma=0.9"],
    )
    assert [variant.name for variant in found] == [
        "hgpo:alpha=2:mode=mean_norm",
        f"{PERFECT}:scale=2",
        "grpo",
    ]
    parameters = [variant.estimator.parameters for variant in found]
    assert (
        parameters[0].alpha,
        parameters[0].mode,
        parameters[1].scale,
    ) == (
        2,
        "mean_norm",
        2,
    )
    assert {p.gamma for p in parameters} == {0.9}
    assert {p.reward_scale for p in parameters} == {10}
    with pytest.raises(InputError, match="unknown parameter 'alpha'"):
        read_variants(["grpo"], {}, ["alpha=3"])
