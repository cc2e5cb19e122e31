"""Data: official files from a folder and from faulty HTTP sources, synthetic catalogues, and the bundled one."""

import json
from urllib.parse import parse_qs, urlsplit

import pytest
from local_server import QuietHandler, serving
from refusals import refused

from hgpo_envs.files.download import NoConnection
from hgpo_envs.webshop import bundled
from hgpo_envs.webshop.catalogue import Catalogue
from hgpo_envs.webshop.data import release
from hgpo_envs.webshop.data.build import build
from hgpo_envs.webshop.generation import synthetic
from tools.webshop_catalogue import make_bundled_catalogue

CONTENT = {
    file.name: json.dumps([1] if file.begins == b"[" else {}).encode()
    for file in release.FILES["small"]
}
BY_DRIVE = {file.drive: file.name for file in release.FILES["small"]}


@pytest.fixture
def server():
    """`/ok/` has the files, `/page/` answers with a web page, `/none/` has nothing; `?id=` goes by Drive identifier."""
    asked = []

    class Handler(QuietHandler):
        def do_GET(self):
            url = urlsplit(self.path)
            asked.append(self.path)
            identifier = parse_qs(url.query).get("id", [""])[0]
            name = BY_DRIVE.get(identifier) or url.path.rsplit("/", 1)[-1]
            kind = url.path.split("/")[1]
            body = (
                b"<!DOCTYPE html> Too many users have viewed this file"
                if kind == "page"
                else CONTENT.get(name, b"")
            )
            self.answer(body, 404 if kind == "none" else 200)

    with serving(Handler) as address:
        yield address, asked


def test_from_a_folder(tmp_path):
    (tmp_path / "have").mkdir()
    for name, data in CONTENT.items():
        (tmp_path / "have" / name).write_bytes(data)
    paths = release.fetch_release("small", tmp_path / "out", local=tmp_path / "have")
    assert [path.name for path in paths] == list(CONTENT)
    assert [path.read_bytes() for path in paths] == list(CONTENT.values())
    (tmp_path / "have/items_human_ins.json").unlink()
    for size, folder, line in (
        ("small", "have", r"no items_human_ins\.json in"),
        ("full", "have", r"no items_shuffle\.json in .*; it has those of --size small"),
        ("small", "nowhere", "nowhere: there is no such folder"),
        ("huge", "have", "size: expected 'small' or 'full', received 'huge'"),
    ):
        with refused(line):
            release.fetch_release(size, tmp_path / "other", local=tmp_path / folder)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["page", "none"])
def test_the_mirror_is_used_if_drive_refuses(tmp_path, server, first, monkeypatch):
    root, _ = server
    sources = (f"{root}/{first}/download?id=", f"{root}/ok/")
    monkeypatch.setattr(release, "SOURCES", sources)
    paths = release.fetch_release("small", tmp_path)
    assert [path.read_bytes() for path in paths] == list(CONTENT.values())
    monkeypatch.setattr(release, "SOURCES", sources[:1])
    with refused(
        r"^no source provides items_shuffle_1000.json[^\n]*--from FOLDER[^\n]*$"
    ):
        release.fetch_release("small", tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_without_a_network_one_line_says_what_to_do_and_nothing_is_left(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(
        release, "SOURCES", ("http://no-such-host.invalid/?id=", "http://127.0.0.1:9/")
    )
    with pytest.raises(NoConnection) as caught:
        release.fetch_release("small", tmp_path / "new/webshop")
    for part in (
        "no-such-host.invalid",
        "127.0.0.1",
        "--from FOLDER",
        "bundled catalogue",
    ):
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_synthesis_and_build(hgpo, tmp_path):
    out = hgpo.output(
        "data",
        "synth",
        "webshop",
        "--products",
        200,
        "--seed",
        3,
        "--out",
        tmp_path / "raw",
    )
    following = out[out.index("hgpo data build") :].split()[1:]
    following[-1] = str(tmp_path / "shop")
    out = hgpo.output(*following, "--nouns", "stand-in")
    assert (
        f"Next: hgpo rollout --env HGPO/WebShop-v0 --data {tmp_path / 'shop'} --out runs/shop"
        in out
    )
    out = hgpo.output("data", "show", "webshop", tmp_path / "shop", "--verify")
    assert "stand-in 1" in out


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_and_a_larger_catalogue_starts_with_the_smaller_one(
    tmp_path,
):
    for name, products, seed in (
        ("one", 300, 3),
        ("two", 300, 3),
        ("three", 300, 4),
        ("four", 500, 3),
        ("five", 1, 1 << 64),
    ):
        synthetic.write_synthetic(tmp_path / name, products, seed)
    one, two, three, four = ([(tmp_path / name / file).read_bytes() for file in synthetic.FILES]
                             for name in ("one", "two", "three", "four"))  # fmt: skip
    assert one == two
    assert all(a != b for a, b in zip(one, three, strict=True))
    assert json.loads(four[0])[:300] == json.loads(one[0])
    paths = [tmp_path / "four" / name for name in synthetic.FILES]
    # every record is a product
    assert build(*paths, tmp_path / "shop", nouns="stand-in")["products"] == 500
    for products in (0, 36**8):
        with refused("products: expected a number from 1 to"):
            synthetic.write_synthetic(tmp_path / "raw", products, 1)


@pytest.fixture(scope="module")
def shop():
    return Catalogue.open(bundled.bundled_folder())


def test_the_bundled_catalogue_is_small_and_has_goals_for_every_split(shop):
    assert len(shop) >= 1_000
    assert (
        sum(path.stat().st_size for path in shop.folder.rglob("*") if path.is_file())
        < 2_000_000
    )
    first_for_training = 1_500  # those before it are for test and evaluation
    assert (
        sum(bool(human.attributes) for human in shop.human_instructions())
        > first_for_training
    )
    assert shop.combinations[shop.instructed].sum() > first_for_training
    shop.verify()


@pytest.mark.slow
def test_the_bundled_catalogue_is_reproduced_by_its_seed(shop, tmp_path):
    make_bundled_catalogue(tmp_path / "again")
    again = Catalogue.open(tmp_path / "again")
    assert list(again) == list(shop)
    assert list(again.human_instructions()) == list(shop.human_instructions())
    for path in sorted((shop.folder / "index").iterdir()):
        assert path.read_bytes() == (again.folder / "index" / path.name).read_bytes()


@pytest.mark.slow
def test_bundled_goals_can_be_satisfied(shop):
    """A goal's product has the requested properties and is found by its own words."""
    for human in shop.human_instructions():
        product = shop.product(human.product)
        assert set(human.attributes) <= set(product.attributes)
        assert set(human.options) <= {
            value for values in product.options.values() for value in values
        }
    found = 0
    for product in shop:
        text = " ".join(
            (product.title, product.description, *product.bullet_points)
        ).lower()
        assert all(attribute in text for attribute in product.attributes)
        assert product.instruction_attributes
        assert set(product.instruction_attributes) <= set(product.attributes)
        found += product.index in shop.search(product.title)[:10]
    assert found > 0.99 * len(shop)
