"""Building and opening catalogues: the original's loader, bad input, full disks, kills."""

import gzip
import json
import shutil

import numpy as np
import pytest
from refusals import refused

from hgpo_envs.webshop.catalogue import Catalogue
from hgpo_envs.webshop.catalogue import catalogue as catalogues
from hgpo_envs.webshop.catalogue.products import indexed_text
from hgpo_envs.webshop.data.build import build

NAMES = ("items_shuffle.json", "items_ins_v2.json", "items_human_ins.json")


def record(asin="B000000001", **changes):
    fields = {
        "asin": asin,
        "name": "Red Shoes",
        "full_description": "Good shoes.",
        "pricing": "$10.50",
    }
    fields |= {
        "small_description": ["light", "soft"],
        "category": "fashion",
        "query": "Shoes ",
        "images": ["x.jpg"],
    }
    fields |= {"customization_options": {"Size": [{"value": "5"}, {"value": "6"}]}}
    fields |= {"product_category": "Clothing › Shoes"}
    return {
        name: value for name, value in (fields | changes).items() if value is not ...
    }


def made(tmp_path, records, attributes=None, human=None, **options):
    """Return a catalogue of some records."""
    paths = write(
        tmp_path / "raw",
        json.dumps(records),
        json.dumps(attributes or {}),
        json.dumps(human or {}),
    )
    build(*paths, tmp_path / "out", nouns="stand-in", **options)
    return Catalogue.open(tmp_path / "out")


def write(folder, *texts):
    folder.mkdir(exist_ok=True)
    paths = [folder / name for name in NAMES]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return paths


def test_recorded_products(shared, recorded):
    raw = shared / "golden/webshop/catalogue"
    catalogue = Catalogue.open(recorded)
    nouns = json.loads(gzip.decompress((raw / "nouns.json.gz").read_bytes()))
    documents = list(
        map(
            json.loads,
            gzip.decompress(
                (raw / "documents_1000.jsonl.gz").read_bytes()
            ).splitlines(),
        )
    )
    assert len(documents) == len(catalogue) == catalogue.manifest["products"]
    assert catalogue.manifest["skipped"]["duplicate asin"] == 1000 - len(documents)
    instructions = {}
    for human in catalogue.human_instructions():
        wanted = {
            "instruction": human.instruction,
            "instruction_attributes": list(human.attributes),
        }
        instructions.setdefault(human.product, []).append(
            wanted | {"instruction_options": list(human.options)}
        )
    for document, product in zip(documents, catalogue, strict=True):
        original = document["product"]
        texts = product.title, product.description, product.bullet_points
        assert document["contents"] == indexed_text(*texts, product.options)
        found = {
            "asin": product.asin,
            "Title": product.title,
            "Description": product.description,
        }
        found |= {
            "BulletPoints": list(product.bullet_points),
            "Attributes": list(product.attributes),
        }
        found |= {
            "Price": product.price_text,
            "pricing": list(product.prices),
            "query": product.query,
        }
        found |= {
            "options": {name: list(values) for name, values in product.options.items()}
        }
        found |= {
            "category": product.category,
            "product_category": product.product_category,
        }
        assert found.items() <= original.items()
        assert list(product.options) == list(original["options"])
        assert list(product.nouns) == nouns[product.title]
        assert catalogue.index_of(product.asin) == product.index
        for ours, theirs in zip(
            instructions.get(product.index, []),
            original.get("instructions", []),
            strict=True,
        ):
            assert ours.items() <= theirs.items()
        assert catalogue.combinations[product.index] == np.prod(
            [len(v) for v in original["options"].values()]
        )
        np.testing.assert_array_equal(
            catalogue.prices[product.index],
            [*original["pricing"], np.nan][:2] if original["pricing"] else [],
        )


