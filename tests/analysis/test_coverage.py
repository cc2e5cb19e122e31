"""How often intervals over tasks contain the true value, by simulation: `python -m tests.analysis.test_coverage`.

Each population gives the numerators and denominators of a ratio of sums over tasks. The percentiles need hgpo-research.
"""

import math

import numpy as np
import pytest

from hgpo_train.resampling import ratio_interval

GROUP = 8


def loops(rng, tasks, *, kinds):
    """Pairs of steps at the same state whose histories differ, and all of them.

    Every task has states that some of its rollouts visit once. Rollouts that loop stay at one state, whose pairs differ
    less often. They loop in three tasks of ten, or with a probability that differs from task to task.
    """
    visits = rng.binomial(GROUP, rng.uniform(0.2, 1, (tasks, 15))) * (
        np.arange(15) < rng.integers(5, 16, (tasks, 1))
    )
    pairs = (visits * (visits - 1)).sum(1)
    chance = (
        np.where(rng.random(tasks) < 0.3, rng.uniform(0.1, 0.9, tasks), 0)
        if kinds
        else rng.beta(0.5, 2, tasks)
    )
    steps = rng.integers(5, 40, (tasks, GROUP))
    looping = (steps * (rng.random((tasks, GROUP)) < chance[:, None])).sum(1)
    looped = looping * np.maximum(looping - 1, 0)
    return rng.beta(4, 3, tasks) * pairs + rng.beta(2, 8, tasks) * looped, (
        pairs + looped
    ).astype(float)


def walks(rng, tasks):
    """Tasks whose share of looping steps and whose lengths differ widely."""
    share = rng.beta(0.5, 1, tasks)
    ends = rng.beta(1, 3, tasks) * 0.3
    steps = np.minimum(rng.geometric(ends[:, None], (tasks, GROUP)), 20)
    looping = rng.binomial(steps, share[:, None]).sum(1)
    others = steps.sum(1) - looping
    looped = looping * np.maximum(looping - 1, 0)
    pairs = others * np.maximum(others - 1, 0) / 5
    return (1 - share**2) * looped + 0.8 * pairs, (looped + pairs).astype(float)


def rare_mean(rng, tasks, *, success):
    """Sums of |A_k - A_K|, which are 0 where no rollout wins, and compared steps."""
    steps = rng.integers(100, 400, tasks).astype(float)
    return (rng.binomial(GROUP, success, tasks) > 0) * steps * rng.uniform(
        0.05, 0.3, tasks
    ), steps


def rare_score(rng, tasks, *, success):
    """Scores of three rollouts of a task."""
    return rng.binomial(3, success, tasks) * rng.uniform(0.2, 1, tasks), np.full(
        tasks, 3.0
    )


POPULATIONS = {
    "differing histories, loops in 3 of 10 tasks": (loops, {"kinds": True}, "share"),
    "differing histories, loops in all tasks": (loops, {"kinds": False}, "share"),
    "differing histories, loops and lengths that vary widely": (walks, {}, "share"),
    "mean distance of advantages, success 2%": (
        rare_mean,
        {"success": 0.02},
        "positive",
    ),
    "mean distance of advantages, success 4%": (
        rare_mean,
        {"success": 0.04},
        "positive",
    ),
    "signs that differ, success 2%": (rare_mean, {"success": 0.02}, "share"),
    "score, success 3%": (rare_score, {"success": 0.03}, "share"),
}
"""Each population, its arguments, and the scale of its ratio."""


def percentiles(above, below, _scale):
    """The bounds by resampled tasks, for comparison."""
    from hgpo_research.resampling import percentile_bounds, task_weights

    weights = task_weights(len(above), 400, seed=0)
    with np.errstate(invalid="ignore"):
        draws = (weights @ above) / (weights @ below)
    low, high = percentile_bounds(
        np.array([above.sum() / below.sum()]), draws[:, None], len(above)
    )
    return low[0], high[0]


def coverage(name, tasks, trials, interval):
    """The share of the intervals that contain the true value, and the share of the runs that have one."""
    population, arguments, scale = POPULATIONS[name]
    above, below = population(np.random.default_rng(1), 200_000, **arguments)
    true = above.sum() / below.sum()
    rng = np.random.default_rng(2)
    hits = []
    for _ in range(trials):
        above, below = population(rng, tasks, **arguments)
        low, high = interval(above, below, scale)
        if low is not None:
            hits.append(low <= true <= high)
    return np.mean(hits), len(hits) / trials


@pytest.mark.slow
@pytest.mark.parametrize("name", POPULATIONS)
@pytest.mark.parametrize("tasks", [12, 24])
def test_intervals_contain_the_true_value_nine_times_in_ten(name, tasks):
    share, given = coverage(name, tasks, 600, lambda *sums: ratio_interval(*sums)[1:])
    assert share > 0.9 - 2.58 * math.sqrt(0.9 * 0.1 / (600 * given))


if __name__ == "__main__":
    print(
        "| population | tasks | percentiles | jackknife | runs with an interval |\n|---|---|---|---|---|"
    )
    for each in POPULATIONS:
        for size in (6, 12, 24, 96):
            before, _ = coverage(each, size, 1000, percentiles)
            now, known = coverage(
                each, size, 1000, lambda *sums: ratio_interval(*sums)[1:]
            )
            print(f"| {each} | {size} | {before:.2f} | {now:.2f} | {known:.0%} |")
