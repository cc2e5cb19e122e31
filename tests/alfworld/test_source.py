"""Task sources and packs: accepted data, identifiers, games that are unchanged, and the errors for damage."""

import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from hgpo_envs.alfworld.data.game_folder import GAME_FILE, FolderStore, write_folder
from hgpo_envs.alfworld.data.pack import PackStore, write_pack
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.alfworld.engine.game import LONGEST_FILE
from hgpo_envs.errors import InputError, UnknownTask

BUNDLED = ALFWorldSource()
IDS = [BUNDLED.ids(split)[0] for split in ("train", "valid_seen", "valid_unseen")]


@pytest.fixture
def folder(tmp_path):
    write_folder(BUNDLED, IDS, tmp_path)
    return tmp_path


def place(folder, task):
    return folder / "json_2.1.1" / task / "game.tw-pddl"


def test_every_form_of_the_same_data(folder):
    assert (
        ALFWorldSource(folder).ids("all")
        == ALFWorldSource(folder / "json_2.1.1").ids("all")
        == sorted(IDS)
    )
    assert ALFWorldSource(str(folder)).ids("train") == [IDS[0]]
    single = ALFWorldSource(place(folder, IDS[1]).parent)
    assert single.ids("all") == single.ids("valid_seen") == [IDS[1]]
    assert single.ids("train") == []
    task = single.task(IDS[1])
    assert (task.id, task.split, task.versions) == (
        IDS[1],
        "valid_seen",
        {"grammar": "move"},
    )
    assert task.instruction == BUNDLED.task(IDS[1]).instruction
    assert single.engine().start(IDS[1]) == BUNDLED.engine().start(IDS[1])
    lone = folder / "some" / "trial"
    lone.mkdir(parents=True)
    place(folder, IDS[0]).rename(lone / "game.tw-pddl")
    assert ALFWorldSource(lone).ids("train") == ["train/some/trial"]


def test_games_that_are_not_marked_solvable_or_have_movable_or_sliced_things_are_skipped(
    folder,
):
    path = place(folder, IDS[0])
    data = json.loads(path.read_text())
    for mark in (False, None, "true"):
        path.write_text(json.dumps(data | {"solvable": mark}))
        assert ALFWorldSource(folder).ids("all") == sorted(IDS[1:])
    with refused("marked solvable, received 1 other"):
        ALFWorldSource(path.parent)
    del data["solvable"]
    path.write_text(
        json.dumps(
            {"solvable": True, "note": '"solvable": false'}
            | data
            | {"padding": "x" * 5000}
        )
    )
    assert IDS[0] in ALFWorldSource(folder).ids("all")
    for number, part in (
        (1, "pick_and_place_with_movable_recep-Mug-Bowl-Shelf-1"),
        (2, "x-AppleSliced-None-Sink-1"),
    ):
        trial = place(folder, IDS[number]).parent
        trial.parent.rename(trial.parent.with_name(part))
    assert ALFWorldSource(folder).ids("all") == [IDS[0]]


def test_converted_games_play_the_other_wording_also_from_pickles(folder):
    source = ALFWorldSource(folder, grammar="put")
    for other in (source, pickle.loads(pickle.dumps(source))):
        assert {other.task(task).versions["grammar"] for task in IDS} == {"put"}
        assert other.engine().start(IDS[0]) == source.engine().start(IDS[0])


@pytest.mark.parametrize("name", [GAME_FILE, "traj_data.json"])
@pytest.mark.parametrize(
    "content",
    ["fifo", "zero", b"[" * 1_000_000, b" " * (5 << 20), b"3", b'{"x": "\xe9"}'],
)
def test_game_folders_with_other_content(folder, name, content):
    path = place(folder, IDS[0]).with_name(name)
    path.unlink(missing_ok=True)
    if content == "fifo":
        os.mkfifo(path)

    elif content == "zero":
        path.symlink_to("/dev/zero")
    else:
        assert isinstance(content, bytes)
        path.write_bytes(content)
    with refused(r"^[^\n]+$"):
        ALFWorldSource(folder).trajectory(IDS[0])


