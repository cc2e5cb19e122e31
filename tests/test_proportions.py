"""Wilson's interval: its defining equation, its exact coverage, and its place in reports."""

import math

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.errors import InputError
from hgpo_train.evaluation.report import evaluation_reports
from hgpo_train.proportions import Z, by_length, wilson_interval

TRIALS = st.integers(1, 2000)


@given(TRIALS, st.floats(0, 1))
def test_each_bound_is_z_standard_errors_from_the_share(trials: int, share: float) -> None:
    low, high = wilson_interval(share, trials)
    assert 0 <= low <= share <= high <= 1
    for bound in (low, high):
        if 0 < bound < 1:
            assert (share - bound) ** 2 == pytest.approx(Z**2 * bound * (1 - bound) / trials, rel=1e-6, abs=1e-12)


def coverage(trials: int, chance: float) -> float:
    """Return the exact probability that the interval contains the chance of a success."""
    total = 0.0
    for won in range(trials + 1):
        low, high = wilson_interval(won / trials, trials)
        if low <= chance <= high:
            total += math.comb(trials, won) * chance**won * (1 - chance) ** (trials - won)
    return total


@pytest.mark.parametrize("trials", [5, 12, 36, 134])
def test_the_coverage_by_the_exact_binomial_distribution(trials: int) -> None:
    """Published: near 95% on average over the chance, and nowhere below 83% (Agresti and Coull, 1998)."""
    exact = [coverage(trials, (step + 0.5) / 400) for step in range(400)]
    assert sum(exact) / len(exact) == pytest.approx(0.95, abs=0.01)
    assert min(exact) > 0.83


def test_several_seeds_per_task_do_not_make_the_interval_narrower_than_its_tasks_allow() -> None:
    """If all seeds of a task end alike, more seeds are no information."""
    rows = [
        {"seed": seed, "task_id": f"t{task}", "task_type": "kind", "aborted": False}
        | dict.fromkeys(("success", "score"), float(task < 3))
        | {"length": 5.0, "validity": 1.0, "admissibility": 1.0, "won": task < 3}
        for seed in range(4)
        for task in range(10)
    ]  # fmt: skip
    success = evaluation_reports(pl.DataFrame(rows))[0].measures["success"]
    assert (success.low, success.high) == wilson_interval(0.3, 10)


@pytest.mark.parametrize(("share", "trials"), [(0.5, 0), (1.5, 3), (-0.1, 3), (float("nan"), 3)])
def test_what_is_no_share_is_refused(share: float, trials: int) -> None:
    with pytest.raises(InputError, match="expected a share in"):
        wilson_interval(share, trials)


def test_lengths_are_classed() -> None:
    lengths = [1, 5, 6, 50, 51, 200]
    table = pl.DataFrame({"length": lengths, "won": [True] * 6, "aborted": [False] * 5 + [True]})
    assert by_length(table).rows() == [("1–5", 2, 0, 2), ("6–10", 1, 0, 1), ("21–50", 1, 0, 1), ("51–", 2, 1, 1)]
