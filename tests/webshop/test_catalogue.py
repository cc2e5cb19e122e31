"""Building and opening catalogues: the original's loader, bad input, full disks, kills."""

import gzip
import json
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import polars as pl
import pytest

from hgpo_envs.errors import InputError
from hgpo_envs.webshop.catalogue import Catalogue
from hgpo_envs.webshop.catalogue import catalogue as catalogues
from hgpo_envs.webshop.catalogue.products import indexed_text
from hgpo_envs.webshop.data.build import build
from hgpo_envs.webshop.generation import synthetic

NAMES = ("items_shuffle.json", "items_ins_v2.json", "items_human_ins.json")


def record(asin="B000000001", **changes):
    fields = {
        "asin": asin,
        "name": "Red Shoes",
        "full_description": "Good shoes.",
        "small_description": ["light", "soft"],
        "pricing": "$10.50",
        "customization_options": {"Size": [{"value": "5"}, {"value": "6"}]},
        "category": "fashion",
        "query": "Shoes ",
        "product_category": "Clothing › Shoes",
        "images": ["x.jpg"],
    }
    return {name: value for name, value in (fields | changes).items() if value is not ...}


def made(tmp_path, records, attributes=None, human=None, **options):
    """Return a catalogue of some records."""
    paths = write(tmp_path / "raw", json.dumps(records), json.dumps(attributes or {}), json.dumps(human or {}))
    build(*paths, tmp_path / "out", nouns="stand-in", **options)
    return Catalogue.open(tmp_path / "out")


def write(folder, *texts):
    folder.mkdir(exist_ok=True)
    paths = [folder / name for name in NAMES]
    for path, text in zip(paths, texts, strict=True):
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return paths


def left_behind(tmp_path):
    return sorted(path.name for path in tmp_path.iterdir() if path.name != "raw")


