"""Catalogues that are damaged or crafted, queries and actions of any size: one line, little memory, no hanging."""

import io
import json
import os
import re
import shutil
import sys
import tracemalloc

import gymnasium
import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgpo_envs.episode import LONGEST_COMMAND
from hgpo_envs.errors import InputError
from hgpo_envs.webshop.catalogue import Catalogue
from hgpo_envs.webshop.catalogue.catalogue import MANIFEST
from hgpo_envs.webshop.data.build import build
from hgpo_envs.webshop.data.source import WebShopSource
from hgpo_envs.webshop.engine.pages import parse_action
from hgpo_envs.webshop.environment import WEBSHOP
from hgpo_envs.webshop.generation import synthetic
from hgpo_envs.webshop.generation.synthetic import FILES
from hgpo_envs.webshop.search import analyzer


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """Return the folder of a small catalogue."""
    folder = tmp_path_factory.mktemp("shop")
    synthetic.write_synthetic(folder / "raw", 60, 4, people=1.0)
    paths = [folder / "raw" / name for name in FILES]
    build(*paths, folder / "shop", nouns="stand-in")
    return folder / "shop"


def use(folder):
    """Use a catalogue in all the ways of an environment."""
    catalogue = Catalogue.open(folder)
    assert sum(1 for _ in catalogue) == len(catalogue)
    assert len(list(catalogue.human_instructions())) >= 0
    for query in ("red shoes", "cotton", "the best usb cable for travel", "find me easy care"):
        catalogue.scored(query)
    for goals in ("synthetic", "human"):
        source = WebShopSource(folder, goals)
        engine = source.engine()
        ids = source.ids("all")
        for task in (ids[number] for number in range(min(3, len(ids)))):
            source.task(task)
            engine.start(task)
            for action in ("search[shoes]", "search[<c> fashion]", "search[<q> shoes]"):
                state = engine.act(action)
            for action in list(state.actions)[-3:]:
                engine.act(action)
            engine.act("click[buy now]")


def try_to(folder):
    try:
        use(folder)
    except InputError as error:
        line = str(error)
        assert line.isprintable()
        assert len(line) < 600 + 2 * len(str(folder))
        return line
    return ""


@pytest.fixture
def damaged(shop, tmp_path):
    shutil.copytree(shop, tmp_path / "shop")
    return tmp_path / "shop"


def test_an_intact_catalogue_is_used_and_verified(damaged):
    use(damaged)
    Catalogue.open(damaged).verify()


@settings(max_examples=25)
@given(data=st.data())
def test_flipped_bytes_give_a_one_line_error_or_another_shop(shop, tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("flipped") / "shop"
    shutil.copytree(shop, folder)
    try:
        names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        path = folder / data.draw(st.sampled_from(names))
        content = bytearray(path.read_bytes())
        if not content:
            return
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.one_of(st.integers(0, min(127, len(content) - 1)), st.integers(0, len(content) - 1)))
            content[at] = data.draw(st.integers(0, 255))
        path.write_bytes(content)
        try_to(folder)
    finally:
        shutil.rmtree(folder.parent)


def set_size(folder, name):
    """Update the manifest for a changed file."""
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"][name][0] = (folder / name).stat().st_size
    (folder / MANIFEST).write_text(json.dumps(manifest))


def array_of(shape, descr="<i8", size=64, fortran=False):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": fortran, "shape": shape})
    return file.getvalue() + bytes(size)


ARRAYS = {
    "absurd": array_of((10**15,)), "absurd, small": array_of((10**15,), size=8), "negative": array_of((-1,)),
    "negative twice": array_of((-8, -1)), "object": array_of((8,), "|O"), "scalar": array_of(()),
    "fortran": array_of((8,), fortran=True), "nothing": b"", "text": b"x" * 200,
    "long header": b"\x93NUMPY\1\0\xff\xff" + b"(" * 65535,
    "version 3": b"\x93NUMPY\3\0" + b"\0" * 100, "structured": array_of((8,), [("a", "<i4"), ("b", "<i4")]),
    "huge items": array_of((1,), "|S1000000000"), "not a header": b"\x93NUMPY\1\0\x10\0__import__('os')" + b"\0" * 64,
}  # fmt: skip


