"""Estimators over trees of rollouts: values by hand, and expectations in a game whose true advantages are known."""

import numpy as np
import polars as pl
import pytest
from refusals import refused

from hgpo_train.advantages import compute

PLAIN = {"gamma": 1.0, "reward_scale": 1.0, "invalid_action_penalty": 0.0}


def step(
    trajectory, number, state, reward=0.0, parent=None, branch_step=None, **columns
):
    named = {
        "trajectory": trajectory,
        "step": number,
        "parent": parent,
        "branch_step": branch_step,
        "reward": reward,
    }
    return {
        "task": "t",
        "state": state,
        "action": f"{trajectory}{number}",
        "action_valid": True,
        **named,
        **columns,
    }


A = [step("a", 0, "s"), step("a", 1, "t")]  # lost
B = [step("b", 0, "s", 1.0)]  # won
C = [step("c", 1, "t", 1.0, "a", 1)]  # won, from the second step of a
TREE = pl.DataFrame(A + B + C)


@pytest.mark.parametrize(
    ("name", "parameters", "expected"),
    [
        # V of the node of a1 and c1 is 1/2, so that Q of a0 is 1/2 and that of b0 is 1.
        ("carl", {}, [-0.25, -0.5, 0.25, 0.5]),
        ("carl", {"tree_weights": True}, [-0.25, -0.25, 0.25, 0.25]),
        ("carl", {"fresh": True}, [-0.5, 0.0, 0.5, 0.0]),
        # -1 and 1 at the branch, each of weight 1/2
        ("tree_loo", {}, [-0.5, -0.5, 0.5, 0.5]),
        # a single fresh branch is its own score
        ("tree_loo", {"fresh": True}, [-1.0, -1.0, 1.0, 1.0]),
        # leaves 0, 1 of weight 1/2, and 1
        ("tree_grpo", {"mode": "mean_norm"}, [-0.25, -0.375, 0.25, 0.125]),
        (
            "tree_hgpo",
            {"mode": "mean_norm", "history_length": 0},
            [-0.25, -0.25, 0.25, 0.25],
        ),
    ],
)
def test_values_by_hand(name, parameters, expected):
    values = compute(TREE, name, **PLAIN, **parameters).collect()["advantage"]
    assert values.to_list() == pytest.approx(expected, abs=1e-6)
    mixed = compute(TREE.reverse(), name, **PLAIN, **parameters).collect()["advantage"]
    assert mixed.reverse().to_list() == values.to_list()


def test_a_return_that_is_the_mean_is_exactly_0():
    """The return -0.3 is the mean of eight at depth 0, so that depth 1 alone counts, with -0.1 as the other."""
    # added in this order, their sum is not quite -2.4
    returns = [0.0, -0.55, -0.1, -0.45, -0.3, 0.0, -1.0, 0.0]
    rows = []
    for number, value in enumerate(returns):
        name = f"r{number}"
        before = "shared" if value in (-0.3, -0.1) else name
        rows += [step(name, 0, before), step(name, 1, "s", value)]
    options = {"mode": "mean_norm", "history_length": 1, "precision": "float64"}
    found = compute(pl.DataFrame(rows), "tree_hgpo", **PLAIN, **options).collect()
    assert found["advantage"][9] == pytest.approx(-0.1, abs=1e-6)


def test_a_penalty_among_equal_scores_is_not_divided_by_epsilon():
    """All leaves have the score 0, and the invalid action of a's first row has its penalty of 0.1 and nothing else."""
    rows = [
        row
        | {"reward": 0.0, "action_valid": row["trajectory"] != "a" or row["step"] != 0}
        for row in A + B + C
    ]
    for penalty, expected in ((0.1, [-0.1, 0.0, 0.0, 0.0]), (0.0, [0.0] * 4)):
        found = compute(
            pl.DataFrame(rows),
            "tree_grpo",
            **PLAIN | {"invalid_action_penalty": penalty},
        ).collect()
        assert found["advantage"].to_list() == expected


