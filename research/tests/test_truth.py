"""Truth: equal to worlds that are solved by hand and by brute force, unbiased, and the same bytes however computed."""

import foreign  # noqa: F401 - registers Foreign/Guess-v0
import numpy as np
import polars as pl
import pytest
import ring
from ring import Asked, RingEngine, RingPolicy

from hgpo_envs.episode import Episode
from hgpo_envs.hashing import text_hash
from hgpo_research.policies.distributions import Distribution, known_policy
from hgpo_research.truth import (
    Budget,
    Rewards,
    plan_truth,
    write_truth,
)
from hgpo_research.truth.graph import Graph
from hgpo_research.truth.places import Step
from hgpo_research.truth.task import task_truth
from hgpo_train.advantages.advantage_tables import join_advantages
from hgpo_train.policies.base import Request
from hgpo_train.rollout import PolicyContext, collect, open_env

GUESS = "foreign:Foreign/Guess-v0"
UNIT = Rewards(reward_scale=1, gamma=0.9)


def truth_of(run, out, rewards=UNIT, *, policy=None, **budget):
    """Return the rows of a run, joined with their truth."""
    write_truth(
        plan_truth(
            run.path,
            rewards,
            Budget(**budget),
            policy=policy,
            allow=[GUESS],
        ),
        out,
    )
    return join_advantages(run.steps, pl.scan_parquet(out)).collect()


def within_errors(table, name, expected, errors=4.0):
    away = np.abs(table[name].to_numpy() - expected)
    return (away <= errors * table[f"{name}_error"].to_numpy() + 1e-9).all()


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


# Brute force


def replayed(handle, policy, task, responses):
    """Return an episode after some responses, and the distribution of a policy that has seen its requests."""
    known = policy()  # a new one, unless it has no memory
    episode = Episode(handle.shared, handle.settings)
    episode.start(task)
    for number in range(len(responses) + 1):
        now = (
            episode.task,
            episode.state,
            episode.engine,
            episode.prompt,
            episode.history,
        )
        request = Request(number, episode.prompt(), 0, 7, number, *now)
        if number < len(responses):
            known.observe(request)
            episode.act(responses[number])
    return episode, known.distributions([request])[0]


def by_replays(handle, policy, task, responses, rewards):
    """Return V after some responses by its definition; each node is reached by a replay from the start."""
    _, found = replayed(handle, policy, task, responses)
    total = 0.0
    for response, probability in zip(
        found.responses, found.probabilities.tolist(), strict=True
    ):
        taken = [*responses, response]
        after, _ = replayed(handle, policy, task, taken)
        reward = rewards.reward_scale * after.state.reward - (
            0.0 if after.action_valid else rewards.invalid_action_penalty
        )
        later = (
            0.0
            if after.done
            else rewards.gamma * by_replays(handle, policy, task, taken, rewards)
        )
        total += probability * (reward + later)
    return total


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "name", "limit", "options"),
    [
        ("HGPO/ALFWorld-v0", "softmax", 3, {"skill": 0.3}),
        (
            "HGPO/WebShop-v0",
            "softmax",
            3,
            {"skill": 0.5, "temperature": 2.0},
        ),
        ("HGPO/ALFWorld-v0", "mixture:explorer=0.7,expert=0.3", 8, {}),
        ("HGPO/ALFWorld-v0", "mixture:explorer=0.7,outdated=0.3", 3, {}),
        ("HGPO/WebShop-v0", "mixture:explorer=0.8,expert=0.2", 4, {}),
    ],
)
def test_the_last_two_steps_of_episodes_equal_replays(
    env_id, name, limit, options, tmp_path
):
    softmax = name == "softmax"
    rewards = Rewards(reward_scale=10, gamma=0.9, invalid_action_penalty=5.0)
    env = {
        "action_format": "response" if softmax else "command",
        "max_steps": limit,
    }
    run = collect(
        env_id,
        name,
        tmp_path / "run",
        tasks=5,
        group_size=1,
        seed=3,
        policy_options=options,
        **env,
    )
    handle = open_env(env_id, **env)
    context = PolicyContext(handle.shared.source.name, env["action_format"], options)
    one = known_policy(name, context)
    exact = truth_of(run, tmp_path / "exact.parquet", rewards, exact_nodes=1_000_000)
    sampled = truth_of(
        run,
        tmp_path / "sampled.parquet",
        rewards,
        exact_nodes=0,
        rollouts=64,
    )
    assert exact["exact"].all()
    assert (sampled["value_error"] > 0).any()
    for column in ("value", "q", "advantage"):
        assert within_errors(sampled, column, exact[column].to_numpy(), 4.5)
        assert exact[column].std() > 0.01

    def policy():
        return one if softmax else known_policy(name, context)

    checked = []
    for rows in exact.partition_by("trajectory", maintain_order=True)[
        : 1 if softmax else 5
    ]:
        responses = rows["response"].to_list()
        for step in range(max(0, limit - 2), rows.height):
            expected = by_replays(
                handle,
                policy,
                rows["task_id"][0],
                responses[:step],
                rewards,
            )
            assert rows["value"][step] == pytest.approx(expected, abs=1e-9)
            checked.append(expected)
    assert len(checked) >= (2 if softmax else 4)
    assert softmax or np.abs(checked).max() > 1.0


