"""Targets that read environment data: packs, games, catalogues, raw products, and notes of scratch folders."""

import hashlib
import json
import struct
import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tests.faults.data import RAW, games, raw
from tests.fuzz.engine import Target
from tests.fuzz.tables import refused

HEADER = struct.Struct("<8sIIQQIQII")
ENTRY = struct.Struct("<QIII")


def pack_seeds(folder: Path) -> Sequence[bytes]:
    from hgpo_envs.alfworld.data.pack import write_pack

    write_pack(folder / "g.pack", [(name, game, None) for name, game in sorted(games().items())])
    return [(folder / "g.pack").read_bytes()]


def checked(data: bytes) -> bytes:
    """Return a pack's bytes with correct checksums and length."""
    fields = list(HEADER.unpack(data[: HEADER.size]))
    count, texts_at, texts_size, index_at, index_size = fields[2], *fields[4:8]
    index = bytearray(data[index_at : index_at + index_size])
    for number in range(min(count, len(index) // ENTRY.size)):
        position, length, _, end = ENTRY.unpack_from(index, number * ENTRY.size)
        ENTRY.pack_into(
            index, number * ENTRY.size, position, length, zlib.crc32(data[position : position + length]), end
        )
    data = data[:index_at] + bytes(index) + data[index_at + len(index) :]
    check = zlib.crc32(bytes(index), zlib.crc32(data[texts_at : texts_at + texts_size]))
    fields[3], fields[8] = len(data), check
    head = HEADER.pack(*fields).ljust(60, b"\0")
    return head + struct.pack("<I", zlib.crc32(head)) + data[64:]


def read_pack(data: bytes, folder: Path) -> object:
    from hgpo_envs.alfworld.data.pack import PackStore

    path = folder / "g.pack"
    path.write_bytes(data)
    store = PackStore(path)
    for task_id in list(store.ids())[:3]:
        try:
            store.read(task_id)
        except KeyError:
            return "another id"
        store.trajectory(task_id)
    store.verify()
    return None


def content_seeds(folder: Path) -> Sequence[bytes]:
    """Return a pack's content as JSON: its texts, and its games by id."""
    (data,) = pack_seeds(folder)
    _, _, count, _, texts_at, texts_size, index_at, index_size, _ = HEADER.unpack(data[: HEADER.size])
    texts = json.loads(zlib.decompress(data[texts_at : texts_at + texts_size]))
    index = data[index_at : index_at + index_size]
    names = index[count * ENTRY.size :].decode().split("\n")
    inside = {}
    for number in range(count):
        position, length, _, _ = ENTRY.unpack_from(index, number * ENTRY.size)
        inflate = zlib.decompressobj(zdict=texts["dictionary"].encode())
        inside[names[number]] = json.loads(inflate.decompress(data[position : position + length]))
    return [json.dumps({"texts": texts, "games": inside}).encode()]


def read_content(data: bytes, folder: Path) -> object:
    """Read a pack with arbitrary content and correct checksums."""
    try:
        content = json.loads(data)
        texts, inside = content["texts"], content["games"]
        dictionary = texts["dictionary"].encode()
        names = [name.encode() for name in inside]
        packed = []
        for game in inside.values():
            deflate = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, zdict=dictionary)
            packed.append(deflate.compress(json.dumps(game).encode()) + deflate.flush())
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return "no pack"
    made, rows, end = bytearray(64), [], 0
    for name, one in zip(names, packed, strict=True):
        end += len(name) + 1
        rows.append(ENTRY.pack(len(made), len(one), 0, end))
        made += one
    index = b"".join(rows) + b"".join(name + b"\n" for name in names)
    packed_texts = zlib.compress(json.dumps(texts).encode())
    sizes = (len(made), len(packed_texts), len(made) + len(packed_texts), len(index))
    made += packed_texts + index
    made[: HEADER.size] = HEADER.pack(b"HGPOALFW", 1, len(names), len(made), *sizes, 0)
    return read_pack(checked(bytes(made)), folder)


def game_seeds(_: Path) -> Sequence[bytes]:
    return [json.dumps(game).encode() for game in games().values()]


def read_game(data: bytes, folder: Path) -> object:
    from hgpo_envs.alfworld.engine.game import read_game as read

    path = folder / "game.tw-pddl"
    path.write_bytes(data)
    read(path)
    return None


@cache
def catalogue() -> dict[str, bytes]:
    """Return the files of a small catalogue by name."""
    import tempfile

    from hgpo_envs.webshop.data.build import build

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        raw(folder)
        build(*(folder / "raw" / name for name in RAW), folder / "shop", nouns="stand-in")
        paths = sorted(path for path in (folder / "shop").rglob("*") if path.is_file())
        return {path.relative_to(folder / "shop").as_posix(): path.read_bytes() for path in paths}


def catalogue_seeds(_: Path) -> Sequence[bytes]:
    """Return a file's number and its content."""
    return [bytes([number]) + content for number, content in enumerate(catalogue().values())]


def read_catalogue(data: bytes, folder: Path) -> object:
    """Read a catalogue with one replaced file, with or without its checksum in the manifest."""
    from hgpo_envs.webshop.catalogue import Catalogue

    names = list(catalogue())
    name, content = names[(data[0] if data else 0) % len(names)], data[1:]
    for each, own in catalogue().items():
        path = folder / each
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if each == name else own)
    if name != "catalogue.json" and len(content) % 2:
        manifest = json.loads(catalogue()["catalogue.json"])
        manifest["files"][name] = [len(content), hashlib.sha256(content).hexdigest()]
        (folder / "catalogue.json").write_text(json.dumps(manifest))
    found = Catalogue.open(folder)
    refused(found.verify)
    refused(lambda: [found.product(number) for number in range(min(len(found), 4))])
    refused(lambda: found.search("red pants"))
    refused(lambda: list(found.human_instructions()))
    refused(lambda: (found.in_category("fashion"), found.with_query("pants")))
    return name


def raw_seeds(folder: Path) -> Sequence[bytes]:
    raw(folder)
    return [bytes([number]) + (folder / "raw" / name).read_bytes() for number, name in enumerate(RAW)]


def build_raw(data: bytes, folder: Path) -> object:
    """Build a catalogue with one of the three raw files replaced."""
    from hgpo_envs.webshop.data.build import build

    raw(folder)
    (folder / "raw" / RAW[(data[0] if data else 0) % 3]).write_bytes(data[1:])
    build(*(folder / "raw" / name for name in RAW), folder / "shop", nouns="stand-in")
    return None


TARGETS = (
    Target("packs", pack_seeds, read_pack, 12, (b"HGPOALFW", b"\n"), checked),
    Target("contents of packs", content_seeds, read_content, 1),
    Target("games", game_seeds, read_game, 1, (b"(:objects", b"(", b")", b" - ", b"grammar", b"receptacle")),
    Target("catalogues", catalogue_seeds, read_catalogue, 1, (b"\x93NUMPY", b"'descr': '|O'", b"'shape': (", b"<i4")),
    Target("raw products", raw_seeds, build_raw, 0.3, (b'"pricing"', b'"$1"', b"customization_options", b'"asin"')),
)