def test_a_discount_and_branches_of_branches():
    """With γ = 1/2: V at d's node is (0 + 2) / 2 = 1, so Q of c1 is 1/2 · 1, V at c's node 1/4, and Q of a0 1/8."""
    rows = [
        *A,
        step("c", 1, "t", 0.0, "a", 1),
        step("c", 2, "u", 0.0, "a", 1),
        step("d", 2, "u", 2.0, "c", 2),
    ]
    result = compute(
        pl.DataFrame(rows), "carl", **{**PLAIN, "gamma": 0.5}, details=True
    ).collect()
    assert result["advantage"].to_list() == [0.0, -0.25, 0.25, -1.0, 1.0]
    assert result["advantage_weight"].to_list() == [1.0, 0.5, 0.5, 0.25, 0.25]
    loo = compute(pl.DataFrame(rows), "tree_loo", **{**PLAIN, "gamma": 0.5}).collect()[
        "advantage"
    ]
    assert loo.to_list()[0] == 0.125


@pytest.mark.parametrize("name", ["grpo", "hgpo", "rloo", "turn"])
def test_estimators_of_rollouts_refuse_branches(name):
    with refused(
        r"1 trajectories are branches.*use carl, tree_loo, tree_grpo or tree_hgpo"
    ):
        compute(TREE, name).collect()
    with refused("expected step 1 of its parent 'a' in the table"):
        compute(TREE.filter(pl.col("trajectory") != "a"), "carl").collect()
    missing = compute(
        TREE.filter(pl.col("parent").is_null()).drop("parent"), name
    ).collect()
    assert missing["advantage"].null_count() == 0


@pytest.mark.parametrize(
    ("name", "plain", "parameters"),
    [
        ("tree_grpo", "grpo", {"cross_steps": False}),
        ("tree_loo", "rloo", {"cross_steps": False}),
        ("tree_hgpo", "hgpo", {}),
    ],
)
def test_without_branches_they_are_the_estimators_of_rollouts(name, plain, parameters):
    rng = np.random.default_rng(1)
    rows = [
        step(f"{task}{number}", at, str(rng.integers(3)), rng.random(), task=task)
        for task in "uvw"
        for number in range(4)
        for at in range(number + 1)
    ]
    steps = pl.DataFrame(
        rows, schema_overrides={"parent": pl.String, "branch_step": pl.Int32}
    )
    expected = compute(
        steps, plain, gamma=1.0, precision="float64", **parameters
    ).collect()["advantage"]
    received = compute(steps, name, gamma=1.0, precision="float64").collect()[
        "advantage"
    ]
    assert received.to_list() == pytest.approx(expected.to_list(), rel=1e-9, abs=1e-12)


# A game of three steps: the action 1 has probability 0.4, and the number of ones decides how probable it is to win.
ONE = 0.4
WIN = (0.1, 0.3, 0.6, 0.9)
TRIALS = 4000


def value(at, ones):
    """The probability to win from a step on, with so many ones before."""
    if at == 3:
        return WIN[ones]
    return ONE * value(at + 1, ones + 1) + (1 - ONE) * value(at + 1, ones)


def played(rng, trial, name, actions, parent=None, at=None):
    """The steps of one trajectory, which goes on after the actions of its parent."""
    actions = list(actions)
    begin = len(actions)
    while len(actions) < 3:
        actions.append(int(rng.random() < ONE))
    won = rng.random() < WIN[sum(actions)]
    rows = []
    for number in range(begin, 3):
        ones = sum(actions[:number])
        reward = float(won and number == 2)
        rows.append(
            step(
                f"{trial}{name}",
                number,
                f"{number} {ones}",
                reward,
                parent,
                at,
                task=str(trial),
                ones=ones,
            )
        )
        rows[-1]["action"] = str(actions[number])
    return rows, actions, won


