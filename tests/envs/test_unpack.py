"""Archives: honest ones arrive whole, hostile and broken ones leave nothing behind."""

import io
import stat
import tarfile
import zipfile
from contextlib import nullcontext, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.errors import InputError
from hgpo_envs.unpack import Limits, unpack

FILES = {
    "json_2.1.1/train/a/trial_1/game.tw-pddl": b"one",
    "json_2.1.1/train/b/trial_2/game.tw-pddl": b"two" * 1000,
    "json_2.1.1/README": b"",
}


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


def refused(archive, tmp_path, match, **settings):
    """The archive is refused, and neither the folder nor anything else is there afterwards."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=match) as error:
        unpack([archive], tmp_path / "out", **settings)
    assert "\n" not in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before


KINDS = ["games.zip", "games.tar", "games.tar.gz", "games.tar.xz", "games.tar.bz2"]


@pytest.mark.parametrize("name", KINDS)
def test_honest_archive(tmp_path, name):
    seen = []
    count = unpack([make(tmp_path / name, FILES)], tmp_path / "out", progress=seen.append)
    assert count == 3
    assert seen == [1, 2, 3]
    assert contents(tmp_path / "out") == FILES
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o755


def test_two_archives_make_one_folder(tmp_path):
    first = make(tmp_path / "a.zip", FILES)
    second = make(tmp_path / "b.tar.gz", {"json_2.1.1/train/a/trial_1/traj_data.json": b"{}"})
    assert unpack([first, second], tmp_path / "out") == 4
    assert len(contents(tmp_path / "out")) == 4


@pytest.mark.parametrize("kind", ["x.zip", "x.tar"])
@pytest.mark.parametrize(
    "name",
    ["../out.txt", "a/../../out.txt", "/etc/hgpo", "..", "a\\..\\b", "C:/x", "c:x", "a/..", "new\nline"],
)
def test_names_that_lead_out(tmp_path, kind, name):
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


def test_bomb_by_size(tmp_path):
    archive = make(tmp_path / "x.zip", {"a": bytes(600), "b": bytes(600)})
    refused(archive, tmp_path, "more than 1,000 bytes", limits=Limits(size=1000))
    assert unpack([archive], tmp_path / "out", limits=Limits(size=1200)) == 2


def test_bomb_by_number(tmp_path):
    archive = make(tmp_path / "x.zip", {str(i): b"" for i in range(20)})
    refused(archive, tmp_path, "more than 19 entries", limits=Limits(files=19))


def test_announced_size_is_not_believed(tmp_path):
    """The central directory says one byte; much more comes out, or the archive is found broken."""
    archive = make(tmp_path / "x.zip", {"a": bytes(100_000)})
    data = bytearray(archive.read_bytes())
    for signature, offset in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        place = data.index(signature) + offset
        data[place : place + 4] = (1).to_bytes(4, "little")
    archive.write_bytes(data)
    refused(archive, tmp_path, "is broken|more than")


@pytest.mark.parametrize("kind", ["x.zip", "x.tar"])
@pytest.mark.parametrize("names", [("a", "a"), ("a", "a/b"), ("a/b", "a"), ("./a", "a")])
def test_names_that_come_twice(tmp_path, kind, names):
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
    refused(path, tmp_path, "comes twice")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_cut_archives(tmp_path, name, share):
    archive = make(tmp_path / name, {f"f{i}": bytes((i + j * j) % 251 for j in range(9000)) for i in range(20)})
    data = archive.read_bytes()
    archive.write_bytes(data[: int(len(data) * share)])
    refused(archive, tmp_path, "broken|neither a zip nor a tar")


def test_flipped_byte_in_a_zip(tmp_path):
    archive = make(tmp_path / "x.zip", {"a": bytes(range(256)) * 50})
    data = bytearray(archive.read_bytes())
    data[60] ^= 0x10
    archive.write_bytes(data)
    refused(archive, tmp_path, "broken")


def test_encrypted_zip(tmp_path):
    archive = make(tmp_path / "x.zip", {"a": b"1"})
    data = bytearray(archive.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    archive.write_bytes(data)
    refused(archive, tmp_path, "encrypted")


def test_no_archive(tmp_path):
    (tmp_path / "x.zip").write_text("<html>not found</html>")
    refused(tmp_path / "x.zip", tmp_path, "neither a zip nor a tar")
    refused(tmp_path / "absent.zip", tmp_path, "no archive at")


def test_folder_that_is_taken(tmp_path):
    archive = make(tmp_path / "x.zip", FILES)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("keep me")
    refused(archive, tmp_path, "is there already")
    assert (tmp_path / "out" / "mine").read_text() == "keep me"


def test_interrupted_unpacking_leaves_nothing(tmp_path):
    archive = make(tmp_path / "x.zip", FILES)

    def interrupt(count):
        if count == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        unpack([archive], tmp_path / "out", progress=interrupt)
    assert sorted(tmp_path.iterdir()) == [archive]


@given(data=st.binary(max_size=400))
def test_any_bytes_are_refused_in_one_line(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "x.zip").write_bytes(data)
    refused(folder / "x.zip", folder, ".")


@given(data=st.data())
def test_damaged_archives_never_raise_anything_else(tmp_path_factory, data):
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
