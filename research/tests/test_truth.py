"""Truth in worlds that are solved by hand: equal to their values, within its errors, and within its budget."""

import numpy as np
import polars as pl
import pytest
import ring
from ring import RingEngine, RingPolicy
from truths import GUESS, UNIT, truth_of, within_errors

from hgpo_envs.hashing import text_hash
from hgpo_research.truth import (
    Budget,
    Rewards,
)
from hgpo_research.truth.graph import Graph
from hgpo_research.truth.places import Step
from hgpo_research.truth.task import task_truth
from hgpo_train.rollout import collect

# A world that is solved by hand


@pytest.fixture(scope="module")
def guesses(tmp_path_factory):
    """Rollouts of a guessing game with 4 attempts, without `fork` and `key`; a guess is right with probability 1/3."""
    folder = tmp_path_factory.mktemp("guess") / "run"
    return collect(
        GUESS,
        "random",
        folder,
        tasks=5,
        group_size=6,
        seed=1,
        action_format="command",
        limit=4,
    )


def by_hand(left):
    """Return V with a number of attempts left: the game is won at attempt n with probability (2/3)^n / 3."""
    return sum(0.9**n * (2 / 3) ** n / 3 for n in range(left))


def test_a_small_game_is_solved_exactly(guesses, tmp_path):
    table = truth_of(guesses, tmp_path / "truth.parquet")
    assert table["exact"].all()
    assert table["rollouts"].max() == 0
    for row in table.iter_rows(named=True):
        value = by_hand(4 - row["step"])
        q = row["reward"] if row["terminated"] else 0.9 * by_hand(3 - row["step"])
        assert (
            row["value"]
            == row["value_first"]
            == row["value_second"]
            == pytest.approx(value, abs=1e-12)
        )
        assert (row["q"], row["advantage"]) == pytest.approx((q, q - value), abs=1e-12)
        assert row["value_error"] == row["q_error"] == row["advantage_error"] == 0
        assert row["probabilities"] == pytest.approx([1 / 3] * 3)
        assert row["choice"] == int(row["action"])
        assert row["prompt_hash"] == text_hash(row["prompt"])


def test_monte_carlo_of_the_same_game_is_within_its_errors(guesses, tmp_path):
    table = truth_of(guesses, tmp_path / "truth.parquet", rollouts=64, exact_nodes=0)
    assert table.filter(pl.col("value_error") > 0).height > 20
    assert within_errors(table, "value", [by_hand(4 - step) for step in table["step"]])
    # all three guesses of some attempts were taken: nothing is left to chance
    last = table.filter(step=3)
    assert last.filter("exact").height == last.filter(pl.col("value_error") == 0).height


@pytest.mark.slow
def test_more_rollouts_until_the_error_is_small(guesses, tmp_path):
    few, many, capped = (
        truth_of(
            guesses,
            tmp_path / f"{number}.parquet",
            rollouts=4,
            exact_nodes=0,
            **budget,
        )
        for number, budget in enumerate(
            [{}, {"error": 0.03}, {"error": 1e-9, "most_rollouts": 8}]
        )
    )
    root = many.group_by("task_id").agg((pl.col("advantage_error") ** 2).mean().sqrt())[
        "advantage_error"
    ]
    assert root.max() <= 0.03 < np.sqrt((few["advantage_error"] ** 2).mean())
    assert capped["rollouts"].max() <= 8


def test_numbers_of_rollouts_are_rounded_up(guesses, tmp_path):
    given = [
        ({"rollouts": 1}, 4),
        ({"rollouts": 5}, 6),
        ({"error": 1e-9, "most_rollouts": 1}, 4),
    ]
    for number, (budget, made) in enumerate(given):
        table = truth_of(
            guesses, tmp_path / f"{number}.parquet", exact_nodes=0, **budget
        )
        assert table["rollouts"].max() == made


def test_a_policy_that_never_gives_the_action(tmp_path):
    """Values of another policy than the run's: Q of any action, without a choice where the policy never takes it."""
    run = collect(
        GUESS,
        lambda _: "x",
        tmp_path / "run",
        tasks=2,
        group_size=1,
        limit=3,
    )
    table = truth_of(run, tmp_path / "truth.parquet", policy="random")
    assert table["choice"].null_count() == table.height == 6
    assert within_errors(table, "value", [by_hand(3 - step) for step in table["step"]])
    assert within_errors(
        table, "q", [0.9 * by_hand(2 - step) for step in table["step"]]
    )


# A ring of places, in which rollouts meet again and again


def ring_truth(played, rewards=UNIT, entropy=0, graph=None, **budget):
    graph = graph or Graph(ring.SHARED, ring.SETTINGS, RingPolicy(), rewards, "ring")
    return task_truth(graph, played, rewards, Budget(**budget), [entropy])


def ring_rollouts(number, seed):
    rng = np.random.default_rng(seed)
    rollouts = []
    for _ in range(number):
        engine = RingEngine()
        last = None
        steps = []
        state = engine.start("ring")
        while not state.terminated and len(steps) < ring.LIMIT:
            last = str(rng.choice(ring.ACTIONS, p=ring.probabilities(state.text, last)))
            before = state.text
            state = engine.act(last)
            steps.append(Step(before, last, last, valid=True, reward=state.reward))
        rollouts.append(steps)
    return rollouts


