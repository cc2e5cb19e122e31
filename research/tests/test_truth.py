"""Truth: equal to worlds that are solved by hand and by brute force, unbiased, and the same bytes however computed."""

import copy
import hashlib
import shutil
import sys
from dataclasses import replace
from types import SimpleNamespace

import foreign  # noqa: F401 - registers Foreign/Guess-v0
import numpy as np
import polars as pl
import pytest
import ring
from command import invoke
from ring import RingEngine, RingPolicy, RingSource

from hgpo_datasets import StepWriter
from hgpo_envs.episode import Episode, settings_for
from hgpo_envs.errors import InputError
from hgpo_envs.hashing import text_hash
from hgpo_envs.sources import SharedSource
from hgpo_research.policies.distributions import Distribution, known_policy, own_policy
from hgpo_research.truth import Budget, Rewards, plan_truth, read_metadata, write_truth
from hgpo_research.truth.graph import Graph
from hgpo_research.truth.places import Step
from hgpo_research.truth.task import task_truth
from hgpo_train.advantages.advantage_tables import join_advantages
from hgpo_train.policies.base import BatchPolicy, Request
from hgpo_train.rollout import PolicyContext, collect, open_env

GUESS = "foreign:Foreign/Guess-v0"
CODE = (GUESS, "doors_env:HGPO-Test/Doors-v0")
"""Environments of the tests, which runs may name."""


def truth_of(run, out, rewards=None, *, policy=None, policy_options=None, **budget):
    how = {"policy": policy, "policy_options": policy_options, "allow": CODE}
    plan = plan_truth(run, rewards or Rewards(reward_scale=1), Budget(**budget), **how)
    write_truth(plan, out)
    return pl.read_parquet(out)


def joined(run, table):
    return join_advantages(run.steps, table.lazy()).collect()


# A world that is solved by hand


@pytest.fixture(scope="module")
def guesses(tmp_path_factory):
    """Rollouts of a guessing game with 4 attempts, without `fork` and `key`; a guess is right with probability 1/3."""
    folder = tmp_path_factory.mktemp("guess") / "run"
    return collect(GUESS, "random", folder, tasks=5, group_size=6, seed=1, action_format="command", limit=4)


def by_hand(left, gamma):
    """Return V with a number of attempts left: the game is won at attempt n with probability (2/3)^n / 3."""
    return sum(gamma**n * (2 / 3) ** n / 3 for n in range(left))


def test_a_small_game_is_solved_exactly(guesses, tmp_path):
    table = joined(guesses, truth_of(guesses.path, tmp_path / "truth.parquet", Rewards(reward_scale=1, gamma=0.9)))
    assert table["exact"].all()
    assert table["rollouts"].max() == 0
    for row in table.iter_rows(named=True):
        value = by_hand(4 - row["step"], 0.9)
        q = row["reward"] if row["terminated"] else 0.9 * by_hand(3 - row["step"], 0.9)
        assert row["value"] == row["value_first"] == row["value_second"] == pytest.approx(value, abs=1e-12)
        assert row["q"] == pytest.approx(q, abs=1e-12)
        assert row["advantage"] == pytest.approx(q - value, abs=1e-12)
        assert row["value_error"] == row["q_error"] == row["advantage_error"] == 0
        assert row["probabilities"] == pytest.approx([1 / 3] * 3)
        assert row["choice"] == int(row["action"])
        assert row["prompt_hash"] == text_hash(row["prompt"])


def test_monte_carlo_of_the_same_game_is_within_its_errors(guesses, tmp_path):
    table = truth_of(
        guesses.path, tmp_path / "truth.parquet", Rewards(reward_scale=1, gamma=0.9), rollouts=64, exact_nodes=0
    )
    expected = np.array([by_hand(4 - step, 0.9) for step in table["step"]])
    values = table.filter(pl.col("value_error") > 0)
    assert values.height > 20
    assert (np.abs(table["value"] - expected) <= 4 * table["value_error"] + 1e-12).all()
    last = table.filter(pl.col("step") == 3)  # all three guesses of some attempts were taken: nothing is left to chance
    assert last.filter("exact").height == last.filter(pl.col("value_error") == 0).height


