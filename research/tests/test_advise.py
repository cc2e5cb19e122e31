"""`hgpo advise`: ranks are intervals, equal estimators are never separated, and too little is no ranking."""

import re

import numpy as np
import orjson
import polars as pl
import pytest
from command import invoke, outcome
from tabular_world import play, store

from hgpo_envs.errors import InputError
from hgpo_research.advice import report
from hgpo_research.advice.advice import (
    advise,
    concluded,
    halves,
    permuted,
    steps_apart,
)
from hgpo_research.comparison.gain import table_gradients
from hgpo_research.comparison.logit_table import LogitTable
from hgpo_research.power import pairs_needed
from hgpo_train.advantages.registry import compute_many
from hgpo_train.advantages.variants import read_variants

PERFECT = "tabular_world:perfect"
NOISE = "tabular_world:noise"
SETTINGS = {"reward": "success", "invalid_action_penalty": 0.0, "reward_scale": 1.0}


def advised(names, *, tasks=6, rollouts=8, batches=1, seed=0):
    """Return the advice on batches of the same worlds."""
    parts = [
        play(tasks, rollouts, seed, gamma=1.0, again=batch) for batch in range(batches)
    ]
    renamed = [
        [
            table.with_columns(
                trajectory=pl.format("{}/{}", pl.lit(batch), "trajectory")
            )
            for table in tables
        ]
        for batch, tables in enumerate(parts)
    ]
    steps = pl.concat(
        table.with_columns(iteration=pl.lit(batch))
        for batch, (table, _) in enumerate(renamed)
    )
    truth = pl.concat(table for _, table in renamed)
    exact = table_gradients(truth.lazy())
    return advise(steps.lazy(), read_variants(names, SETTINGS), lambda _: exact)


def of_parts(*rows):
    """Return the advice of estimators whose groups have these parts of gains, in one batch, without other noise."""
    names = [f"estimator {number}" for number in range(len(rows))]
    parts = np.array([*rows, rows[0]], float)
    none = np.zeros((len(parts), len(parts)))
    apart = np.zeros((3, len(rows), len(rows)))
    return concluded(names, parts, none, apart, batches=1, rollouts=200.0, kl=0.01)


def test_ranks_are_intervals():
    """Two estimators that differ by noise, and a third that is below both in every group, by 1 ± 0.1."""
    noise = np.array([1, -1, 1, -1, 1, -1, 1, -1]) / 10
    found = of_parts(2 + noise, 2 + noise[::-1] / 2, 1 + noise)
    assert found.ranks.select("estimator", "rank_low", "rank_high").rows() == [
        ("estimator 0", 1, 2),
        ("estimator 1", 1, 2),
        ("estimator 2", 3, 3),
    ]
    assert found.best == ["estimator 0", "estimator 1"]
    assert report.verdict(found).startswith(
        "Nothing separates estimator 0 and estimator 1: keep the one"
    )
    # The sum of eight differences is 8 ± 0 for the first and the third: an interval without width.
    assert found.ranks.row(2, named=True)["difference_low"] == pytest.approx(-8)


def test_one_estimator_above_all_is_recommended():
    noise = np.array([1, -1, 1, -1, 1, -1, 1, -1]) / 10
    found = of_parts(1 + noise, 2 - noise)
    assert found.best == ["estimator 1"]
    assert (
        report.verdict(found)
        == "Train with estimator 1: its gain is above that of every other estimator."
    )


def test_the_groups_needed_are_those_of_a_paired_test():
    """Differences of 1/2 ± 1 per group: 34 groups find them with a power of 80% (G*Power 3.1, one sample, d = 0.5)."""
    assert pairs_needed(0.5, 1.0) == 34
    spread = np.array([-1.0, 1.0] * 5)
    spread /= spread.std(ddof=1)
    found = of_parts(3.5 + spread, np.full(10, 3.0))
    row = found.differences.row(0, named=True)
    assert row["low"] < 0 < row["value"]
    assert row["groups"] == 34
    assert "about 24 more groups like these 10 would separate" in report.verdict(found)


def test_halves_are_those_of_a_t_test():
    """Of 1 to 6 drawn as 3 and 3, half of the difference of the means is scaled to the sum of six."""
    parts = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0])
    rng = np.random.default_rng(1)
    drawn = np.random.default_rng(1).permutation(parts[:6])
    one = drawn[:3]
    other = drawn[3:]
    value, _, high = halves(parts, 1, rng)
    assert value == pytest.approx(3 * (one.mean() - other.mean()))
    pooled = (one.var(ddof=1) + other.var(ddof=1)) / 2
    # Student's 97.5% quantile of four degrees of freedom is 2.776.
    assert high - value == pytest.approx(2.776 * 3 * (pooled * 2 / 3) ** 0.5, rel=0.01)
    assert halves(parts[:4], 1, rng) == (None, None, None)