def test_recorded_products(shared, tmp_path):
    raw = shared / "golden/webshop/catalogue"
    files = (raw / f"{name}.json.gz" for name in ("items_shuffle", "items_ins_v2", "items_human_ins"))
    manifest = build(*files, tmp_path / "out", nouns=raw / "nouns.json.gz")
    catalogue = Catalogue.open(tmp_path / "out")
    nouns = json.loads(gzip.decompress((raw / "nouns.json.gz").read_bytes()))
    documents = list(map(json.loads, gzip.decompress((raw / "documents_1000.jsonl.gz").read_bytes()).splitlines()))
    assert len(documents) == len(catalogue) == manifest["products"]
    assert manifest["skipped"]["duplicate asin"] == 1000 - len(documents)
    instructions = {}
    for human in catalogue.human_instructions():
        instructions.setdefault(human.product, []).append(
            (human.instruction, list(human.attributes), list(human.options))
        )
    for document, product in zip(documents, catalogue, strict=True):
        original = document["product"]
        assert document["contents"] == indexed_text(
            product.title, product.description, product.bullet_points, product.options
        )
        assert {
            "asin": product.asin,
            "Title": product.title,
            "Description": product.description,
            "BulletPoints": list(product.bullet_points),
            "Price": product.price_text,
            "pricing": list(product.prices),
            "options": {name: list(values) for name, values in product.options.items()},
            "Attributes": list(product.attributes),
            "category": product.category,
            "query": product.query,
            "product_category": product.product_category,
        }.items() <= original.items()
        assert list(product.options) == list(original["options"])
        assert list(product.nouns) == nouns[product.title]
        assert catalogue.index_of(product.asin) == product.index
        assert instructions.get(product.index, []) == [
            (human["instruction"], human["instruction_attributes"], human["instruction_options"])
            for human in original.get("instructions", [])
        ]
        assert catalogue.combinations[product.index] == np.prod([len(v) for v in original["options"].values()])
        np.testing.assert_array_equal(
            catalogue.prices[product.index], [*original["pricing"], np.nan][:2] if original["pricing"] else []
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
    assert catalogue.manifest["skipped"] == {"nan or long asin": 2, "duplicate asin": 1, "unusable": 0}
    for unknown in ("", "B", "B11", "zz", "\ud800"):
        with pytest.raises(KeyError):
            catalogue.index_of(unknown)
    with pytest.raises(IndexError):
        catalogue.product(3)


def test_num_products_includes_skipped_records(tmp_path):
    records = [record("nan"), record("B1"), record("B1"), record("B2")]
    assert [product.asin for product in made(tmp_path, records, num_products=3)] == ["B1"]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"pricing": None}, {"prices": (100.0,), "price_text": "$100.0"}),
        ({"pricing": ...}, {"prices": (100.0,), "price_text": "$100.0"}),
        ({"pricing": "$1,234.50"}, {"prices": (1234.5,), "price_text": "$1234.5"}),
        ({"pricing": "$5 - $7 - $9"}, {"prices": (5.0, 7.0), "price_text": "$5.0 to $7.0"}),
        ({"pricing": "$15 ($1 / Ounce)"}, {"prices": (15.0, 1.0), "price_text": "$15.0 to $1.0"}),
        ({"pricing": "about $9"}, {"prices": (9.0,)}),
        ({"pricing": "$0.1 - $" + "9" * 400}, {"prices": (0.1, float("inf")), "price_text": "$0.1 to $inf"}),
        ({"pricing": "$-0.30000000000000004"}, {"prices": (0.30000000000000004,)}),
        ({"small_description": "one"}, {"bullet_points": ("one",)}),
        ({"small_description": []}, {"bullet_points": ()}),
        ({"customization_options": None}, {"options": {}}),
        ({"customization_options": {"A": None, "B": []}}, {"options": {"b": ()}}),
        (
            {
                "customization_options": {
                    "Size": [{"value": " A/B "}],
                    "Color": [{"value": "X"}],
                    "SIZE": [{"value": "C"}],
                }
            },
            {"options": {"size": ("c",), "color": ("x",)}},
        ),
        ({"query": "  Women's Shoes\n"}, {"query": "women's shoes"}),
        ({"name": "<b>A</b> & \x00\x07 \u2028"}, {"title": "<b>A</b> & \x00\x07 \u2028"}),
        ({"name": "A\ud800B"}, {"title": "A\ufffdB"}),
        ({"images": ..., "full_description": ""}, {"description": ""}),
    ],
)
def test_irregular_records(tmp_path, changes, expected):
    product = made(tmp_path, [record(**changes)]).product(0)
    assert {name: getattr(product, name) for name in expected} == expected


def test_attributes_and_instructions(tmp_path):
    attributes = {
        "B1": {"attributes": ["a", "b"], "instruction": "Find me", "instruction_attributes": ["a"]},
        "B2": {"instruction": None},
        "gone": {"attributes": []},
    }
    human = {
        "B3": [{"instruction": "i want", "instruction_attributes": [], "instruction_options": ["x"], "attributes": []}],
        "gone": [{"instruction": "?", "instruction_attributes": [], "instruction_options": []}],
    }
    catalogue = made(tmp_path, [record("B1"), record("B2"), record("B3")], attributes, human)
    first, second, third = catalogue
    assert (first.attributes, first.instruction, first.instruction_attributes) == (("a", "b"), "Find me", ("a",))
    assert (second.attributes, second.instruction, second.listed) == (("DUMMY_ATTR",), None, True)
    assert (third.attributes, third.listed) == (("DUMMY_ATTR",), False)
    assert catalogue.instructed.tolist() == [0]
    assert [(h.product, h.instruction, h.attributes, h.options) for h in catalogue.human_instructions()] == [
        (2, "i want", (), ("x",))
    ]


