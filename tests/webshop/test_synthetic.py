"""Synthetic catalogues and the bundled catalogue."""

import json

import pytest

from hgpo_envs.errors import InputError
from hgpo_envs.webshop import bundled
from hgpo_envs.webshop.catalogue import Catalogue
from hgpo_envs.webshop.data.build import build
from hgpo_envs.webshop.generation import synthetic
from tools.webshop_catalogue import make_bundled_catalogue

PUBLISHED_TRAIN = 1_500
"""Goals before this one are for test and evaluation."""


def test_the_same_seed_gives_the_same_bytes_and_a_larger_catalogue_starts_with_the_smaller_one(tmp_path):
    for name, products, seed in (("one", 300, 3), ("two", 300, 3), ("three", 300, 4), ("four", 500, 3)):
        synthetic.write_synthetic(tmp_path / name, products, seed)
    one, two, three, four = ([(tmp_path / name / file).read_bytes() for file in synthetic.FILES]
                             for name in ("one", "two", "three", "four"))  # fmt: skip
    assert one == two
    assert all(a != b for a, b in zip(one, three, strict=True))
    assert json.loads(four[0])[:300] == json.loads(one[0])
    paths = [tmp_path / "four" / name for name in synthetic.FILES]
    assert build(*paths, tmp_path / "shop", nouns="stand-in")["products"] == 500  # every record is a product
    for products in (0, 36**8):
        with pytest.raises(InputError, match="products: expected a number from 1 to"):
            synthetic.write_synthetic(tmp_path / "raw", products, 1)


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
