"""Scenarios that write environment data: packs, folders of games, catalogues, downloads."""

import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import cache, partial
from http.server import ThreadingHTTPServer
from pathlib import Path

from local_server import Files

from tests.faults.commands import hgpo
from tests.faults.harness import Note, Scenario

GAMES = 2


@cache
def games() -> dict[str, dict]:
    """Return some of the bundled games by id."""
    from hgpo_envs.alfworld.data.source import ALFWorldSource

    source = ALFWorldSource(None)
    return {
        task_id: source.read(task_id) for task_id in source.ids("valid_seen")[:GAMES]
    }


def write_games(folder: Path) -> None:
    for task_id, game in games().items():
        trial = folder / "json_2.1.1" / task_id
        trial.mkdir(parents=True)
        (trial / "game.tw-pddl").write_text(json.dumps(game))


def unzipped(root: Path) -> None:
    write_games(root / "unzipped")


def check_games(data: str, root: Path, noted: Sequence[str], whole: bool) -> None:
    """Assert that the target is either missing or complete."""
    from hgpo_envs.alfworld.data.source import ALFWorldSource

    target = root / data
    if not target.exists() or (
        target.is_dir() and all(path.name[:6] == ".hgpo-" for path in target.iterdir())
    ):
        assert not noted
        assert not whole
        return
    source = ALFWorldSource(target)
    assert list(source.ids("all")) == sorted(games())
    for task_id in games():
        assert source.read(task_id)["pddl_problem"] == games()[task_id]["pddl_problem"]


def pack(root: Path, note: Note) -> None:
    hgpo(
        "data",
        "build",
        "alfworld",
        root / "unzipped",
        "--out",
        root / "g.pack",
        "--overwrite",
    )
    note("done")


def fetch(root: Path, note: Note) -> None:
    """Fetch games from a server of this machine; the command refuses games that are there."""
    there = (root / "games").exists()
    target = "again" if there else "games"
    hgpo(
        "data",
        "fetch",
        "alfworld",
        "--out",
        root / target,
        "--url",
        f"{address()}/games.zip",
    )
    if there:
        shutil.rmtree(root / target)
    note("done")


@cache
def address() -> str:
    """Return the address of a server of an archive of games, which ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="hgpo-served-"))
    write_games(folder / "games")
    shutil.make_archive(str(folder / "games"), "zip", folder / "games")
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(Files, directory=str(folder))
    )
    parent = os.getpid()
    if os.fork() == 0:
        try:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            while os.getppid() == parent:
                time.sleep(0.1)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)
    server.server_close()
    return f"http://127.0.0.1:{server.server_address[1]}"


RAW = ("items_shuffle_1000.json", "items_ins_v2_1000.json", "items_human_ins.json")
"""The names of the small official files: items, attributes, human instructions."""


def raw(root: Path, products: int = 4) -> None:
    """WebShop's raw files, small."""
    folder = root / "raw"
    folder.mkdir()
    asins = [f"B0{number:08d}" for number in range(products)]
    items = [
        {
            "asin": asin,
            "name": f"red pants {asin}",
            "full_description": "soft",
            "small_description": ["machine wash"],
        }
        | {
            "pricing": "$20.00",
            "customization_options": {"size": [{"value": "s"}, {"value": "m"}]},
        }
        | {
            "category": "fashion",
            "query": "pants",
            "product_category": "Clothing › Pants",
        }
        for asin in asins
    ]
    own = {
        "attributes": ["wide leg"],
        "instruction": "Find me pants",
        "instruction_attributes": ["wide leg"],
    }
    person = {
        "instruction": "i want pants.",
        "instruction_attributes": ["wide leg"],
        "instruction_options": ["s"],
    }
    contents = (items, dict.fromkeys(asins, own), {asin: [person] for asin in asins})
    for name, content in zip(RAW, contents, strict=True):
        (folder / name).write_text(json.dumps(content))


def build(root: Path, note: Note) -> None:
    sources = zip(
        ("--items", "--attributes", "--human"),
        (root / "raw" / name for name in RAW),
        strict=True,
    )
    if not (root / "shop").exists():
        options = [part for pair in sources for part in pair]
        hgpo(
            "data",
            "build",
            "webshop",
            *options,
            "--nouns",
            "stand-in",
            "--out",
            root / "shop",
        )
    note("built")


def check_catalogue(root: Path, noted: Sequence[str], whole: bool) -> None:
    from hgpo_envs.webshop.catalogue import Catalogue

    if not (root / "shop").exists():
        assert not noted
        assert not whole
        return
    catalogue = Catalogue.open(root / "shop")
    catalogue.verify()
    assert len(catalogue) == 4
    assert catalogue.product(0).title.startswith("red pants")


GAMES_FOREIGN = (
    "games.new/mine",
    "games.downloads/mine",
    "games.part",
    ".games.x.unpacking/mine",
    "games.zip.part",
)
PACK_FOREIGN = ("g.pack.part", "g.pack.new", ".g.pack.1.part", "g.pack.tmp")
SHOP_FOREIGN = ("shop.new/mine", "shop.part/mine", ".shop.building-x/mine", ".shop.tmp")

SCENARIOS = (
    Scenario(
        "pack of games",
        pack,
        partial(check_games, "g.pack"),
        prepare=unzipped,
        foreign=PACK_FOREIGN,
    ),
    Scenario(
        "download of games",
        fetch,
        partial(check_games, "games"),
        warm=address,
        foreign=GAMES_FOREIGN,
    ),
    Scenario("catalogue", build, check_catalogue, prepare=raw, foreign=SHOP_FOREIGN),
)
