"""Build of a catalogue from the official raw files, in one streaming pass and a merge of the index.

The original loads all data into memory, about 10 GB per process. Here products are streamed. Only a few values per
product and the packed attribute file stay in memory.
"""

from __future__ import annotations

import hashlib
import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson

from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import new_folder
from hgpo_envs.files.untrusted_files import sha256, writing
from hgpo_envs.webshop.catalogue import products
from hgpo_envs.webshop.catalogue.catalogue import FORMAT, MANIFEST
from hgpo_envs.webshop.catalogue.nouns import noun_finder
from hgpo_envs.webshop.data.raw_files import elements
from hgpo_envs.webshop.engine.goals import MOST_GOALS
from hgpo_envs.webshop.records import LabelWriter, RecordWriter, write_records
from hgpo_envs.webshop.search.index_writer import IndexWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from hgpo_envs.webshop.catalogue.nouns import NounFinder

    Progress = Callable[[str, int, int], None]
    """Receives the stage's name, the amount done and the total."""

BATCH_ROWS: Final = 4096
"""The number of products in a batch. Taggers are faster on batches of titles."""

BATCH_CHARACTERS: Final = 1 << 25

LONGEST_HUMAN: Final = 1 << 28
"""The maximum length in characters of the file of human instructions, which is kept in memory. The official file has a
few million."""


