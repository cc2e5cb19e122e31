"""Extraction of archives: intact ones completely, malicious and truncated ones not at all."""

import gzip
import io
import stat
import tarfile
import tracemalloc
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import new_folder
from hgpo_envs.files.unpack import unpack as unpack_into

FILES = {
    "json_2.1.1/train/a/trial_1/game.tw-pddl": b"one",
    "json_2.1.1/train/b/trial_2/game.tw-pddl": b"two" * 1000,
    "json_2.1.1/README": b"",
}


def unpack(archive, folder, progress=None):
    """Unpack into a new folder atomically, as the commands do."""
    with new_folder(folder) as made:
        return unpack_into(archive, made, progress)


def make(path, files):
    """Write an archive of the format of its suffix."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, content in files.items():
                packed.writestr(name, content)
        return path
    with tarfile.open(path, f"w:{path.suffix[1:]}" if path.suffix != ".tar" else "w") as packed:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    return path


def refused(archive, tmp_path, match):
    """Assert that an archive is refused and that no files are left."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=match) as error:
        unpack(archive, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before


KINDS = ["games.zip", "games.tar", "games.tar.gz", "games.tar.xz", "games.tar.bz2"]


@pytest.mark.parametrize("name", KINDS)
def test_intact_archive(tmp_path, name):
    seen = []
    count = unpack(make(tmp_path / name, FILES), tmp_path / "out", seen.append)
    assert count == 3
    assert seen == [1, 2, 3]
    paths = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {path.relative_to(tmp_path / "out").as_posix(): path.read_bytes() for path in paths} == FILES
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o755


@pytest.mark.parametrize("kind", ["x.zip", "x.tar"])
def test_names_that_lead_out_of_the_folder(tmp_path, kind):
    for name in ("../out.txt", "/etc/hgpo", "a\\..\\b", "c:x", "new\nline"):  # test_safe_paths has more
        archive = make(tmp_path / kind, {"good": b"1", name: b"2"})
        refused(archive, tmp_path, "refused: .* leads out of the folder")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_tar_links_and_devices(tmp_path, kind):
    with tarfile.open(tmp_path / "x.tar", "w") as packed:
        info = tarfile.TarInfo("innocent")
        info.type, info.linkname = kind, "/etc/passwd"
        packed.addfile(info)
    refused(tmp_path / "x.tar", tmp_path, "'innocent' is a link or a device")


@pytest.mark.parametrize("kind", ["x.zip", "x.tar.xz"])
def test_bombs(tmp_path, kind, monkeypatch):
    """By size and by number."""
    archive = make(tmp_path / kind, FILES)
    with monkeypatch.context() as patch:
        patch.setattr("hgpo_envs.files.unpack.LARGEST", 3000)
        refused(archive, tmp_path, "expected at most 3,000 bytes")
    monkeypatch.setattr("hgpo_envs.files.unpack.MOST_FILES", 2)
    refused(archive, tmp_path, "expected at most 2 files and folders")


def test_folders_count_as_files(tmp_path, monkeypatch):
    monkeypatch.setattr("hgpo_envs.files.unpack.MOST_FILES", 2)
    with tarfile.open(tmp_path / "x.tar", "w") as tar, zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        for name in ("a/", "b/", "c/"):
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE
            tar.addfile(info)
            packed.writestr(name, b"")
    refused(tmp_path / "x.tar", tmp_path, "expected at most 2 files and folders")
    refused(tmp_path / "x.zip", tmp_path, "expected at most 2 files and folders")


BIG = 32 << 20


@pytest.mark.parametrize(
    "members",
    [
        [(tarfile.XHDTYPE, b"%d path=" % BIG + b"x" * BIG)],
        [(tarfile.XGLTYPE, b"%d path=" % BIG + b"x" * BIG)],
        [(tarfile.GNUTYPE_LONGNAME, b"x" * BIG)],
        [(tarfile.GNUTYPE_LONGLINK, b"x" * BIG)],
        [(tarfile.XGLTYPE, b"9000 %08992d=v\n" % number) for number in range(4)],
        [(tarfile.GNUTYPE_SPARSE, b"x" * BIG)],
        [
            (tarfile.XHDTYPE, b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=0\n"),
            (tarfile.REGTYPE, b"99999999\n" + b"1\n" * (BIG // 2)),
        ],
    ],
    ids=["pax", "global pax", "long name", "long link", "many global fields", "sparse", "sparse by pax"],
)
def test_headers_are_refused_before_they_are_read(tmp_path, members):
    """A name of 400 MB, 60 kB as tar.xz, took 1.7 GB."""
    with gzip.open(tmp_path / "x.tar.gz", "wb", 1) as file:
        for kind, content in members:
            info = tarfile.TarInfo("a")
            info.type, info.size = kind, len(content)
            file.write(info.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % tarfile.BLOCKSIZE))
    tracemalloc.start()
    try:
        refused(tmp_path / "x.tar.gz", tmp_path, "refused: (expected headers of at most|.* is a sparse file)")
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_names_of_portable_length_are_unpacked(tmp_path):
    name = "/".join(["é" * 120] * 4)
    for number, form in enumerate((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)):
        archive = tmp_path / f"{number}.tar"
        with tarfile.open(archive, "w", format=form, pax_headers={"comment": "of all files"}) as packed:
            packed.addfile(tarfile.TarInfo(name))
        assert unpack(archive, tmp_path / f"out{number}") == 1
        assert (tmp_path / f"out{number}" / name).is_file()


def test_a_zip_file_cannot_contain_more_than_it_declares(tmp_path):
    data = bytearray(make(tmp_path / "x.zip", {"zeros": bytes(1000)}).read_bytes())
    at = data.index(b"PK\x01\x02") + 24  # its size in the archive's directory
    data[at : at + 4] = (5).to_bytes(4, "little")
    (tmp_path / "x.zip").write_bytes(data)
    refused(tmp_path / "x.zip", tmp_path, "is damaged")


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_truncated_archives(tmp_path, name, share):
    data = make(tmp_path / name, FILES).read_bytes()
    (tmp_path / name).write_bytes(data[: int(len(data) * share * (0.5 if name == "games.tar" else 1))])
    refused(tmp_path / name, tmp_path, "damaged|expected a zip or tar archive")


@pytest.mark.parametrize("kind", ["x.zip", "x.tar"])
def test_a_name_that_occurs_twice(tmp_path, kind):
    archive = make(tmp_path / kind, {"a": b"", "./a": b""})
    with pytest.raises(FileExistsError):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@settings(max_examples=30)
@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda data: b"PK\x03\x04" + data))
def test_any_bytes_are_refused_in_one_line(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "x").write_bytes(data)
    refused(folder / "x", folder, ".")
