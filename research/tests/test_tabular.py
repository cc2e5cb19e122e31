"""Tabular learning: what is played, its gradients and gains are those of the ring, whose values are exact."""

import numpy as np
import polars as pl
import pytest
import ring

from hgpo_envs.errors import InputError
from hgpo_envs.hashing import text_hashes
from hgpo_research.mixture import Mixture, mixture_weights
from hgpo_research.tabular.adaptive import Adaptive
from hgpo_research.tabular.cross_validation import cross_validated_slopes
from hgpo_research.tabular.gain import gains
from hgpo_research.tabular.graphs import (
    COUNTED,
    Parameters,
    TaskGraph,
    TaskSet,
)
from hgpo_research.tabular.learning import AGAIN, Learning, curves
from hgpo_research.tabular.methods import methods
from hgpo_research.tabular.policy import TabularPolicy, Visits
from hgpo_research.tabular.report import summary
from hgpo_research.tabular.rollouts import rollouts, step_table, success
from hgpo_research.tabular.updates import Adam, FixedKL
from hgpo_research.tabular.values import (
    exact_values,
    sampled_values,
    true_advantages,
)
from hgpo_research.truth import Rewards
from hgpo_research.truth.exact import close, solve
from hgpo_research.truth.graph import Graph
from hgpo_train.policies.registry import PolicyContext, make_policy


class GraphWithFeatures(Graph):
    """A graph with features that tell all choices apart."""

    def features(self, node):
        return np.eye(self.size[node]) * (1.0 + (self.text(node) == "gate"))


def graph(rewards=COUNTED):
    options = {"skill": 1.0, "memory": 1, "taste": 0.0}
    policy = make_policy("softmax", PolicyContext("Ring", "command", options))
    return GraphWithFeatures(ring.SHARED, ring.SETTINGS, policy, rewards, "ring")


def tasks(stored=None, opened=graph, parameters=None, count=1):
    parameters = parameters or Parameters()
    return TaskSet(
        [TaskGraph("ring", opened, stored, 0, parameters) for _ in range(count)],
        ring.LIMIT,
        {},
    )


def refused():
    raise AssertionError("the environment was opened")


def advantages(name, policy, batch, stream=()):
    """Return the advantages of the only task's rows."""
    (new,) = methods([name]).values()
    return new()(policy, Visits(policy, batch), stream)


def exact_success(policy):
    """Return the success of each seed, the mean over tasks."""
    assert all(each.close(300) for each in policy.tasks.graphs)
    return np.mean(
        [
            exact_values(policy, task, 1.0)[0, :, 0]
            for task in range(len(policy.tasks.graphs))
        ],
        0,
    )


def test_the_first_policy_has_the_values_of_the_softmax_policy():
    exact = graph(Rewards(reward="success", reward_scale=1.0))
    assert close(exact, 300)
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
    together = TabularPolicy(tasks(), range(4))
    alone = TabularPolicy(tasks(), [2])
    rows = rollouts(together, 5, (1, 2))[0]
    row = rollouts(alone, 5, (1, 2))[0]
    mine = rows.seed == 2
    for name in ("step", "last", "score"):
        assert np.array_equal(getattr(rows, name)[mine], getattr(row, name))
    assert not np.array_equal(row.score, rollouts(alone, 5, (2, 2))[0].score)


def test_groups_of_seeds_never_mix():
    names = [
        "grpo",
        "gigpo",
        "hgpo",
        "g2po",
        "graphgpo",
        "shrinkage_gae",
        "reinforce_pp",
        "adaptive",
    ]
    together = TabularPolicy(tasks(), range(3))
    rows = rollouts(together, 6, (0, 0))
    alone = TabularPolicy(tasks(), [1])
    row = rollouts(alone, 6, (0, 0))
    for name in names:
        found, expected = (
            advantages(name, policy, batch)[0]
            for policy, batch in ((together, rows), (alone, row))
        )
        assert found[rows[0].seed == 1] == pytest.approx(expected, abs=1e-9), name
        assert np.abs(expected).max() > 0


def test_the_step_table_has_the_hashes_of_the_package():
    policy = TabularPolicy(tasks(), [0])
    table = step_table(policy, rollouts(policy, 20, ()))
    assert set(table["state_hash"]) == set(text_hashes(ring.TEXTS).tolist())
    assert set(table.filter("action_valid")["action_hash"]) == set(
        text_hashes(ring.ACTIONS).tolist()
    )
    assert 0 < table.filter(~pl.col("action_valid")).height < table.height / 2
    later = table.with_columns(
        pl.col("state_hash").shift(-1).over("trajectory").alias("later")
    ).drop_nulls()
    assert later["later"].equals(later["next_state_hash"], check_names=False)
    scores = set(table.filter("won")["score"])
    assert scores
    assert scores <= {place / ring.PLACES for place in ring.TREASURES}