@pytest.mark.parametrize("name", ["order.npy", "prices.npy", "index/starts.npy"])
def test_crafted_arrays(damaged, name):
    for data in ARRAYS.values():
        (damaged / name).write_bytes(data)
        set_size(damaged, name)
        assert try_to(damaged)


@pytest.mark.parametrize(
    "name", ["order", "combinations", "categories", "index/starts", "index/documents", "index/codes"]
)
def test_arrays_of_constant_values(damaged, name):
    array = np.load(damaged / f"{name}.npy")
    for value in (0, np.iinfo(array.dtype).max, np.iinfo(array.dtype).min):
        array[...] = value
        np.save(damaged / f"{name}.npy", array)
        try_to(damaged)


def write_products(folder, change):
    """Write changed records of all products, with matching offsets and sizes."""
    path = folder / "products.jsonl"
    lines = [change(orjson.loads(line)) + b"\n" for line in path.read_bytes().splitlines()]
    np.save(folder / "products.starts.npy", np.cumsum([0, *map(len, lines)], dtype=np.int64))
    path.write_bytes(b"".join(lines))
    for name in ("products.jsonl", "products.starts.npy"):
        set_size(folder, name)


@pytest.mark.parametrize(
    ("field", "value"), [("title", 3), ("prices", ["1"]), ("options", [{"name": 3, "values": []}]), ("listed", None)]
)
def test_products_of_wrong_types(damaged, field, value):
    write_products(damaged, lambda row: orjson.dumps({**row, field: value}))
    assert try_to(damaged)


@pytest.mark.parametrize("line", [b"", b"null", b"\xff", b'"\\ud800"', b"{}", b"[" * 100_000])
def test_records_that_are_not_products(damaged, line):
    write_products(damaged, lambda _: line)
    assert try_to(damaged)


MANIFESTS = [
    b"", b"{", b"[]", b"null", b'{"format": 2}', b'{"format": "2"}', b'{"format": [2]}', b"\xff", b"[" * 100_000,
    b'{"format": 2, "files": {"../../etc/passwd": [1, "x"]}}',
]  # fmt: skip


def test_manifests(damaged):
    for manifest in MANIFESTS:
        (damaged / MANIFEST).write_bytes(manifest)
        assert try_to(damaged)


@pytest.mark.slow
def test_manifests_with_another_field(damaged):
    manifest = json.loads((damaged / MANIFEST).read_text())
    for field in ("id", "nouns", "files", "products", "skipped", "sources", "human_instructions", "format"):
        for value in (None, "x", [], {"../x": [0, ""]}, 10**30):
            (damaged / MANIFEST).write_text(json.dumps({**manifest, field: value}))
            try_to(damaged)


@pytest.mark.parametrize("kind", ["fifo", "zero"])
@pytest.mark.parametrize("name", [MANIFEST, "order.npy", "index/terms.bin"])
def test_paths_that_are_not_regular_files(damaged, name, kind):
    (damaged / name).unlink()
    if kind == "fifo":
        os.mkfifo(damaged / name)
    else:
        (damaged / name).symlink_to("/dev/zero")
    assert try_to(damaged)


def test_too_many_combinations_of_options(tmp_path):
    """60 options of two values: 10¹⁸ goals."""
    record = {"asin": "B1", "name": "x", "full_description": "", "small_description": [], "pricing": "$1"}
    record |= {"category": "c", "query": "q", "product_category": "p"}
    record["customization_options"] = {str(n): [{"value": "a"}, {"value": "b"}] for n in range(60)}
    (tmp_path / "items.json").write_text(json.dumps([record]))
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(InputError, match=r"record 0 \(B1\): its options have 1e\+18 combinations"):
        build(tmp_path / "items.json", *[tmp_path / "other.json"] * 2, tmp_path / "out", nouns="stand-in")


@pytest.mark.parametrize(("name", "seed"), [("price_seed", None), ("shuffle_seed", "1"), ("price_seed", True)])
def test_seeds_are_integers(name, seed):
    """With None, the same task would have different prices in every process."""
    with pytest.raises(InputError, match=rf"{name}: expected an integer, received"):
        gymnasium.make("HGPO/WebShop-v0", **{name: seed})


