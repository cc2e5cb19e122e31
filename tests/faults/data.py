"""Scenarios that write environment data: packs, folders of games, catalogues, downloads."""

import json
import os
import shutil
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.faults.commands import hgpo
from tests.faults.harness import Scenario

Note = Callable[[str], None]
GAMES = 2


def warm() -> None:
    import hgpo_train.cli
    import hgpo_train.cli.display  # noqa: F401


@cache
def games() -> dict[str, dict]:
    """Return some of the bundled games by id."""
    from hgpo_envs.alfworld.data.source import ALFWorldSource

    source = ALFWorldSource(None)
    return {task_id: source.read(task_id) for task_id in source.ids("valid_seen")[:GAMES]}


def write_games(folder: Path) -> None:
    for task_id, game in games().items():
        place = folder / "json_2.1.1" / task_id
        place.mkdir(parents=True)
        (place / "game.tw-pddl").write_text(json.dumps(game))


def archive(root: Path) -> None:
    """Write the games as a zip archive."""
    folder = root / "unzipped"
    write_games(folder)
    with zipfile.ZipFile(root / "games.zip", "w") as file:
        for path in sorted(folder.rglob("*.tw-pddl")):
            file.writestr(path.relative_to(folder).as_posix(), path.read_bytes())


def unzipped(root: Path) -> None:
    write_games(root / "unzipped")


def check_games(data: str, root: Path, noted: Sequence[str], whole: bool) -> None:
    """Assert that the target is either missing or complete."""
    from hgpo_envs.alfworld.data.source import ALFWorldSource

    target = root / data
    if not target.exists() or (target.is_dir() and all(path.name[:6] == ".hgpo-" for path in target.iterdir())):
        assert not noted
        assert not whole
        return
    source = ALFWorldSource(target)
    found = source.ids("all")
    assert list(found) == sorted(games()), f"{len(found)} of {GAMES} games"
    for task_id in found:
        assert source.read(task_id)["pddl_problem"] == games()[task_id]["pddl_problem"]


def noting(*command: object, made: str = "") -> Callable[[Path, Note], None]:
    """A command in the folder; what starts with @ is a path there."""

    def run(root: Path, note: Note) -> None:
        if made and (root / made).exists():
            return  # the command refuses what is there already: it was done
        hgpo(*(root / part[1:] if isinstance(part, str) and part.startswith("@") else part for part in command))
        note("done")

    return run


def served(root: Path, note: Note) -> None:
    """`data fetch` from a server of this machine.

    The command refuses games that are there; what a killed clean-up left of their download, the next download removes.
    """
    there = (root / "games").exists()
    target = "again" if there else "games"
    hgpo("data", "fetch", "alfworld", "--out", root / target, "--url", f"{address()}/games.zip")
    if there:
        shutil.rmtree(root / target)
    note("done")


@cache
def address() -> str:
    """Of a server of the archive of games and of WebShop's raw files, which ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="hgpo-served-"))
    archive(folder)
    raw(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
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


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def warm_served() -> None:
    warm()
    address()


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
            "pricing": "$20.00",
            "customization_options": {"size": [{"value": "s"}, {"value": "m"}]},
            "category": "fashion",
            "query": "pants",
            "product_category": "Clothing › Pants",
        }
        for asin in asins
    ]
    own = {"attributes": ["wide leg"], "instruction": "Find me pants", "instruction_attributes": ["wide leg"]}
    person = {"instruction": "i want pants.", "instruction_attributes": ["wide leg"], "instruction_options": ["s"]}
    contents = (items, dict.fromkeys(asins, own), {asin: [person] for asin in asins})
    for name, content in zip(RAW, contents, strict=True):
        (folder / name).write_text(json.dumps(content))


def build(root: Path, *more: object, nouns: str = "stand-in") -> None:
    sources = zip(("--items", "--attributes", "--human"), (root / "raw" / name for name in RAW), strict=True)
    named = [part for pair in sources for part in pair]
    hgpo("data", "build", "webshop", *named, "--nouns", nouns, "--out", root / "shop", *more)


def built(root: Path, note: Note) -> None:
    if not (root / "shop").exists():
        build(root)
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


GAMES_FOREIGN = ("games.new/mine", "games.downloads/mine", "games.part", ".games.x.unpacking/mine", "games.zip.part")
PACK_FOREIGN = ("g.pack.part", "g.pack.new", ".g.pack.1.part", "g.pack.tmp")
SHOP_FOREIGN = ("shop.new/mine", "shop.part/mine", ".shop.building-x/mine", ".shop.tmp")

SCENARIOS = (
    Scenario(
        "pack of games",
        noting("data", "build", "alfworld", "@unzipped", "--out", "@g.pack"),
        partial(check_games, "g.pack"),
        warm,
        unzipped,
        PACK_FOREIGN,
    ),
    Scenario(
        "unpacked archive",
        noting("data", "fetch", "alfworld", "--from", "@games.zip", "--out", "@games", made="games"),
        partial(check_games, "games"),
        warm,
        archive,
        GAMES_FOREIGN,
    ),
    Scenario("download of games", served, partial(check_games, "games"), warm_served, foreign=GAMES_FOREIGN),
    Scenario("catalogue", built, check_catalogue, warm, raw, SHOP_FOREIGN),
)
