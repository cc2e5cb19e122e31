"""Malicious packs and game files with valid checksums: one-line errors, little memory, no hanging."""

import json
import os
import re
import struct
import zlib
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.alfworld.data.game_folder import GAME_FILE, write_folder
from hgpo_envs.alfworld.data.pack import MAGIC, VERSION, PackStore, write_pack
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.alfworld.engine.game import TEXTS, compile_game
from hgpo_envs.errors import InputError

SOURCE = ALFWorldSource()
TASK = SOURCE.ids("train")[0]
GAME = SOURCE.read(TASK)
HEADER = struct.Struct("<8sIIQQIQII")


def pack_of(path, games, texts=None, ids=None):
    """Write a pack with valid checksums from arbitrary packed bytes by id."""
    body, rows, end = b"", b"", 0
    for name, packed in games.items():
        end += len(name) + 1
        rows += struct.pack("<QIII", 64 + len(body), len(packed), zlib.crc32(packed), end)
        body += packed
    index = rows + (b"".join(name + b"\n" for name in games) if ids is None else ids)
    if texts is None:
        texts = {"domains": [GAME["pddl_domain"]], "grammars": [GAME["grammar"]], "dictionary": ""}
    texts = texts if isinstance(texts, bytes) else zlib.compress(orjson.dumps(texts))
    texts_at = 64 + len(body)
    index_at = texts_at + len(texts)
    check = zlib.crc32(index, zlib.crc32(texts))
    sizes = (len(games), index_at + len(index), texts_at, len(texts), index_at, len(index), check)
    fields = HEADER.pack(MAGIC, VERSION, *sizes).ljust(60, b"\0")
    path.write_bytes(fields + struct.pack("<I", zlib.crc32(fields)) + body + texts + index)
    return path


def entry(**changes):
    sound = {"problem": GAME["pddl_problem"], "task": "x.", "domain": 0, "grammar": 0, "file": GAME, "trajectory": None}
    return zlib.compress(orjson.dumps({**sound, **changes}))


def play_all(path):
    source = ALFWorldSource(path)
    for task in source.ids("all"):
        source.engine().start(task)


def refusal(path):
    with pytest.raises(InputError) as caught:
        play_all(path)
    line = str(caught.value)
    assert "\n" not in line
    assert len(line) < 600
    assert path.name in line or TASK in line
    return line


def test_a_valid_pack_from_the_helper_is_played(tmp_path):
    """Otherwise the other tests of this module would prove nothing."""
    source = ALFWorldSource(pack_of(tmp_path / "x.pack", {TASK.encode(): entry()}))
    assert "x." in source.engine().start(TASK).text


WRONG_TEXTS = [
    b"", b"no zlib", zlib.compress(b""), zlib.compress(b"[1"), zlib.compress(b"\xff\xfe"),
    zlib.compress(b"[" * 100_000),
    zlib.compress(b'"\\ud800"'), zlib.compress(orjson.dumps("x" * 1000))[:-8], [], 3, {}, {"domains": []},
    {"domains": [3], "grammars": [], "dictionary": ""}, {"domains": {}, "grammars": [], "dictionary": ""},
    {"domains": [], "grammars": [None], "dictionary": ""}, {"domains": [], "grammars": [], "dictionary": 3},
    {"domains": [], "grammars": [], "dictionary": "x" * 40_000},
]  # fmt: skip


def test_texts(tmp_path):
    for texts in WRONG_TEXTS:
        refusal(pack_of(tmp_path / "x.pack", {TASK.encode(): entry()}, texts=texts))


def test_ids(tmp_path):
    for ids in (b"", b"\n", b"\xff\n", b"a\nb\n", b"a", b"x" * 1000 + b"\n", b"\xed\xa0\x80\n", b"\n" * 9):
        refusal(pack_of(tmp_path / "x.pack", {TASK.encode(): entry()}, ids=ids))
    for games, ids in (({}, None), ({b"a": entry(), b"b": entry()}, b"a\na\n")):
        assert "its index does not contain" in refusal(pack_of(tmp_path / "x.pack", games, ids=ids))