def size_now():
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.slow
def test_caches_are_bounded_in_bytes():
    """Also without an environment, which would truncate the commands."""
    engine = WEBSHOP.open_source().source.engine()
    engine.start("0")
    engine.act("search[shoes]")
    tracemalloc.start()
    try:
        for number in range(40):
            text = "x" * 50_000
            for command in (f"search[{number} {text}]", f"search[<q> {number} {text}]", f"search[<c> {number}{text}]"):
                engine.act(command)
        engine.start("0")
        assert size_now() < 2 << 20  # a third of the queries alone
    finally:
        tracemalloc.stop()


def test_long_actions_are_truncated_in_the_history_too():
    env = gymnasium.make("HGPO/WebShop-v0", disable_env_checker=True, history_length=5, max_steps=50)
    env.reset(seed=1)
    tracemalloc.start()
    try:
        for number in range(10):
            obs, _, _, _, info = env.step(f"search[{number} " + "x" * (10 << 20) + "]")
            assert len(info["action"]) == LONGEST_COMMAND
        assert len(obs["prompt"]) < 12 * LONGEST_COMMAND
        assert size_now() < 64 * LONGEST_COMMAND
    finally:
        tracemalloc.stop()


SURROGATES = [
    "\ud800",
    "search[\udfff shoes]",
    "click[\ud800]",
    "search[<q> \ud83d]",
    "search[<c> \ud83d]",
    "a\udc00\ud800b",
]


@pytest.mark.parametrize("env_id", ["HGPO/WebShop-v0", "HGPO/ALFWorld-v0"])
@pytest.mark.parametrize("action_format", ["command", "response", "number"])
def test_lone_surrogates_become_replacement_characters(env_id, action_format):
    env = gymnasium.make(env_id, disable_env_checker=True, action_format=action_format)
    twin = gymnasium.make(env_id, disable_env_checker=True, action_format=action_format)
    env.reset(seed=1), twin.reset(seed=1)
    for text in SURROGATES:
        text = f"<think>\ud800</think><action>{text}</action>" if action_format == "response" else text
        obs, reward, *_, info = env.step(text)
        same, gain, *_, told = twin.step("".join("\ufffd" if 0xD800 <= ord(c) < 0xE000 else c for c in text))
        assert (obs["prompt"], obs["state"], reward) == (same["prompt"], same["state"], gain)
        assert obs["history_hash"].tolist() == same["history_hash"].tolist()
        assert info == told
        json.dumps(info, ensure_ascii=False).encode()
        obs["prompt"].encode()
    assert sys.getsizeof(obs["prompt"]) < 1 << 20


PIECES = st.sampled_from(["a", "[", "]", "\n", "search", "click", " ", "]]", "[[", "B0", "é", "\r", "\x85"])


@given(st.lists(PIECES, max_size=12).map("".join))
def test_actions_are_parsed_as_in_the_original(command):
    match = re.compile(r"(.+)\[(.+)\]").match(command)
    assert parse_action(command) == ((match[1], match[2].lower()) if match else (command, ""))


LETTERS = st.sampled_from(
    ["a", "B", "1", "_", "'", '"', ".", ",", "-", "é", "א", "一", "カ", "ก", "😀", "\u200d", "\u0301", "🏽", "🇦"]
)


@given(st.lists(st.tuples(LETTERS, st.integers(1, 40)), min_size=8, max_size=40))
def test_long_pieces_have_the_same_words_as_the_whole_grammar(runs):
    text = "".join(letter * times for letter, times in runs)
    found = analyzer._any().findall(text)
    if len(text) > analyzer.LONGEST_WORD and all(len(word) <= analyzer.LONGEST_WORD // 4 for word in found):
        assert analyzer.words(text) == found


@pytest.mark.parametrize("unit", ["x", "[]", "\u200d", "_\u0301", "א'", "1."])
def test_actions_take_linear_time(unit):
    """With quadratic time, the longest action would take hours."""
    env = gymnasium.make("HGPO/WebShop-v0", disable_env_checker=True)
    env.reset(seed=1)
    text = unit * LONGEST_COMMAND
    for command in (text, f"search[{text}", f"search[{text[: LONGEST_COMMAND - 8]}]", f"click[{text[:16000]}]"):
        env.step(command)
