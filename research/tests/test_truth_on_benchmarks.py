"""Truth on the benchmarks: equal to replays of the last steps, without bias, and its prompts are those of episodes."""

import numpy as np
import polars as pl
import pytest
from ring import Asked
from truths import UNIT, truth_of, within_errors

from hgpo_envs.episode import Episode
from hgpo_envs.hashing import text_hash
from hgpo_research.policies.distributions import Distribution, known_policy
from hgpo_research.truth import (
    Budget,
    Rewards,
)
from hgpo_research.truth.graph import Graph
from hgpo_research.truth.places import Step
from hgpo_research.truth.task import task_truth
from hgpo_train.policies.base import Request
from hgpo_train.rollout import PolicyContext, collect, open_env

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