def test_bad_folders(folder, tmp_path):
    with refused(
        r"no ALFWorld data at .*nowhere: expected a folder of official games or a"
    ):
        ALFWorldSource(folder / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    with refused(
        r"no playable game in .*empty: expected .*game.tw-pddl marked solvable, re"
    ):
        ALFWorldSource(empty)
    path = place(folder, IDS[0])
    text = path.read_text()
    path.write_text(text[: len(text) // 2])
    with refused(r"game.tw-pddl: not valid JSON"):
        ALFWorldSource(folder)
    path.write_text(text)
    copied = folder / "copy" / IDS[0]
    copied.mkdir(parents=True)
    (copied / "game.tw-pddl").write_text(text)
    with refused(f"{IDS[0]} occurs twice: in .* and in "):
        ALFWorldSource(folder)


def test_errors_for_unknown_names_suggest_the_closest():
    with refused("unknown split 'valid_sen'; did you mean 'valid_seen'"):
        BUNDLED.ids("valid_sen")
    near = IDS[0][:-1]
    with pytest.raises(
        UnknownTask,
        match=rf"^unknown ALFWorld task '{near}'; did you mean 'train/.{{,500}}$",
    ):
        BUNDLED.engine().start(near)


PACKED = [
    BUNDLED.ids(split)[n]
    for split in ("train", "valid_seen", "valid_unseen")
    for n in (0, 3)
]
GAMES = [(task, BUNDLED.read(task), BUNDLED.trajectory(task)) for task in PACKED]


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    path = tmp_path_factory.mktemp("pack") / "six.pack"
    assert write_pack(path, GAMES) == 6
    return path


def content(path):
    store = PackStore(path)
    return [(task, store.read(task), store.trajectory(task)) for task in store.ids]


def refusal(path):
    with pytest.raises(InputError) as caught:
        content(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_games_are_unchanged(pack):
    store = PackStore(pack)
    assert content(pack) == sorted(GAMES)
    assert [list(store.read(task)) for task in PACKED] == [
        list(file) for _, file, _ in GAMES
    ]
    assert pickle.loads(pickle.dumps(store)).read(PACKED[0]) == GAMES[0][1]
    for unknown in ("", "train", PACKED[0][:-1], f"{PACKED[0]}x", "\ud800", "zzz"):
        with pytest.raises(KeyError):
            store.read(unknown)


def test_games_are_unchanged_after_conversion_to_a_folder_and_back(pack, tmp_path):
    assert write_folder(PackStore(pack), PACKED, tmp_path) == 6
    folder = FolderStore(tmp_path)
    assert folder.ids == sorted(PACKED)
    again = tmp_path / "again.pack"
    write_pack(
        again,
        ((task, folder.read(task), folder.trajectory(task)) for task in folder.ids),
    )
    assert again.read_bytes() == pack.read_bytes()


@pytest.mark.slow
@given(where=st.floats(0, 1, exclude_max=True), bits=st.integers(1, 255))
def test_a_flipped_byte_is_detected_or_changes_no_game(pack, where, bits):
    """A zip file also holds dates, systems and attributes, which nobody reads."""
    flipped = bytearray(pack.read_bytes())
    flipped[int(where * len(flipped))] ^= bits
    damaged = pack.with_name("damaged.pack")
    damaged.write_bytes(flipped)
    try:
        found = content(damaged)
    except InputError:
        assert str(damaged) in refusal(damaged)
    else:
        assert found == sorted(GAMES)


def rewritten(pack, path, **members):
    """Return a pack with other members, which have their correct checksums."""
    with (
        zipfile.ZipFile(pack) as old,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new,
    ):
        new.comment = old.comment
        for name in old.namelist():
            new.writestr(name, members.get(name.removesuffix(".json"), old.read(name)))
    return path.read_bytes()


def test_error_lines(pack, tmp_path):
    whole = pack.read_bytes()
    path = tmp_path / "x.pack"
    first = min(PACKED)
    flipped = bytearray(whole)
    flipped[200 + len(first)] ^= 1  # in the first game
    for damaged, line in (
        (
            whole[: len(whole) // 2],
            "x.pack is not a complete pack of ALFWorld games; expected a file from `hgpo data",
        ),
        (flipped, f"x.pack is damaged: {first}: "),
        (
            rewritten(pack, path, texts=b"{}"),
            "x.pack is damaged: texts: Object missing required field `domains`",
        ),
        (
            rewritten(pack, path, texts=b'{"domains":[],"grammars":[]}'),
            f"{first}: its domain or grammar is not in",
        ),
        (
            rewritten(pack, path, **{first: b"[" * 5000}),
            f"x.pack is damaged: {first}: ",
        ),
        (
            rewritten(pack, path, **{first: b" " * (LONGEST_FILE + 1)}),
            f"{first}: expected at most 4,194,304 bytes",
        ),
    ):
        path.write_bytes(damaged)
        assert line in refusal(path)
    with refused(r"no ALFWorld data at .*missing.pack"):
        ALFWorldSource(tmp_path / "missing.pack")


def test_writing_a_pack_is_atomic_and_replaces_no_other_file(tmp_path):
    path = tmp_path / "p.pack"
    broken = {**GAMES[1][1], "pddl_problem": "(define)"}
    for games, reason in (
        ([], "no game to pack"),
        ([GAMES[0], GAMES[0]], "is out of order or a duplicate"),
        ([GAMES[0], (PACKED[1], broken, None)], PACKED[1]),
    ):
        with refused(reason):
            write_pack(path, games)
    assert list(tmp_path.iterdir()) == []
    path.write_bytes(b"precious")
    with refused("already exists and is not a pack"):
        write_pack(path, GAMES)
    assert path.read_bytes() == b"precious"


@pytest.mark.parametrize(
    "name",
    ["../../../outside", "/tmp/hgpo-outside", "train/a/\\..\\..\\x", "C:/outside"],
)
def test_task_ids_never_lead_out_of_the_folder(tmp_path, name):
    path = tmp_path / "x.pack"
    write_pack(path, [(name, GAMES[0][1], None)])
    with refused("leads out of the folder"):
        write_folder(PackStore(path), PackStore(path).ids, tmp_path / "a/b/out")
    assert [file for file in tmp_path.rglob("*") if file.is_file()] == [path]
    assert not Path("/tmp/hgpo-outside").exists()
