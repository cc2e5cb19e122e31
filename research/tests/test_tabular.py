"""Tabular learning: what is played, its gradients and gains are those of the ring, whose values are exact."""

import numpy as np
import polars as pl
import pytest
import ring
from command import invoke
from ring import RingSource

from hgpo_envs.episode import settings_for
from hgpo_envs.errors import InputError
from hgpo_envs.hashing import text_hashes
from hgpo_envs.sources import SharedSource
from hgpo_research.tabular.gain import gains
from hgpo_research.tabular.graphs import COUNTED, TaskGraph, TaskSet
from hgpo_research.tabular.learning import AGAIN, Learning, advantages, curves, estimators
from hgpo_research.tabular.policy import TabularPolicy
from hgpo_research.tabular.report import summary
from hgpo_research.tabular.rollouts import rollouts, step_table, success
from hgpo_research.tabular.updates import Adam, FixedKL
from hgpo_research.tabular.values import exact_values, sampled_values, true_advantages
from hgpo_research.truth import Rewards
from hgpo_research.truth.exact import close, solve
from hgpo_research.truth.graph import Graph
from hgpo_train.policies.registry import PolicyContext, make_policy

SHARED, SETTINGS = SharedSource(RingSource()), settings_for("Ring", max_steps=ring.LIMIT, action_format="command")


def graph(rewards=COUNTED):
    options = {"skill": 1.0, "memory": 1, "taste": 0.0}
    return Graph(SHARED, SETTINGS, make_policy("softmax", PolicyContext("Ring", "command", options)), rewards, "ring")


def tasks(stored=None, opened=graph):
    return TaskSet([TaskGraph("ring", opened, stored)], ring.LIMIT, {})


def refused():
    raise AssertionError("the environment was opened")


def exact_success(policy):
    """Return the success of each seed."""
    assert policy.tasks.graphs[0].close(300)
    return exact_values(policy, 0, 1.0)[0, :, 0]


def test_the_first_policy_has_the_values_of_the_softmax_policy():
    exact = graph(Rewards(reward="success", reward_scale=1.0))
    assert close(exact, [exact.start], 300)
    policy = TabularPolicy(tasks(), [0, 1], taste=0.0)
    assert policy.tasks.graphs[0].close(300)
    values = exact_values(policy, 0, 0.9)
    expected = solve(exact, 0.9)[0, 0]
    assert 0.05 < expected < 0.95
    assert values[0, :, 0] == pytest.approx(expected, abs=1e-12)


def test_sampled_values_and_rollouts_have_the_exact_means():
    policy = TabularPolicy(tasks(), range(3))
    batch = rollouts(policy, 4000, (5,))
    exact = exact_success(policy)
    assert np.abs(success(policy, batch) - exact).max() < 4 * 0.5 / 4000**0.5
    few = rollouts(policy, 3, (6,))
    values = exact_values(policy, 0, 0.9)[few[0].step, few[0].seed, few[0].node]
    sampled = sampled_values(policy, 0, few[0], 0.9, 2000, (7,))
    assert np.abs(sampled - values).max() < 4.5 * 0.5 / 2000**0.5
    assert np.abs(sampled - values).mean() > 0


def test_a_seed_plays_the_same_whatever_is_beside_it():
    together, alone = TabularPolicy(tasks(), range(4)), TabularPolicy(tasks(), [2])
    rows, row = rollouts(together, 5, (1, 2))[0], rollouts(alone, 5, (1, 2))[0]
    mine = rows.seed == 2
    for name in ("step", "last", "won"):
        assert np.array_equal(getattr(rows, name)[mine], getattr(row, name))
    assert not np.array_equal(row.won, rollouts(alone, 5, (2, 2))[0].won)


def test_groups_of_seeds_never_mix():
    named = estimators(["grpo,gigpo,hgpo,g2po,graphgpo,shrinkage_gae,reinforce_pp"])
    together = TabularPolicy(tasks(), range(3))
    rows = rollouts(together, 6, (0, 0))
    alone = TabularPolicy(tasks(), [1])
    row = rollouts(alone, 6, (0, 0))
    for name, estimator in named.items():
        found, expected = (
            advantages(estimator, policy, batch, 0, ())[0] for policy, batch in ((together, rows), (alone, row))
        )
        assert found[rows[0].seed == 1] == pytest.approx(expected, abs=1e-9), name
        assert np.abs(expected).max() > 0


