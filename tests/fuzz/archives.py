"""Archives from untrusted sources."""

import gzip
import io
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.engine import Target

BLOCK = 512


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("json/train/a/game.tw-pddl", b"{}" * 50)
        made.writestr("json/b.txt", b"text")
    return file.getvalue()


def tarred(mode: str, form: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode, format=form) as made:
        for name, content in (("json/" + "a" * 120, b"{}" * 50), ("json/b.txt", b"text")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return file.getvalue()


def seeds(_: Path) -> Sequence[bytes]:
    return [
        zipped(),
        *(tarred("w:", form) for form in (tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)),
        *(tarred(f"w:{kind}", tarfile.GNU_FORMAT) for kind in ("gz", "bz2", "xz")),
    ]


def summed(data: bytes) -> bytes:
    """Return a tar archive with correct header checksums, compressed again if it was."""
    if data[:2] == b"\x1f\x8b":
        return gzip.compress(summed(gzip.decompress(data)), 1, mtime=0)
    blocks = bytearray(data)
    for at in range(0, len(blocks) - BLOCK + 1, BLOCK):
        if blocks[at + 257 : at + 262] == b"ustar":
            blocks[at + 148 : at + 156] = b" " * 8
            blocks[at + 148 : at + 156] = b"%06o\0 " % (sum(blocks[at : at + BLOCK]) & 0o777777)
    return bytes(blocks)


def unpack(data: bytes, folder: Path) -> object:
    """Unpack an archive; either all of it is in the new folder, or there is no new folder."""
    from hgpo_envs.errors import InputError
    from hgpo_envs.files.atomic import new_folder
    from hgpo_envs.files.unpack import unpack as unpacked

    place = folder / "place"
    place.mkdir()
    (place / "mine").write_bytes(b"mine")
    archive = folder / "archive"
    archive.write_bytes(data)
    left = {"mine"}
    try:
        with new_folder(place / "new") as made:
            count = unpacked([archive], made)
        left.add("new")
        assert sum(path.is_file() and not path.is_symlink() for path in (place / "new").rglob("*")) == count
        assert not any(path.is_symlink() for path in (place / "new").rglob("*"))
    except InputError:
        assert not (place / "new").exists(), "half an archive"
        raise
    finally:
        assert (place / "mine").read_bytes() == b"mine"
        assert {path.name for path in folder.iterdir()} == {"place", "archive"}
        assert {path.name for path in place.iterdir()} == left
    return None


TARGETS = (
    Target(
        "archives",
        seeds,
        unpack,
        4,
        (b"../../x", b"/etc/x", b"PK\x01\x02", b"PK\x05\x06", b"ustar", b"L", b"x"),
        summed,
    ),
)
