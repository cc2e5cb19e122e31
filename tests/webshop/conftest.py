"""Catalogues for tests: the one of the recordings, and a small one of edge cases."""

import json
from pathlib import Path

import pytest
from unusual import unpacked

from hgpo_envs.webshop.data.build import build

NAMES = ("items_shuffle.json", "items_ins_v2.json", "items_human_ins.json")

AWKWARD = [
    # title, description, bullets, price, options, attributes, query, product category
    ("Red Wide Leg Pants", "Soft.", ["Machine wash", ""], "$20.00",
     {"Color": ["Red", "Dark Blue"], "Size": ["S", "8/10"]}, ["wide leg"]),
    ('Sofa <b>Sale</b> & "More"', "\n", [" ", "two\nlines"], "$10.0 - $30.0",
     {"size": ["large", "buy now"], "fit": ["large", "search"]}, []),
    ("crème brûlée 日本 🎁", "", "one text", None,
     {"style": ["it's", 'the "q"', "日本", "[x] y", "reviews", ""]}, ["100%"]),
    ("", " ", [], "$985.00", {}, ["DUMMY"]),
    ("pants pants pants", "pants", ["pants"], "$5 ($1 / Ounce)", {"pattern": ["wired", "standard"]}, ["pants"]),
    ("search_results [SEP] pants", "x [SEP] y", ["[SEP]"], "$995",
     {"a": ["next >", "< prev", "back to search"]}, ["pants"]),
]  # fmt: skip


def awkward_records() -> tuple[list[dict], dict, dict]:
    """Return the products of edge cases in the official raw formats: items, attributes, human instructions."""
    items = []
    attributes = {}
    human = {}
    for number, (title, description, bullets, price, options, own) in enumerate(
        AWKWARD * 12
    ):
        asin = f"B0{number:08d}" if number % 17 else f"b0low{number:05d}"
        choices = {
            name: [{"value": value} for value in values]
            for name, values in options.items()
        }
        item = {
            "asin": asin,
            "name": f"{title} {number}" if number >= len(AWKWARD) else title,
            "pricing": price,
        }
        item |= {
            "full_description": description,
            "small_description": bullets,
            "customization_options": choices,
        }
        item |= {
            "category": ("fashion", "garden")[number % 2],
            "query": " Pants " if number % 3 else "sofas",
        }
        item["product_category"] = (
            "Clothing › Men › Pants" if number % 3 else "Home › Sofas"
        )
        items.append(item | {"images": ["x.jpg"]})
        attributes[asin] = {
            "attributes": own,
            "instruction": f"Find me pants number {number}",
            "instruction_attributes": ["wide leg", "pants"][: 1 + number % 2],
        }
        wanted = {"instruction_attributes": ["pants"][: number % 4]}
        wanted["instruction_options"] = ["red", "8 | 10"][: number % 3]
        human[asin] = [{"instruction": "i want pants.", **wanted}]
    return items, attributes, human


def build_from(records: tuple[list[dict], dict, dict], folder: Path) -> Path:
    """Build a catalogue from raw records, with the stand-in's nouns."""
    paths = [folder / name for name in NAMES]
    for path, content in zip(paths, records, strict=True):
        path.write_text(json.dumps(content))
    build(*paths, folder / "catalogue", nouns="stand-in")
    return folder / "catalogue"


@pytest.fixture(scope="session")
def awkward(tmp_path_factory) -> Path:
    """Return a catalogue of 72 products of edge cases."""
    return build_from(awkward_records(), tmp_path_factory.mktemp("awkward"))


@pytest.fixture(scope="session")
def awkward_few(tmp_path_factory) -> Path:
    """Return a catalogue of the first 20 products of edge cases."""
    items, attributes, human = awkward_records()
    return build_from((items[:20], attributes, human), tmp_path_factory.mktemp("few"))


@pytest.fixture(scope="session")
def golden(tmp_path_factory) -> Path:
    """Return the recordings of the original, unpacked. Their origin is documented in tests/golden/README.md."""
    return unpacked(
        Path(__file__).parents[1] / "golden/webshop/recordings.tar.xz",
        tmp_path_factory.mktemp("golden"),
    )


@pytest.fixture(scope="session")
def recorded(golden, tmp_path_factory) -> Path:
    """Return the catalogue of the recordings, with the recorded nouns."""
    raw = golden / "catalogue"
    out = tmp_path_factory.mktemp("recorded") / "catalogue"
    build(*(raw / name for name in NAMES), out, nouns=raw / "nouns.json")
    return out
