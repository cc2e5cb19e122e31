"""Catalogues that are damaged or crafted, queries and actions of any size: one line, little memory, no hanging."""

import io
import json
import os
import shutil
import tracemalloc
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from refusals import refused

from hgpo_envs.episode import LONGEST_COMMAND
from hgpo_envs.webshop.catalogue import Catalogue
from hgpo_envs.webshop.catalogue.catalogue import MANIFEST
from hgpo_envs.webshop.data.build import build
from hgpo_envs.webshop.environment import WEBSHOP


def array_of(shape, descr="<i8", size=64):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return file.getvalue() + bytes(size)


DAMAGES = {
    "absurd": array_of((10**15,)),
    "negative": array_of((-8, -1)),
    "object": array_of((8,), "|O"),
    "huge items": array_of((1,), "|S1000000000"),
    "not a header": b"\x93NUMPY\1\0\x10\0__import__('os')" + b"\0" * 64,
    "nothing": b"",
    "deep": b"[" * 100_000,
    "fifo": os.mkfifo,
    "endless": lambda path: path.symlink_to("/dev/zero"),
}
"""The content of a file, or a function that makes it."""


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_of_a_catalogue_are_one_line(awkward, tmp_path, damage):
    """Also if the manifest says that they belong there; tests/fuzz tries arbitrary content."""
    for name in ("order.npy", "index/starts.npy", "human.jsonl", MANIFEST):
        folder = Path(shutil.copytree(awkward, tmp_path / name.replace("/", "-")))
        (folder / name).unlink()
        content = DAMAGES[damage]
        (folder / name).write_bytes(content) if isinstance(content, bytes) else content(
            folder / name
        )
        if name != MANIFEST and isinstance(content, bytes):
            manifest = json.loads((folder / MANIFEST).read_text())
            manifest["files"][name][0] = len(content)
            (folder / MANIFEST).write_text(json.dumps(manifest))
        with refused(r"^[^\n]{,700}$"):
            list(Catalogue.open(folder).human_instructions())


def test_too_many_combinations_of_options(tmp_path):
    """60 options of two values: 10¹⁸ goals."""
    record = {
        "asin": "B1",
        "name": "x",
        "full_description": "",
        "small_description": [],
        "pricing": "$1",
    }
    record |= {"category": "c", "query": "q", "product_category": "p"}
    record["customization_options"] = {
        str(n): [{"value": "a"}, {"value": "b"}] for n in range(60)
    }
    (tmp_path / "items.json").write_text(json.dumps([record]))
    (tmp_path / "other.json").write_text("{}")
    with refused(r"record 0 \(B1\): its options have 1e\+18 combinations"):
        build(
            tmp_path / "items.json",
            *[tmp_path / "other.json"] * 2,
            tmp_path / "out",
            nouns="stand-in",
        )


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
            for command in (
                f"search[{number} {text}]",
                f"search[<q> {number} {text}]",
                f"search[<c> {number}{text}]",
            ):
                engine.act(command)
        engine.start("0")
        # a third of the queries alone
        assert tracemalloc.get_traced_memory()[0] < 2 << 20
    finally:
        tracemalloc.stop()


def test_long_actions_are_truncated_in_the_history_too():
    env = gymnasium.make(
        "HGPO/WebShop-v0", disable_env_checker=True, history_length=5, max_steps=50
    )
    env.reset(seed=1)
    for number in range(10):
        obs, _, _, _, info = env.step(f"search[{number} " + "x" * (10 << 20) + "]")
        assert len(info["action"]) == LONGEST_COMMAND
    assert len(obs["prompt"]) < 12 * LONGEST_COMMAND


SURROGATES = [
    "\ud800",
    "search[\udfff shoes]",
    "click[\ud800]",
    "search[<q> \ud83d]",
    "a\udc00\ud800b",
]


@pytest.mark.parametrize("env_id", ["HGPO/WebShop-v0", "HGPO/ALFWorld-v0"])
@pytest.mark.parametrize("action_format", ["command", "response", "number"])
def test_lone_surrogates_become_replacement_characters(env_id, action_format):
    env, twin = (
        gymnasium.make(env_id, disable_env_checker=True, action_format=action_format)
        for _ in range(2)
    )
    env.reset(seed=1), twin.reset(seed=1)
    for text in SURROGATES:
        text = (
            f"<think>\ud800</think><action>{text}</action>"
            if action_format == "response"
            else text
        )
        step = env.step(text)
        assert repr(step) == repr(
            twin.step(
                "".join("\ufffd" if 0xD800 <= ord(c) < 0xE000 else c for c in text)
            )
        )
        json.dumps(step[4], ensure_ascii=False).encode()
        step[0]["prompt"].encode()


@pytest.mark.parametrize("unit", ["x", "[]", "\u200d", "_\u0301", "א'", "1."])
def test_actions_take_linear_time(unit):
    """With quadratic time, the longest action would take hours."""
    env = gymnasium.make("HGPO/WebShop-v0", disable_env_checker=True)
    env.reset(seed=1)
    text = unit * LONGEST_COMMAND
    for command in (
        text,
        f"search[{text}",
        f"search[{text[: LONGEST_COMMAND - 8]}]",
        f"click[{text[:16000]}]",
    ):
        env.step(command)
