"""Protocols against simulated draws, known distributions, reporting rules, and episodes that are really played so."""

import math
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from benchmarks.protocols import reach
from hgpo_datasets import scan_steps
from hgpo_envs.task_sampling import verl_agent
from hgpo_train.evaluation import episode_table, evaluate
from hgpo_train.evaluation.protocol_variations import (
    played_effects,
    unpaired_difference,
)
from hgpo_train.evaluation.protocols import (
    WORKER_SEED,
    Reference,
    best_checkpoint,
    drawn,
    drawn_by_workers,
    drawn_with_repeats,
    other_seeds,
    paired_difference,
    read_reference,
    recounted,
    reseeded,
    shorter,
    spread,
    table_effects,
)
from hgpo_train.evaluation.reporting_rules import success_by_rule
from hgpo_train.panels import load_panel
from hgpo_train.proportions import Z, paired_interval

ENDS = {"won": True, "lost": False, "limit": False, "aborted": None}


def table(*seeds, lengths=5):
    """Return rollouts: for each seed, how each task ended."""
    rows = []
    for seed, ends in enumerate(seeds):
        for task, end in enumerate(ends):
            row = {
                "env_id": "HGPO/ALFWorld-v0",
                "task_id": f"{task}",
                "seed": seed,
                "won": ENDS[end],
            }
            rows.append(
                row
                | {
                    "aborted": end == "aborted",
                    "truncated": end == "limit",
                    "length": float(lengths),
                }
            )
    return pl.DataFrame(rows, schema_overrides={"won": pl.Boolean})


def solved(wins, tasks):
    return Reference(table(["won"] * wins + ["lost"] * (tasks - wins)))


def deviation(effect):
    """Return the standard deviation whose interval an effect has, if 0 and 1 are far."""
    assert effect.kind == "spread"
    return (effect.high - effect.low) / (2 * Z)


# ------------------------------------------------------------------------------------------------------------- draws


def test_the_workers_of_verl_agent_draw_91_of_140_games():
    """The number is that of the original: 128 validation workers with the seeds from 1000 on."""
    drawn_games = {
        next(verl_agent([f"{n}" for n in range(140)], WORKER_SEED + worker))
        for worker in range(128)
    }
    assert len(drawn_games) == 91


@pytest.mark.parametrize(("environments", "wins"), [(64, 98), (128, 98), (128, 73)])
def test_draws_have_the_spread_of_the_hypergeometric_and_binomial_distributions(
    environments, wins
):
    share = wins / 140
    hypergeometric = share * (1 - share) / environments * (140 - environments) / 139
    binomial = share * (1 - share) / environments
    reference = solved(wins, 140)
    without = drawn(environments, 1 / environments, reference)
    assert deviation(without) == pytest.approx(math.sqrt(hypergeometric))
    with_repeats = drawn_with_repeats(environments, reference)
    assert deviation(with_repeats) == pytest.approx(
        math.sqrt(binomial), abs=0.5 / environments
    )


def test_draws_of_a_policy_that_samples_spread_as_drawn_ones_do():
    """Tasks have chances: draws of tasks and of outcomes both count."""
    rng = np.random.default_rng(5)
    chances = rng.choice([0.0, 0.2, 0.7, 1.0], 140)
    within = float((chances * (1 - chances)).mean())
    share = float(chances.mean())
    known = {
        "success": share,
        "within": within,
        "between": float(chances.var()),
        "population": 140,
        "tasks": 140,
    }
    reference = SimpleNamespace(**known)
    places = rng.permuted(np.tile(np.arange(140), (1500, 1)), axis=1)

    # 1. 128 of 140 without repeats, and with.
    numbers = rng.binomial(1, chances[places[:, :128]]).mean(1)
    assert deviation(drawn(128, 1 / 128, reference)) == pytest.approx(
        numbers.std(), rel=0.06
    )
    numbers = rng.binomial(1, chances[rng.integers(0, 140, (1500, 128))]).mean(1)
    # in steps of 1 / 128
    assert deviation(drawn_with_repeats(128, reference)) == pytest.approx(
        numbers.std(), rel=0.12
    )
    # 2. Workers draw fixed places of a list in any order.
    games = [
        int(next(verl_agent([f"{n}" for n in range(140)], WORKER_SEED + worker)))
        for worker in range(128)
    ]
    numbers = rng.binomial(1, chances[places[:, games]]).mean(1)
    assert deviation(drawn_by_workers(128, reference)) == pytest.approx(
        numbers.std(), rel=0.06
    )
    # 3. The best of 30.
    best = (rng.binomial(128, share, (1500, 30)) / 128).max(1)
    found = drawn_with_repeats(128, reference, highest_of=30)
    assert found.effect == pytest.approx(best.mean() - share, abs=0.002)
    assert (found.low, found.high) == pytest.approx(
        np.quantile(best, (0.025, 0.975)) - share, abs=1.01 / 128
    )