def test_more_rollouts_until_the_error_is_small(guesses, tmp_path):
    few = truth_of(guesses.path, tmp_path / "few.parquet", rollouts=4, exact_nodes=0)
    many = truth_of(guesses.path, tmp_path / "many.parquet", rollouts=4, exact_nodes=0, error=0.03)
    root = many.group_by("task_id").agg((pl.col("advantage_error") ** 2).mean().sqrt())["advantage_error"]
    assert root.max() <= 0.03 < np.sqrt((few["advantage_error"] ** 2).mean())
    capped = truth_of(guesses.path, tmp_path / "c.parquet", rollouts=4, exact_nodes=0, error=1e-9, most_rollouts=8)
    assert capped["rollouts"].max() <= 8


# Brute force


def brute_force(handle, policy, rewards, task, prefix, deepest):
    """Return V after some responses by the definition: the sum over all responses of the policy, each in a copy."""

    def value(episode):
        request = Request(0, "", 0, 0, episode.steps_taken, episode.task, episode.state, None, str, episode.history)
        found = policy.distributions([request])[0]
        total = 0.0
        for response, probability in zip(found.responses, found.probabilities, strict=True):
            there = copy.deepcopy(episode)
            there.act(response)
            reward = rewards.reward_scale * there.state.reward
            if not there.action_valid:
                reward -= rewards.invalid_action_penalty
            total += probability * (reward + (0.0 if there.done else rewards.gamma * value(there)))
        return total

    episode = Episode(handle.shared, handle.settings)
    episode.start(task)
    for response in prefix:
        episode.act(response)
    assert handle.settings.max_steps - episode.steps_taken <= deepest
    return value(episode)


@pytest.mark.parametrize(
    ("env_id", "steps", "deepest", "options"),
    [
        pytest.param("HGPO/ALFWorld-v0", 3, 2, {"skill": 0.3}, marks=pytest.mark.slow),
        ("HGPO/WebShop-v0", 3, 2, {"skill": 0.5, "temperature": 2.0}),
    ],
)
def test_short_episodes_equal_brute_force(env_id, steps, deepest, options, tmp_path):
    rewards = Rewards(reward_scale=10, gamma=0.9, invalid_action_penalty=5.0)
    run = collect(
        env_id, "softmax", tmp_path / "run", tasks=2, group_size=3, policy_options=options, max_steps=steps, seed=2
    )
    handle = open_env(env_id, max_steps=steps, action_format="response")
    policy = known_policy("softmax", PolicyContext(handle.shared.source.name, "response", options))
    sampled = truth_of(run.path, tmp_path / "sampled.parquet", rewards, rollouts=200, exact_nodes=0)
    exact = truth_of(run.path, tmp_path / "exact.parquet", rewards, exact_nodes=1_000_000)
    assert exact["exact"].all()
    checked = 0
    for (trajectory,), rows in joined(run, exact).group_by("trajectory", maintain_order=True):
        responses = rows["response"].to_list()
        for step, row in enumerate(rows.iter_rows(named=True)):
            if steps - step > deepest or not trajectory.endswith("0"):
                continue
            expected = brute_force(handle, policy, rewards, row["task_id"], responses[:step], deepest)
            assert row["value"] == pytest.approx(expected, abs=1e-9)
            checked += 1
    assert checked >= 2
    for name in ("value", "q", "advantage"):
        away = np.abs(sampled[name] - exact[name])
        assert (away <= 4.5 * sampled[f"{name}_error"] + 1e-9).all()
        assert float(exact[name].std()) > 0.01


# A ring of places, in which rollouts meet again and again


RING = SharedSource(RingSource())
RING_SETTINGS = settings_for("Ring", max_steps=ring.LIMIT)


def ring_graph(gamma):
    return Graph(RING, RING_SETTINGS, RingPolicy(), Rewards(reward_scale=1, gamma=gamma), "ring")