def test_records_that_the_loader_skips(tmp_path):
    records = [
        record("nan"), record("B0000000012"), record("B1", name="first"), record("B1", name="second"),
        record("é1"), record("B2"),
    ]  # fmt: skip
    catalogue = made(tmp_path, records)
    assert [product.asin for product in catalogue] == ["B1", "é1", "B2"]
    assert catalogue.product(0).title == "first"
    assert [catalogue.index_of(asin) for asin in ("B1", "é1", "B2")] == [0, 1, 2]
    assert catalogue.manifest["skipped"] == {
        "nan or long asin": 2,
        "duplicate asin": 1,
        "unusable": 0,
    }
    for unknown in ("", "B11", "\ud800"):
        with pytest.raises(KeyError):
            catalogue.index_of(unknown)
    with refused("already exists"):
        build(*(tmp_path / "raw" / name for name in NAMES), catalogue.folder)


def test_irregular_records(tmp_path):
    cases = (
        ({"pricing": ...}, {"prices": (100.0,), "price_text": "$100.0"}),
        ({"pricing": "$1,234.50"}, {"prices": (1234.5,), "price_text": "$1234.5"}),
        (
            {"pricing": "$5 - $7 - $9"},
            {"prices": (5.0, 7.0), "price_text": "$5.0 to $7.0"},
        ),
        (
            {"pricing": "$15 ($1 / Ounce)"},
            {"prices": (15.0, 1.0), "price_text": "$15.0 to $1.0"},
        ),
        (
            {"pricing": "$0.1 - $" + "9" * 400},
            {"prices": (0.1, float("inf")), "price_text": "$0.1 to $inf"},
        ),
        ({"pricing": "$-0.30000000000000004"}, {"prices": (0.30000000000000004,)}),
        ({"small_description": "one"}, {"bullet_points": ("one",)}),
        ({"customization_options": {"A": None, "B": []}}, {"options": {"b": ()}}),
        (
            {"customization_options": {"Size": [{"value": " A/B "}]}},
            {"options": {"size": ("a | b",)}},
        ),
        ({"query": "  Women's Shoes\n"}, {"query": "women's shoes"}),
        ({"name": "A\ud800B"}, {"title": "A\ufffdB"}),
    )
    catalogue = made(
        tmp_path,
        [record(f"B{number}", **changes) for number, (changes, _) in enumerate(cases)],
    )
    for product, (_, expected) in zip(catalogue, cases, strict=True):
        assert {name: getattr(product, name) for name in expected} == expected


def test_unusable_records_can_be_skipped(tmp_path):
    records = [
        record("B1", pricing="9"),
        record("B2"),
        record("B3", name=5),
        record("B1"),
    ]
    catalogue = made(tmp_path, records, skip_unusable=True)
    assert [product.asin for product in catalogue] == ["B2", "B1"]
    assert catalogue.manifest["skipped"]["unusable"] == 2
    assert (
        "record 0 (B1): expected a price with '$', received '9'"
        in catalogue.manifest["first_unusable"]
    )


@pytest.mark.parametrize("piece", [1, 7, 1 << 22])
def test_the_piece_size_does_not_matter(tmp_path, monkeypatch, piece):
    from hgpo_envs.webshop.data import raw_files

    monkeypatch.setattr(raw_files, "PIECE", piece)
    records = [
        record("B1", name="日本 \u20ac 👟", extra=[1.5e3, -7, True, None, {"x": 12}]),
        record("B2"),
    ]
    text = json.dumps(records, ensure_ascii=False, indent=1)
    (tmp_path / "a.json").write_text(f" \n{text}\n ", "utf-8")
    assert list(raw_files.elements(tmp_path / "a.json", "[")) == list(
        enumerate(records)
    )
    (tmp_path / "b.json").write_text(
        json.dumps({"a": 1, 'b"c': [], "d": "x" * 300}), "utf-8"
    )
    assert list(raw_files.elements(tmp_path / "b.json", "{")) == [
        ("a", 1),
        ('b"c', []),
        ("d", "x" * 300),
    ]
    (tmp_path / "c.json").write_text("[ ]", "utf-8")
    assert list(raw_files.elements(tmp_path / "c.json", "[")) == []


