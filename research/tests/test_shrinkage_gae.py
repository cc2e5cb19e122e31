"""`shrinkage_gae` against a plain Python implementation of its formulas in exact fractions."""

import math
from collections import defaultdict
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgpo_train.advantages import compute


def f32(x):
    return float(np.float32(x))


def trajectories(rows):
    """Return the row indices of each trajectory by step; all functions below identify rows by their index."""
    found = defaultdict(list)
    for i, row in enumerate(rows):
        found[row["trajectory"]].append(i)
    for members in found.values():
        members.sort(key=lambda i: rows[i]["step"])
    return found.values()


def invalid(rows, i, penalty):
    return 0.0 if rows[i]["action_valid"] else penalty


def discounted(rows, gamma, penalty, penalty_at="return", returns="per_step"):
    result = {}
    for members in trajectories(rows):
        reward = {i: f32(rows[i]["reward"]) for i in members}
        if penalty_at == "reward":
            reward = {i: reward[i] - f32(invalid(rows, i, penalty)) for i in members}
        total = sum(reward[i] for i in members)
        running = 0.0
        for left, i in enumerate(reversed(members)):
            running = reward[i] + gamma * running
            result[i] = f32(gamma**left * total if returns == "from_end" else running)
            if penalty_at == "return":
                result[i] = f32(result[i] - f32(invalid(rows, i, penalty)))
    return result


def mean(values):
    return sum(map(Fraction, values)) / len(values)


def histories(rows, k, actions):
    """Return the steps of each context of depth k."""
    groups = defaultdict(list)
    for members in trajectories(rows):
        for t, i in enumerate(members):
            if t >= k:
                past = members[t - k : t + 1]
                context = [rows[j]["state"] for j in past]
                if actions:
                    context += [rows[j]["action"] for j in past[:-1]]
                groups[rows[i]["task"], tuple(context)].append(i)
    return groups


class Rollouts:
    """The steps of a task in the same context, for each level from the task to the deepest history.

    Args:
        rows: The table.
        history_length: The deepest history.
        actions: Whether histories include actions.
        own: Whether the steps of a step's own rollout are among them.
    """

    def __init__(self, rows, history_length, actions, own):
        tasks = defaultdict(list)
        for i, row in enumerate(rows):
            tasks[row["task"]].append(i)
        self.rows = rows
        self.steps = []
        for groups in [
            tasks,
            *(histories(rows, k, actions) for k in range(history_length + 1)),
        ]:
            of = {i: members for members in groups.values() for i in members}
            self.steps.append(
                [
                    [
                        j
                        for j in of.get(i, [])
                        if own or rows[j]["trajectory"] != row["trajectory"]
                    ]
                    for i, row in enumerate(rows)
                ]
            )

    def count(self, k, i):
        return len({self.rows[j]["trajectory"] for j in self.steps[k][i]})

    def mean(self, k, i, value):
        return mean([value[j] for j in self.steps[k][i]])

    def variances(self, value):
        """The variance within contexts of each level (None if no rollouts share one), and what the level explains."""

        def far(k, i):
            return (
                float((Fraction(value[i]) - self.mean(k, i, value)) ** 2)
                * self.count(k, i)
                / (self.count(k, i) + 1)
            )

        within = []
        explained = []
        for k, steps in enumerate(self.steps):
            shared = [i for i, members in enumerate(steps) if members]
            gains = [far(k - 1, i) - far(k, i) for i in shared] if k else []
            within.append(
                math.fsum(far(k, i) for i in shared) / len(shared) if shared else None
            )
            explained.append(max(0.0, math.fsum(gains) / len(shared)) if gains else 0.0)
        return within, explained


def shrunk_values(known, i, values, within, explained):
    """The means of some values at a step, shrunk level by level, and the estimated error of the first."""
    found = [float(known.mean(0, i, value)) for value in values]
    error = within[0] / known.count(0, i)
    for k in range(1, len(known.steps)):
        weight = 0.0
        if known.steps[k][i] and explained[k] > 0:
            weight = explained[k] / (explained[k] + within[k] / known.count(k, i))
            here = [float(known.mean(k, i, value)) for value in values]
            found = [
                old + weight * (new - old) for old, new in zip(found, here, strict=True)
            ]
        error = (1 - weight) ** 2 * error + (1 - weight) * explained[k]
    return *found, error


