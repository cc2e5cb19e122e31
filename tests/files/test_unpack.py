"""Extraction of archives: intact ones completely, malicious and truncated ones not at all."""

import contextlib
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
    """Write a zip archive."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return path


def refused(archive, tmp_path, match):
    """Assert that an archive is refused and that no files are left."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=match) as error:
        unpack(archive, tmp_path / "out")
    assert "\n" not in str(error.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_intact_archive(tmp_path):
    seen = []
    count = unpack(make(tmp_path / "games.zip", FILES), tmp_path / "out", seen.append)
    assert count == 3
    assert seen == [1, 2, 3]
    paths = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {
        path.relative_to(tmp_path / "out").as_posix(): path.read_bytes()
        for path in paths
    } == FILES
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o755


def test_names_that_lead_out_of_the_folder(tmp_path):
    # test_safe_paths has more
    for name in ("../out.txt", "/etc/hgpo", "a\\..\\b", "c:x", "new\nline"):
        archive = make(tmp_path / "x.zip", {"good": b"1", name: b"2"})
        refused(archive, tmp_path, "refused: .* leads out of the folder")


@pytest.mark.parametrize(
    "kind", [stat.S_IFLNK, stat.S_IFCHR, stat.S_IFBLK, stat.S_IFIFO, stat.S_IFSOCK]
)
def test_links_and_devices(tmp_path, kind):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        info = zipfile.ZipInfo("innocent")
        info.external_attr = (kind | 0o777) << 16
        packed.writestr(info, b"/etc/passwd")
    refused(tmp_path / "x.zip", tmp_path, "'innocent' is a link or a device")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_unusual_methods(tmp_path, method):
    """LZMA takes as much memory as the archive declares, up to 4 GB."""
    with zipfile.ZipFile(tmp_path / "x.zip", "w", method) as packed:
        packed.writestr("file", b"content")
    refused(
        tmp_path / "x.zip",
        tmp_path,
        "'file' is encrypted, or compressed by an unusual method",
    )


def test_encrypted_files(tmp_path):
    data = bytearray(make(tmp_path / "x.zip", FILES).read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1
    (tmp_path / "x.zip").write_bytes(data)
    refused(tmp_path / "x.zip", tmp_path, "is encrypted")


def test_bombs(tmp_path, monkeypatch):
    """By size, by number, and by files that share their compressed bytes."""
    archive = make(tmp_path / "x.zip", FILES)
    with monkeypatch.context() as patch:
        patch.setattr("hgpo_envs.files.unpack.LARGEST", 3000)
        refused(archive, tmp_path, "expected at most 3,000 bytes")
    with monkeypatch.context() as patch:
        patch.setattr("hgpo_envs.files.unpack.MOST_FILES", 2)
        refused(archive, tmp_path, "expected at most 2 files and folders")
        refused(
            make(tmp_path / "folders.zip", {"a/": b"", "b/": b"", "c/": b""}),
            tmp_path,
            "expected at most 2 files",
        )
    with zipfile.ZipFile(tmp_path / "overlap.zip", "w") as packed:
        packed.writestr("a", bytes(1000))
        packed.filelist[0].filename = "b"
        packed.filelist.append(zipfile.ZipInfo("a"))
        for name in ("CRC", "compress_size", "file_size", "header_offset"):
            setattr(packed.filelist[1], name, getattr(packed.filelist[0], name))
    refused(tmp_path / "overlap.zip", tmp_path, "its files overlap")


def test_a_list_of_files_is_limited_before_it_is_read(tmp_path):
    """Names and comments of 64 kB each: 100 MB of them would take as much memory."""
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        for number in range(1600):
            info = zipfile.ZipInfo(f"{number:060000}")
            info.date_time = (1980, 1, 1, 0, 0, 0)
            packed.writestr(info, b"")
    tracemalloc.start()
    try:
        refused(
            tmp_path / "x.zip", tmp_path, "refused: expected a list of files of at most"
        )
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def test_names_of_portable_length_are_unpacked(tmp_path):
    name = "/".join(["é" * 120] * 4)
    assert unpack(make(tmp_path / "x.zip", {name: b""}), tmp_path / "out") == 1
    assert (tmp_path / "out" / name).is_file()


def test_a_file_cannot_contain_more_than_it_declares(tmp_path):
    data = bytearray(make(tmp_path / "x.zip", {"zeros": bytes(1000)}).read_bytes())
    at = data.index(b"PK\x01\x02") + 24  # its size in the archive's directory
    data[at : at + 4] = (5).to_bytes(4, "little")
    (tmp_path / "x.zip").write_bytes(data)
    refused(tmp_path / "x.zip", tmp_path, "is damaged")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6])
def test_truncated_archives(tmp_path, share):
    data = make(tmp_path / "games.zip", FILES).read_bytes()
    (tmp_path / "games.zip").write_bytes(data[: int(len(data) * share)])
    refused(tmp_path / "games.zip", tmp_path, "expected a zip archive")


def test_other_formats(tmp_path):
    with tarfile.open(tmp_path / "x.tar.xz", "w:xz") as packed:
        packed.addfile(tarfile.TarInfo("a"), io.BytesIO())
    refused(
        tmp_path / "x.tar.xz",
        tmp_path,
        "expected a zip archive, received another format",
    )


@pytest.mark.parametrize("other", ["./a", "A", "a/b", "A/b", "x/../a"])
def test_names_that_are_the_same_on_some_system(tmp_path, other):
    archive = make(tmp_path / "x.zip", {"a": b"", other: b""})
    refused(archive, tmp_path, "same name|leads out of the folder")
    refused(make(tmp_path / "x.zip", {"e\u0301": b"", "é": b""}), tmp_path, "same name")


@settings(max_examples=30)
@given(
    st.binary(max_size=300)
    | st.binary(max_size=300).map(lambda data: b"PK\x03\x04" + data)
)
def test_any_bytes_are_refused_in_one_line(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "x").write_bytes(data)
    refused(folder / "x", folder, ".")


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4
    )
)
def test_changed_bytes_are_unpacked_or_refused(tmp_path_factory, changes):
    folder = tmp_path_factory.mktemp("changed")
    data = bytearray(make(folder / "x.zip", FILES).read_bytes())
    for place, value in changes:
        data[place % len(data)] = value
    (folder / "x.zip").write_bytes(data)
    with contextlib.suppress(InputError):
        assert unpack(folder / "x.zip", folder / "out") <= len(FILES)