def test_a_deterministic_policy_is_solved_exactly(tmp_path):
    """The expert's values: it wins, so that V is the discount of the steps that are left, and A is 0."""
    run = collect("HGPO/ALFWorld-v0", "expert", tmp_path / "run", tasks=2, seed=1)
    table = truth_of(run, tmp_path / "truth.parquet")
    assert table["exact"].all()
    for rows in table.partition_by("trajectory"):
        assert rows["won"][-1]
        assert rows["value"].to_list() == pytest.approx(
            [0.9**left for left in reversed(range(rows.height))]
        )
        assert rows["advantage"].to_list() == pytest.approx([0.0] * rows.height)


def test_trees_are_forgotten_between_chunks(monkeypatch):
    """Memory is bounded, and the estimates have no bias: with one pair of replicates at a time, and many at once."""
    handle = open_env("HGPO/ALFWorld-v0", max_steps=5, action_format="command")
    rewards = Rewards(reward_scale=1, invalid_action_penalty=1.0)

    def policy():
        return known_policy(
            "mixture:explorer=0.5,random=0.5",
            PolicyContext("ALFWorld", "command"),
        )

    episode, _ = replayed(handle, policy, handle.tasks[0], [])
    steps = []
    for _ in range(5):
        before = episode.state
        episode.act(before.actions[0])
        steps.append(
            Step(
                before.text,
                episode.action,
                episode.action,
                valid=episode.action_valid,
                reward=0.0,
            )
        )
    sizes = []
    found = []
    for estimates in (1, 1 << 20):
        monkeypatch.setattr("hgpo_research.truth.task._CHUNK_OF_TREES", estimates)
        graph = Graph(
            handle.shared,
            handle.settings,
            policy(),
            rewards,
            handle.tasks[0],
        )
        columns = task_truth(
            graph, [steps], rewards, Budget(rollouts=40, exact_nodes=0), [1]
        )[0]
        found.append((np.array(columns["value"]), np.array(columns["value_error"])))
        sizes.append(graph.nodes)
    assert sizes[0] < 0.3 * sizes[1]
    (one, error), (other, its_error) = found
    assert (np.abs(one - other) <= 4.5 * np.hypot(error, its_error) + 1e-9).all()


class Prompted(Asked):
    """A policy whose probabilities are a hash of the prompt."""

    prompt_read = True
    history_read = None

    def distributions(self, requests):
        return [
            Distribution(("look", "x"), weights(request.prompt)) for request in requests
        ]