def ring_rollouts(number, seed):
    rng = np.random.default_rng(seed)
    rollouts = []
    for _ in range(number):
        engine = RingEngine()
        last = None
        steps = []
        state = engine.start("ring")
        while not state.terminated and len(steps) < ring.LIMIT:
            action = str(rng.choice(ring.ACTIONS, p=ring.probabilities(state.text, last)))
            before = state
            state = engine.act(action)
            last = action
            steps.append(Step(before.text, action, action, valid=True, reward=state.reward))
        rollouts.append(steps)
    return rollouts


def ring_truth(rollouts, gamma):
    """Return V, Q and A of all steps, by hand."""
    found = []
    for steps in rollouts:
        engine = RingEngine()
        last = None
        for number, step in enumerate(steps):
            values = ring.value(engine.place, last, number, gamma), ring.q(engine.place, step.action, number, gamma)
            found.append((*values, values[1] - values[0]))
            engine.act(step.action)
            last = step.action
    return dict(zip(("value", "q", "advantage"), np.array(found).T, strict=True))


@pytest.fixture(scope="module")
def repeated():
    """Truths of six rollouts with M = 16, from 300 seeds, and what is true."""
    rollouts = ring_rollouts(6, seed=5)
    gamma = 0.9
    true = ring_truth(rollouts, gamma)
    graph = ring_graph(gamma)
    tables = [
        task_truth(graph, rollouts, Rewards(reward_scale=1, gamma=gamma), Budget(rollouts=16, exact_nodes=0), [seed])[0]
        for seed in range(300)
    ]
    columns = {name: np.array([table[name] for table in tables]) for name in tables[0] if name != "probabilities"}
    return columns, true


def test_the_ring_is_solved_exactly():
    rollouts = ring_rollouts(4, seed=1)
    columns, steps = task_truth(ring_graph(0.9), rollouts, Rewards(reward_scale=1, gamma=0.9), Budget(), [0])
    assert steps == 0
    for name, true in ring_truth(rollouts, 0.9).items():
        assert columns[name] == pytest.approx(true, abs=1e-12)


@pytest.mark.parametrize("name", ["value", "q", "advantage"])
def test_estimates_have_no_bias_where_rollouts_end_at_places(repeated, name):
    columns, true = repeated
    away = columns[name] - true[name]
    error = away.std(0) / np.sqrt(len(away))
    assert (np.abs(away.mean(0)) <= 4.5 * error + 1e-12).all()
    assert (error > 0).sum() > 8


@pytest.mark.parametrize("name", ["value", "q", "advantage"])
def test_standard_errors_are_those_of_repetitions(repeated, name):
    """Errors and standard errors have the same mean square, and their ratio a standard deviation near 1."""
    columns, true = repeated
    away = columns[name] - true[name]
    errors = columns[f"{name}_error"]
    assert 0.9 < (away**2).sum() / (errors**2).sum() < 1.1
    units = away[errors > 0] / errors[errors > 0]
    assert 0.9 < units.std() < 1.25
    assert (np.abs(units) < 2).mean() > 0.9
    assert np.abs(away[errors == 0]).max(initial=0.0) < 1e-12


@pytest.mark.parametrize("name", ["value", "advantage"])
def test_halves_are_independent(repeated, name):
    columns, true = repeated
    products = (columns[f"{name}_first"] - true[name]) * (columns[f"{name}_second"] - true[name])
    each = products.mean(1)  # of one seed: the steps of a seed are not independent
    assert abs(each.mean()) < 4 * each.std() / np.sqrt(len(each))
    assert columns[name] == pytest.approx((columns[f"{name}_first"] + columns[f"{name}_second"]) / 2, abs=1e-12)


def test_common_random_numbers_make_advantages_better_than_values(repeated):
    """Q and V of a step share most of what is random: their difference has less noise than independent ones."""
    columns, true = repeated
    squares = {name: ((columns[name] - true[name]) ** 2).sum() for name in true}
    assert squares["advantage"] < 0.7 * (squares["value"] + squares["q"])


# A budget in steps