def ring_by_hand(rollouts):
    """Return V, Q and A of all steps."""
    found = []
    for steps in rollouts:
        engine = RingEngine()
        last = None
        for number, step in enumerate(steps):
            value = ring.value(engine.place, last, number, 0.9)
            q = ring.q(engine.place, step.action, number, 0.9)
            found.append((value, q, q - value))
            engine.act(step.action)
            last = step.action
    return dict(zip(("value", "q", "advantage"), np.array(found).T, strict=True))


@pytest.fixture(scope="module")
def repeated():
    """Truths of six rollouts with M = 16, from 300 seeds, and what is true."""
    rollouts = ring_rollouts(6, seed=5)
    graph = Graph(ring.SHARED, ring.SETTINGS, RingPolicy(), UNIT, "ring")
    tables = [
        ring_truth(rollouts, entropy=seed, graph=graph, exact_nodes=0)[0]
        for seed in range(300)
    ]
    columns = {
        name: np.array([table[name] for table in tables])
        for name in tables[0]
        if name != "probabilities"
    }
    return columns, ring_by_hand(rollouts)


def test_the_ring_is_solved_exactly():
    rollouts = ring_rollouts(4, seed=1)
    columns, steps = ring_truth(rollouts)
    assert steps == 0
    for name, true in ring_by_hand(rollouts).items():
        assert columns[name] == pytest.approx(true, abs=1e-12)


@pytest.mark.parametrize("name", ["value", "q", "advantage"])
def test_estimates_have_no_bias_and_their_errors_are_those_of_repetitions(
    repeated, name
):
    """Errors and standard errors have the same mean square, and their ratio a standard deviation near 1."""
    columns, true = repeated
    away = columns[name] - true[name]
    spread = away.std(0) / np.sqrt(len(away))
    assert (np.abs(away.mean(0)) <= 4.5 * spread + 1e-12).all()
    assert (spread > 0).sum() > 8
    errors = columns[f"{name}_error"]
    assert 0.9 < (away**2).sum() / (errors**2).sum() < 1.1
    units = away[errors > 0] / errors[errors > 0]
    assert 0.9 < units.std() < 1.25
    assert (np.abs(units) < 2).mean() > 0.9
    assert np.abs(away[errors == 0]).max(initial=0.0) < 1e-12


@pytest.mark.parametrize("name", ["value", "advantage"])
def test_halves_are_independent(repeated, name):
    columns, true = repeated
    first, second = (columns[f"{name}_{half}"] for half in ("first", "second"))
    # the steps of a seed are not independent
    each = ((first - true[name]) * (second - true[name])).mean(1)
    assert abs(each.mean()) < 4 * each.std() / np.sqrt(len(each))
    assert columns[name] == pytest.approx((first + second) / 2, abs=1e-12)


def test_common_random_numbers_make_advantages_better_than_values(repeated):
    """Q and V of a step share most of what is random: their difference has less noise than independent ones."""
    columns, true = repeated
    squares = {name: ((columns[name] - true[name]) ** 2).sum() for name in true}
    assert squares["advantage"] < 0.7 * (squares["value"] + squares["q"])


def test_a_budget_in_steps_is_spent_and_is_a_limit_for_an_error():
    rollouts = ring_rollouts(3, seed=5)

    def truth(**budget):
        return ring_truth(
            rollouts,
            Rewards(reward_scale=1),
            entropy=1,
            exact_nodes=0,
            **budget,
        )

    for budget in (2_000, 20_000):
        columns, steps = truth(steps=budget)
        assert 0.8 * budget < steps < 1.2 * budget
        assert max(columns["rollouts"]) > 16
    columns, steps = truth(rollouts=8, error=0.02, steps=1_000_000)
    assert steps < 100_000
    assert np.sqrt(np.mean(np.square(columns["advantage_error"]))) <= 0.02
    assert truth(rollouts=8, error=1e-9, steps=2_000)[1] < 2_400
    columns, _ = truth(rollouts=8, steps=1)
    assert max(columns["rollouts"]) == 4


@pytest.mark.slow
def test_a_budget_in_steps_does_not_depend_on_what_the_rollouts_return():
    """The trial is no part of the estimates, so that choosing their number from it leaves them without bias."""
    rollouts = ring_rollouts(2, seed=5)
    graph = Graph(ring.SHARED, ring.SETTINGS, RingPolicy(), UNIT, "ring")
    found = [
        ring_truth(rollouts, entropy=seed, graph=graph, steps=120, exact_nodes=0)[0]
        for seed in range(250)
    ]
    away = (
        np.array([columns["advantage"] for columns in found])
        - ring_by_hand(rollouts)["advantage"]
    )
    assert (
        np.abs(away.mean(0)) <= 4.5 * away.std(0) / np.sqrt(len(away)) + 1e-12
    ).all()