def test_the_best_of_two_validations_of_two_draws_by_hand():
    """Wins are 0, 1, 2 with probabilities 1/4, 1/2, 1/4; the higher of two with 1/16, 8/16, 7/16."""
    assert drawn_with_repeats(2, solved(5, 10), highest_of=2).effect == pytest.approx(
        22 / 32 - 1 / 2
    )


def test_what_the_number_of_environments_can_explain_by_hand():
    """Wins are 53.76, 98.56 and 72.8 of 332, .678 of all: chi-squared is 1.68 + 1.08 + 3.50, over .218."""
    found = reach({64: 0.84, 128: 0.77, 140: 0.52})
    assert found["p"] == pytest.approx(math.exp(-28.67 / 2), rel=0.01)
    assert found["draws"] == pytest.approx(
        1.96 * math.sqrt(0.25 / 64 + 0.25 / 140), abs=1e-4
    )
    assert found["tasks"] == pytest.approx(
        1.96 * math.sqrt(0.25 / 64 * 76 / 139), abs=1e-4
    )
    assert found["least"] == pytest.approx(98.56 / 140)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [(1, 0.0), (2, 1 / math.sqrt(math.pi)), (3, 1.5 / math.sqrt(math.pi))],
)
def test_the_highest_of_normal_numbers(numbers, expected):
    found = spread(solved(5, 10), 0.01, numbers)
    assert found.effect == pytest.approx(0.01 * expected, abs=2e-5)
    # independent numbers, all below
    assert NormalDist(0, 0.01).cdf(found.high) ** numbers == pytest.approx(0.975)


def test_seeds_spread_by_the_variance_of_outcomes_of_one_task():
    """Of four tasks, one ends in another way with the second seed: its variance is 1/2, their mean 1/8."""
    reference = Reference(
        table(["won", "won", "lost", "lost"], ["won", "lost", "lost", "lost"])
    )
    assert reference.within == pytest.approx(1 / 8)
    assert reference.between == pytest.approx(3 / 8 * 5 / 8 - 1 / 8)
    assert deviation(reseeded(0.1, reference)) == pytest.approx(math.sqrt(0.1 / 8 / 4))
    again = other_seeds(reference)
    # each mean has half of the variance
    assert again.high == pytest.approx(Z * math.sqrt(1 / 8 / 4))
    assert other_seeds(solved(1, 3)).note.startswith(
        "not known: every task was played once"
    )


# ------------------------------------------------------------------------------------------------------------ counting


@pytest.mark.slow
@given(
    st.lists(
        st.lists(st.sampled_from([*ENDS]), min_size=3, max_size=3),
        min_size=1,
        max_size=3,
    )
)
def test_the_same_rollouts_count_as_under_the_reporting_rules(seeds):
    reference = Reference(table(*seeds))
    counted = success_by_rule(reference.rollouts)
    if counted["aborted dropped"].success is None:
        return
    found = {each.protocol: each for each in table_effects(reference)}
    for name, rule in (
        ("failed lost", "aborted lost"),
        ("failed won", "aborted won"),
        ("limit won", "limit won"),
    ):
        assert found[name].effect == pytest.approx(
            counted[rule].success - reference.success
        )
        assert (
            found[name].low is None
            or found[name].low <= found[name].effect <= found[name].high
        )
    is_whole = not reference.rollouts["aborted"].any()
    notes = [found[name].note for name in ("failed lost", "failed won")]
    assert all(
        (note == "cannot move it: no rollout failed") == is_whole for note in notes
    )


def test_the_interval_is_paired_by_task():
    reference = Reference(
        table(
            ["won", "limit", "limit", "lost"] * 3, ["won", "won", "limit", "lost"] * 3
        )
    )
    found = {each.protocol: each for each in table_effects(reference)}["limit won"]
    assert (found.low, found.high) == pytest.approx(paired_interval([0, 0.5, 1, 0] * 3))


def test_the_interval_of_dropped_rollouts_is_that_of_the_jackknife():
    """By hand: the difference without each task, and the standard error of these."""
    ends = ["won", "lost", "aborted", "won", "aborted", "lost", "won", "won"] * 12
    found = recounted(
        pl.col("won").fill_null(value=False).cast(float), "", Reference(table(ends))
    )
    known = np.array([{"won": 1.0, "lost": 0.0}.get(end, np.nan) for end in ends])
    without = [
        np.delete(np.nan_to_num(known), n).mean() - np.nanmean(np.delete(known, n))
        for n in range(96)
    ]
    away = np.array(without) - np.mean(without)
    error = math.sqrt(95 / 96 * np.square(away).sum())
    # which adds two tasks
    assert deviation(found._replace(kind="spread")) == pytest.approx(error, rel=0.1)


