"""Contexts, returns, weights, similar states and nodes against plain Python: switches that recordings do not have.

The recordings of the official code (test_goldens.py) hold the equations of all estimators.
"""

from collections import Counter, defaultdict
from types import SimpleNamespace

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from hgpo_envs.hashing import chain_columns, text_hashes
from hgpo_train.advantages import compute
from hgpo_train.advantages.alfworld_nodes import with_alfworld_nodes
from hgpo_train.advantages.input_columns import prepare
from hgpo_train.advantages.parameters import Parameters
from hgpo_train.rollout.outcomes import OUTCOMES

STATES = ["", "hall", "kitchen", "ñ", "ñ", " hall", "鍵 🗝", "success"]
CONTEXTS = st.sampled_from(["states", "states_actions"])
# an example takes about 20 ms
SOME = settings(max_examples=max(10, settings().max_examples // 4))


@st.composite
def tables(draw):
    """Small tables with loops, singleton groups, gaps in step numbers and shuffled rows."""
    states = st.sampled_from(STATES[: draw(st.integers(1, len(STATES)))])
    rows = []
    for task in range(draw(st.integers(1, 3))):
        for rollout in range(draw(st.integers(1, 4))):
            step = 0
            for _ in range(draw(st.integers(1, 6))):
                step += draw(st.sampled_from([1, 1, 1, 3]))
                row = {
                    "task": f"tâche {task}",
                    "trajectory": f"{task}/{rollout}",
                    "step": step,
                    "state": draw(states),
                }
                row |= {"action": draw(st.sampled_from(["look", "go"]))}
                row |= {
                    "reward": draw(
                        st.sampled_from([0.0, 0.0, 0.0, 10.0, 1.0, -0.5, 3.25])
                    )
                }
                rows.append(
                    row | {"action_valid": draw(st.sampled_from([True, True, False]))}
                )
    return draw(st.permutations(rows))


def trajectories(rows):
    """Return the row indices of each trajectory by step."""
    members = defaultdict(list)
    for i in sorted(range(len(rows)), key=lambda i: rows[i]["step"]):
        members[rows[i]["trajectory"]].append(i)
    return members.values()


@SOME
@given(tables(), st.integers(0, 7), CONTEXTS)
def test_a_group_has_the_steps_with_the_same_context(rows, depth, context):
    table = compute(
        pl.DataFrame(rows), "hgpo", history_length=depth, context=context, details=True
    ).collect()
    for k in range(depth + 1):
        contexts = {}
        for members in trajectories(rows):
            for t in range(k, len(members)):
                past = [rows[i] for i in members[t - k : t + 1]]
                actions = (
                    [row["action"] for row in past[:-1]]
                    if context == "states_actions"
                    else []
                )
                contexts[members[t]] = (
                    past[0]["task"],
                    *(row["state"] for row in past),
                    *actions,
                )
        size = Counter(contexts.values())
        expected = [
            size[contexts[i]] if i in contexts else None for i in range(len(rows))
        ]
        assert table[f"advantage_size_k{k}"].to_list() == expected
        assert [n is None or n == 1 for n in expected] == table[
            f"advantage_k{k}"
        ].is_null().to_list()


@SOME
@given(tables(), st.sampled_from(["return", "reward"]), st.sampled_from(["per_step", "from_end"]),
       st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.1, 2.0]))  # fmt: skip
def test_returns_are_discounted_sums(rows, penalty_at, returns, gamma, penalty):
    p = {
        "penalty_at": penalty_at,
        "returns": returns,
        "gamma": gamma,
        "invalid_action_penalty": penalty,
    }
    for name in ("return", "episode_score"):
        steps = prepare(
            pl.DataFrame(rows), Parameters(reward_scale=2, precision="float64", **p), ()
        )
        computed = steps.collect().sort("(row)")[name]
        for members in trajectories(rows):
            cost = [0.0 if rows[i]["action_valid"] else penalty for i in members]
            reward = [2 * rows[i]["reward"] for i in members]
            after = cost
            if penalty_at == "reward":
                reward = [r - c for r, c in zip(reward, cost, strict=True)]
                after = [0.0] * len(cost)
            for t, i in enumerate(members):
                expected = sum(gamma**j * r for j, r in enumerate(reward[t:]))
                if returns == "from_end":
                    expected = gamma ** (len(members) - 1 - t) * sum(reward)
                if name == "episode_score":
                    expected = sum(reward)
                assert computed[i] == pytest.approx(
                    expected - after[t], rel=1e-9, abs=1e-9
                )