def test_the_step_table_has_the_hashes_of_the_package():
    policy = TabularPolicy(tasks(), [0])
    table = step_table(policy, rollouts(policy, 20, ()))
    assert set(table["state_hash"]) == set(text_hashes(ring.TEXTS).tolist())
    assert set(table.filter("action_valid")["action_hash"]) == set(text_hashes(ring.ACTIONS).tolist())
    assert 0 < table.filter(~pl.col("action_valid")).height < table.height / 2
    later = table.with_columns(pl.col("state_hash").shift(-1).over("trajectory").alias("later")).drop_nulls()
    assert later["later"].equals(later["next_state_hash"], check_names=False)


def derivatives(policy):
    """Return dJ/dθ of each parameter, by differences of exact success."""
    exact_success(policy)  # all parameters are known
    found = []
    for parameter in range(policy.table(0).shape[1]):
        sides = []
        for change in (1e-4, -1e-4):
            other = policy.copies(0, 1)
            other.table(0)[:, parameter] += change
            sides.append(exact_success(other)[0])
        found.append((sides[0] - sides[1]) / 2e-4)
    return np.array(found)


def test_the_gradient_of_true_advantages_is_that_of_success():
    policy = TabularPolicy(tasks(), [3])
    expected = derivatives(policy)
    copies = policy.copies(0, 200)
    batch = rollouts(copies, 20, ())
    gradient = copies.gradient(batch, true_advantages(copies, batch, gamma=1.0, samples=0, stream=()))[0]
    error = gradient.std(0, ddof=1) / 200**0.5
    assert np.abs(expected).max() > 20 * error.max()
    assert (np.abs(gradient.mean(0) - expected) <= 4.5 * error + 1e-6).all()


def test_an_update_of_fixed_kl_moves_every_seed_as_far():
    policy = TabularPolicy(tasks(), range(4))
    batch = rollouts(policy, 50, ())
    before = policy.choices(0, batch[0].seed, batch[0].node).probability
    gradient = policy.gradient(batch, advantages(estimators(["grpo"])["grpo"], policy, batch, 0, ()))
    policy.add(FixedKL(1e-5)(gradient, policy.products(batch, gradient, gradient)))
    after = policy.choices(0, batch[0].seed, batch[0].node).probability
    divergence = np.where(before > 0, before * np.log(before / np.where(after > 0, after, 1)), 0).sum(1)
    mean = np.bincount(batch[0].seed, divergence) / np.bincount(batch[0].seed)
    assert mean == pytest.approx(np.full(4, 1e-5), rel=0.02)
    assert FixedKL(1.0)([np.zeros((2, 3))], np.zeros(2))[0].tolist() == [[0.0] * 3] * 2