WRONG_ENTRIES = [
    b"", b"no zlib", zlib.compress(b""), zlib.compress(b"null"), zlib.compress(b"[]"), zlib.compress(b"\xff"),
    entry()[:-9],
    zlib.compress(b"[" * 100_000), entry(problem=None), entry(problem=3), entry(task=None), entry(domain=1),
    entry(domain=-1), entry(domain=True), entry(domain="0"), entry(grammar=7), entry(grammar=None),
    entry(grammar=2**63),
    entry(file=[]), entry(file=None), entry(trajectory=3), entry(trajectory=[]), entry(problem=""),
    entry(problem="x" * 9),
    entry(file={"walkthrough": "look"}), entry(file={"walkthrough": [3]}), entry(task='"'), entry(task='x." }'),
    entry(task="\n"),
]  # fmt: skip


def test_entries(tmp_path):
    for packed in WRONG_ENTRIES:
        refusal(pack_of(tmp_path / "x.pack", {TASK.encode(): packed}))


OUTSIDE = [
    "../../../outside",
    "/tmp/hgpo-outside",
    "train/../../../outside",
    "train/a/\\..\\..\\x",
    "C:/outside",
    "a\0b",
]


@pytest.mark.parametrize("name", OUTSIDE)
def test_task_ids_never_lead_out_of_the_folder(tmp_path, name):
    path = pack_of(tmp_path / "x.pack", {name.encode(): entry()})
    with pytest.raises(InputError, match="leads out of the folder"):
        write_folder(PackStore(path), PackStore(path).ids(), tmp_path / "a/b/out")
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and p != path]
    assert not Path("/tmp/hgpo-outside").exists()


@given(st.data())
def test_damaged_games_compile_or_raise_a_one_line_error(data):
    """With flipped bytes and removed or repeated pieces in any text of a game file."""
    game = dict(GAME)
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(TEXTS))
        text = game[name]
        start, end = sorted(data.draw(st.integers(0, len(text))) for _ in range(2))
        end = min(end, start + data.draw(st.sampled_from([0, 1, 5, 200])))
        put = data.draw(
            st.one_of(
                st.sampled_from(["", "(", ")", "- ", "{", '"""', "(:init", "receptacle", "\0", "é"]),
                st.text(max_size=3),
            )
        )
        game[name] = text[:start] + put * data.draw(st.sampled_from([1, 2, 50])) + text[end:]
    try:
        compiled = compile_game(game, "mine")
    except InputError as error:
        assert re.fullmatch("mine: .+", str(error))  # noqa: PT017 - either outcome is right
        return
    source = ALFWorldSource()
    engine = source.engine()
    state = engine.play(compiled)
    for action in list(state.actions)[:20]:
        state = engine.act(action)


def read_both(folder):
    source = ALFWorldSource(folder)
    return source.read(TASK), source.trajectory(TASK)


def place(tmp_path, name="game"):
    folder = tmp_path / "json_2.1.1" / TASK
    folder.mkdir(parents=True)
    return folder / name


@pytest.mark.parametrize("name", [GAME_FILE, "traj_data.json"])
@pytest.mark.parametrize("kind", ["fifo", "folder", "zero", "deep", "large", "wrong", "latin-1"])
def test_game_folders_with_other_content(tmp_path, name, kind):
    path = place(tmp_path, name)
    if name != GAME_FILE:
        path.with_name(GAME_FILE).write_text(json.dumps(GAME))
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    else:
        contents = {
            "deep": b"[" * 1_000_000, "large": json.dumps(GAME).encode() + b" " * (5 << 20) + b"", "wrong": b"3",
            "latin-1": b'{"solvable": true, "x": "\xe9"}',
        }  # fmt: skip
        path.write_bytes(contents[kind])
    with pytest.raises(InputError) as caught:
        read_both(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_pack_does_not_replace_other_files(tmp_path):
    for name, content in (("x.pack", b"precious"), ("y.pack", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="already exists and is not a pack"):
            write_pack(tmp_path / name, [(TASK, GAME, None)])
        assert (tmp_path / name).read_bytes() == content