@pytest.mark.slow
def test_a_catalogue_deleted_while_open_stays_usable(tmp_path):
    records = [record(f"B{n}", name=f"Shoes word{n}x") for n in range(3_000)]
    catalogue = made(tmp_path, records)
    shutil.rmtree(catalogue.folder)
    assert catalogue.product(2_999).title == "Shoes word2999x"
    assert catalogue.search("word1234x") == (1234,)
    assert list(catalogue.human_instructions()) == []
    assert catalogue.products_where("category", "fashion").tolist() == list(
        range(3_000)
    )


def json_of(**changes):
    return json.dumps([record(**changes)]).encode()


def test_bad_files_raise_a_one_line_error_and_leave_no_files(tmp_path):
    good = (json_of(), b"{}", b"{}", b'{"Red Shoes": []}')
    for place, content, line in (
        (0, b"", "expected '[', received the end of the file"),
        (0, b"[1]", "record 0"),
        (0, json_of() + b"x", "expected the end of the file"),
        (0, b'[{"asin": 5}]', "field 'asin': expected a text, received 5"),
        (0, b"[{}]", "record 0 (without asin): field 'asin' is missing"),
        (
            0,
            json_of(asin="B2", pricing="9.99"),
            "record 0 (B2): expected a price with '$', received '9.99'",
        ),
        (
            0,
            json_of(small_description=None),
            "'small_description': expected a list of texts",
        ),
        (
            0,
            json_of(customization_options={"A": [{"v": "x"}]}),
            "field 'value' is missing",
        ),
        (0, b'[{"asin": "\xff"}]', "not UTF-8"),
        (0, b'[{"a": ' + b"[" * 100_000, "record 0"),
        (0, gzip.compress(json_of())[:-12], "cannot be read to its end"),
        (
            1,
            b'{"B1": {"attributes": "x"}}',
            "entry 'B1': field 'attributes': expected a list of texts, received 'x'",
        ),
        (
            1,
            b'{"B1": {"attributes": []}',
            "expected ',' or '}', received the end of the file",
        ),
        (
            2,
            b'{"B000000001": [{"instruction": "x"}]}',
            "(B000000001): its human instruction cannot be used",
        ),
        (3, b"{}", "no list of nouns for the title 'Red Shoes'"),
        (3, b"", "cannot read the nouns"),
    ):
        *contents, nouns = (
            content if place == number else own for number, own in enumerate(good)
        )
        paths = write(tmp_path / "raw", *contents)
        (tmp_path / "raw/nouns.json").write_bytes(nouns)
        with refused(r"^[^\n]+$") as error:
            build(*paths, tmp_path / "out", nouns=tmp_path / "raw/nouns.json")
        assert line in str(error.value)
        assert place == 2 or str([*paths, tmp_path / "raw/nouns.json"][place]) in str(
            error.value
        )
        assert not (tmp_path / "out").exists()


def test_errors_of_opening(tmp_path):
    catalogue = made(tmp_path, [record("B1")])
    catalogue.verify()
    folder = catalogue.folder
    whole = (folder / catalogues.MANIFEST).read_bytes()
    data = (folder / "index/documents.npy").read_bytes()
    newer = whole.replace(f'"format": {catalogues.FORMAT}'.encode(), b'"format": 99')
    for name, content, line in (
        (
            "index/documents.npy",
            data[:-1] + bytes([data[-1] ^ 1]),
            "documents.npy differs from its checksum",
        ),
        (
            catalogues.MANIFEST,
            newer,
            f"expected catalogue format {catalogues.FORMAT}, received 99",
        ),
        (catalogues.MANIFEST, whole[: len(whole) // 2], "is damaged"),
        (catalogues.MANIFEST, None, "no WebShop catalogue in"),
        ("products.jsonl", b"", "has 0 bytes, expected"),
        ("products.jsonl", None, "is missing"),
    ):
        (folder / catalogues.MANIFEST).write_bytes(whole)
        (folder / name).unlink() if content is None else (folder / name).write_bytes(
            content
        )
        with refused(r"^[^\n]+$") as error:
            Catalogue.open(folder).verify()
        assert line in str(error.value)