def test_a_compressed_catalogue_is_the_same(tmp_path):
    records = [record(f"B{n}", name=f"Shoes {n}", category=f"c{n % 3}") for n in range(50)]
    human = {"B7": [{"instruction": "\n\u2028 é", "instruction_attributes": ["x"], "instruction_options": []}]}
    plain = made(tmp_path, records, human=human)
    build(*(tmp_path / "raw" / name for name in NAMES), tmp_path / "small", nouns="stand-in", compress=True)
    small = Catalogue.open(tmp_path / "small")
    assert not (small.folder / "products.jsonl").exists()
    assert list(small) == list(plain)
    assert list(small.human_instructions()) == list(plain.human_instructions())
    for left, right in zip(small.human_products(), plain.human_products(), strict=True):
        assert left.tolist() == right.tolist() in ([7], [1])
    shutil.rmtree(small.folder)
    assert small.product(49).title == "Shoes 49"


@pytest.mark.parametrize("compress", [False, True])
def test_other_tools_can_read_the_products(tmp_path, compress):
    options = [{"customization_options": {name: [{"value": "5"}]}} for name in ("Size", "Color")]
    catalogue = made(tmp_path, [record(f"B{n}", **changes) for n, changes in enumerate(options)], compress=compress)
    table = pl.read_ndjson(next(catalogue.folder.glob("products.jsonl*")))
    assert table["title"].to_list() == [product.title for product in catalogue]
    assert table["prices"].to_list() == [list(product.prices) for product in catalogue]
    assert table["options"].to_list() == [[{"name": name, "values": ["5"]}] for name in ("size", "color")]


def test_magic_searches(tmp_path):
    catalogue = made(tmp_path, [record("B1"), record("B2", category="garden"), record("B3", query="Boots")])
    assert catalogue.in_category("fashion").tolist() == [0, 2]
    assert catalogue.with_query("shoes").tolist() == [0, 1]
    assert catalogue.with_query("Shoes").tolist() == catalogue.in_category("").tolist() == []


BAD = [
    (b"", "expected '[', received the end of the file"),
    (b"[1]", "record 0"),
    (json.dumps([record("B1"), record("B2")])[:-40].encode(), "record 1"),
    (json.dumps([record("B1")]).encode() + b"x", "expected the end of the file"),
    (b'[{"asin": 5}]', "field 'asin': expected a text, received 5"),
    (b"[{}]", "record 0 (without asin): field 'asin' is missing"),
    (json.dumps([record("B2", pricing="9.99")]).encode(), "record 0 (B2): expected a price with '$', received '9.99'"),
    (json.dumps([record("B1", small_description=None)]).encode(), "'small_description': expected a list of texts"),
    (json.dumps([record("B1", customization_options={"A": [{"v": "x"}]})]).encode(), "field 'value' is missing"),
    (b'[{"asin": "\xff"}]', "not UTF-8"),
    (b'[{"a": ' + b"[" * 100_000, "record 0"),
    (b'[{"a": ' + b"9" * 5_000 + b"}]", "record 0"),
    (gzip.compress(json.dumps([record("B1")]).encode())[:-12], "cannot be read to its end"),
]


@pytest.mark.parametrize(("items", "line"), BAD, ids=range(len(BAD)))
def test_bad_items_raise_a_one_line_error_and_leave_no_files(tmp_path, items, line):
    paths = write(tmp_path / "raw", items, "{}", "{}")
    with pytest.raises(InputError) as error:
        build(*paths, tmp_path / "out")
    assert line in str(error.value)
    assert "\n" not in str(error.value)
    assert str(paths[0]) in str(error.value)
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize(
    ("attributes", "human", "line"),
    [
        ('{"B1": 5}', "{}", "entry 'B1': expected an object, received 5"),
        ('{"B1": {"attributes": "x"}}', "{}", "entry 'B1': field 'attributes': expected a list of texts, received 'x'"),
        ('{"B1": {"attributes": []}', "{}", "expected ',' or '}', received the end of the file"),
        ("[]", "{}", "expected '{', received '['"),
        ("{}", '{"B1": [{"instruction": "x"}]}', "(B1): its human instruction cannot be used"),
        ("{}", '{"B1": 5}', "(B1): expected a list of human instructions"),
        ("{}", "{,}", "Expecting value"),
    ],
)
def test_bad_attributes_and_instructions(tmp_path, attributes, human, line):
    paths = write(tmp_path / "raw", json.dumps([record("B1")]), attributes, human)
    with pytest.raises(InputError) as error:
        build(*paths, tmp_path / "out")
    assert line in str(error.value)
    assert left_behind(tmp_path) == []


