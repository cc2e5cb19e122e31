"""The hierarchy of groups of the terminal's viewer, against histories written out and against HGPO's own groups."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from hgpo_train.view.documents import group_document
from hgpo_train.view.estimates import estimate, estimator_with
from hgpo_train.view.sources import open_sources
from hgpo_train.view.terminal.step import shared_depths
from hgpo_train.view.terminal.texts import word_difference

DEPTH = 4


@given(st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=5))
def test_a_level_contains_the_steps_with_the_same_last_states(paths: list[str]) -> None:
    steps = [path[: step + 1] for path in paths for step in range(len(path))]
    numbers: dict[str, int] = {}
    contexts = [
        [numbers.setdefault(past[-k - 1 :], len(numbers)) if len(past) > k else None for past in steps]
        for k in range(DEPTH + 1)
    ]
    for row, past in enumerate(steps):
        depths = shared_depths(contexts, row)
        assert list(depths) == sorted(depths)
        for k in range(DEPTH + 1):
            same = {other for other, their in enumerate(steps) if len(past) > k and their.endswith(past[-k - 1 :])}
            assert {other for other, deepest in depths.items() if deepest >= k} == same


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
                for row in (row for row in range(group["rows"]) if not aborted[row]):
                    depths = shared_depths(contexts[:4], row)
                    for k in range(4):
                        size = columns[f"size_k{k}"][row] or 0
                        assert sum(deepest >= k and not aborted[other] for other, deepest in depths.items()) == size
                        checked += k > 0 and bool(size)
    assert checked > 20


@given(st.text("ab \n[", max_size=40), st.text("ab \n[", max_size=40))
def test_a_difference_gives_both_texts(ours: str, theirs: str) -> None:
    parts = word_difference(ours, theirs)
    if parts != [("ours", ours), ("same", "\n"), ("theirs", theirs)]:
        assert "".join(text for kind, text in parts if kind != "theirs") == ours
        assert "".join(text for kind, text in parts if kind != "ours") == theirs


def test_texts_with_little_in_common_follow_each_other() -> None:
    apart = [("ours", "red cup"), ("same", "\n"), ("theirs", "a long way home")]
    assert word_difference("red cup", "a long way home") == apart