def trees(chooses):
    """Two rollouts a trial, and two branches of the first one from step 1 or 2 where `chooses` returns the step."""
    rng = np.random.default_rng(0)
    rows = []
    for trial in range(TRIALS):
        first, actions, won = played(rng, trial, "a", [])
        second, _, other = played(rng, trial, "b", [])
        rows += first + second
        if at := chooses(trial, won, other):
            for name in "cd":
                rows += played(rng, trial, name, actions[:at], f"{trial}a", at)[0]
    return pl.DataFrame(rows, infer_schema_length=None)


def z_of_edges(steps, name, expected_share=lambda n: 1.0, only=True, **parameters):
    """The z of the mean error at each kind of edge (step, ones, action) that leaves a node with several children."""
    result = compute(
        steps, name, **PLAIN, details=True, tree_weights=False, **parameters
    ).collect()
    errors = {}
    for at, ones, action, estimate, n in (
        result.filter(pl.col("advantage_children") > 1, only)
        .select("step", "ones", "action", "advantage", "advantage_children")
        .iter_rows()
    ):
        truth = value(at + 1, ones + int(action)) - value(at, ones)
        errors.setdefault((at, ones, action), []).append(
            estimate - expected_share(n) * truth
        )
    return {
        kind: np.mean(found) / (np.std(found) / len(found) ** 0.5)
        for kind, found in errors.items()
    }


def by_chance(trial, won, other):
    return trial % 3  # also none


def by_outcome(trial, won, other):
    # to find out where the lost rollout went wrong
    return 1 + trial % 2 if not won and other else 0


@pytest.mark.slow
def test_means_are_the_true_advantages():
    steps = trees(by_chance)
    assert max(map(abs, z_of_edges(steps, "tree_loo").values())) < 3.5
    found = z_of_edges(steps, "carl", lambda n: (n - 1) / n)
    assert len(found) == 2 * (1 + 2 + 3)
    # carl leaves out nodes whose children have one action, which says something about the children.
    pairs = [found[kind] for kind in found if kind[0] == 0]
    assert max(map(abs, pairs)) < 3.5


@pytest.mark.slow
def test_weighted_steps_give_the_policy_gradient():
    """At each state P(state) π(1) π(0) (Q(1) - Q(0)), estimated by the mean over rollouts of A (a - π(1))."""
    steps = trees(by_chance)
    result = compute(steps, "tree_loo", **PLAIN).collect()
    score = pl.col("advantage") * (pl.col("action").cast(pl.Float64) - ONE)
    reach = {
        (0, 0): 1.0,
        (1, 0): 1 - ONE,
        (1, 1): ONE,
        (2, 0): (1 - ONE) ** 2,
        (2, 1): 2 * ONE * (1 - ONE),
    }
    reach[2, 2] = ONE**2
    for (at, ones), probability in reach.items():
        here = (pl.col("step") == at) & (pl.col("ones") == ones)
        terms = (
            result.group_by("task")
            .agg(score.filter(here).sum() / 2)["advantage"]
            .to_numpy()
        )
        truth = (
            probability
            * ONE
            * (1 - ONE)
            * (value(at + 1, ones + 1) - value(at + 1, ones))
        )
        assert abs(terms.mean() - truth) < 3.5 * terms.std() / TRIALS**0.5, (at, ones)


@pytest.mark.slow
def test_choosing_by_outcomes_biases_and_fresh_branches_do_not():
    """SIPO: the rollout that was chosen because it lost makes its branches look better than they are."""
    steps = trees(by_outcome)
    of_branches = pl.col("parent").is_not_null()
    biased = z_of_edges(steps, "tree_loo", only=of_branches)
    assert min(biased.values()) > 0
    assert sum(biased.values()) / len(biased) ** 0.5 > 8  # the z of all kinds together
    for only in (of_branches, ~of_branches):
        assert (
            max(map(abs, z_of_edges(steps, "tree_loo", fresh=True, only=only).values()))
            < 3.5
        )