def test_unusable_records_can_be_skipped(tmp_path):
    records = [record("B1", pricing="9"), record("B2"), record("B3", name=5), record("B1")]
    catalogue = made(tmp_path, records, skip_unusable=True)
    assert [product.asin for product in catalogue] == ["B2", "B1"]
    assert catalogue.manifest["skipped"]["unusable"] == 2
    assert "record 0 (B1): expected a price with '$', received '9'" in catalogue.manifest["first_unusable"]


def test_every_truncation_is_detected(tmp_path):
    whole = json.dumps([record("B1"), record("B2", name="é👟", pricing=None)]).encode()
    for end in range(0, len(whole), 31):
        paths = write(tmp_path / "raw", whole[:end], "{}", "{}")
        with pytest.raises(InputError):
            build(*paths, tmp_path / "out")
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("piece", [1, 7, 1 << 22])
def test_the_piece_size_does_not_matter(tmp_path, monkeypatch, piece):
    from hgpo_envs.webshop.data import raw_files

    monkeypatch.setattr(raw_files, "PIECE", piece)
    records = [record("B1", name="日本 \u20ac 👟", extra=[1.5e3, -7, True, None, {"x": 12}]), record("B2")]
    text = json.dumps(records, ensure_ascii=False, indent=1)
    (tmp_path / "a.json").write_text(f" \n{text}\n ", "utf-8")
    assert list(raw_files.records(tmp_path / "a.json")) == list(enumerate(records))
    (tmp_path / "b.json").write_text(json.dumps({"a": 1, 'b"c': [], "d": "x" * 300}), "utf-8")
    assert list(raw_files.entries(tmp_path / "b.json")) == [("a", 1), ('b"c', []), ("d", "x" * 300)]
    (tmp_path / "c.json").write_text("[ ]", "utf-8")
    assert list(raw_files.records(tmp_path / "c.json")) == []