def shrinkage_gae(rows, history_length=2, context="states", gae_lambda=None, leave_one_out=False, penalty=0.1,
                  penalty_at="return", returns="per_step", gamma=0.95):  # fmt: skip
    """Values from mean returns, shrunk level by level, then GAE by its recursion over rewards."""
    compared = discounted(rows, gamma, penalty, penalty_at, returns)
    plain = (
        discounted(rows, gamma, 0.0, penalty_at, returns)
        if penalty_at == "return"
        else compared
    )
    others = Rollouts(rows, history_length, context == "states_actions", own=False)
    known = (
        others
        if leave_one_out
        else Rollouts(rows, history_length, context == "states_actions", own=True)
    )
    within, explained = others.variances(plain)
    noise = next(
        (variance for variance in reversed(within) if variance is not None),
        0.0,
    )
    value = {}
    baseline = {}
    trust = {}
    for i in plain:
        if others.steps[0][i]:
            value[i], baseline[i], error = shrunk_values(
                known, i, (plain, compared), within, explained
            )
        else:  # a single rollout: nothing is compared
            value[i] = plain[i]
            baseline[i] = compared[i]
            error = sum(explained)
        trust[i] = error / (error + noise) if error + noise > 0 else 1.0
        trust[i] = trust[i] if gae_lambda is None else gae_lambda
    result = {}
    for members in trajectories(rows):
        after = target = None
        for i in reversed(members):
            # the step's own reward follows from the recursion of returns
            if after is None:
                target = plain[i]
            else:
                reward = plain[i] - gamma * plain[after]
                target = reward + gamma * (
                    value[after] + trust[after] * (target - value[after])
                )
            after = i
            result[i] = target - (plain[i] - compared[i]) - baseline[i]
    return result


STATES = ["", "hall", "kitchen", "ñ", "ñ", " hall", "鍵 🗝", "success"]


@st.composite
def tables(draw):
    """Small tables with loops, singleton groups, gaps in step numbers, shuffled rows and rewards of one magnitude."""
    scale = draw(st.sampled_from([1.0, 1.0, 1.0, 1e8, 1e-8]))
    rewards = st.sampled_from([0.0, 0.0, 0.0, 10.0, 1.0, -0.5, 3.25])
    states = st.sampled_from(STATES[: draw(st.integers(1, len(STATES)))])
    rows = []
    for task in range(draw(st.integers(1, 3))):
        for rollout in range(draw(st.integers(1, 4))):
            step = 0
            for _ in range(draw(st.integers(1, 6))):
                step += draw(st.sampled_from([1, 1, 1, 3]))
                rows.append(
                    {
                        "task": f"tâche {task}",
                        "trajectory": f"{task}/{rollout}",
                        "step": step,
                        "state": draw(states),
                        "action": draw(st.sampled_from(["look", "go"])),
                        "reward": draw(rewards) * scale,
                        "action_valid": draw(st.sampled_from([True, True, False])),
                    }
                )
    return draw(st.permutations(rows))


def agree(rows, name, want, **parameters):
    """Assert equality to 1e-9, relative to the value or to the rewards that it is a difference of."""
    got = compute(pl.DataFrame(rows), name, **parameters).collect()["advantage"]
    size = max(1.0, *(abs(row["reward"]) for row in rows))
    for i, value in enumerate(got):
        assert value == pytest.approx(want[i], rel=1e-9, abs=1e-9 * size), (
            i,
            rows[i],
        )


@pytest.mark.slow
@settings(max_examples=25)
@given(
    tables(),
    st.integers(0, 3),
    st.sampled_from(["states", "states_actions"]),
    st.sampled_from([None, 0.0, 0.5]),
    st.sampled_from(["return", "reward"]),
    st.sampled_from(["per_step", "from_end"]),
    st.sampled_from([0.0, 0.1]),
    st.booleans(),
)
def test_shrinkage_gae_matches_its_formulas(
    rows,
    depth,
    context,
    gae_lambda,
    penalty_at,
    returns,
    penalty,
    leave_out,
):
    p = {
        "history_length": depth,
        "context": context,
        "gae_lambda": gae_lambda,
        "penalty_at": penalty_at,
        "returns": returns,
        "reward_scale": 1.0,
    }
    want = shrinkage_gae(
        rows,
        penalty=penalty,
        **{name: value for name, value in p.items() if name != "reward_scale"},
    )
    agree(rows, "shrinkage_gae", want, invalid_action_penalty=penalty, **p)


@settings(max_examples=10)
@given(tables(), st.integers(0, 2))
def test_shrinkage_gae_without_bootstrapping_is_a_return_minus_a_value(rows, depth):
    """With λ = 1 rewards after the step only count through its return, and in equal returns there is no advantage."""
    p = {
        "history_length": depth,
        "gae_lambda": 1.0,
        "invalid_action_penalty": 0.0,
        "reward_scale": 1.0,
    }
    found = compute(pl.DataFrame(rows), "shrinkage_gae", details=True, **p).collect()
    value = discounted(rows, 0.95, 0.0)
    size = max(1.0, *(abs(row["reward"]) for row in rows))
    for i, (advantage, baseline) in enumerate(
        found.select("advantage", "advantage_value").rows()
    ):
        assert advantage == pytest.approx(value[i] - baseline, abs=1e-9 * size)
    equal = pl.DataFrame(rows).with_columns(reward=0.0)
    assert (
        compute(equal, "shrinkage_gae", invalid_action_penalty=0.0).collect()[
            "advantage"
        ]
        == 0
    ).all()
