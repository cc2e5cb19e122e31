"""The hierarchy of groups of the terminal's viewer, against histories written out and against HGPO's own groups."""

from pathlib import Path

from hgpo_train.view.documents import group_document
from hgpo_train.view.estimates import estimate, estimator_with
from hgpo_train.view.sources import open_sources
from hgpo_train.view.terminal.step import shared_depths


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