def test_sums_and_slopes_of_a_logit_table_are_those_of_vectors():
    """Two steps of one state with the probabilities 1/4 and 3/4, and a step of another with 1/2, 1/3, 1/6."""
    table = LogitTable(
        pl.DataFrame(),
        np.array([0, 1, 0, 1, 2, 3, 4]),
        np.array([1 / 4, 3 / 4, 1 / 4, 3 / 4, 1 / 2, 1 / 3, 1 / 6]),
        np.array([0, 2, 4, 7]),
        np.array([0, 3, 5]),
        5,
    )
    vectors = np.array(
        [
            [3 / 4, -3 / 4, 0, 0, 0],
            [-1 / 4, 1 / 4, 0, 0, 0],
            [0, 0, -1 / 2, 2 / 3, -1 / 6],
        ]
    )
    numbers = np.array([0, 2])
    weights = np.array([[1.0, -2.0], [0.5, 3.0]])
    assert table.summed(weights, numbers) == pytest.approx(weights @ vectors[numbers])
    directions = np.array([[1.0, 2.0, 3.0, -4.0, 5.0], [0.0, 1.0, 0.0, 1.0, 0.0]])
    assert table.slopes(directions, np.array([2, 1, 0])) == pytest.approx(
        vectors[::-1] @ directions.T
    )
    # Variances: of 1 and 2 with 1/4, 3/4: 3/16; of 3, -4, 5 with 1/2, 1/3, 1/6: 4.5 + 16/3 + 25/6 - 1 = 13.
    products = table.products(directions, numbers, np.array([2.0, 1.0]))
    assert products[0, 0] == pytest.approx(2 * 3 / 16 + 13)
    # Covariances with 0, 1: 2 · 3/4 - 7/4 · 3/4 = 3/16; with 0, 1, 0: -4/3 - 1 · 1/3 = -5/3.
    assert products[0, 1] == pytest.approx(2 * 3 / 16 - 5 / 3)


def test_chance_keeps_the_advantages_of_a_group():
    steps, _ = play(2, 4, 1)
    (variant,) = read_variants(["grpo"], SETTINGS)
    both = [variant.estimator, permuted(variant, 3).estimator]
    found = compute_many(steps.lazy(), both).collect()
    for _, group in found.group_by("task_id"):
        assert sorted(group["(estimate 1)"]) == sorted(group["(estimate chance)"])
    assert (found["(estimate 1)"] != found["(estimate chance)"]).any()


def test_steps_differ_in_sign_or_in_size():
    """Of two groups of two rollouts, one has both outcomes: three steps, advantages 1, 2, -1 and 1, 8, 1."""
    steps = pl.DataFrame(
        {
            "task_id": ["a", "a", "a", "b", "b"],
            "trajectory": ["a1", "a1", "a2", "b1", "b2"],
            "step": [0, 1, 0, 0, 0],
            "reward": [0.0, 1.0, 0.0, 1.0, 1.0],
            "won": [False, True, False, True, True],
            "action_valid": True,
            "one": [1.0, 2.0, -1.0, 5.0, -5.0],
            "other": [1.0, 8.0, 1.0, -5.0, 5.0],
        }
    )
    variants = read_variants(["test_advise:stored", "test_advise:stored:name=other"])
    # In units of √6 and √66: .41, .82 and .12, .98; the first is more than twice the other, the second is not.
    assert steps_apart(steps, variants)[:, 0, 1].tolist() == [1, 1, 3]


def stored(steps, *, name: str = "one"):
    """An estimator whose advantages are a column."""
    return steps.with_columns(advantage=pl.col(name))


def test_equal_estimators_are_never_separated():
    found = advised([PERFECT, f"{PERFECT}:scale=2.0"], tasks=8)
    assert found.known
    assert not found.best
    assert found.ranks.select("rank_low", "rank_high").rows() == [(1, 2), (1, 2)]
    assert "no number of groups that can be played would separate" in report.verdict(
        found
    )
    # Advantages are compared in units of their own size.
    assert (
        found.differences.row(0, named=True)["sign"],
        found.differences.row(0, named=True)["size"],
    ) == (0.0, 0.0)


@pytest.mark.slow
def test_the_truth_is_separated_from_noise():
    found = advised([PERFECT, NOISE], tasks=12, rollouts=16, batches=4)
    assert found.best == [PERFECT]
    assert found.gains.batches == 4
    chance = found.controls.row(1, named=True)
    assert chance["low"] < 0 < chance["high"]
    assert report.verdict(found).startswith(f"Train with {PERFECT}")


