"""Targets that read environment data and notes: packs, games, catalogues, raw products, notes of the viewer."""

import hashlib
import io
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.faults.data import RAW, games, raw
from tests.fuzz.mutations import Target
from tests.fuzz.tables import refused


def pack_seeds(folder: Path) -> Sequence[bytes]:
    from hgpo_envs.alfworld.data.pack import write_pack

    write_pack(
        folder / "g.pack",
        [(name, game, None) for name, game in sorted(games().items())],
    )
    return [(folder / "g.pack").read_bytes()]


def read_pack(data: bytes, folder: Path) -> None:
    from hgpo_envs.alfworld.data.pack import PackStore

    path = folder / "g.pack"
    path.write_bytes(data)
    store = PackStore(path)
    for task_id in store.ids:
        store.read(task_id)
        store.trajectory(task_id)


def content_seeds(folder: Path) -> Sequence[bytes]:
    """Return the content of a pack's games as JSON."""
    pack_seeds(folder)
    from hgpo_envs.alfworld.data.pack import PackStore

    store = PackStore(folder / "g.pack")
    return [store._archive.read(member) for member in store._members.values()]


def read_content(data: bytes, folder: Path) -> None:
    """Read a pack whose games have arbitrary content and correct checksums."""
    from hgpo_envs.alfworld.data.pack import PackStore

    pack_seeds(folder)
    store = PackStore(folder / "g.pack")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store._archive, "open", lambda _: io.BytesIO(data))
        member = store._members[store.ids[0]]
        member.file_size = len(data)
        store.read(store.ids[0])


def game_seeds(_: Path) -> Sequence[bytes]:
    return [json.dumps(game).encode() for game in games().values()]


def read_game(data: bytes, folder: Path) -> None:
    from hgpo_envs.alfworld.engine.game import compile_game, read_file

    path = folder / "game.tw-pddl"
    path.write_bytes(data)
    compile_game(read_file(path))


@cache
def catalogue() -> dict[str, bytes]:
    """Return the files of a small catalogue by name."""
    import tempfile

    from hgpo_envs.webshop.data.build import build

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        raw(folder)
        build(
            *(folder / "raw" / name for name in RAW), folder / "shop", nouns="stand-in"
        )
        paths = sorted(path for path in (folder / "shop").rglob("*") if path.is_file())
        return {
            path.relative_to(folder / "shop").as_posix(): path.read_bytes()
            for path in paths
        }


def catalogue_seeds(_: Path) -> Sequence[bytes]:
    """Return a file's number and its content."""
    return [
        bytes([number]) + content for number, content in enumerate(catalogue().values())
    ]


def read_catalogue(data: bytes, folder: Path) -> None:
    """Read a catalogue with one replaced file, with or without its checksum in the manifest."""
    from hgpo_envs.webshop.catalogue import Catalogue

    names = list(catalogue())
    name = names[(data[0] if data else 0) % len(names)]
    content = data[1:]
    for each, own in catalogue().items():
        path = folder / each
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content if each == name else own)
    if name != "catalogue.json" and len(content) % 2:
        manifest = json.loads(catalogue()["catalogue.json"])
        manifest["files"][name] = [len(content), hashlib.sha256(content).hexdigest()]
        (folder / "catalogue.json").write_text(json.dumps(manifest))
    shop = Catalogue.open(folder)
    refused(shop.verify)
    refused(lambda: [shop.product(number) for number in range(min(len(shop), 4))])
    refused(lambda: shop.search("red pants"))
    refused(lambda: list(shop.human_instructions()))
    refused(
        lambda: (
            shop.products_where("category", "fashion"),
            shop.products_where("query", "pants"),
        )
    )


def raw_seeds(folder: Path) -> Sequence[bytes]:
    raw(folder)
    return [
        bytes([number]) + (folder / "raw" / name).read_bytes()
        for number, name in enumerate(RAW)
    ]


def build_raw(data: bytes, folder: Path) -> None:
    """Build a catalogue with one of the three raw files replaced."""
    from hgpo_envs.webshop.data.build import build

    raw(folder)
    (folder / "raw" / RAW[(data[0] if data else 0) % 3]).write_bytes(data[1:])
    build(*(folder / "raw" / name for name in RAW), folder / "shop", nouns="stand-in")


def note_seeds(_: Path) -> Sequence[bytes]:
    return [
        b'{"run":"r","trajectory":"t/0","note":"n","score":-1.5e3,"time":"2026-01-01"}\n{"trajectory":"t/1"}\n'
    ]


def read_viewer_notes(data: bytes, folder: Path) -> None:
    from hgpo_train.view.notes import read_notes

    (folder / "notes.jsonl").write_bytes(data)
    read_notes(folder / "notes.jsonl")


TARGETS = (
    Target(
        "notes",
        note_seeds,
        read_viewer_notes,
        100,
        (b'"trajectory":', b'"score":null', b"1e999", b"}\n{", b"[" * 999),
    ),
    Target(
        "packs",
        pack_seeds,
        read_pack,
        300,
        (b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06"),
    ),
    Target("contents of packs", content_seeds, read_content, 100),
    Target(
        "games",
        game_seeds,
        read_game,
        100,
        (b"(:objects", b"(", b")", b" - ", b"grammar", b"receptacle"),
    ),
    Target(
        "catalogues",
        catalogue_seeds,
        read_catalogue,
        60,
        (b"\x93NUMPY", b"'descr': '|O'", b"'shape': (", b"<i4"),
    ),
    Target(
        "raw products",
        raw_seeds,
        build_raw,
        20,
        (b'"pricing"', b'"$1"', b"customization_options", b'"asin"'),
    ),
)