def test_a_budget_in_steps_is_spent():
    rollouts = ring_rollouts(3, seed=5)
    for budget in (2_000, 20_000):
        columns, steps = task_truth(
            ring_graph(0.9), rollouts, Rewards(reward_scale=1), Budget(steps=budget, exact_nodes=0), [1]
        )
        assert 0.8 * budget < steps < 1.2 * budget
        assert max(columns["rollouts"]) > 16


def test_a_budget_in_steps_is_a_limit_for_an_error():
    rollouts = ring_rollouts(3, seed=5)

    def truth(**budget):
        return task_truth(
            ring_graph(0.9), rollouts, Rewards(reward_scale=1), Budget(rollouts=8, exact_nodes=0, **budget), [1]
        )

    columns, steps = truth(error=0.02, steps=1_000_000)
    assert steps < 100_000
    assert np.sqrt(np.mean(np.square(columns["advantage_error"]))) <= 0.02
    assert truth(error=1e-9, steps=2_000)[1] < 2_400
    columns, _ = truth(steps=1)
    assert max(columns["rollouts"]) == 4


@pytest.mark.slow
def test_a_budget_in_steps_does_not_depend_on_what_the_rollouts_return():
    """The trial is no part of the estimates, so that choosing their number from it leaves them without bias."""
    rollouts = ring_rollouts(2, seed=5)
    true = ring_truth(rollouts, 0.9)
    graph = ring_graph(0.9)
    rewards = Rewards(reward_scale=1, gamma=0.9)
    budget = Budget(steps=120, exact_nodes=0)
    found = np.array([task_truth(graph, rollouts, rewards, budget, [seed])[0]["advantage"] for seed in range(250)])
    away = found - true["advantage"]
    assert (np.abs(away.mean(0)) <= 4.5 * away.std(0) / np.sqrt(len(away)) + 1e-12).all()


# What must hold on the benchmarks


@pytest.fixture(scope="module", params=[pytest.param("HGPO/ALFWorld-v0", marks=pytest.mark.slow), "HGPO/WebShop-v0"])
def checked(request, tmp_path_factory):
    """A run of a policy that wins sometimes, with its truth."""
    folder = tmp_path_factory.mktemp("checked")
    options = {"skill": 0.6} if "ALFWorld" in request.param else {"temperature": 1.5}
    steps = {"max_steps": 12} if "ALFWorld" in request.param else {}
    run = collect(
        request.param, "softmax", folder / "run", tasks=10, group_size=4, policy_options=options, seed=4, **steps
    )
    table = joined(run, truth_of(run.path, folder / "truth.parquet", Rewards(reward_scale=1, gamma=0.95), rollouts=8))
    rewards = table.sort("trajectory", "step", descending=[False, True]).with_columns(
        total=(pl.col("reward") * 0.95 ** (pl.col("step"))).cum_sum().over("trajectory") / 0.95 ** pl.col("step")
    )
    return rewards.with_columns(rest=pl.col("total") - pl.col("value"))


def ratio_by_task(table, above, below):
    """Return a ratio of sums and its standard error by the jackknife over tasks."""
    sums = table.group_by("task_id", maintain_order=True).agg(above.sum().alias("a"), below.sum().alias("b"))
    a = sums["a"].to_numpy()
    b = sums["b"].to_numpy()
    left = (a.sum() - a) / (b.sum() - b)
    return a.sum() / b.sum(), np.sqrt((len(a) - 1) * left.var())


def test_returns_minus_values_have_slope_1_on_advantages(checked):
    """The noise of truth is in both: it is taken out by using one half for V and the other one for A, both ways."""
    first = (pl.col("total") - pl.col("value_first")) * pl.col("advantage_second")
    second = (pl.col("total") - pl.col("value_second")) * pl.col("advantage_first")
    slope, error = ratio_by_task(checked, first + second, 2 * pl.col("advantage_first") * pl.col("advantage_second"))
    assert error < 0.3
    assert abs(slope - 1) < 4 * error


def test_values_and_advantages_have_no_bias(checked):
    for name in ("rest", "advantage"):
        mean, error = ratio_by_task(checked, pl.col(name), pl.col("step") * 0 + 1)
        assert abs(mean) < 4 * error
        assert error < 0.05