def test_too_few_decided_groups_are_no_ranking():
    """Wins and losses in three groups are too few, and what is missing is said."""
    steps, truth = play(8, 8, 1, gamma=1.0)
    lost = pl.col("task_id").rank("dense") > 4
    steps = steps.with_columns(
        won=pl.when(lost).then(pl.lit(value=False)).otherwise("won")
    )
    found = advise(
        steps.lazy(),
        read_variants(["grpo,gigpo"]),
        lambda _: table_gradients(truth.lazy()),
    )
    assert not found.known
    assert found.best == []
    assert re.match(
        r"No ranking: [0-4] of 8 groups have both outcomes, and intervals need 5\.",
        report.verdict(found),
    )
    # Halves of so few groups have no estimate, which is not a difference of 0. The title fits beside the numbers.
    assert report.rows(found)[-2] == ["A/A: halves of groups", "", "", "", ""]
    few = steps.filter(pl.col("trajectory").str.slice(-3).is_in(["000", "001"]))
    with pytest.raises(
        InputError,
        match="expected groups of at least 4 complete rollouts, received 8 smaller groups",
    ):
        advise(
            few.lazy(),
            read_variants(["grpo,gigpo"]),
            lambda _: table_gradients(truth.lazy()),
        )


def test_the_setting_is_read_by_training():
    from hgpo_train.training.config import load_config

    settings = ["reward=success", "gamma=0.9"]
    (variant,) = read_variants(["grpo:cross_steps=false"], settings=settings)
    words = report.setting(variant, settings)
    advantage = load_config("tiny-webshop", words[1::2]).advantage
    assert advantage.estimator == "grpo"
    assert (
        advantage.parameters.items()
        >= {"reward": "success", "gamma": 0.9, "cross_steps": False}.items()
    )


@pytest.mark.slow
def test_the_command_advises_on_a_run_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    environment = [
        "--env",
        "HGPO/WebShop-v0",
        "--policy",
        "softmax",
        "--policy-option",
        "skill=1.4",
    ]
    invoke("rollout", *environment, "--tasks", 12, "--group-size", 8, "--out", "run")
    before = {
        path: path.read_bytes()
        for path in (tmp_path / "run").rglob("*")
        if path.is_file()
    }
    printed = invoke("advise", "run", "-e", "grpo,hgpo", "-o", "advice.svg")
    assert "one logit for each state and action of softmax" in " ".join(printed.split())
    assert (tmp_path / "advice.svg").read_text("utf-8").startswith("<svg")
    document = orjson.loads(invoke("advise", "run", "-e", "grpo,hgpo", "--json"))
    assert document["groups"] == 12
    assert document["verdict"] in " ".join(printed.split())
    assert {row["estimator"] for row in document["estimators"]} == {"grpo", "hgpo"}
    # By default, none over trees; branches are left out, as they are no independent rollouts.
    invoke("branch", "run", "--budget", 100)
    branched = orjson.loads(invoke("advise", "run-branched", "--json"))
    gains = {row["estimator"]: row["gain"] for row in branched["estimators"]}
    assert not gains.keys() & {"carl", "tree_grpo", "tree_hgpo", "tree_loo"}
    for row in document["estimators"]:
        assert gains[row["estimator"]] == pytest.approx(row["gain"], rel=1e-12)
    weights = orjson.loads(
        invoke("advise", "run", "-e", "grpo,hgpo", "--model", "softmax", "--json")
    )
    assert weights["gradients"] == "weights of softmax"
    assert {
        path: path.read_bytes()
        for path in (tmp_path / "run").rglob("*")
        if path.is_file()
    } == before
    for options, line in (
        (["-e", "grpo"], "-e: expected at least two estimators, received grpo"),
        (["-e", "grpo,hppo"], "unknown estimator 'hppo'"),
        (["--iteration", 3], "--iteration: expected 0, which run has, received 3"),
        (["--kl", 0], "--kl: expected a number above 0 and at most 1, received 0"),
        (
            ["--kl", 1e308],
            "--kl: expected a number above 0 and at most 1, received 1e+308",
        ),
        (
            ["--seed", -1],
            "--seed: expected an integer from 0 to 4294967295, received -1",
        ),
        (["-o", "advice.txt"], "--out advice.txt: expected a file that ends in"),
        (["-o", "run/advice.svg"], "expected an output file outside of the input"),
        (["--device", "cpu"], "--device is an option of --model"),
    ):
        with pytest.raises(InputError, match=re.escape(line)):
            invoke("advise", "run", *options)


@pytest.mark.slow
def test_runs_without_known_probabilities_are_refused(tmp_path):
    steps, _ = play(2, 8, 1)
    store(steps, tmp_path / "run")
    with pytest.raises(
        InputError, match="or name the model that played the run with --model"
    ):
        invoke("advise", tmp_path / "run")
    assert outcome("advise", tmp_path / "nothing")