def improvement(policy, visits, gradient, kl):
    """Return the exact success that each seed gains by an update of a divergence along a gradient."""
    before = exact_success(policy)
    policy.add(FixedKL(kl)(visits.dense(gradient), visits.products(gradient, gradient)))
    return exact_success(policy) - before


def derivatives(policy):
    """Return dJ/dθ of each parameter, by differences of exact success."""
    exact_success(policy)  # all parameters are known
    found = []
    for parameter in range(policy.table().shape[1]):
        sides = []
        for change in (1e-4, -1e-4):
            other = policy.copies(0, 1)
            other.table()[:, parameter] += change
            sides.append(exact_success(other)[0])
        found.append((sides[0] - sides[1]) / 2e-4)
    return np.array(found)


@pytest.mark.parametrize(("shared", "count"), [(False, 1), (True, 2)])
def test_the_gradient_of_true_advantages_is_that_of_success(shared, count):
    policy = TabularPolicy(
        tasks(parameters=Parameters(shared=shared), count=count), [3]
    )
    expected = derivatives(policy)
    copies = policy.copies(0, 200)
    batch = rollouts(copies, 20 // count, ())
    visits = Visits(copies, batch)
    gradient = visits.dense(
        visits.gradient(true_advantages(copies, batch, gamma=1.0, samples=0, stream=()))
    )
    error = gradient.std(0, ddof=1) / 200**0.5
    assert np.abs(expected).max() > 20 * error.max()
    assert (np.abs(gradient.mean(0) - expected) <= 4.5 * error + 1e-6).all()


def test_shared_parameters_teach_tasks_that_were_not_learned():
    parameters = Parameters(shared=True)
    learned, held_out = (tasks(parameters=parameters) for _ in range(2))
    how = Learning(seeds=8, iterations=8, group_size=12, kl=0.02, evaluation=200)
    table = curves(
        {"ring": learned},
        methods(["oracle"]),
        how,
        held_out={"ring": held_out},
    ).success
    assert table["held_out"].null_count() == 2 * 8 * 7
    (row, again) = summary(table).rows(named=True)
    # two texts, three actions and an inadmissible one
    assert len(parameters.names) == 2 * 4
    assert row["final"] > row["start"] + 0.05
    assert row["held_out"] == pytest.approx(row["final"], abs=0.05)
    assert again["held_out_difference"] != 0


def test_an_update_of_fixed_kl_moves_every_seed_as_far():
    policy = TabularPolicy(tasks(), range(4))
    batch = rollouts(policy, 50, ())
    before = policy.choices(0, batch[0].seed, batch[0].node).probability
    visits = Visits(policy, batch)
    gradient = visits.gradient(advantages("grpo", policy, batch))
    policy.add(
        FixedKL(1e-5)(visits.dense(gradient), visits.products(gradient, gradient))
    )
    after = policy.choices(0, batch[0].seed, batch[0].node).probability
    ratio = before / np.where(after > 0, after, 1)
    divergence = np.where(before > 0, before * np.log(ratio), 0).sum(1)
    mean = np.bincount(batch[0].seed, divergence) / np.bincount(batch[0].seed)
    assert mean == pytest.approx(np.full(4, 1e-5), rel=0.02)
    nothing = np.zeros((2, 3))
    assert np.array_equal(FixedKL(1.0)(nothing, np.zeros(2)), nothing)


@pytest.mark.slow  # the import of torch
def test_adam_is_that_of_torch():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    ours = np.zeros((2, 5))
    adam = Adam(0.1)
    theirs = torch.zeros(2, 5, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([theirs], lr=0.1, maximize=True)
    for width in (3, 3, 5, 5):  # the last parameters are discovered later
        gradient = np.zeros((2, 5))
        gradient[:, :width] = rng.normal(size=(2, width))
        ours[:, :width] += adam(gradient[:, :width], np.ones(2))
        theirs.grad = torch.tensor(gradient)
        optimiser.step()
    assert ours == pytest.approx(theirs.detach().numpy(), abs=1e-7)


# Gain


@pytest.mark.slow
def test_gains_of_true_advantages_are_those_of_the_exact_gradient():
    """The largest gain is ∇J · ∇J / √(∇Jᵀ F ∇J) · √(2δ), and an infinite batch of true advantages has it."""
    policy = TabularPolicy(tasks(), [3])
    how = Learning(group_size=100, kl=1e-4)
    slopes = derivatives(policy)[None]
    visits = Visits(policy, rollouts(policy, 20_000, (9,)))
    length = visits.products(visits.sparse(slopes), visits.sparse(slopes))[0]
    exact = np.sqrt(2 * how.kl / length) * (slopes**2).sum()
    found = gains(policy, 0, methods(["oracle,grpo"]), how, 200, (1,))
    oracle, grpo = found.rows(named=True)
    assert oracle["expected"] == pytest.approx(exact, rel=0.03)
    assert 0 < grpo["one_batch"] < grpo["expected"] < 1.1 * exact
    assert grpo["one_batch"] < oracle["one_batch"] < oracle["expected"]
    assert oracle["relative"] == pytest.approx(oracle["one_batch"] / oracle["expected"])


@pytest.mark.parametrize("name", ["grpo", "gigpo:gamma=0.5", "oracle"])
def test_a_gain_is_the_improvement_of_a_real_step(name):
    """Steps of little divergence along each batch's gradient change exact success by the gain, within its error."""
    policy = TabularPolicy(tasks(), [3])
    how = Learning(group_size=6, kl=1e-6)
    copies = 300
    gain = gains(policy, 0, methods([name]), how, copies, (1,)).row(0, named=True)
    moved = policy.copies(0, copies)
    visits = Visits(moved, rollouts(moved, how.group_size, (1,)))
    gradient = visits.gradient(advantages(name, moved, visits.rollouts, (1,)))
    gained = improvement(moved, visits, gradient, how.kl)
    error = (gained.var(ddof=1) / copies + gain["one_batch_error"] ** 2) ** 0.5
    assert gained.mean() > 8 * error
    assert abs(gained.mean() - gain["one_batch"]) < 4 * error


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grpo:cross_steps=false", "gigpo:gamma=0.5"])
def test_cross_validated_slopes_are_the_improvements_of_real_steps(name):
    """Along gradients of batches without one fold, exact success rises as much as the rollouts of the folds say."""
    policy = TabularPolicy(tasks(), [3])
    copies = 400
    folds = 4
    size = 8
    same = policy.copies(0, copies)
    visits = Visits(same, rollouts(same, size, (1,)))
    (slopes,) = cross_validated_slopes(
        same, visits, [methods([name])[name]().estimator], folds
    )
    smaller = policy.copies(0, copies)
    less = Visits(smaller, rollouts(smaller, size - size // folds, (2,)))
    gained = (
        improvement(
            smaller,
            less,
            less.gradient(advantages(name, smaller, less.rollouts)),
            0.5e-6,
        )
        / 1e-3
    )
    error = ((slopes.var(ddof=1) + gained.var(ddof=1)) / copies) ** 0.5
    assert gained.mean() > 4 * error
    assert abs(slopes.mean() - gained.mean()) < 4 * error


def test_the_steepest_mixture_of_gradients():
    """No mixture of a fine grid is steeper than the one that is found, and it is nearly as steep as the best."""
    rng = np.random.default_rng(0)
    grid = np.concatenate([rng.dirichlet([0.5] * 3, 20_000), np.eye(3)])
    for _ in range(50):
        vectors = rng.normal(size=(3, 4))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        slopes = rng.normal(size=3)
        (weights,) = mixture_weights(slopes[:, None], (vectors @ vectors.T)[None]).T
        assert weights.sum() == pytest.approx(1.0)
        assert (weights >= 0).all()
        steepness = (grid @ slopes) / np.linalg.norm(grid @ vectors, axis=1)
        found = weights @ slopes / np.linalg.norm(weights @ vectors)
        if max(slopes) > 0:
            assert steepness.max() - 1e-9 <= found <= 1.02 * steepness.max() + 1e-3
        else:
            assert weights.tolist() == [1, 0, 0]


def test_equal_gradients_have_one_weight():
    """An orthogonal gradient of half the slope has half the weight of the pair."""
    slopes = np.array([[1.0], [1.0], [0.5]])
    cosines = np.array([[[1, 1, 0], [1, 1, 0], [0, 0, 1.0]]])
    one, other, half = mixture_weights(slopes, cosines)[:, 0]
    assert (one + other, half) == pytest.approx((2 / 3, 1 / 3), abs=1e-6)


def test_undiscounted_grpo_takes_over_where_the_long_way_wins():
    """Slopes that favour the third partner in every batch give it the weight, with no handicap, from the fourth on."""
    mixture = Mixture()
    cosines = np.full((1, 3, 3), 0.5) + 0.5 * np.eye(3)
    for update in range(5):
        weights, metrics = mixture.add(np.array([[0.1], [0.1], [1.0]]), cosines, [True])
        assert weights[:, 0].tolist() == ([1, 0, 0] if update < 3 else [0, 0, 1])
    assert metrics["weight_grpo"][0] == 1
    assert metrics["slope_grpo"][0] == pytest.approx(1.0)


def noise(steps: pl.LazyFrame) -> pl.LazyFrame:
    """Return pseudo-random advantages, which do not depend on rewards."""
    return steps.with_columns(
        advantage=(pl.col("trajectory_key") % 7919).cast(pl.Float64) / 3959.5 - 1.0
    )


def test_the_mixture_follows_the_gain_of_its_batches():
    """A partner that says nothing gets little weight, one that is better gets most of it."""
    names = ["grpo", f"{__name__}:noise"]
    pair = [methods([name])[name]().estimator for name in names]
    policy = TabularPolicy(tasks(), range(40))
    weights = {}
    for name, partners in {"noise": pair, "better": pair[::-1]}.items():
        method = Adaptive(dict(zip(("first", "second"), partners, strict=True)))
        for iteration in range(8):
            method(
                policy,
                Visits(policy, rollouts(policy, 16, (iteration,))),
                (),
            )
        weights[name] = method.metrics[-1]["weight_second"].mean()
        assert (method.metrics[0]["weight_second"] == 0).all()
    assert weights["noise"] < 0.25 < 0.6 < weights["better"]


# Learning


def test_what_improves_success_learns_and_a_seed_learns_the_same_alone():
    named = methods(["grpo", "oracle"])
    how = Learning(seeds=8, iterations=8, group_size=12, kl=0.02, evaluation=200)
    table = curves({"ring": tasks()}, named, how).success
    assert table["estimator"].unique(maintain_order=True).to_list() == [
        "grpo",
        "grpo" + AGAIN,
        "oracle",
    ]
    assert table.height == 3 * 8 * 9
    rows = {row["estimator"]: row for row in summary(table).iter_rows(named=True)}
    assert rows["grpo"]["final_difference"] == 0
    assert rows["oracle"]["final"] > rows["oracle"]["start"] + 0.1
    assert rows["grpo" + AGAIN]["area_difference"] != 0
    alone = curves(
        {"ring": tasks()},
        {"grpo": named["grpo"]},
        Learning(**{**vars(how), "seeds": 2, "first_seed": 5}),
    ).success
    both = table.filter(pl.col("seed").is_in([5, 6])).filter(
        pl.col("estimator") != "oracle"
    )
    assert both["success"].to_list() == pytest.approx(
        alone["success"].to_list(), abs=1e-12
    )


def test_stored_graphs_replace_the_environment_until_something_is_new(
    tmp_path,
):
    how = Learning(seeds=2, iterations=2, group_size=4)
    named = methods(["grpo"])
    first = tasks()
    found = curves({"ring": first}, named, how).success
    first.write(tmp_path)
    stored = tuple(
        pl.read_parquet(tmp_path / f"{name}.parquet") for name in ("nodes", "edges")
    )
    again = tasks(stored, refused)
    assert curves({"ring": again}, named, how).success.equals(found)
    for table, expected in zip(again.graphs[0].tables(), stored, strict=True):
        assert table.equals(expected)
    more = Learning(seeds=20, iterations=2, group_size=8)
    with pytest.raises(AssertionError, match="was opened"):
        curves({"ring": again}, named, more)
    stored_and_new, new = (
        curves({"ring": each}, named, more).success for each in (tasks(stored), tasks())
    )
    assert stored_and_new["success"].equals(new["success"])


def test_intervals_are_those_of_students_distribution():
    rows = [
        ("a", 0, 0.1),
        ("a", 1, 0.3),
        ("a", 2, 0.2),
        ("b", 0, 0.4),
        ("b", 1, 0.4),
        ("b", 2, 0.7),
    ]
    table = pl.DataFrame(
        [
            (name, seed, iteration, value)
            for name, seed, value in rows
            for iteration in (0, 1)
        ],
        schema=["estimator", "seed", "iteration", "success"],
        orient="row",
    )
    row = summary(table).row(1, named=True)
    assert (row["final"], row["final_difference"]) == pytest.approx((0.5, 0.3))
    assert row["final_difference_half"] == pytest.approx(
        4.303 * np.std([0.3, 0.1, 0.5], ddof=1) / 3**0.5, rel=1e-3
    )


def test_every_set_of_tasks_has_a_seed() -> None:
    with pytest.raises(
        InputError,
        match="--task-sets: expected at most 1, the number of seeds, received 2",
    ):
        curves(
            {"a": tasks(), "b": tasks()},
            methods(["grpo"]),
            Learning(seeds=1),
        )