def test_both_halves_agree_within_the_errors(checked):
    for name in ("value", "advantage"):
        assert checked[name].to_numpy() == pytest.approx(
            (checked[f"{name}_first"] + checked[f"{name}_second"]).to_numpy() / 2, abs=1e-12
        )
        apart = float(((checked[f"{name}_first"] - checked[f"{name}_second"]) ** 2).mean())
        assert 0.3 < apart / float((4 * checked[f"{name}_error"] ** 2).mean()) < 1.5


def test_choices_are_those_of_the_policy(checked):
    assert checked["choice"].null_count() == 0
    assert checked["probabilities"].list.sum().to_numpy() == pytest.approx(1)
    taken = checked["probabilities"].list.get(checked["choice"])
    assert (taken > 0).all()
    assert (checked["step"] < 15).all()


# Same bytes


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def doors(tmp_path_factory):
    folder = tmp_path_factory.mktemp("doors") / "run"
    return collect(GUESS, "random", folder, tasks=10, group_size=3, action_format="command", limit=3)


@pytest.mark.slow
def test_the_number_of_processes_does_not_change_the_bytes(doors, tmp_path):
    plan = plan_truth(doors.path, Rewards(reward_scale=1), Budget(rollouts=8, exact_nodes=0, seed=5), allow=CODE)
    once, other = (tmp_path / f"{name}.parquet" for name in ("once", "other"))
    seen = []
    whole = write_truth(plan, once, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (10, 10)
    assert whole.rows == doors.steps.collect().height
    assert write_truth(plan, other, processes=2) == whole
    assert digest(once) == digest(other)
    budget = Budget(rollouts=8, exact_nodes=0, seed=6)
    write_truth(plan_truth(doors.path, Rewards(reward_scale=1), budget, allow=CODE), other)
    assert digest(other) != digest(once)


def test_an_interrupted_computation_leaves_nothing(doors, tmp_path):
    def stop(done, total):
        raise KeyboardInterrupt

    plan = plan_truth(doors.path, Rewards(reward_scale=1), Budget(rollouts=4, exact_nodes=0), allow=CODE)
    with pytest.raises(KeyboardInterrupt):
        write_truth(plan, tmp_path / "truth.parquet", progress=stop)
    assert not list(tmp_path.iterdir())


def test_the_metadata_state_what_was_computed(doors, tmp_path):
    out = tmp_path / "truth.parquet"
    truth_of(doors.path, out, Rewards(reward="success", reward_scale=10, gamma=0.9), seed=3)
    found = read_metadata(out)
    assert found["rewards"] == {
        "reward": "success", "reward_scale": 10.0, "gamma": 0.9, "invalid_action_penalty": 0.0,
    }  # fmt: skip
    assert found["budget"]["seed"] == 3
    assert found["policy"] == {"name": "random"}
    assert found["environment"]["id"] == GUESS
    assert found["run"] == "run"
    assert "hgpo" in found["versions"]
    with pytest.raises(InputError, match="expected a truth table"):
        read_metadata(next(doors.path.glob("steps/*.parquet")))


# Policies


class Prompted(BatchPolicy):
    """A policy whose probabilities are a hash of the prompt."""

    memoryless = True
    prompt_read = True
    history_read = None

    def respond(self, requests):
        raise AssertionError("not asked")

    def distributions(self, requests):
        return [Distribution(("look", "x"), weights(request.prompt)) for request in requests]

    def fork(self, slot, new_slot, engine=None):
        pass


def weights(prompt):
    first = 0.05 + 0.9 * (text_hash(prompt) % 1000) / 1000
    return np.array([first, 1 - first])


def test_prompts_are_those_of_the_episodes():
    handle = open_env("HGPO/ALFWorld-v0", max_steps=6, history_length=2, action_format="command")
    task = handle.tasks[0]
    graph = Graph(handle.shared, handle.settings, Prompted(), Rewards(reward_scale=1), task)
    episode = Episode(handle.shared, handle.settings)
    node = graph.start
    episode.start(task)
    for action in ("look", "go to nowhere", "inventory", episode.state.actions[3], "look"):
        graph.prepare([node])
        assert graph.probabilities(node) == pytest.approx(weights(episode.prompt()), abs=1e-9)
        episode.act(action)
        node = graph.follow(node, action)[0]


def replayed(handle, name, task, responses):
    """Return an episode after some responses, and the distribution of a new policy that has seen its requests."""
    policy = known_policy(name, PolicyContext(handle.shared.source.name, handle.settings.action_format))
    episode = Episode(handle.shared, handle.settings)
    episode.start(task)
    for number in range(len(responses) + 1):
        now = episode.task, episode.state, episode.engine, episode.prompt, episode.history
        request = Request(number, episode.prompt(), 0, 7, number, *now)
        if number == len(responses):
            return episode, policy.distributions([request])[0]
        policy.observe(request)
        episode.act(responses[number])
    raise AssertionError


def value_by_replays(handle, name, task, responses, rewards):
    """Return V after some responses by its definition; each node is reached by a replay from the start."""
    _, found = replayed(handle, name, task, responses)
    total = 0.0
    for response, probability in zip(found.responses, found.probabilities.tolist(), strict=True):
        taken = [*responses, response]
        after, _ = replayed(handle, name, task, taken)
        reward = after.state.reward - (0.0 if after.action_valid else rewards.invalid_action_penalty)
        later = 0.0 if after.done else rewards.gamma * value_by_replays(handle, name, task, taken, rewards)
        total += probability * (reward + later)
    return total


@pytest.mark.parametrize(
    ("env_id", "name", "limit"),
    [
        ("HGPO/ALFWorld-v0", "mixture:explorer=0.7,expert=0.3", 8),
        pytest.param("HGPO/ALFWorld-v0", "mixture:explorer=0.7,outdated=0.3", 3, marks=pytest.mark.slow),
        ("HGPO/WebShop-v0", "mixture:explorer=0.8,expert=0.2", 4),
    ],
)
def test_policies_with_a_memory_equal_replays(env_id, name, limit, tmp_path):
    """The last two steps of episodes, in which such a policy wins or makes mistakes."""
    rewards = Rewards(reward_scale=1, gamma=0.9, invalid_action_penalty=0.5)
    options = {"action_format": "command", "max_steps": limit}
    run = collect(env_id, name, tmp_path / "run", tasks=5, group_size=1, seed=3, **options)
    handle = open_env(env_id, **options)
    exact = truth_of(run.path, tmp_path / "exact.parquet", rewards, exact_nodes=10_000)
    sampled = truth_of(run.path, tmp_path / "sampled.parquet", rewards, exact_nodes=0, rollouts=64)
    assert exact["exact"].all()
    assert (sampled["value_error"] > 0).any()
    assert (np.abs(sampled["value"] - exact["value"]) <= 4.5 * sampled["value_error"] + 1e-9).all()
    checked = []
    for (_,), rows in joined(run, exact).group_by("trajectory", maintain_order=True):
        for step in range(max(0, limit - 2), rows.height):
            expected = value_by_replays(handle, name, rows["task_id"][0], rows["action"].to_list()[:step], rewards)
            assert rows["value"][step] == pytest.approx(expected, abs=1e-9)
            checked.append(expected)
    assert len(checked) >= 4
    assert np.abs(checked).max() > 0.1


def test_a_deterministic_policy_is_solved_exactly(tmp_path):
    """The expert's values: it wins, so that V is the discount of the steps that are left, and A is 0."""
    run = collect("HGPO/ALFWorld-v0", "expert", tmp_path / "run", tasks=2, seed=1)
    table = joined(run, truth_of(run.path, tmp_path / "truth.parquet", Rewards(reward_scale=1, gamma=0.9)))
    assert table["exact"].all()
    for (_,), rows in table.group_by("trajectory", maintain_order=True):
        assert rows["won"][-1]
        assert rows["value"].to_list() == pytest.approx([0.9**left for left in reversed(range(rows.height))])
        assert rows["advantage"].to_list() == pytest.approx([0.0] * rows.height)


def test_trees_are_forgotten_between_chunks(monkeypatch):
    """Memory is bounded, and the estimates have no bias: with one pair of replicates at a time, and many at once."""
    handle = open_env("HGPO/ALFWorld-v0", max_steps=5, action_format="command")
    name = "mixture:explorer=0.5,random=0.5"
    episode, _ = replayed(handle, name, handle.tasks[0], [])
    steps = []
    for _ in range(5):
        before = episode.state
        episode.act(before.actions[0])
        steps.append(Step(before.text, episode.action, episode.action, valid=episode.action_valid, reward=0.0))
    sizes = []
    found = []
    for estimates in (1, 1 << 20):
        monkeypatch.setattr("hgpo_research.truth.task._CHUNK_OF_TREES", estimates)
        policy = known_policy(name, PolicyContext("ALFWorld", "command"))
        graph = Graph(
            handle.shared, handle.settings, policy, Rewards(reward_scale=1, invalid_action_penalty=1.0), handle.tasks[0]
        )
        rewards = Rewards(reward_scale=1, invalid_action_penalty=1.0)
        found.append(task_truth(graph, [steps], rewards, Budget(rollouts=40, exact_nodes=0), [1])[0])
        sizes.append(graph.nodes)
    assert sizes[0] < 0.3 * sizes[1]
    for values in zip(*(zip(one["value"], one["value_error"], strict=True) for one in found), strict=True):
        assert abs(values[0][0] - values[1][0]) <= 4.5 * np.hypot(values[0][1], values[1][1]) + 1e-9


class Elsewhere(Prompted):
    """A policy with a memory, not in this process."""

    name = "elsewhere"
    memoryless = False


def test_a_policy_whose_memory_cannot_be_followed_is_refused():
    own_policy(Elsewhere())
    with pytest.raises(InputError, match="expected a policy without a memory of its own, or one that replies in this"):
        own_policy(SimpleNamespace(name="elsewhere", distributions=len, fork=len))


def test_a_policy_that_never_gives_the_action(tmp_path):
    """Values of another policy than the run's: Q of any action, without a choice where the policy never takes it."""
    run = collect(GUESS, lambda _: "x", tmp_path / "run", tasks=2, group_size=1, limit=3)
    table = truth_of(run.path, tmp_path / "truth.parquet", Rewards(reward_scale=1, gamma=0.9), policy="random")
    assert table["choice"].null_count() == table.height == 6
    for row in table.iter_rows(named=True):
        left = 3 - row["step"]
        near = {"abs": 4 * row["value_error"] + 1e-12}
        assert row["value"] == pytest.approx(by_hand(left, 0.9), **near)
        assert row["q"] == pytest.approx(0.9 * by_hand(left - 1, 0.9), abs=4 * row["q_error"] + 1e-12)


# Bad input


def test_another_environment_is_an_error(tmp_path):
    run = collect("HGPO/ALFWorld-v0", "random", tmp_path / "run", tasks=1, max_steps=3)
    plan = plan_truth(run.path, Rewards(reward_scale=1), Budget(), allow=CODE)
    other = replace(plan, env_options={**plan.env_options, "max_steps": 5})
    with pytest.raises(InputError, match="use the run's step limit"):
        write_truth(other, tmp_path / "other.parquet")
    shop = collect("HGPO/WebShop-v0", lambda _: "search[socks]", tmp_path / "shop", tasks=1, max_steps=2)
    plan = plan_truth(shop.path, Rewards(reward_scale=1), Budget(), policy="random")
    other = replace(plan, env_options={**plan.env_options, "observation_mode": "text_rich"})
    with pytest.raises(InputError, match="the environment or its data are not those of the run"):
        write_truth(other, tmp_path / "other.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "shop"]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"rollouts": 0}, "parameter rollouts: expected int >= 1, received 0"),
        ({"error": -1.0}, "parameter error: expected float > 0.0, received -1.0"),
        ({"error": float("nan")}, "parameter error: expected float > 0.0, received nan"),
        ({"steps": 0}, "parameter steps: expected int >= 1, received 0"),
        ({"seed": -1}, "parameter seed: expected int >= 0, received -1"),
    ],
)
def test_bad_budgets(values, line):
    with pytest.raises(InputError) as caught:
        Budget(**values)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"reward": "return"}, "parameter reward"),
        ({"gamma": 1.5}, "parameter gamma"),
        ({"reward_scale": 0}, "parameter reward_scale: expected a number other than 0, received 0"),
        ({"reward_scale": float("inf")}, "parameter reward_scale: expected a finite number, received inf"),
    ],
)
def test_bad_rewards(values, line):
    with pytest.raises(InputError, match=line):
        Rewards(**values)


