"""HGPO, returns and similar states against plain Python in exact fractions, and what no result depends on.

Recordings of the official code (test_goldens.py) hold the other estimators; here are the switches that it lacks.
"""

import math
from collections import defaultdict
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgpo_train.advantages import compute

EPSILON = 1e-6


def f32(x):
    return float(np.float32(x))


# ---------------------------------------------------------------------------------------------------- the formulas


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
        total, running = sum(reward[i] for i in members), 0.0
        for left, i in enumerate(reversed(members)):
            running = reward[i] + gamma * running
            result[i] = f32(gamma**left * total if returns == "from_end" else running)
            if penalty_at == "return":
                result[i] = f32(result[i] - f32(invalid(rows, i, penalty)))
    return result


def episode_reward(rows):
    result = {}
    for members in trajectories(rows):
        total = sum(f32(rows[i]["reward"]) for i in members)
        result |= dict.fromkeys(members, total)
    return result


def scores(rows, penalty):
    return {i: f32(f32(x) - f32(invalid(rows, i, penalty))) for i, x in episode_reward(rows).items()}


def by_task(rows):
    tasks = defaultdict(list)
    for i, row in enumerate(rows):
        tasks[row["task"]].append(i)
    return tasks.values()


def mean(values):
    return sum(map(Fraction, values)) / len(values)


def normalised(values, x, mode, ddof):
    """Normalise a value by a sample, in fractions except for the square root."""
    centred = Fraction(x) - mean(values)
    if mode == "mean_norm":
        return float(centred)
    variance = sum((Fraction(v) - mean(values)) ** 2 for v in values) / (len(values) - ddof)
    return float(centred) / (math.sqrt(variance) + EPSILON)


def episode(rows, mode, penalty):
    """GRPO's advantages over all rows of a task."""
    score, result = scores(rows, penalty), {}
    for members in by_task(rows):
        for i in members:
            if len(members) > 1:
                result[i] = normalised([score[j] for j in members], score[i], mode, 1)
            else:
                result[i] = score[i] / (1.0 if mode == "mean_norm" else f32(1 + EPSILON))
    return result


def within(groups, value, mode, ddof):
    """Return values normalised within groups; 0 in singleton groups."""
    result = {}
    for members in groups.values():
        for i in members:
            alone = len(members) == 1
            result[i] = 0.0 if alone else normalised([value[j] for j in members], value[i], mode, ddof)
    return result


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


def hgpo(rows, history_length=2, alpha=1.0, mode="mean_std_norm", base_group=False, context="states", weights="code",
         skip_zero_advantages=True, gamma=0.95, penalty=0.1, **how):  # fmt: skip
    value, items = discounted(rows, gamma, penalty, **how), defaultdict(list)
    if base_group:
        for i, a in episode(rows, mode, penalty).items():
            items[i].append((1.0, a))
    first = 1 if weights == "paper" and not base_group else 2
    for k in range(history_length + 1):
        groups = {c: m for c, m in histories(rows, k, context == "states_actions").items() if len(m) > 1}
        for i, a in within(groups, value, mode, 0).items():
            items[i].append(((k + first) ** alpha, a))
    result = {}
    for i in range(len(rows)):
        counted = [(w, a) for w, a in items[i] if a != 0 or not skip_zero_advantages]
        total = sum(w for w, _ in counted)
        result[i] = sum(w * a for w, a in counted) / (total + EPSILON) if counted else 0.0
    return result


# ---------------------------------------------------------------------------------------------------------- tables


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
    got = compute(pl.DataFrame(rows), name, **{"reward_scale": 1.0} | parameters).collect()["advantage"]
    size = max(1.0, *(abs(row["reward"]) for row in rows))
    for i, value in enumerate(got):
        assert value == pytest.approx(want[i], rel=1e-9, abs=1e-9 * size), (i, rows[i])


MODES = st.sampled_from(["mean_std_norm", "mean_norm"])
SOME = settings(max_examples=max(10, settings().max_examples // 4))  # an example takes about 20 ms


@SOME
@given(tables(), st.integers(0, 7), st.sampled_from([0.0, 0.5, 1.0, 2.0]), MODES, st.booleans(),
       st.sampled_from(["states", "states_actions"]), st.sampled_from(["code", "paper"]), st.booleans())  # fmt: skip
def test_hgpo_matches_its_formulas(rows, depth, alpha, mode, base_group, context, weights, skip):
    p = {"history_length": depth, "alpha": alpha, "mode": mode, "base_group": base_group, "context": context,
         "weights": weights, "skip_zero_advantages": skip}  # fmt: skip
    agree(rows, "hgpo", hgpo(rows, **p), **p)


@SOME
@given(tables(), st.sampled_from(["return", "reward"]), st.sampled_from(["per_step", "from_end"]),
       st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 0.1, 2.0]))  # fmt: skip