def rewards_of(steps, **parameters):
    """Return the rewards of steps of different trajectories, with γ = 0 and no penalty of invalid actions."""
    p = Parameters(
        gamma=0.0, invalid_action_penalty=0.0, precision="float64", **parameters
    )
    return prepare(steps, p, ()).collect().sort("(row)")["return"].to_list()


@pytest.mark.parametrize("scale", [1.0, -2.0])
def test_a_task_that_is_solved_on_the_way_is_solved(scale):
    """As in `episode_won`, which success is measured by; an environment may tell of success in every step."""
    won = {"a": [True, False], "b": [True, None], "c": [None, True], "d": [None, False]}
    steps = pl.DataFrame(
        {
            "task": "t",
            "trajectory": list("aabbccdd"),
            "step": [0, 1] * 4,
            "won": [flag for flags in won.values() for flag in flags],
        }
    )
    rewards = rewards_of(steps, reward="success", reward_scale=scale)
    assert rewards == [0, scale, 0, scale, 0, scale, 0, 0]
    outcomes = {
        name: OUTCOMES["success"]([SimpleNamespace(won=flag) for flag in flags])
        for name, flags in won.items()
    }
    assert outcomes == {"a": True, "b": True, "c": True, "d": False}


def test_other_columns_and_long_responses_change_rewards():
    lengths = [383, 384, 448, 512, 600]
    steps = pl.DataFrame(
        {
            "task": "a",
            "trajectory": list("abcde"),
            "step": 0,
            "reward": [1.0, 1.0, 0.0, 0.0, 0.0],
            "won": [True, False, False, False, False],
            "well_formed": [True, False, True, False, True],
            "shorter": [0.5, 0.0, -1.0, 0.0, 0.0],
            "response_token_ids": [list(range(length)) for length in lengths],
        }
    )
    weights = {"well_formed": 0.25, "shorter": 2.0}
    assert rewards_of(steps, rewards=weights) == [11.25, 10.0, -1.75, 0.0, 0.25]
    assert rewards_of(steps, rewards=weights, reward="success") == [
        11.25,
        0.0,
        -1.75,
        0.0,
        0.25,
    ]
    # DAPO, equation 13: 0 up to L_max - L_cache tokens, then linear, and -1 from L_max on
    long = {"overlong_penalty": 3.0, "overlong_limit": 512, "overlong_buffer": 128}
    assert rewards_of(steps, reward_scale=1.0, **long) == [1.0, 1.0, -1.5, -3.0, -3.0]
    for column, values, line in (
        (
            "shorter",
            [0.5, None, 0.0, 0.0, 0.0],
            "expected finite numbers as well_formed and shorter, received null",
        ),
        ("shorter", list("abcde"), "column shorter: expected numbers"),
    ):
        with refused(line):
            rewards_of(steps.with_columns(pl.Series(column, values)), rewards=weights)
    with refused("the table has no `shorter`, which grpo reads"):
        compute(
            steps.drop("shorter"), "grpo", rewards=weights, invalid_action_penalty=0
        ).collect()


@SOME
@given(
    tables(),
    st.sampled_from([0.0, 0.5, 2.0]),
    st.booleans(),
    st.sampled_from(["code", "paper"]),
    st.booleans(),
)
def test_levels_are_weighted(rows, alpha, base_group, weights, skip):
    p = {
        "alpha": alpha,
        "base_group": base_group,
        "weights": weights,
        "skip_zero_advantages": skip,
        "epsilon": 0.5,
    }
    table = compute(pl.DataFrame(rows), "hgpo", details=True, **p).collect()
    first = 1 if weights == "paper" and not base_group else 2
    w = {"episode": 1.0} if base_group else {}
    w |= {f"k{k}": (k + first) ** alpha for k in range(3)}
    for row in table.iter_rows(named=True):
        levels = {
            name: row[f"advantage_{name}"]
            for name in w
            if row[f"advantage_{name}"] is not None
        }
        counted = {name: a for name, a in levels.items() if a or not skip}
        share = {name: w[name] / (sum(w[n] for n in counted) + 0.5) for name in counted}
        assert {name: row[f"advantage_weight_{name}"] for name in w} == pytest.approx(
            dict.fromkeys(w, 0.0) | share
        )
        assert row["advantage"] == pytest.approx(
            sum(share[name] * a for name, a in counted.items()), abs=1e-9
        )