def build(
    items: Path,
    attributes: Path,
    human: Path,
    out: Path,
    *,
    nouns: str | Path | None = None,
    skip_unusable: bool = False,
    compress: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Build a catalogue folder atomically.

    Args:
        items: `items_shuffle.json` (or `items_shuffle_1000.json`), gzipped or not.
        attributes: `items_ins_v2.json` (or `items_ins_v2_1000.json`).
        human: `items_human_ins.json`.
        out: The folder to create.
        nouns: A file of recorded nouns, "spacy", "stand-in", or None for spaCy if it is installed, else the stand-in.
        skip_unusable: Whether to skip and count records at which the original fails (a price without `$`, a missing
            field). If False, the first such record raises an error.
        compress: Whether to gzip products and instructions, for small catalogues. They then cannot be memory-mapped,
            and every process has its own copy.
        progress: Called with the progress of each stage.

    Returns:
        The manifest.

    Raises:
        InputError: If a file cannot be read or used. The message states the file and record. No partial output is
            left.
    """
    report_progress = progress or (lambda *_: None)
    with writing(out), new_folder(out) as folder:
        known = _packed_attributes(attributes, report_progress)
        tell = partial(report_progress, "human instructions")
        instructions = dict(elements(human, "{", tell, most=LONGEST_HUMAN))
        method, finder = noun_finder(nouns)
        maker = _Maker(folder, known, instructions, finder, compress=compress)
        tell = partial(report_progress, "products")
        for number, record in elements(items, "[", tell):
            try:
                maker.take(record)
            except InputError as error:
                asin = record.get("asin")
                line = f"{items}, record {number:,} ({asin if isinstance(asin, str) else 'without asin'}): {error}"
                if not skip_unusable:
                    raise InputError(
                        f"{line}; correct it, or skip such records (--skip-unusable)"
                    ) from None
                maker.unusable(line)
        manifest = maker.finish(report_progress) | {"nouns": method}
        manifest["sources"] = {
            path.name: sha256(path) for path in (items, attributes, human)
        }
        return _seal(folder, manifest)


def _packed_attributes(path: Path, report_progress: Progress) -> dict[str, bytes]:
    """Return the checked entries of the attribute file by asin, as JSON, which needs a tenth of the memory."""
    known = {}
    for asin, entry in elements(path, "{", partial(report_progress, "attributes")):
        try:
            # copied, because orjson allocates far more memory than its result needs
            known[asin] = bytes(
                memoryview(orjson.dumps(products.attribute_entry(entry)))
            )
        except InputError as error:
            raise InputError(f"{path}, entry {asin!r}: {error}") from None
    return known


class _Maker:
    """A writer of the catalogue's files, which receives the records in order and writes them in batches."""

    def __init__(
        self,
        folder: Path,
        known: Mapping[str, bytes],
        human: Mapping[str, Any],
        nouns: NounFinder,
        *,
        compress: bool,
    ) -> None:
        self.folder = folder
        self.known = known
        self.human = human
        self.nouns = nouns
        self.compress = compress
        self.seen: dict[str, None] = {}
        self.skipped = {"nan or long asin": 0, "duplicate asin": 0, "unusable": 0}
        self.first_unusable: str | None = None
        self.rows: list[dict[str, Any]] = []
        self.size = 0
        self.people: list[dict[str, Any]] = []
        self.price: list[tuple[float, float]] = []
        self.combinations: list[int] = []
        self.instructed: list[int] = []
        self.categories = LabelWriter()
        self.queries = LabelWriter()
        self.products = RecordWriter(folder, "products", compress=compress)
        self.index = IndexWriter(folder / "index")

    def unusable(self, line: str) -> None:
        self.skipped["unusable"] += 1
        self.first_unusable = self.first_unusable or line

    def take(self, record: Mapping[str, Any]) -> None:
        if products.is_skipped(record):
            self.skipped["nan or long asin"] += 1
            return
        asin = products.text(record, "asin")
        if asin in self.seen:
            self.skipped["duplicate asin"] += 1
            return
        # Everything that can refuse the record comes first: what follows must not be half done.
        row = self._row(asin, record)
        people = list(self._people(asin))
        combinations = math.prod(len(values) for values in row["options"].values())
        if combinations > MOST_GOALS:
            raise InputError(
                f"its options have {float(min(combinations, 10**300)):.0e} combinations, too many"
            )
        self.seen[asin] = None
        number = len(self.price)
        self.people += [{"product": number, **person} for person in people]
        self.price.append((row["prices"] + (math.nan,))[:2])
        self.combinations.append(combinations)
        if row["instruction"] is not None:
            self.instructed.append(number)
        self.categories.add(row["category"])
        self.queries.add(row["query"])
        self.rows.append(row)
        self.index.add(
            products.indexed_text(
                row["title"], row["description"], row["bullet_points"], row["options"]
            )
        )
        self.size += len(row["description"]) + sum(map(len, row["bullet_points"]))
        if len(self.rows) >= BATCH_ROWS or self.size >= BATCH_CHARACTERS:
            self.flush()

    def _row(self, asin: str, record: Mapping[str, Any]) -> dict[str, Any]:
        packed = self.known.get(asin)
        found, instruction_text, own = (
            orjson.loads(packed) if packed else (products.NO_ATTRIBUTES, None, None)
        )
        return {
            "asin": asin,
            "title": products.text(record, "name"),
            "description": products.text(record, "full_description"),
            "bullet_points": products.bullet_points(record.get("small_description")),
            "prices": products.prices(record.get("pricing")),
            "options": products.options(record.get("customization_options")),
            "attributes": found,
            "category": products.text(record, "category"),
            "query": products.text(record, "query").lower().strip(),
            "product_category": products.text(record, "product_category"),
            "instruction": instruction_text,
            "instruction_attributes": own,
            "listed": packed is not None,
        }

    def _people(self, asin: str) -> Iterator[dict[str, Any]]:
        listed = self.human.get(asin, [])
        if not isinstance(listed, list):
            raise InputError(
                f"expected a list of human instructions, received {listed!r:.40}"
            )
        for entry in listed:
            try:
                yield {
                    "instruction": products.text(entry, "instruction"),
                    "attributes": products.texts(
                        entry.get("instruction_attributes"), "instruction_attributes"
                    ),
                    "options": products.texts(
                        entry.get("instruction_options"), "instruction_options"
                    ),
                }
            except (InputError, AttributeError) as error:
                raise InputError(
                    f"its human instruction cannot be used: {error}"
                ) from None

    def flush(self) -> None:
        """Write the current batch."""
        for row, found in zip(
            self.rows, self.nouns([row["title"] for row in self.rows]), strict=True
        ):
            row["nouns"] = found
            # a list: with an object, table readers would create a column for every option name
            row["options"] = [
                {"name": name, "values": values}
                for name, values in row["options"].items()
            ]
            self.products.write(row)
        self.rows = []
        self.size = 0

    def finish(self, report_progress: Progress) -> dict[str, Any]:
        self.flush()
        self.products.close()
        self.categories.save(self.folder, "categories")
        self.queries.save(self.folder, "queries")
        write_records(
            self.folder,
            "human",
            self.people,
            compress=self.compress,
        )
        counts = [
            (person["product"], len(person["attributes"])) for person in self.people
        ]
        asins = np.array([asin.encode() for asin in self.seen], dtype=np.bytes_)
        order = np.argsort(asins, kind="stable").astype(np.int32)
        arrays = {
            "human.counts": np.array(counts, np.int32).reshape(-1, 2),
            "asins": asins[order],
            "order": order,
            "prices": np.array(self.price, np.float64).reshape(-1, 2),
            "combinations": np.array(self.combinations, np.int64),
            "instructed": np.array(self.instructed, np.int32),
        }
        for name, array in arrays.items():
            np.save(self.folder / f"{name}.npy", array)
        ranks = np.empty_like(order)
        ranks[order] = np.arange(len(order), dtype=np.int32)
        self.index.finish(ranks, partial(report_progress, "search index"))
        return {
            "format": FORMAT,
            "products": len(self.seen),
            "human_instructions": len(self.people),
            "synthetic_instructions": len(self.instructed),
            "skipped": self.skipped,
            "first_unusable": self.first_unusable,
        }


def _seal(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    """Complete and write the manifest: every file's size and digest, and the id computed from them."""
    paths = sorted(
        path
        for path in folder.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    )
    manifest["files"] = {
        path.relative_to(folder).as_posix(): [path.stat().st_size, sha256(path)]
        for path in paths
    }
    content = orjson.dumps([manifest["format"], manifest["nouns"], manifest["files"]])
    manifest["id"] = hashlib.sha256(content).hexdigest()[:16]
    (folder / MANIFEST).write_bytes(orjson.dumps(manifest, option=orjson.OPT_INDENT_2))
    return manifest
