"""Extraction of archives: intact ones completely, damaged and malicious ones not at all."""

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import zipfile
import zlib
from contextlib import nullcontext, suppress

import pytest
from bounded import outcome
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import new_folder
from hgpo_envs.files.unpack import unpack as unpack_into

FILES = {
    "json_2.1.1/train/a/trial_1/game.tw-pddl": b"one",
    "json_2.1.1/train/b/trial_2/game.tw-pddl": b"two" * 1000,
    "json_2.1.1/README": b"",
}


def unpack(archives, folder, progress=None):
    """Unpack into a new folder atomically, as the commands do."""
    with new_folder(folder) as made:
        return unpack_into(archives, made, progress=progress)


def make_zip(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return path


def make_tar(path, files):
    with tarfile.open(path, f"w:{path.suffix[1:]}" if path.suffix != ".tar" else "w") as packed:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    return path


def make(path, files):
    return (make_zip if path.suffix == ".zip" else make_tar)(path, files)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(archive, tmp_path, match):
    """Assert that an archive is refused and that no files are left."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=match) as error:
        unpack([archive], tmp_path / "out")
    assert "\n" not in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before


KINDS = ["games.zip", "games.tar", "games.tar.gz", "games.tar.xz", "games.tar.bz2"]


@pytest.mark.parametrize("name", KINDS)
def test_intact_archive(tmp_path, name):
    seen = []
    count = unpack([make(tmp_path / name, FILES)], tmp_path / "out", progress=seen.append)
    assert count == 3
    assert seen == [1, 2, 3]
    assert contents(tmp_path / "out") == FILES
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o755


def test_two_archives_in_one_folder(tmp_path):
    first = make(tmp_path / "a.zip", FILES)
    second = make(tmp_path / "b.tar.gz", {"json_2.1.1/train/a/trial_1/traj_data.json": b"{}"})
    assert unpack([first, second], tmp_path / "out") == 4
    assert len(contents(tmp_path / "out")) == 4


@pytest.mark.parametrize("kind", ["x.zip", "x.tar"])
@pytest.mark.parametrize(
    "name",
    ["../out.txt", "a/../../out.txt", "/etc/hgpo", "..", "a\\..\\b", "C:/x", "c:x", "a/..", "new\nline"],
)
def test_names_that_lead_out_of_the_folder(tmp_path, kind, name):
    archive = make(tmp_path / kind, {"good": b"1", name: b"2"})
    refused(archive, tmp_path, "refused: .* leads out of the folder")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_tar_links_and_devices(tmp_path, kind):
    with tarfile.open(tmp_path / "x.tar", "w") as packed:
        info = tarfile.TarInfo("innocent")
        info.type, info.linkname = kind, "/etc/passwd"
        packed.addfile(info)
    refused(tmp_path / "x.tar", tmp_path, "'innocent' is a link or a device")


def test_zip_symlink(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        info = zipfile.ZipInfo("innocent")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        packed.writestr(info, "/etc/passwd")
    refused(tmp_path / "x.zip", tmp_path, "'innocent' is a link or a device")


def test_symlink_then_a_file_through_it(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as packed:
        link = tarfile.TarInfo("door")
        link.type, link.linkname = tarfile.SYMTYPE, str(tmp_path)
        packed.addfile(link)
        packed.addfile(tarfile.TarInfo("door/inside"), io.BytesIO())
    refused(tmp_path / "x.tar", tmp_path, "link or a device")


@pytest.mark.parametrize("kind", ["x.zip", "x.tar.xz", "x.tar.gz"])
def test_bomb_by_ratio(tmp_path, kind):
    archive = make(tmp_path / kind, {"zeros": bytes(64 << 20)})
    refused(archive, tmp_path, "unpacks to more than 16,777,216 bytes")


def test_bomb_by_size(tmp_path, monkeypatch):
    archive = make(tmp_path / "x.zip", {"a": bytes(600), "b": bytes(600)})
    monkeypatch.setattr("hgpo_envs.files.unpack.LARGEST", 1199)
    refused(archive, tmp_path, "more than 1,199 bytes")
    monkeypatch.setattr("hgpo_envs.files.unpack.LARGEST", 1200)
    assert unpack([archive], tmp_path / "out") == 2


@pytest.mark.parametrize("name", KINDS)
def test_bomb_by_number(tmp_path, name, monkeypatch):
    archive = make(tmp_path / name, {str(i): b"" for i in range(20)})
    monkeypatch.setattr("hgpo_envs.files.unpack.MOST_FILES", 19)
    refused(archive, tmp_path, "more than 19 entries")
    monkeypatch.setattr("hgpo_envs.files.unpack.MOST_FILES", 20)
    assert unpack([archive], tmp_path / "out") == 20


def test_the_declared_size_is_not_used(tmp_path):
    """The central directory declares one byte. The archive unpacks to more, or is reported as damaged."""
    archive = make(tmp_path / "x.zip", {"a": bytes(100_000)})
    data = bytearray(archive.read_bytes())
    for signature, offset in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        place = data.index(signature) + offset
        data[place : place + 4] = (1).to_bytes(4, "little")
    archive.write_bytes(data)
    refused(archive, tmp_path, "is damaged|more than")


@pytest.mark.parametrize("kind", ["x.zip", "x.tar"])
@pytest.mark.parametrize("names", [("a", "a"), ("a", "a/b"), ("a/b", "a"), ("./a", "a")])
def test_duplicate_names(tmp_path, kind, names):
    path = tmp_path / kind
    if path.suffix == ".zip":
        with (
            zipfile.ZipFile(path, "w") as packed,
            pytest.warns(UserWarning, match="Duplicate") if names == ("a", "a") else nullcontext(),
        ):
            for name in names:
                packed.writestr(name, b"1")
    else:
        with tarfile.open(path, "w") as packed:
            for name in names:
                packed.addfile(tarfile.TarInfo(name), io.BytesIO())
    refused(path, tmp_path, "occurs twice")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_truncated_archives(tmp_path, name, share):
    archive = make(tmp_path / name, {f"f{i}": bytes((i + j * j) % 251 for j in range(9000)) for i in range(20)})
    data = archive.read_bytes()
    archive.write_bytes(data[: int(len(data) * share)])
    refused(archive, tmp_path, "damaged|expected a zip or tar archive")


@pytest.mark.parametrize("name", [name for name in KINDS if name != "games.tar"])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.6])
def test_flipped_bytes_are_detected_where_there_are_checksums(tmp_path, name, share):
    """A zip file has a checksum for each file, other formats have one at the end."""
    content = bytes((i * i + i // 7) % 251 for i in range(20_000))
    archive = make(tmp_path / name, {"a": content, "b": content[::-1]})
    data = bytearray(archive.read_bytes())
    data[int(share * len(data))] ^= 0x10
    archive.write_bytes(data)
    refused(archive, tmp_path, "is damaged.*; fetch it again")


def test_encrypted_zip(tmp_path):
    archive = make(tmp_path / "x.zip", {"a": b"1"})
    data = bytearray(archive.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(data)
    refused(archive, tmp_path, "encrypted")


def test_files_that_are_not_archives(tmp_path):
    (tmp_path / "x.zip").write_text("<html>not found</html>")
    refused(tmp_path / "x.zip", tmp_path, "expected a zip or tar archive")
    refused(tmp_path / "absent.zip", tmp_path, "No such file")


def test_existing_folder(tmp_path):
    archive = make(tmp_path / "x.zip", FILES)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("keep me")
    refused(archive, tmp_path, "already exists")
    assert (tmp_path / "out" / "mine").read_text() == "keep me"


def test_interrupted_unpacking_leaves_no_files(tmp_path):
    archive = make(tmp_path / "x.zip", FILES)

    def interrupt(count):
        if count == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unpack([archive], tmp_path / "out", progress=interrupt)
    assert sorted(tmp_path.iterdir()) == [archive]


def tar_block(name, size, kind):
    """Return the header of a tar member with given fields."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def long_name(folder):
    with lzma.open(folder / "x.tar.xz", "wb", preset=0) as packed:
        packed.write(tar_block("././@LongLink", 1 << 30, tarfile.GNUTYPE_LONGNAME))
        for _ in range(1 << 10):
            packed.write(b"a" * (1 << 20))
    return folder / "x.tar.xz"


def pax_record(folder):
    with gzip.open(folder / "x.tar.gz", "wb", compresslevel=1) as packed:
        packed.write(tar_block("x", 1 << 30, tarfile.XHDTYPE) + b"1073741823 path=")
        for _ in range(1 << 10):
            packed.write(b"a" * (1 << 20))
    return folder / "x.tar.gz"


def many_global_records(folder):
    with bz2.open(folder / "x.tar.bz2", "wb") as packed:
        for number in range(1 << 11):
            record = b"60000 comment%06d=" % number
            packed.write(tar_block("x", 60_000, tarfile.XGLTYPE) + record.ljust(59_999, b"a") + b"\n" + bytes(416))
    return folder / "x.tar.bz2"


def many_entries(folder):
    with zipfile.ZipFile(folder / "x.zip", "w") as packed:
        packed.writestr("a", b"")
    data = (folder / "x.zip").read_bytes()
    begin, end = data.index(b"PK\x01\x02"), data.index(b"PK\x05\x06")
    count = 1 << 20
    directory = data[begin:end] * count
    tail = bytearray(data[end:])
    tail[8:16] = struct.pack("<HHI", 0xFFFF, 0xFFFF, len(directory))
    (folder / "x.zip").write_bytes(data[:begin] + directory + tail)
    return folder / "x.zip"


def large_xz_dictionary(folder):
    """Return xz data that needs a dictionary of 1.5 GiB but unpacks to a small file."""
    make_tar(folder / "x.tar", FILES)
    data = bytearray(lzma.compress((folder / "x.tar").read_bytes()))
    size = (data[12] + 1) * 4  # of the block's header
    block = data[12 : 12 + size]
    block[block.index(b"\x21\x01") + 2] = 39
    block[-4:] = struct.pack("<I", zlib.crc32(block[:-4]))
    data[12 : 12 + size] = block
    (folder / "x.tar.xz").write_bytes(data)
    return folder / "x.tar.xz"


def bzip2_in_zip(folder):
    with zipfile.ZipFile(folder / "x.zip", "w", zipfile.ZIP_BZIP2) as packed:
        packed.writestr("a", bytes(1 << 29))
    return folder / "x.zip"


def many_small_files(folder):
    with lzma.open(folder / "x.tar.xz", "wb", preset=0) as packed:
        for number in range(90_000):
            packed.write(tar_block(f"d/{number}", 0, tarfile.REGTYPE))
    return folder / "x.tar.xz"


@pytest.mark.slow
@pytest.mark.parametrize(
    "bomb",
    [long_name, pax_record, many_global_records, many_entries, large_xz_dictionary, bzip2_in_zip, many_small_files],
)
def test_bombs_take_little_memory(tmp_path, bomb):
    archive = bomb(tmp_path)
    (tmp_path / "out").mkdir()
    call = "unpack([Path(sys.argv[1])], Path(sys.argv[2]))"
    line = outcome("from hgpo_envs.files.unpack import unpack", call, archive, tmp_path / "out", megabytes=200)
    assert line.startswith("refused: ")


def test_several_xz_streams(tmp_path):
    """The result of `cat a.xz b.xz`, with padding between the streams."""
    data = make_tar(tmp_path / "x.tar", FILES).read_bytes()
    (tmp_path / "x.tar.xz").write_bytes(lzma.compress(data[:700]) + bytes(8) + lzma.compress(data[700:]) + bytes(4))
    assert unpack([tmp_path / "x.tar.xz"], tmp_path / "out") == 3
    assert contents(tmp_path / "out") == FILES


def test_a_damaged_header_is_not_the_end(tmp_path):
    archive = make_tar(tmp_path / "x.tar", {f"f{i}": b"1" for i in range(3)})
    data = bytearray(archive.read_bytes())
    data[1024 + 5] ^= 1
    archive.write_bytes(data)
    refused(archive, tmp_path, "damaged header")


@pytest.mark.parametrize("kind", ["fifo", "folder", "dangling link", "/dev/zero"])
def test_paths_that_are_not_regular_files(tmp_path, kind):
    path = tmp_path / "x.zip"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(kind if kind == "/dev/zero" else tmp_path / "absent")
    refused(path, tmp_path, "cannot read .*x.zip")


@given(data=st.binary(max_size=400))
def test_any_bytes_are_refused_in_one_line(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "x.zip").write_bytes(data)
    refused(folder / "x.zip", folder, ".")


@given(data=st.data())
def test_damaged_archives_raise_only_input_errors(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("damage")
    archive = make(folder / data.draw(st.sampled_from(KINDS)), FILES)
    content = bytearray(archive.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    archive.write_bytes(content)
    with suppress(InputError):
        unpack([archive], folder / "out")
        assert (folder / "out").is_dir()
    assert not list(folder.glob(".*"))