@SOME
@given(tables(), st.integers(0, 4), CONTEXTS)
def test_stored_hashes_and_texts_agree(rows, depth, context):
    table = pl.DataFrame(rows).sort("task", "trajectory", "step")
    first = (
        (table["trajectory"] != table["trajectory"].shift(1))
        .fill_null(value=True)
        .to_numpy()
    )
    actions = text_hashes(table["action"]) if context == "states_actions" else None
    values, defined = chain_columns(text_hashes(table["state"]), first, depth, actions)
    prefix = "history_hash_" if context == "states" else "context_hash_"
    stored = table.drop("state", "action").with_columns(
        pl.when(pl.Series(defined[k])).then(pl.Series(values[k])).alias(f"{prefix}{k}")
        for k in range(depth + 1)
    )
    p = {"history_length": depth, "context": context}
    received, expected = (
        compute(each, "hgpo", **p).collect()["advantage"].to_list()
        for each in (stored, table)
    )
    assert received == pytest.approx(expected, rel=1e-12, abs=1e-12)


OBSERVATIONS = (
    "room",
    "Nothing happens.",
    "You heat the egg",
    "You turn on the lamp",
    "shelf",
    "desk",
)
ACTIONS = (["look"], ["look", "help"], ["go to desk 1"])
EPISODES = st.lists(
    st.lists(
        st.tuples(st.sampled_from(OBSERVATIONS), st.sampled_from(ACTIONS)),
        min_size=1,
        max_size=9,
    ),
    min_size=1,
    max_size=5,
)


def expected_nodes(episode):
    """Return each step's node of an episode as a comparable value."""
    happened: list[tuple[str, list[str]]] = []
    nodes: list[object] = [episode[0][0]]
    for observation, actions in episode[1:]:
        if not observation.startswith("Nothing happens"):
            happened.append(
                (observation, [action for action in actions if action != "help"])
            )
        hidden = len(happened) > 1 and happened[-2][0].startswith(
            ("You heat", "You cool", "You clean", "You turn on")
        )
        nodes.append(
            happened[-2:]
            if hidden
            else happened[-1:] or ("the first prompt", episode[0][0])
        )
    return nodes


@given(EPISODES)
def test_nodes_are_equal_where_the_rule_requires_it(episodes):
    rows = [
        {
            "trajectory_key": number,
            "first": not step,
            "state": observation,
            "admissible_actions": actions,
        }
        for number, episode in enumerate(episodes)
        for step, (observation, actions) in enumerate(episode)
    ]
    found = with_alfworld_nodes(pl.LazyFrame(rows)).collect()["alfworld_node"].to_list()
    expected = [repr(node) for episode in episodes for node in expected_nodes(episode)]
    pairs = pl.DataFrame({"found": found, "expected": expected}).unique()
    assert pairs.height == pairs["found"].n_unique() == pairs["expected"].n_unique()


def test_hgpo_and_statistics_compare_nodes_too():
    """The first of two rollouts wastes a step and stays at the desk, so that the state of both steps is one node."""
    from hgpo_train.analysis.statistics import statistics

    rows = [
        ("a", "room", "go to desk 1", False),
        ("a", "desk", "fly", False),
        ("a", "Nothing happens.", "take egg 1", False),
        ("a", "egg", "eat", True),
        ("b", "room", "go to shelf 1", False),
        ("b", "shelf", "look", False),
    ]
    table = pl.DataFrame(
        rows, schema=["trajectory", "state", "action", "won"], orient="row"
    )
    table = table.with_columns(
        task_id=pl.lit("t"),
        step=pl.int_range(pl.len()).over("trajectory"),
        admissible_actions=pl.lit(["look"], dtype=pl.List(pl.String)),
        action_valid=pl.col("action") != "fly",
    )
    plain, nodes = (
        compute(table, "hgpo", details=True, reward="success", state_key=key).collect()
        for key in (None, "alfworld-nodes")
    )
    assert plain["advantage_size_k0"].to_list() == [2, 1, 1, 1, 2, 1]
    assert nodes["advantage_size_k0"].to_list() == [2, 2, 2, 1, 2, 1]
    assert (
        statistics(table, state_key="alfworld-nodes", reward="success").levels[
            "shared"
        ][0]
        == 4 / 6
    )