def test_numbers_of_rollouts_are_rounded_up(guesses, tmp_path):
    for number, (given, made) in enumerate([({"rollouts": 1}, 4), ({"rollouts": 5}, 6)]):
        table = truth_of(guesses.path, tmp_path / f"{number}.parquet", exact_nodes=0, **given)
        assert table["rollouts"].max() == made
    limited = truth_of(guesses.path, tmp_path / "c.parquet", exact_nodes=0, error=1e-9, most_rollouts=1)
    assert limited["rollouts"].max() == 4


def test_an_output_that_cannot_be_written_is_found_before_the_work(doors, tmp_path, monkeypatch):
    monkeypatch.setattr("hgpo_research.truth.write_truth", lambda *_, **__: pytest.fail("computed"))
    run = tmp_path / "run"
    shutil.copytree(doors.path, run)
    (tmp_path / "run.truth").touch()
    with pytest.raises(InputError, match="Not a directory; choose another path"):
        invoke("truth", run, "--allow", GUESS)
    with pytest.raises(InputError, match=r"--out: expected the path of a table, such as truth.parquet, received .*csv"):
        invoke("truth", run, "--out", tmp_path / "t.csv", "--allow", GUESS)


def test_the_next_command_can_be_copied(doors, tmp_path):
    out = tmp_path / "a b.parquet"
    assert f"--truth '{out}' -e hgpo,gigpo,grpo" in invoke("truth", doors.path, "--out", out, "--allow", GUESS)


