"""Goals and their order: explicit seeds, no global state, splits that never overlap."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.errors import InputError, UnknownTask
from hgpo_envs.webshop.data.source import WebShopSource
from hgpo_envs.webshop.engine.goals import split_ranges


@given(st.integers(0, 20_000))
def test_splits_are_disjoint_and_complete(goals):
    parts = split_ranges(goals)
    assert list(parts) == ["test", "eval", "train"]
    assert list(itertools.chain(*parts.values())) == list(range(goals))
    if goals >= 10:
        assert all(parts.values())
    assert split_ranges(6910) == {"test": range(500), "eval": range(500, 1500), "train": range(1500, 6910)}


def test_task_ids(awkward):
    source = WebShopSource(awkward)
    ids = source.ids("all")
    assert list(ids) == [str(number) for number in range(len(ids))]
    assert sorted(map(int, [i for split in ("train", "eval", "test") for i in source.ids(split)])) == list(
        range(len(ids))
    )
    assert ids[3] == "3"
    assert list(ids[3:5]) == ["3", "4"]
    for split in ("train", "eval", "test"):
        assert {source.task(task_id).split for task_id in source.ids(split)} == {split}
    assert source.task(3) == source.task("3")
    with pytest.raises(InputError, match="unknown split 'valid'"):
        source.ids("valid")
    for task_id in ("-1", "01", "1.0", "x", "", " 1", "9999999", -1, True, None, "１", "1\n"):
        with pytest.raises(UnknownTask, match="a WebShop task is a goal's index"):
            source.task(task_id)