def test_returns_match_their_formulas(rows, penalty_at, returns, gamma, penalty):
    want = hgpo(rows, mode="mean_norm", gamma=gamma, penalty=penalty, penalty_at=penalty_at, returns=returns)
    p = {"penalty_at": penalty_at, "returns": returns, "gamma": gamma, "invalid_action_penalty": penalty}
    agree(rows, "hgpo", want, mode="mean_norm", **p)


def test_weights_of_terms_are_factors():
    rows = [
        {"task": "a", "trajectory": name, "step": step, "state": state, "reward": reward, "action_valid": True}
        for name, walk in {"x": [("s", 0.0), ("t", 1.0)], "y": [("s", 0.0), ("u", 0.0)]}.items()
        for step, (state, reward) in enumerate(walk)
    ]
    for name, terms in {"gigpo": ["step"], "g2po": ["node", "edge"], "graphgpo": ["step"]}.items():
        found = compute(pl.DataFrame(rows), name, step_weight=0.5, episode_weight=3.0, details=True).collect()
        parts = 3.0 * found["advantage_episode"] + 0.5 * sum(found[f"advantage_{term}"] for term in terms)
        assert (found["advantage"] - parts).abs().max() < 1e-12
        assert found["advantage"].n_unique() > 1


# ----------------------------------------------------------------------------------------------------- invariances


ALL = ["hgpo", "gigpo", "grpo", "g2po", "graphgpo", "rloo", "reinforce_pp"]


@settings(max_examples=20)
@given(tables(), st.randoms(use_true_random=False), st.sampled_from(ALL))
def test_row_order_and_names_do_not_change_results(rows, random, name):
    def advantages(table):
        return compute(pl.DataFrame(table), name).collect()["advantage"].to_list()

    want = advantages(rows)
    order = list(range(len(rows)))
    random.shuffle(order)
    size = max(1.0, *(abs(row["reward"]) for row in rows))
    assert advantages([rows[i] for i in order]) == pytest.approx([want[i] for i in order], rel=1e-12, abs=1e-12 * size)
    tasks, tracks = ({row[key] for row in rows} for key in ("task", "trajectory"))
    names = dict(zip(sorted(tasks), random.sample("zyx", len(tasks)), strict=True))
    tracks = dict(zip(sorted(tracks), random.sample("abcdefghijkl", len(tracks)), strict=True))
    renamed = [row | {"task": names[row["task"]], "trajectory": tracks[row["trajectory"]]} for row in rows]
    assert advantages(renamed) == pytest.approx(want, rel=1e-12, abs=1e-12 * size)


@settings(max_examples=30)
@given(tables(), st.integers(0, 4), st.sampled_from(["states", "states_actions"]))
def test_stored_hashes_and_texts_agree(rows, depth, context):
    from hgpo_envs.hashing import chain_columns, text_hashes

    table = pl.DataFrame(rows).sort("task", "trajectory", "step")
    first = (table["trajectory"] != table["trajectory"].shift(1)).fill_null(value=True).to_numpy()
    actions = text_hashes(table["action"]) if context == "states_actions" else None
    values, defined = chain_columns(text_hashes(table["state"]), first, depth, actions)
    prefix = "history_hash_" if context == "states" else "context_hash_"
    stored = table.drop("state", "action").with_columns(
        pl.when(pl.Series(defined[k])).then(pl.Series(values[k])).alias(f"{prefix}{k}") for k in range(depth + 1)
    )
    p = {"history_length": depth, "context": context}
    found, want = (compute(each, "hgpo", **p).collect()["advantage"].to_list() for each in (stored, table))
    assert found == pytest.approx(want, rel=1e-12, abs=1e-12)


@settings(max_examples=30)
@given(tables(), st.data())
def test_similar_states_match_the_reference(rows, data):
    """Clusters of similar texts are created by trajectory and step; a threshold just below 1 means equality."""
    from difflib import SequenceMatcher

    threshold = data.draw(st.sampled_from([0.5, 0.75, 0.999]))
    groups = defaultdict(list)
    for members in by_task(rows):
        openers = []
        for i in sorted(members, key=lambda i: (rows[i]["trajectory"], rows[i]["step"])):
            text = rows[i]["state"]
            found = next((o for o in openers if SequenceMatcher(None, text, o).ratio() >= threshold), None)
            if found is None:
                openers.append(found := text)
            groups[rows[i]["task"], found].append(i)
    steps = within(groups, discounted(rows, 0.95, 0.1), "mean_norm", 1)
    agree(rows, "gigpo", steps, mode="mean_norm", episode_weight=0.0, similarity=True, similarity_threshold=threshold)
