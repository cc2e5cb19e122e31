"""Synthetic catalogues and the bundled catalogue."""

import json

import pytest

from hgpo_envs.errors import InputError
from hgpo_envs.webshop import bundled
from hgpo_envs.webshop.catalogue import Catalogue
from hgpo_envs.webshop.data.build import build
from hgpo_envs.webshop.generation import synthetic
from hgpo_envs.webshop.generation.bundled import make_bundled_catalogue

PUBLISHED_TRAIN = 1_500
"""Goals before this one are for test and evaluation."""


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    for name, seed in (("one", 3), ("two", 3), ("three", 4)):
        synthetic.write_synthetic(tmp_path / name, 300, seed)
    one, two, three = (
        [(tmp_path / name / file).read_bytes() for file in synthetic.FILES] for name in ("one", "two", "three")
    )
    assert one == two
    assert all(a != b for a, b in zip(one, three, strict=True))


def test_a_larger_catalogue_starts_with_the_smaller_one(tmp_path):
    synthetic.write_synthetic(tmp_path / "small", 50, 3)
    synthetic.write_synthetic(tmp_path / "large", 200, 3)
    small, large = (json.loads((tmp_path / name / "items_shuffle.json").read_bytes()) for name in ("small", "large"))
    assert large[:50] == small


def test_every_record_is_a_product(tmp_path):
    synthetic.write_synthetic(tmp_path / "raw", 500, 1, text=0.2)
    manifest = build(*(tmp_path / "raw" / name for name in synthetic.FILES), tmp_path / "out", nouns="stand-in")
    assert manifest["products"] == 500


@pytest.mark.parametrize("products", [0, -1, 36**8])
def test_counts_out_of_range(tmp_path, products):
    with pytest.raises(InputError, match="products: expected a number from 1 to"):
        synthetic.write_synthetic(tmp_path / "raw", products, 1)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def shop():
    return Catalogue.open(bundled.bundled_folder())


def test_the_bundled_catalogue_is_small_and_has_goals_for_every_split(shop):
    assert len(shop) >= 1_000
    assert sum(path.stat().st_size for path in shop.folder.rglob("*") if path.is_file()) < 2_000_000
    assert sum(bool(human.attributes) for human in shop.human_instructions()) > PUBLISHED_TRAIN
    assert shop.combinations[shop.instructed].sum() > PUBLISHED_TRAIN
    shop.verify()


def test_the_bundled_catalogue_is_reproduced_by_its_seed(shop, tmp_path):
    make_bundled_catalogue(tmp_path / "again")
    again = Catalogue.open(tmp_path / "again")
    assert list(again) == list(shop)
    assert list(again.human_instructions()) == list(shop.human_instructions())
    for path in sorted((shop.folder / "index").iterdir()):
        assert path.read_bytes() == (again.folder / "index" / path.name).read_bytes()


def test_bundled_goals_can_be_satisfied(shop):
    """A goal's product has the requested properties and is found by its own words."""
    for human in shop.human_instructions():
        product = shop.product(human.product)
        assert set(human.attributes) <= set(product.attributes)
        assert set(human.options) <= {value for values in product.options.values() for value in values}
    found = 0
    for product in shop:
        text = " ".join((product.title, product.description, *product.bullet_points)).lower()
        assert all(attribute in text for attribute in product.attributes)
        assert product.instruction_attributes
        assert set(product.instruction_attributes) <= set(product.attributes)
        found += product.index in shop.search(product.title)[:10]
    assert found > 0.99 * len(shop)