def test_a_folder_that_is_no_run(tmp_path):
    with pytest.raises(InputError, match="expected the folder of a run"):
        plan_truth(tmp_path, Rewards(reward_scale=1), Budget())


@pytest.mark.parametrize(
    ("env", "policy", "name"),
    [
        ({"id": "evil:ENV"}, {"name": "random"}, "evil:ENV"),
        ({"id": "evil:Evil/World-v0"}, {"name": "random"}, "evil:Evil/World-v0"),
        ({"id": "HGPO/ALFWorld-v0"}, {"name": "evil:act"}, "evil:act"),
        ({"id": "HGPO/ALFWorld-v0"}, {"name": "mixture:evil:act=0.5,random=0.5"}, "mixture:evil:act=0.5,random=0.5"),
        ({"id": "HGPO/AppWorld-v0", "python": "./evil"}, {"name": "random"}, "./evil"),
        ({"id": "HGPO/WebShop-v0", "backend": "original", "data": "evil"}, {"name": "random"}, "original"),
    ],
)
def test_a_run_of_others_runs_no_code(tmp_path, monkeypatch, env, policy, name):
    """Its manifest names modules beside it and an interpreter: one line says what to add, and nothing is started."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    (tmp_path / "evil.py").write_text("import pathlib\npathlib.Path('started').touch()\n")
    (tmp_path / "evil").write_text("#!/bin/sh\ntouch started\n")
    (tmp_path / "evil").chmod(0o755)
    with StepWriter(tmp_path / "run", config={"env": env, "policy": policy}) as writer:
        writer.add_group([{"task_id": "t", "trajectory": "a", "step": 0, "state": "s", "action": "a", "reward": 0.0}])
    with pytest.raises(InputError, match=rf"^.*manifest.jsonl names the .*; if you trust it, add --allow {name}$"):
        invoke("truth", "run")
    assert not (tmp_path / "started").exists()
    if policy["name"] == "random" and ":" in env["id"]:
        with pytest.raises(InputError):  # it is no environment
            invoke("truth", "run", "--allow", name)
        assert (tmp_path / "started").exists()