def test_the_best_evaluation_against_the_last():
    evaluations = table(
        ["won", "won", "lost"], ["won", "won", "won"], ["lost", "won", "won"]
    )
    last = Reference(evaluations.filter(seed=2), evaluations)
    assert best_checkpoint(last).effect == pytest.approx(1 / 3)
    assert best_checkpoint(
        Reference(evaluations.filter(seed=1), evaluations)
    ).note.endswith("is the best")
    assert best_checkpoint(Reference(evaluations)).effect is None


@pytest.mark.parametrize(
    ("first", "second", "low", "high"),
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((5, 56), (0, 29), -0.0381, 0.1926),
    ],
)
def test_two_samples_of_tasks_have_the_published_intervals(first, second, low, high):
    """Newcombe 1998, table II, method 10."""
    found = unpaired_difference(solved(*first), solved(*second))
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-5)


def test_what_never_differs_cannot_move_the_number():
    for effect in table_effects(solved(10, 10)):
        assert effect.kind == "none"
        assert effect.note


# ------------------------------------------------------------------------------------------------------------- playing


@pytest.mark.slow
def test_a_shorter_limit_counts_as_if_it_were_played(tmp_path):
    options = {"split": "valid_seen", "seeds": (1, 2), "progress": False}
    tables = []
    for limit in (12, 6):
        run = evaluate(
            "HGPO/ALFWorld-v0",
            "explorer",
            tmp_path / f"{limit}",
            max_steps=limit,
            **options,
        )
        tables.append(Reference(episode_table(scan_steps(run))))
    computed = shorter(6, tables[0])
    assert computed.effect < 0
    assert computed[1:4] == pytest.approx(paired_difference(tables[1], tables[0])[1:4])


@pytest.mark.slow
def test_a_played_policy_has_every_protocol_of_its_benchmark(tmp_path):
    panel = load_panel("alfworld-bundled+seeds=[1]+max_steps=8")
    reference, effects = played_effects(panel, "explorer", tmp_path, progress=False)
    found = {each.protocol: each for each in effects}
    assert [*found] == [
        "played again",
        "put in/on",
        "valid_seen",
        "limit 50",
        "temperature 0",
        "temperature 1",
    ]
    # the explorer solves every bundled game
    assert found["limit 50"].effect == pytest.approx(1 - reference.success)
    assert found["temperature 0"].note.startswith("cannot move it")
    assert read_reference(tmp_path / "valid_seen").tasks == 36  # the whole other split
    # all of it is there
    assert played_effects(panel, "explorer", tmp_path, progress=False)[1] == effects
    assert read_reference(tmp_path / "reference").success == reference.success
    with refused("one run, received those of 5; name one"):
        read_reference(tmp_path)


@pytest.mark.slow
def test_the_command_prints_effects_and_draws_them(hgpo, tmp_path):
    run = tmp_path / "run"
    evaluate(
        "HGPO/ALFWorld-v0",
        "random",
        run,
        split="valid_unseen",
        seeds=(1,),
        max_steps=3,
        progress=False,
    )
    out = hgpo.output("protocols", run, "--plot", tmp_path / "picture.svg")
    assert "limit won" in out
    assert (tmp_path / "picture.svg").read_text("utf-8").startswith("<svg")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected a run, or a policy with a folder"),
        (["--policy", "random"], "expected a run, or a policy with a folder"),
        (
            ["run", "--policy", "random", "--out", "x"],
            "expected a run, or a policy with a folder",
        ),
        (
            ["--policy", "random", "--out", "x", "--panel", "alfworld-bundle"],
            "did you mean 'alfworld-bundled",
        ),
        (
            [
                "--policy",
                "random",
                "--out",
                "x",
                "--panel",
                "alfworld-bundled+env=other",
            ],
            "env",
        ),
        (["run", "--plot", "picture.txt"], "expected a file that ends in"),
    ],
)
def test_wrong_words_are_refused(hgpo, tmp_path, monkeypatch, words, message):
    if "--plot" in words:
        pytest.importorskip("altair")  # otherwise the error names the extra
    monkeypatch.chdir(tmp_path)
    code, _, error = hgpo("protocols", *words)
    assert code == 2
    assert message in error
    assert not list(tmp_path.iterdir())
