"""The hierarchy of groups of the terminal's viewer, against histories written out and against HGPO's own groups."""

from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hgpo_train.view.documents import group_document
from hgpo_train.view.estimates import estimate, estimator_with
from hgpo_train.view.sources import open_sources
from hgpo_train.view.terminal.hierarchy import before, levels, members, word_difference

HISTORIES = st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=5)
DEPTH = 4


def contexts_of(paths: list[str]) -> list[list[int | None]]:
    """Number the last k + 1 states of every step of every trajectory."""
    numbers: dict[str, int] = {}
    steps = [path[: step + 1] for path in paths for step in range(len(path))]
    return [
        [numbers.setdefault(past[-k - 1 :], len(numbers)) if len(past) > k else None for past in steps]
        for k in range(DEPTH + 1)
    ]


@given(HISTORIES)
def test_a_level_contains_the_steps_with_the_same_last_states(paths: list[str]) -> None:
    steps = [path[: step + 1] for path in paths for step in range(len(path))]
    for row, past in enumerate(steps):
        found = levels(contexts_of(paths), row)
        for k, level in enumerate(found):
            same = {other for other, their in enumerate(steps) if len(past) > k and their.endswith(past[-k - 1 :])}
            assert {member.row for member in level} == same
        for wide, deep in pairwise(found):
            assert {member.row for member in deep} <= {member.row for member in wide}
        assert all(member in found[0] for member in members(contexts_of(paths), row))


def test_the_levels_are_the_groups_of_hgpo(small_run: Path, rich_run: Path) -> None:
    checked = 0
    for folder in (small_run, rich_run):
        index = open_sources([str(folder)])[0].index()
        for number in range(index.groups.height):
            group = group_document(index, number)
            aborted = [group["trajectories"][owner]["aborted"] for owner in group["steps"]["trajectory"]]
            for kind, contexts in group["contexts"].items():
                spec = estimator_with("hgpo", ["history_length=3", f"context={kind}"], ["hgpo"])
                columns = estimate(index, number, spec)["columns"]
                for row in range(group["rows"]):
                    if aborted[row]:
                        continue
                    for k, level in enumerate(levels(contexts[:4], row)):
                        size = columns[f"size_k{k}"][row]
                        assert sum(not aborted[member.row] for member in level) == (size or 0)
                        checked += k > 0 and bool(size)
    assert checked > 20


def test_steps_before_the_start_of_a_trajectory_do_not_exist() -> None:
    group = {"steps": {"step": [0, 1, 2, 0, 1]}}
    assert [before(group, row, 1) for row in range(5)] == [None, 0, 1, None, 3]
    assert [before(group, row, 2) for row in range(5)] == [None, None, 0, None, None]


@given(st.text("ab \n[", max_size=40), st.text("ab \n[", max_size=40))
def test_a_difference_gives_both_texts(ours: str, theirs: str) -> None:
    parts = word_difference(ours, theirs)
    if parts == [("ours", ours), ("same", "\n"), ("theirs", theirs)]:
        return
    assert "".join(text for kind, text in parts if kind != "theirs") == ours
    assert "".join(text for kind, text in parts if kind != "ours") == theirs


def test_texts_with_little_in_common_follow_each_other() -> None:
    assert word_difference("red cup", "a long way home") == [
        ("ours", "red cup"),
        ("same", "\n"),
        ("theirs", "a long way home"),
    ]
    long = "word " * 2_000
    assert word_difference(long, long + "x")[0] == ("ours", long)
