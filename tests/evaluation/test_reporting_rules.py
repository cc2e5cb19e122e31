"""The rules by which success is reported, on a table that is counted by hand, and what holds of any table."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_train.evaluation.reporting_rules import MEANT, RULES, success_by_rule
from hgpo_train.proportions import wilson_interval


def table(rows):
    """Return rollouts of (seed, task, how it ended: won, lost, limit, aborted, or unknown to the environment)."""
    ends = {
        "won": True,
        "lost": False,
        "limit": False,
        "aborted": None,
        "unknown": None,
        "limit unknown": None,
    }
    return pl.DataFrame(
        {
            "env_id": ["e"] * len(rows),
            "seed": [seed for seed, _, _ in rows],
            "task_id": [task for _, task, _ in rows],
            "won": pl.Series([ends[end] for _, _, end in rows], dtype=pl.Boolean),
            "aborted": [end == "aborted" for _, _, end in rows],
            "truncated": [end.startswith("limit") for _, _, end in rows],
        }
    )


ENDS = {
    1: ("won", "won", "limit", "aborted"),
    2: ("won", "lost", "limit", "limit"),
    3: ("won", "aborted", "aborted", "limit"),
}
BY_HAND = [
    (seed, task, end)
    for seed, ends in ENDS.items()
    for task, end in zip("abcd", ends, strict=True)
]
"""Three seeds of four tasks: 4 won, 1 lost, 4 at the limit, 3 aborted."""


def test_rollouts_of_unknown_success_have_no_bounds():
    """Imported rollouts often lack `won`; a success rate of 0 of 3 would be wrong."""
    ends = ("unknown", "unknown", "aborted")
    rows = [(1, task, end) for task, end in zip("abc", ends, strict=True)]
    found = success_by_rule(table(rows))
    assert {counted.success for counted in found.values()} == {None}


@pytest.mark.parametrize(
    ("rule", "share", "episodes", "tasks"),
    [
        ("aborted lost", 4 / 12, 12, 4),
        ("aborted dropped", 4 / 9, 9, 4),
        ("aborted won", 7 / 12, 12, 4),
        ("limit lost", 4 / 9, 9, 4),
        ("limit won", 8 / 9, 9, 4),
        ("best", 2 / 3, 3, 3),  # seed 1: 2 of 3; seed 2: 1 of 4; seed 3: 1 of 2
        ("last", 1 / 2, 2, 2),
        ("mean", (2 / 3 + 1 / 4 + 1 / 2) / 3, 9, 4),
    ],
)
def test_success_counted_by_hand(rule, share, episodes, tasks):
    found = success_by_rule(table(BY_HAND))
    assert list(found) == list(RULES)
    assert found[rule].success == pytest.approx(share)
    assert (found[rule].low, found[rule].high) == pytest.approx(
        wilson_interval(share, tasks)
    )
    assert found[rule].episodes == episodes


def test_the_choice_is_among_evaluations_if_there_are_several():
    """The rollouts are those of one checkpoint; the best, last and mean are over all evaluations."""
    played = table(BY_HAND)
    chosen = played.filter(pl.col("seed") == 2)
    found = success_by_rule(chosen, played)
    assert found["aborted lost"].success == 1 / 4
    assert (found["best"].success, found["last"].success) == (2 / 3, 1 / 2)


def test_nothing_is_reported_of_rollouts_without_a_result():
    found = success_by_rule(table([(1, "a", "aborted")]))
    bounds = {"aborted lost": 0.0, "aborted won": 1.0}
    assert {name: counted.success for name, counted in found.items()} == dict.fromkeys(
        RULES
    ) | bounds


ENDS = ("won", "lost", "limit", "aborted", "unknown", "limit unknown")
ROWS = st.tuples(st.integers(1, 3), st.sampled_from("abc"), st.sampled_from(ENDS))


@pytest.mark.slow
@given(st.lists(ROWS, min_size=1, max_size=12))
def test_the_bounds_hold_whatever_is_dropped(rows):
    found = success_by_rule(table(rows))
    shares = {
        name: each.success for name, each in found.items() if each.success is not None
    }
    for each in found.values():
        if each.success is not None:
            assert each.low - 1e-12 <= each.success <= each.high + 1e-12
    for low, high in (
        ("aborted lost", MEANT),
        (MEANT, "aborted won"),
        ("limit lost", "limit won"),
        ("mean", "best"),
    ):
        if low in shares and high in shares:
            assert shares[low] <= shares[high] + 1e-12
    if not any(end in ("aborted", "unknown", "limit unknown") for _, _, end in rows):
        assert shares["aborted lost"] == shares[MEANT] == shares["aborted won"]
        if all(seed == rows[0][0] for seed, _, _ in rows):
            assert shares["best"] == shares["last"] == shares["mean"] == shares[MEANT]