@pytest.mark.slow  # the import of torch
def test_adam_is_that_of_torch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    ours, adam = np.zeros((2, 5)), Adam(0.1)
    theirs = torch.zeros(2, 5, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([theirs], lr=0.1, maximize=True)
    for width in (3, 3, 5, 5):  # the last parameters are discovered later
        gradient = np.zeros((2, 5))
        gradient[:, :width] = rng.normal(size=(2, width))
        ours[:, :width] += adam([gradient[:, :width]], np.ones(2))[0]
        theirs.grad = torch.tensor(gradient)
        optimiser.step()
    assert ours == pytest.approx(theirs.detach().numpy(), abs=1e-7)


# Gain


@pytest.mark.slow
def test_gains_of_true_advantages_are_those_of_the_exact_gradient():
    """The largest gain is ∇J · ∇J / √(∇Jᵀ F ∇J) · √(2δ), and an infinite batch of true advantages has it."""
    policy, how = TabularPolicy(tasks(), [3]), Learning(group_size=100, kl=1e-4)
    slopes = [derivatives(policy)[None]]
    length = policy.products(rollouts(policy, 20_000, (9,)), slopes, slopes)[0]
    exact = np.sqrt(2 * how.kl / length) * (slopes[0] ** 2).sum()
    found = gains(policy, 0, estimators(["oracle,grpo"]), how, 200, (1,))
    oracle, grpo = found.rows(named=True)
    assert oracle["expected"] == pytest.approx(exact, rel=0.03)
    assert 0 < grpo["one_batch"] < grpo["expected"] < 1.1 * exact
    assert grpo["one_batch"] < oracle["one_batch"] < oracle["expected"]
    assert oracle["relative"] == pytest.approx(oracle["one_batch"] / oracle["expected"])


@pytest.mark.parametrize("name", ["grpo", "gigpo:gamma=0.5", "oracle"])
def test_a_gain_is_the_improvement_of_a_real_step(name):
    """Steps of little divergence along each batch's gradient change exact success by the gain, within its error."""
    policy, how, copies = TabularPolicy(tasks(), [3]), Learning(group_size=6, kl=1e-6), 300
    named = estimators([name])
    gain = gains(policy, 0, named, how, copies, (1,)).row(0, named=True)
    moved = policy.copies(0, copies)
    batch = rollouts(moved, how.group_size, (1,))
    gradient = moved.gradient(batch, advantages(named[name], moved, batch, 0, (1,)))
    before = exact_success(moved)
    moved.add(FixedKL(how.kl)(gradient, moved.products(batch, gradient, gradient)))
    improvement = exact_success(moved) - before
    error = (improvement.var(ddof=1) / copies + gain["one_batch_error"] ** 2) ** 0.5
    assert improvement.mean() > 8 * error
    assert abs(improvement.mean() - gain["one_batch"]) < 4 * error


# Learning


def test_what_improves_success_learns_and_a_seed_learns_the_same_alone():
    named = estimators(["grpo", "oracle"])
    how = Learning(seeds=8, iterations=8, group_size=12, kl=0.02, evaluation=200)
    table = curves(tasks(), named, how)
    assert table["estimator"].unique(maintain_order=True).to_list() == ["grpo", "grpo" + AGAIN, "oracle"]
    assert table.height == 3 * 8 * 9
    rows = {row["estimator"]: row for row in summary(table).iter_rows(named=True)}
    assert rows["grpo"]["final_difference"] == 0
    assert rows["oracle"]["final"] > rows["oracle"]["start"] + 0.1
    assert rows["grpo" + AGAIN]["area_difference"] != 0
    alone = curves(tasks(), {"grpo": named["grpo"]}, Learning(**{**vars(how), "seeds": 2, "first_seed": 5}))
    both = table.filter(pl.col("seed").is_in([5, 6])).filter(pl.col("estimator") != "oracle")
    assert both["success"].to_list() == pytest.approx(alone["success"].to_list(), abs=1e-12)


def test_stored_graphs_replace_the_environment_until_something_is_new(tmp_path):
    how = Learning(seeds=2, iterations=2, group_size=4)
    named = estimators(["grpo"])
    first = tasks()
    found = curves(first, named, how)
    first.write(tmp_path)
    stored = tuple(pl.read_parquet(tmp_path / f"{name}.parquet") for name in ("nodes", "edges"))
    again = tasks(stored, refused)
    assert curves(again, named, how).equals(found)
    for table, expected in zip(again.graphs[0].tables(), stored, strict=True):
        assert table.equals(expected)
    more = Learning(seeds=20, iterations=2, group_size=8)
    with pytest.raises(AssertionError, match="was opened"):
        curves(again, named, more)
    assert curves(tasks(stored), named, more)["success"].equals(curves(tasks(), named, more)["success"])


def test_intervals_are_those_of_students_distribution():
    rows = [("a", 0, 0.1), ("a", 1, 0.3), ("a", 2, 0.2), ("b", 0, 0.4), ("b", 1, 0.4), ("b", 2, 0.7)]
    table = pl.DataFrame(
        [(name, seed, iteration, value) for name, seed, value in rows for iteration in (0, 1)],
        schema=["estimator", "seed", "iteration", "success"],
        orient="row",
    )
    row = summary(table).row(1, named=True)
    assert (row["final"], row["final_difference"]) == pytest.approx((0.5, 0.3))
    assert row["final_difference_half"] == pytest.approx(4.303 * np.std([0.3, 0.1, 0.5], ddof=1) / 3**0.5, rel=1e-3)


@pytest.mark.slow
def test_the_command_writes_curves_tables_and_pictures(tmp_path):
    out = tmp_path / "out"
    small = ["--tasks", 2, "--seeds", 2, "--iterations", 2, "--evaluation", 2, "--gain-at", 1, "--gain-copies", 4]
    output = invoke("learn-tabular", "-e", "grpo,hgpo:mode=mean_norm", "--samples", 2, *small, "--out", out)
    assert "hgpo:mode=mean_norm" in output
    names = {path.name for path in out.iterdir()}
    assert {"curves.parquet", "summary.md", "gains.parquet", "nodes.parquet", "edges.parquet"} <= names
    assert pl.read_parquet(out / "curves.parquet").height == 3 * 2 * 3
    with pytest.raises(InputError, match="has curves already"):
        invoke("learn-tabular", "-e", "grpo", *small, "--out", out)
    with pytest.raises(InputError, match="use another folder"):
        invoke("learn-tabular", "-e", "grpo", *small, "--out", out, "--overwrite", "--memory", 0)