def test_errors_of_opening(tmp_path):
    folder = made(tmp_path, [record("B1")]).folder

    def refusal():
        with pytest.raises(InputError) as error:
            Catalogue.open(folder)
        assert "\n" not in str(error.value)
        return str(error.value)

    manifest = folder / catalogues.MANIFEST
    kept = manifest.read_bytes()
    for other in (1, 99):  # 1 held Arrow files
        manifest.write_bytes(kept.replace(f'"format": {catalogues.FORMAT}'.encode(), f'"format": {other}'.encode()))
        assert f"expected catalogue format {catalogues.FORMAT}, received {other}" in refusal()
    manifest.write_bytes(kept[: len(kept) // 2])
    assert "is damaged" in refusal()
    manifest.write_bytes(kept)
    (folder / "products.jsonl").write_bytes((folder / "products.jsonl").read_bytes()[:-1])
    assert "bytes, expected" in refusal()
    (folder / "products.jsonl").unlink()
    assert "is missing" in refusal()
    shutil.rmtree(folder)
    assert "no WebShop catalogue in" in refusal()


def test_verify_finds_a_flipped_bit(tmp_path):
    catalogue = made(tmp_path, [record("B1")])
    catalogue.verify()
    path = catalogue.folder / "index/documents.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"documents\.npy differs from its checksum"):
        Catalogue.open(catalogue.folder).verify()


def test_a_catalogue_deleted_while_open_stays_usable(tmp_path):
    records = [record(f"B{n}", name=f"Shoes word{n}x") for n in range(3_000)]
    catalogue = made(tmp_path, records)
    shutil.rmtree(catalogue.folder)
    assert catalogue.product(2_999).title == "Shoes word2999x"
    assert catalogue.search("word1234x") == (1234,)
    assert list(catalogue.human_instructions()) == []
    assert catalogue.in_category("fashion").tolist() == list(range(3_000))


def test_an_existing_folder_is_refused(tmp_path):
    folder = made(tmp_path, [record("B1")]).folder
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for write_again in (
        lambda: build(*(tmp_path / "raw" / name for name in NAMES), folder, nouns="stand-in"),
        lambda: synthetic.write_synthetic(folder, 10, 1),
    ):
        with pytest.raises(InputError, match="already exists"):
            write_again()
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_the_same_files_give_the_same_catalogue(tmp_path):
    paths = write(tmp_path / "raw", json.dumps([record("B1"), record("B2")]), "{}", "{}")
    first, second = (build(*paths, tmp_path / name, nouns="stand-in") for name in ("one", "two"))
    assert first == second
    third = build(*paths, tmp_path / "three", nouns="stand-in", num_products=1)
    assert third["id"] != first["id"]


def test_nouns_are_recorded(tmp_path):
    paths = write(tmp_path / "raw", json.dumps([record("B1")]), "{}", "{}")
    (tmp_path / "raw/nouns.json").write_text('{"Red Shoes": ["shoes", "shoes"]}')
    build(*paths, tmp_path / "out", nouns=tmp_path / "raw/nouns.json")
    catalogue = Catalogue.open(tmp_path / "out")
    assert catalogue.product(0).nouns == ("shoes", "shoes")
    assert catalogue.nouns.startswith("file sha256:")
    (tmp_path / "raw/nouns.json").write_text("{}")
    with pytest.raises(InputError, match="no list of nouns for the title 'Red Shoes'"):
        build(*paths, tmp_path / "other", nouns=tmp_path / "raw/nouns.json")
    with pytest.raises(InputError, match="cannot read the nouns"):
        build(*paths, tmp_path / "other", nouns=tmp_path / "raw/none.json")


BUILD = """
import resource, signal, sys
from pathlib import Path
from hgpo_envs.errors import InputError
from hgpo_envs.webshop.data.build import build
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
raw, out, limit = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
def tell(stage, done, total):
    print(stage, flush=True)
try:
    build(*(raw / name for name in sys.argv[4:]), out, nouns="stand-in", progress=tell)
except InputError as error:
    sys.exit(str(error))
"""


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw") / "raw"
    synthetic.write_synthetic(folder, 4_000, 5)
    return folder


def process(raw, out, limit=0):
    command = [sys.executable, "-c", BUILD, str(raw), str(out), str(limit), *NAMES]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1 << 12, 1 << 20, 4 << 20])
def test_a_full_disk_raises_a_one_line_error_and_leaves_no_files(raw, tmp_path, limit):
    _, line = process(raw, tmp_path / "out", limit).communicate(timeout=120)
    assert "no space left on the disk; no partial output was left" in line
    assert line.count("\n") == 1
    assert left_behind(tmp_path) == []


@pytest.mark.slow
def test_the_next_build_removes_the_files_of_a_killed_one(raw, tmp_path):
    killed = process(raw, tmp_path / "out")
    for line in killed.stdout:
        if line.startswith("products"):
            break
    time.sleep(0.2)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert [name for name in left_behind(tmp_path) if name.startswith(".hgpo-")]
    going = process(raw, tmp_path / "other")  # another folder's building is left alone
    _, errors = process(raw, tmp_path / "out").communicate(timeout=120)
    assert not errors
    assert not going.communicate(timeout=120)[1]
    assert left_behind(tmp_path) == ["other", "out"]
    assert len(Catalogue.open(tmp_path / "out")) > 3_900
