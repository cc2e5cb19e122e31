"""Packs: games are unchanged, and all damage is detected and reported in one line."""

import copy
import pickle
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.alfworld.data.game_folder import FolderStore, write_folder
from hgpo_envs.alfworld.data.pack import VERSION, PackStore, write_pack
from hgpo_envs.alfworld.data.source import ALFWorldSource
from hgpo_envs.errors import InputError

SOURCE = ALFWorldSource()
IDS = [SOURCE.ids(split)[n] for split in ("train", "valid_seen", "valid_unseen") for n in (0, 3)]
GAMES = [(task, SOURCE.read(task), SOURCE.trajectory(task)) for task in IDS]


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pack") / "six.pack"
    assert write_pack(path, GAMES) == 6
    return path


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        PackStore(path).verify()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_games_are_unchanged(pack: Path) -> None:
    store = PackStore(pack)
    store.verify()
    assert store.ids() == sorted(IDS)
    for task, file, trajectory in GAMES:
        assert store.read(task) == file
        assert list(store.read(task)) == list(file)
        assert store.trajectory(task) == trajectory
    for unknown in ("", "train", IDS[0][:-1], f"{IDS[0]}x", "\ud800", "zzz"):
        with pytest.raises(KeyError):
            store.read(unknown)


def test_pickles_and_copies_open_the_file_again(pack: Path) -> None:
    for store in (pickle.loads(pickle.dumps(PackStore(pack))), copy.deepcopy(PackStore(pack))):
        assert store.read(IDS[0]) == GAMES[0][1]


def test_games_are_unchanged_after_conversion_to_a_folder_and_back(pack: Path, tmp_path: Path) -> None:
    assert write_folder(PackStore(pack), IDS, tmp_path) == 6
    folder = FolderStore(tmp_path)
    assert folder.ids() == sorted(IDS)
    again = tmp_path / "again.pack"
    write_pack(again, ((task, folder.read(task), folder.trajectory(task)) for task in folder.ids()))
    assert again.read_bytes() == pack.read_bytes()


@given(where=st.floats(0, 1, exclude_max=True), bits=st.integers(1, 255))
def test_every_flipped_byte_is_detected(pack: Path, where: float, bits: int) -> None:
    content = bytearray(pack.read_bytes())
    content[int(where * len(content))] ^= bits
    damaged = pack.with_name("damaged.pack")
    damaged.write_bytes(content)
    assert str(damaged) in refusal(damaged)


@given(kept=st.floats(0, 1, exclude_max=True))
def test_every_truncation_is_detected(pack: Path, kept: float) -> None:
    content = pack.read_bytes()
    cut = pack.with_name("cut.pack")
    cut.write_bytes(content[: int(kept * len(content))])
    assert str(cut) in refusal(cut)


def test_error_lines(pack: Path, tmp_path: Path) -> None:
    content = pack.read_bytes()
    half = tmp_path / "half.pack"
    half.write_bytes(content[: len(content) // 2])
    assert f"half.pack: expected {len(content):,} bytes, received {len(content) // 2:,}; copy or build it" in refusal(
        half
    )
    other = bytearray(content)
    other[8:12] = struct.pack("<I", VERSION + 1)
    other[60:64] = struct.pack("<I", zlib.crc32(other[:60]))
    newer = tmp_path / "newer.pack"
    newer.write_bytes(other)
    assert f"newer.pack: expected pack format {VERSION}, received format {VERSION + 1}" in refusal(newer)
    foreign = tmp_path / "foreign.pack"
    foreign.write_bytes(b"PK" + content[2:])
    assert "foreign.pack is not a pack of ALFWorld games; expected a file from `hgpo data build" in refusal(foreign)
    flipped = bytearray(content)
    flipped[100] ^= 1
    damaged = tmp_path / "damaged.pack"
    damaged.write_bytes(flipped)
    assert f"{min(IDS)} is damaged (it fails its checksum); copy or build the pack again" in refusal(damaged)
    with pytest.raises(InputError, match=r"no ALFWorld data at .*missing.pack"):
        ALFWorldSource(tmp_path / "missing.pack")


def test_writing_a_pack_is_atomic(tmp_path: Path) -> None:
    path = tmp_path / "p.pack"
    with pytest.raises(InputError, match="no game to pack"):
        write_pack(path, [])
    with pytest.raises(InputError, match="is out of order or a duplicate"):
        write_pack(path, [GAMES[0], GAMES[0]])
    broken = {**GAMES[1][1], "pddl_problem": "(define)"}
    with pytest.raises(InputError, match=IDS[1]):
        write_pack(path, [GAMES[0], (IDS[1], broken, None)])
    assert list(tmp_path.iterdir()) == []