def weights(prompt):
    first = 0.05 + 0.9 * (text_hash(prompt) % 1000) / 1000
    return np.array([first, 1 - first])


def test_prompts_are_those_of_the_episodes():
    handle = open_env(
        "HGPO/ALFWorld-v0",
        max_steps=6,
        history_length=2,
        action_format="command",
    )
    graph = Graph(handle.shared, handle.settings, Prompted(), UNIT, handle.tasks[0])
    episode = Episode(handle.shared, handle.settings)
    node = graph.start
    episode.start(handle.tasks[0])
    for action in (
        "look",
        "go to nowhere",
        "inventory",
        episode.state.actions[3],
        "look",
    ):
        graph.prepare([node])
        assert graph.probabilities(node) == pytest.approx(
            weights(episode.prompt()), abs=1e-9
        )
        episode.act(action)
        node = graph.follow(node, action)[0]


# What must hold on the benchmarks


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("HGPO/ALFWorld-v0", marks=pytest.mark.slow),
        "HGPO/WebShop-v0",
    ],
)
def checked(request, tmp_path_factory):
    """A run of a policy that wins sometimes, with its truth."""
    folder = tmp_path_factory.mktemp("checked")
    alfworld = "ALFWorld" in request.param
    options = {"skill": 0.6} if alfworld else {"temperature": 1.5}
    steps = {"max_steps": 12} if alfworld else {}
    run = collect(
        request.param,
        "softmax",
        folder / "run",
        tasks=10,
        group_size=4,
        policy_options=options,
        seed=4,
        **steps,
    )
    table = truth_of(
        run,
        folder / "truth.parquet",
        Rewards(reward_scale=1, gamma=0.95),
        rollouts=8,
    )
    discount = 0.95 ** pl.col("step")
    total = (pl.col("reward") * discount).cum_sum().over("trajectory") / discount
    return table.sort("trajectory", "step", descending=[False, True]).with_columns(
        total=total
    )


def ratio_by_task(table, above, below):
    """Return a ratio of sums and its standard error by the jackknife over tasks."""
    sums = table.group_by("task_id", maintain_order=True).agg(
        above.sum().alias("a"), below.sum().alias("b")
    )
    a = sums["a"].to_numpy()
    b = sums["b"].to_numpy()
    left = (a.sum() - a) / (b.sum() - b)
    return a.sum() / b.sum(), np.sqrt((len(a) - 1) * left.var())


def test_returns_minus_values_have_slope_1_on_advantages(checked):
    """The noise of truth is in both: it is taken out by using one half for V and the other one for A, both ways."""
    first = (pl.col("total") - pl.col("value_first")) * pl.col("advantage_second")
    second = (pl.col("total") - pl.col("value_second")) * pl.col("advantage_first")
    slope, error = ratio_by_task(
        checked,
        first + second,
        2 * pl.col("advantage_first") * pl.col("advantage_second"),
    )
    assert error < 0.3
    assert abs(slope - 1) < 4 * error


def test_values_and_advantages_have_no_bias_and_their_halves_agree(checked):
    for away in (pl.col("total") - pl.col("value"), pl.col("advantage")):
        mean, error = ratio_by_task(checked, away, pl.col("step") * 0 + 1)
        assert abs(mean) < 4 * error
        assert error < 0.05
    for name in ("value", "advantage"):
        first, second = (
            checked[f"{name}_{half}"].to_numpy() for half in ("first", "second")
        )
        assert checked[name].to_numpy() == pytest.approx(
            (first + second) / 2, abs=1e-12
        )
        assert (
            0.3
            < ((first - second) ** 2).mean()
            / float((4 * checked[f"{name}_error"] ** 2).mean())
            < 1.5
        )


def test_choices_are_those_of_the_policy(checked):
    assert checked["choice"].null_count() == 0
    assert checked["probabilities"].list.sum().to_numpy() == pytest.approx(1)
    assert (checked["probabilities"].list.get(checked["choice"]) > 0).all()
