"""ECPO, GAGPO, BEPO, turns and RewardFlow against tables computed by hand, plain Python, and RewardFlow's own code."""

import math
from collections import defaultdict
from fractions import Fraction
from itertools import product

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from hgpo_train.advantages import compute

PLAIN = {"reward_scale": 1.0, "precision": "float64", "epsilon": 0.0}
# an example takes about 20 ms
SOME = settings(max_examples=max(10, settings().max_examples // 10))


def table(*rollouts, task="a"):
    """Return a step table of rollouts, each a list of (state, reward) or (state, reward, action)."""
    rows = []
    for number, rollout in enumerate(rollouts):
        for step, (state, reward, *action) in enumerate(rollout):
            row = {
                "task": task,
                "trajectory": f"{task}/{number}",
                "step": step,
                "state": state,
                "reward": reward,
            }
            rows.append(
                row | {"action": action[0] if action else "go", "action_valid": True}
            )
    return pl.DataFrame(rows, schema_overrides={"reward": pl.Float64})


def advantages(steps, name, column="advantage", **parameters):
    return (
        compute(steps, name, details=True, **PLAIN | parameters)
        .collect()[column]
        .to_list()
    )


def near(*numbers):
    return pytest.approx([float(number) for number in numbers], abs=1e-12)


def test_ecpo_trusts_few_occurrences_little():
    """Action l returned 4 and 0, and r once 1: means 2 and 1, that of the state 5/3."""
    steps = table(
        [("s", 4, "l")],
        [("s", 0, "l")],
        [("s", 1, "r")],
    )
    value = advantages(steps, "ecpo", "advantage_value")
    left = Fraction(2 * 2 + 2 * Fraction(5, 3)) / 4
    right = Fraction(1 + 2 * Fraction(5, 3)) / 3
    assert value == near(left, left, right)
    # The variance between actions is 2/3 · 1/9 + 1/3 · 4/9 = 2/9, that of returns (49 + 25 + 4) / 27 = 26/9.
    gate = math.tanh(3 / 4) * (2 / 9) / (26 / 9)
    assert advantages(steps, "ecpo", "advantage_gate") == near(gate, gate, gate)
    episode = [Fraction(7, 3), Fraction(-5, 3), Fraction(-2, 3)]
    step = [(left - right) / 2, (left - right) / 2, (right - left) / 2]
    expected = [
        float(a) + 0.5 * gate * float(b) for a, b in zip(episode, step, strict=True)
    ]
    assert advantages(steps, "ecpo", mode="mean_norm", step_weight=0.5) == near(
        *expected
    )
    # Without shrinking and gate, the means of two actions are one standard deviation from their middle.
    plain = {"kappa": 0, "gate": False, "episode_weight": 0}
    assert advantages(steps, "ecpo", **plain) == near(1, 1, -1)
    assert advantages(steps, "ecpo", mode="mean_norm", **plain) == near(0.5, 0.5, -0.5)


def test_gagpo_bootstraps_from_the_states_that_follow():
    """R = 5, 10 | 0, 0 | 0, 0 with γ = 1/2; V(s) = 5/3, V(t) = 5, V(u) = 0; δ = 5/6, 5 | -5/3, 0 | 5/6, -5."""
    steps = table(
        [("s", 0), ("t", 10)],
        [("s", 0), ("u", 0)],
        [("s", 0), ("t", 0)],
    )
    p = {"gamma": 0.5, "gae_lambda": 0.5}
    # their sum is 0
    expected = [Fraction(25, 12), 5, Fraction(-5, 3), 0, Fraction(-5, 12), -5]
    assert advantages(steps, "gagpo", mode="mean_norm", **p) == near(*expected)
    std = math.sqrt(sum(float(a) ** 2 for a in expected) / 5)
    assert advantages(steps, "gagpo", **p) == near(*(float(a) / std for a in expected))
    assert advantages(steps, "gagpo", "advantage_value", **p) == near(
        *[5 / 3, 5, 5 / 3, 0, 5 / 3, 5]
    )
    # A second task, whose only step is 0, changes the batch's mean square alone: 5 degrees of freedom become 6.
    both = pl.concat([steps, table([("s", 3)], task="b")])
    wider = [float(a) / std * math.sqrt(6 / 5) for a in expected]
    assert advantages(both, "gagpo", normalize="batch", **p) == near(*wider, 0)
    assert advantages(both, "gagpo", **p)[:6] == near(
        *(float(a) / std for a in expected)
    )


@pytest.mark.parametrize(
    ("gamma", "values", "deltas"),
    [
        (
            0.5,
            [Fraction(4, 11), Fraction(2, 11)],
            [Fraction(-3, 11), 0, Fraction(7, 11), Fraction(-4, 11)],
        ),
        (
            1.0,
            [Fraction(1, 2), Fraction(1, 2)],
            [0, 0, Fraction(1, 2), Fraction(-1, 2)],
        ),
    ],
)
def test_bepo_solves_the_bellman_equation_of_a_cycle(gamma, values, deltas):
    """V(s) = (γ V(t) + 1 + 0) / 3 and V(t) = γ V(s); s was left to t and to the end, t only to s."""
    steps = table([("s", 0), ("t", 0), ("s", 1)], [("s", 0)])
    p = {"gamma": gamma, "gae_lambda": 0, "mode": "mean_norm", "cross_steps": False}
    s, t = values
    assert advantages(steps, "bepo", "advantage_value", **p) == near(s, t, s, s)
    assert advantages(steps, "bepo", gate=False, **p) == near(*deltas)
    assert advantages(steps, "bepo", **p) == near(
        deltas[0], Fraction(1, 2), *deltas[2:]
    )
    # Where the ends of t are known to differ, it has several successors.
    ends = table([("s", 0), ("t", 1)], [("s", 0), ("t", 0)])
    assert advantages(ends, "bepo", "advantage_gate", **p) == [0, 0, 0, 0]
    ends = ends.with_columns(next_state=pl.Series([None, "won", None, "lost"]))
    assert advantages(ends, "bepo", "advantage_gate", **p) == [0, 1, 0, 1]


def test_a_state_that_is_rarely_left_has_the_value_of_its_end():
    """With γ = 1 and a single end, which pays 7, V is 7 everywhere, after about 36 rounds a visit."""
    steps = table([("s", 0), ("t", 0)] * 40 + [("s", 7)])
    assert advantages(steps, "bepo", "advantage_value", gamma=1) == near(*[7] * 81)
    assert advantages(steps, "bepo", gamma=1, mode="mean_norm") == [0] * 81


@st.composite
def groups(draw):
    """Rollouts of one task that wander between few states, with loops, invalid actions and rewards on the way."""
    reward = st.sampled_from([0.0, 0.0, 0.0, 1.0, -0.5, 0.1])
    step = st.tuples(
        st.sampled_from("stuv"), reward, st.sampled_from(["go", "look"]), st.booleans()
    )
    rollouts = draw(
        st.lists(st.lists(step, min_size=1, max_size=7), min_size=1, max_size=5)
    )
    rows = [[row[:3] for row in rollout] for rollout in rollouts]
    valid = [flag for rollout in rollouts for *_, flag in rollout]
    return table(*rows).with_columns(action_valid=pl.Series(valid))


def episodes(steps):
    """Return the row numbers of each rollout of ordered rows."""
    found = defaultdict(list)
    for row, name in enumerate(steps["trajectory"]):
        found[name].append(row)
    return list(found.values())


def from_values(steps, values, penalties, gamma, gae_lambda):
    """Return A_t = Σ_j (γλ)^j δ_{t+j} of plain Python, with penalties compared within each state."""
    rewards = steps["reward"].to_list()
    states = steps["state"].to_list()
    result = [0.0] * len(rewards)
    for rows in episodes(steps):
        after = [*(values[states[row]] for row in rows[1:]), 0.0]
        delta = [
            rewards[row] + gamma * v - values[states[row]]
            for row, v in zip(rows, after, strict=True)
        ]
        for t, row in enumerate(rows):
            result[row] = sum(
                (gamma * gae_lambda) ** j * d for j, d in enumerate(delta[t:])
            )
    cost = np.array(penalties)
    mean_cost = {
        state: cost[[s == state for s in states]].mean() for state in set(states)
    }
    return [
        a - c + mean_cost[state]
        for a, c, state in zip(result, cost, states, strict=True)
    ]


@SOME
@given(
    groups(), st.sampled_from([0.0, 0.5, 0.95, 1.0]), st.sampled_from([0.0, 0.5, 1.0])
)
def test_values_are_mean_returns_or_the_solution_of_linear_equations(
    steps, gamma, gae_lambda
):
    rewards = steps["reward"].to_list()
    states = steps["state"].to_list()
    names = sorted(set(states))
    number = {state: i for i, state in enumerate(names)}
    costs = [0.0 if valid else 0.5 for valid in steps["action_valid"]]
    returns = [0.0] * len(rewards)
    transitions = np.zeros((len(names), len(names)))
    paid = np.zeros(len(names))
    for rows in episodes(steps):
        for t, row in enumerate(rows):
            returns[row] = sum(
                gamma**j * rewards[later] for j, later in enumerate(rows[t:])
            )
            paid[number[states[row]]] += rewards[row]
            for later in rows[t + 1 : t + 2]:  # none after the last step
                transitions[number[states[row]], number[states[later]]] += 1
    visits = np.array([states.count(name) for name in names])
    means = {
        name: np.mean([r for r, s in zip(returns, states, strict=True) if s == name])
        for name in names
    }
    solution = np.linalg.solve(
        np.eye(len(names)) - gamma * transitions / visits[:, None], paid / visits
    )
    solved = dict(zip(names, solution, strict=True))

    p = {
        "gamma": gamma,
        "gae_lambda": gae_lambda,
        "mode": "mean_norm",
        "invalid_action_penalty": 0.5,
    }
    expected = from_values(steps, means, costs, gamma, gae_lambda)
    centre = np.mean(expected)
    alone = len(expected) == 1
    assert advantages(steps, "gagpo", **p) == near(
        *([0.0] if alone else [a - centre for a in expected])
    )
    expected = from_values(steps, solved, costs, gamma, gae_lambda)
    found = compute(steps, "bepo", details=True, gate=False, **PLAIN | p).collect()
    assert found["advantage"].to_list() == near(*expected)
    assert found["advantage_value"].to_list() == near(
        *(solved[state] for state in states)
    )


@SOME
@given(groups(), st.sampled_from([0.0, 2.0, 5.0]))
def test_actions_of_a_state_are_compared_once_each(steps, kappa):
    # the return is the reward
    p = {"gamma": 0.0, "invalid_action_penalty": 0.0, "episode_weight": 0.0}
    rows = steps.select("state", "action", "reward").rows()
    expected = []
    for state, action, _ in rows:
        here = [r for s, _, r in rows if s == state]
        values = {}
        for other in {a for s, a, _ in rows if s == state}:
            own = [r for s, a, r in rows if (s, a) == (state, other)]
            values[other] = (sum(own) + kappa * np.mean(here)) / (len(own) + kappa)
        expected.append(values[action] - np.mean(list(values.values())))
    assert advantages(
        steps, "ecpo", kappa=kappa, gate=False, mode="mean_norm", **p
    ) == near(*expected)
    # With one occurrence per action and without shrinking, it is GiGPO's step term.
    different = steps.with_columns(action=pl.format("{}", pl.int_range(pl.len())))
    received = advantages(different, "ecpo", "advantage_step", kappa=0, gamma=0.5)
    assert received == near(
        *advantages(steps, "gigpo", "advantage_step", ddof=0, gamma=0.5)
    )


def test_turns_are_compared_with_the_same_turn():
    """The first rewards are 1, 1 and 4, the second 4 and 0, because the third rollout has stopped."""
    steps = table(
        [("s", 1), ("t", 4)],
        [("s", 1), ("t", 0)],
        [("s", 4)],
    )
    p = {"mode": "mean_norm", "cross_steps": False}
    assert advantages(steps, "turn", episode_weight=0, **p) == near(-1, 2, -1, -2, 2)
    score = [
        Fraction(5) - Fraction(10, 3),
        Fraction(1) - Fraction(10, 3),
        Fraction(4) - Fraction(10, 3),
    ]
    expected = [
        -1 + score[0] / 2,
        2 + score[0] / 2,
        -1 + score[1] / 2,
        -2 + score[1] / 2,
        2 + score[2] / 2,
    ]
    assert advantages(steps, "turn", episode_weight=0.5, **p) == near(*expected)
    # of the deviations -1, -1, 2 with the standard deviation √3
    first = math.sqrt(1 / 3)
    second = math.sqrt(1 / 2)
    assert advantages(steps, "turn", episode_weight=0) == near(
        -first, second, -first, -second, 2 * first
    )
    # Returns 5, 4 | 1, 0 | 4: the third rollout counts 0 in the second turn.
    assert advantages(steps, "turn", form="return", gamma=1) == near(
        2.5, 4, -3.5, -2, 1
    )
    assert advantages(table([("s", 3)]), "turn", form="return") == [0]
    # gaps do not change a step's number
    skipped = steps.with_columns(step=pl.col("step") * 3)
    assert advantages(skipped, "turn") == advantages(steps, "turn")


@pytest.mark.parametrize(("go", "good"), [(0.5, 0.5), (0.2, 0.9), (0.8, 0.3)])
@pytest.mark.parametrize("size", [2, 3])
def test_a_choice_to_stop_biases_turns_but_not_returns(go, good, size):
    """Going on pays 1 with the better action and -3 with the other, and stopping nothing.

    The expected gradient is exact: each group of outcomes is a task, weighted by its probability. The policy has a
    logit for going on, and one for the better action.
    """
    outcomes = {
        "stop": (1 - go, [("start", 0.0)], [(-go, 0.0)]),
        "better": (
            go * good,
            [("start", 0.0), ("on", 1.0)],
            [(1 - go, 0.0), (0.0, 1 - good)],
        ),
        "worse": (
            go * (1 - good),
            [("start", 0.0), ("on", -3.0)],
            [(1 - go, 0.0), (0.0, -good)],
        ),
    }
    tables = []
    weights = []
    scores = []  # ∇ log π of each step
    for number, group in enumerate(product(outcomes, repeat=size)):
        tables.append(table(*[outcomes[name][1] for name in group], task=str(number)))
        probability = math.prod(outcomes[name][0] for name in group)
        scores += [score for name in group for score in outcomes[name][2]]
        weights += [probability] * tables[-1].height
    steps = pl.concat(tables)

    def gradient(**parameters):
        credit = advantages(steps, "turn", gamma=1, **parameters)
        weighted = [
            w * a * np.array(s) for w, a, s in zip(weights, credit, scores, strict=True)
        ]
        return sum(weighted) / size

    later = good - 3 * (1 - good)  # the expected reward of going on
    true = [go * (1 - go) * later, go * good * (1 - good) * 4]
    assert gradient(form="return") == near(*true)
    # The first rewards are all 0. So going on costs nothing, whatever it loses: the bias is the negative expected loss.
    biased = gradient(form="turn", mode="mean_norm", episode_weight=0)
    assert biased[0] == 0
    assert abs(true[0]) > 0.05
    # With the episode's advantage, whose mean contains the rollout itself, the second choice still counts for more.
    mixed = gradient(form="turn", mode="mean_norm", cross_steps=False)
    assert mixed[0] == pytest.approx((1 - 1 / size) * true[0], abs=1e-12)
    assert mixed[1] > (1 - 1 / size) * true[1] + 1e-3


@pytest.mark.parametrize("name", ["ecpo", "gagpo", "bepo", "turn", "graphgpo"])
@pytest.mark.parametrize("reward", [0.1, -0.7])
@pytest.mark.parametrize("mode", ["mean_std_norm", "mean_norm"])
def test_equal_returns_have_no_advantage(name, reward, mode):
    """Sums of three or seven of these numbers are rounded; the rollouts go different ways to the same return."""
    rollouts = [
        [("s", 0.0, f"{n % 3}"), (f"t{n % 2}", reward, f"{n % 3}")] for n in range(7)
    ]
    steps = table(*rollouts)
    for precision in ("mixed", "float64"):
        p = {"mode": mode, "precision": precision, "gamma": 0.9}
        forms = [{"form": "turn"}, {"form": "return"}] if name == "turn" else [{}]
        forms += [{"normalize": "batch"}] if name == "gagpo" else []
        forms += [{"potential": "rewardflow"}] if name == "graphgpo" else []
        for form in forms:
            assert advantages(steps, name, **p, **form) == [0] * 14


# The states of each rollout of a task, where ! marks an invalid action and * the reward of 10; and its last state,
# which RewardFlow's code does not know of rollouts that last longest.
FLOW = {
    "a": [
        ("hall kitchen fridge*", "won"),
        ("hall garden! hall fridge*", "won"),
        ("hall kitchen garden cellar cellar! cellar", None),
        ("hall cellar attic cellar hall kitchen", None),
    ],
    "b": [
        ("hall kitchen", "dark"),
        ("hall! kitchen hall", None),
    ],
}

# Step advantages of the steps above. They were computed by apply_rewardflow_propagation and step_norm_reward of
# tmlr-group/RewardFlow (commit 1cdead8, rewardflow/core_rewardflow.py) with torch 2.13, one batch per task, and the
# penalty of 0.1 that its trainer subtracts from the step rewards in between.
RECORDED = {
    (0.9, "mean_norm"): [
        0.12, 0.87, 0.0, -0.69, 0.355, 1.02, 0.0, 0.12, -0.84, -0.355, 0.0038, -0.0962, 0.0038, -0.69, -0.7252, 0.0,
        0.8138, 0.12, -0.03, 0.0333333, 0.0, -0.0666667, 0.0, 0.0333333,
    ],
    (0.9, "mean_std_norm"): [
        0.1880607, 1.0170732, 0.0, -1.0813489, 0.7071053, 1.5985157, 0.0, 0.1880607, -0.9820017, -0.7071053, 0.0069451,
        -0.1758216, 0.0069451, -1.0813489, -1.3254242, 0.0, 1.4873555, 0.1880607, -0.0350715, 0.5773403, 0.0,
        -1.1546805, 0.0, 0.5773403,
    ],
    (0.5, "mean_std_norm"): [
        0.0, 1.0910889, 0.0, -0.9128703, 0.7071059, 1.8257406, 0.0, 0.0, -0.8728711, -0.7071059, -0.1520301, -0.2968206,
        -0.1520301, -0.9128703, -1.0569708, 0.0, 1.6578516, 0.0, -0.2182178, 0.5773403, 0.0, -1.1546805, 0.0, 0.5773403,
    ],
}  # fmt: skip

# The sum with its episode term (compute_rewardflow_outcome_advantage), γ = 0.9, mean_norm.
RECORDED_SUM = [
    6.4463158, 7.1963158, 6.3263159, 5.6363158, 6.5813155, 7.3463159, 6.3263159, -3.5536842, -4.5136843, -4.0286841,
    -3.6698844, -3.8698843, -3.6698844, -4.3636842, -4.3988843, -3.6736844, -2.8598843, -3.5536842, -3.7036843,
    0.0533333, 0.02, -0.1466667, 0.02, 0.0533333,
]  # fmt: skip


def flow():
    rows = []
    for task, rollouts in FLOW.items():
        for number, (path, end) in enumerate(rollouts):
            states = path.split()
            for step, state in enumerate(states):
                row = {
                    "task": task,
                    "trajectory": f"{task}/{number}",
                    "step": step,
                    "state": state.rstrip("!*"),
                    "reward": 10.0 if state.endswith("*") else 0.0,
                    "action_valid": not state.endswith("!"),
                    "next_state": end if step == len(states) - 1 else None,
                }
                rows.append(row)
    return pl.DataFrame(rows)


@pytest.mark.parametrize(("gamma", "mode"), RECORDED)
def test_rewardflow_matches_its_code(gamma, mode):
    p = {"potential": "rewardflow", "gamma": gamma, "mode": mode, "reward_scale": 1.0}
    found = compute(flow(), "graphgpo", details=True, **p).collect()
    assert found["advantage_step"].to_list() == pytest.approx(
        RECORDED[gamma, mode], abs=5e-7
    )
    if (gamma, mode) == (0.9, "mean_norm"):
        assert found["advantage"].to_list() == pytest.approx(RECORDED_SUM, abs=1e-6)


def test_rewardflow_orders_actions_like_graphgpo_where_all_states_lead_to_the_goal():
    steps = table(
        [("s", 0), ("t", 0), ("s", 0), ("u", 10)],
        [("s", 0), ("u", 0), ("t", 10)],
        [("t", 0), ("s", 10)],
    )
    p = {"gamma": 0.5, "episode_weight": 0}
    flows = advantages(steps, "graphgpo", potential="rewardflow", **p)
    assert flows == pytest.approx(advantages(steps, "graphgpo", **p), abs=1e-12)
    assert max(flows) > 0.5
    # A state from which no rollout reached the goal is worth 0 there, and lies behind the farthest one here.
    other = table([("s", 0), ("v", 0), ("w", 0)])
    lost = pl.concat([steps, other.with_columns(trajectory=pl.lit("lost"))])
    p |= {"mode": "mean_norm"}
    away = [
        advantages(lost, "graphgpo", potential=potential, **p)[9]
        for potential in ("distance", "rewardflow")
    ]
    # The next states of s have distances 1, 1, 1, 0 and, one farther than any, 2: worth 10 / 4, or 0.
    by_distance = 2.5 - (5 + 5 + 5 + 10 + 2.5) / 5
    by_flow = 0 - (5 + 5 + 5 + 10 + 0) / 5
    assert away == near(by_distance, by_flow)


@pytest.mark.parametrize(
    ("name", "parameters", "line"),
    [
        ("ecpo", {"kappa": -1}, "kappa"),
        ("ecpo", {"tau": 0}, "tau"),
        ("gagpo", {"gae_lambda": 1.5}, "gae_lambda"),
        ("gagpo", {"normalize": "task"}, "normalize"),
        ("bepo", {"gae_lambda": float("nan")}, "gae_lambda"),
        ("turn", {"form": "returns"}, "form"),
        ("graphgpo", {"potential": "flow"}, "potential"),
    ],
)
def test_invalid_parameters_are_named(name, parameters, line):
    with refused(line):
        compute(table([("s", 0)]), name, **parameters)


def test_ecpo_needs_actions():
    with refused("the table has no `action`, which ecpo reads"):
        compute(table([("s", 0)]).drop("action"), "ecpo")


@pytest.mark.parametrize(
    "name", ["gigpo", "g2po", "graphgpo", "ecpo", "bepo", "turn", "empg"]
)
def test_a_penalty_is_not_divided_by_epsilon_alone(name):
    """Both rollouts score 1, and the standard deviation of their first rows is 0; `grpo` repeats the official code."""
    steps = table(
        [("s", 0, "l"), ("t", 1, "l")],
        [("s", 0, "l"), ("u", 1, "l")],
    )
    steps = steps.with_columns(
        action_valid=pl.Series([True, False, True, True]),
        entropy=pl.lit(1.0),
    )
    options = {"cross_steps": False, "epsilon": 1e-6}
    # its second step has the episode's
    column = "advantage" if name == "bepo" else "advantage_episode"
    assert advantages(steps, name, column, **options)[1] == pytest.approx(-0.1)
    assert advantages(steps, "grpo", **options)[1] == pytest.approx(-100_000)
