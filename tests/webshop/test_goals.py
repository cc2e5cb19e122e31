"""Goals and their order: explicit seeds, no global state, splits that never overlap."""

import itertools
import random
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.errors import InputError, UnknownTask
from hgpo_envs.webshop.catalogue import Catalogue
from hgpo_envs.webshop.data.source import WebShopSource
from hgpo_envs.webshop.engine import goals as goals_module
from hgpo_envs.webshop.engine.goals import GoalSet, combination, keep_goals, split_ranges


@given(st.integers(0, 20_000))
def test_splits_are_disjoint_and_complete(goals):
    parts = split_ranges(goals)
    assert list(parts) == ["test", "eval", "train"]
    assert list(itertools.chain(*parts.values())) == list(range(goals))
    if goals >= 10:
        assert all(parts.values())
    assert split_ranges(6910) == {"test": range(500), "eval": range(500, 1500), "train": range(1500, 6910)}


@given(
    st.dictionaries(
        st.text("abc", max_size=2), st.lists(st.text("xyz", max_size=2), min_size=1, max_size=3), max_size=3
    )
)
def test_combinations_equal_itertools_product(options):
    names = sorted(options)
    product = [dict(zip(names, values, strict=True)) for values in itertools.product(*(options[n] for n in names))]
    assert [combination(options, number) for number in range(len(product))] == product


def test_draws_equal_the_originals_with_the_global_generator(awkward):
    """As in the original: one seeded stream for prices and then bounds, another for the order."""
    catalogue = Catalogue.open(awkward)
    products = list(catalogue)
    random.seed(11)
    prices = [random.uniform(*p.prices) if len(p.prices) == 2 else p.prices[0] for p in products]
    bounds = []
    for product, price in zip(products, prices, strict=True):
        near = [10.0 * i for i in range(1, 100) if 10.0 * i > price][:4]
        bound = sorted(random.sample(near, 2))[1] if len(near) >= 2 else 1_000_000
        names = sorted(product.options)
        for values in itertools.product(*(product.options[name] for name in names)):
            bounds.append((product.asin, dict(zip(names, values, strict=True)), bound))
    random.seed(5)
    random.shuffle(bounds)
    before = random.getstate()
    goals = GoalSet(catalogue, "synthetic", price_seed=11, shuffle_seed=5)
    assert random.getstate() == before
    assert goals.prices.tolist() == prices
    found = [goals.goal(index) for index in range(len(goals))]
    assert [(goal.product.asin, goal.options, goal.price_upper) for goal in found] == bounds
    assert ("lower than" in found[0].instruction) == (found[0].price_upper < 1_000_000)
    assert {goal.price_upper for goal in found} & {1_000_000}


@pytest.mark.parametrize("kind", ["synthetic", "human"])
def test_goals_stored_in_large_catalogues_equal_those_drawn(monkeypatch, awkward, tmp_path, kind):
    monkeypatch.setattr(goals_module, "KEPT_FROM", 1)
    folder = tmp_path / "catalogue"
    shutil.copytree(awkward, folder)
    catalogue = Catalogue.open(folder)
    drawn, other = GoalSet(catalogue, kind), GoalSet(catalogue, kind, price_seed=1)
    keep_goals(catalogue)
    kept = GoalSet(Catalogue.open(folder), kind)
    assert [kept.goal(i) for i in range(len(kept))] == [drawn.goal(i) for i in range(len(drawn))]
    assert kept.prices.tolist() == drawn.prices.tolist() != other.prices.tolist()
    assert not kept.prices.flags.writeable  # mapped
    assert GoalSet(catalogue, kind, price_seed=1).prices.tolist() == other.prices.tolist()


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
