"""Runs with branches: their tree, their results, and the estimators that are shown."""

import base64
from typing import Any

import pytest
from refusals import refused

from hgpo_datasets import scan_steps
from hgpo_train.advantages import compute, registry
from hgpo_train.view.documents import group_document, tree_of
from hgpo_train.view.estimates import rollout_estimates
from hgpo_train.view.overview import curves_document, overview_document
from hgpo_train.view.page import write_page
from hgpo_train.view.rollouts import selected
from hgpo_train.view.sources import open_sources


def test_a_branch_is_below_its_parent(branched_run):
    """c and d leave a at step 1, and e leaves c at step 2."""
    (source,) = open_sources([str(branched_run)])
    document = group_document(source.index(), 0)
    assert [one["trajectory"] for one in document["trajectories"]] == [
        "a",
        "b",
        "c",
        "d",
        "e",
    ]
    assert document["tree"] == {
        "order": [0, 2, 4, 3, 1],
        "parent": [None, None, 0, 0, 2],
    }


@pytest.mark.parametrize(
    ("branches", "order", "parents"),
    [
        (
            [("a", None, 0), ("b", "a", 0), ("c", "a", 2), ("d", "a", 2)],
            [0, 2, 3, 1],
            [None, 0, 0, 0],
        ),
        ([("b", "a", 1), ("a", None, 0)], [1, 0], [1, None]),
        ([("a", "a", 1), ("b", None, 0)], [1, 0], [None, None]),
        ([("a", "b", 0), ("b", "a", 0)], [0, 1], [None, None]),
        (
            [("a", "nobody", 1), ("b", "a", 2**31 - 1), ("c", "a", 0)],
            [0, 1, 2],
            [None, None, None],
        ),
    ],
    ids=["later first", "parent below", "of itself", "of each other", "no such step"],
)
def test_any_parents_are_a_tree(branches, order, parents):
    names = ("trajectory", "parent", "branch_step")
    rollouts: list[dict[str, Any]] = [
        dict(zip(names, one, strict=True), length=3) for one in branches
    ]
    assert tree_of(rollouts) == {"order": order, "parent": parents}


def test_the_spread_of_a_rollout_is_of_its_own_rows(branched_run):
    (source,) = open_sources([str(branched_run)])
    found = rollout_estimates(source.index(), registry.get("tree_grpo"))["spread"]
    advantages = compute(scan_steps(branched_run), "tree_grpo").collect()
    for name, spread in zip("abcde", found, strict=True):
        own = advantages.filter(trajectory=name)["advantage"]
        assert spread == own.max() - own.min()


def test_a_run_with_branches_is_shown_with_estimators_over_trees(
    branched_run, tmp_path
):
    """Estimators of whole rollouts refuse branches, and all tasks would be left out."""
    written = write_page(open_sources([str(branched_run)]), tmp_path / "page.html")
    assert (written.tasks, written.problems) == (1, [])


def test_branches_are_in_no_result(branched_run):
    """One of two rollouts won, whatever branches did."""
    (source,) = open_sources([str(branched_run)])
    index = source.index()
    assert source.document()["usual"] == ["tree_hgpo", "tree_grpo"]
    group = index.groups.row(0, named=True)
    assert (
        group["size"],
        group["roots"],
        group["rollouts"],
        group["won"],
        group["mean_return"],
    ) == (5, 2, 2, 1, 0.5)
    overview = overview_document(source, index)
    assert (overview["total"]["success"], overview["total"]["episodes"]) == (0.5, 2)
    assert overview["outcomes"] == {"none": 0, "partly": 1, "all": 0}
    # Their steps were played: curves by environment steps, and the tile, have all of them.
    assert overview["total"]["steps"] == 8
    assert curves_document(source, index)["results"][0]["steps"] == 8
    every = base64.b64encode(bytes([0b11111])).decode()
    assert selected(index, every)["trajectory"].to_list() == ["a", "b"]
    with refused("expected at least one rollout"):
        selected(index, base64.b64encode(bytes([0b11100])).decode())
