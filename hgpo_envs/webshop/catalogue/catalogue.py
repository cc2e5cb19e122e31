"""A built catalogue: products, instructions and search index in read-only memory-mapped files.

A catalogue is a folder, built by `hgpo_envs.webshop.data.build`:

    catalogue.json          format, counts, sources and files with their digests, the method that found the nouns
    products.jsonl          one product per line, with products.starts.npy (`hgpo_envs.webshop.records`)
    human.jsonl             the instructions written by people, with human.starts.npy
    human.counts.npy        int32 (instructions, 2): each one's product and number of attributes
    categories.npy          int32 (products,): each product's category, numbered by categories.jsonl
    queries.npy             int32 (products,): each product's query, numbered by queries.jsonl
    asins.npy, order.npy    identifiers sorted by their bytes, and the product of each
    prices.npy              float64 (products, 2): the ends of the price range; NaN as the second if there is one price
    combinations.npy        int64 (products,): the number of choices of options
    instructed.npy          int32: the products that have a synthetic instruction
    goals.*.npy             large catalogues: the draws of the default seeds
                            (`hgpo_envs.webshop.engine.goals.keep_goals`)
    index/                  the search index (`hgpo_envs.webshop.search.index`)
"""

from __future__ import annotations

import hashlib
import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hgpo_envs.caching import bounded_cache
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.untrusted_files import open_regular, parse_json, path_inside, read_bytes
from hgpo_envs.webshop.catalogue.products import HumanInstruction, Product, price_text
from hgpo_envs.webshop.records import Labels, Records, mapped, report_damage
from hgpo_envs.webshop.search.index import Index

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

LONGEST_MANIFEST: Final = 1 << 20
"""The maximum size of a manifest in bytes. The bundled one has 4 kB."""

FORMAT: Final = 2
"""The version of the folder's layout. Catalogues of other versions are rejected."""

MANIFEST: Final = "catalogue.json"

KEPT_PRODUCTS: Final = 1024
"""The number of decoded products in the cache, per catalogue and process."""

LONGEST_KEPT: Final = 1 << 16
"""The maximum size in bytes of the record of a cached product."""

KEPT_ASINS: Final = 4096
LONGEST_ASIN: Final = 32
"""The maximum length in characters of an identifier whose product's index is cached."""

KEPT_SEARCHES: Final = 4096
"""The number of searches whose results are cached, per catalogue and process."""

LONGEST_QUERY: Final = 1 << 12
"""The maximum length in characters of a query whose result is cached."""


class Catalogue:
    """The products of one shop, opened by `Catalogue.open`.

    Large files are memory-mapped, so opening takes milliseconds and processes share the memory. If the folder is
    deleted, an open catalogue stays usable.
    """

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        self.folder: Final = folder
        self.manifest: Final = manifest
        self._size: Final = int(manifest["products"])
        self.asins: Final[NDArray[np.bytes_]] = mapped(folder / "asins.npy", np.bytes_)
        self.order: Final[NDArray[np.int32]] = mapped(folder / "order.npy", np.int32)
        self.prices: Final[NDArray[np.float64]] = mapped(folder / "prices.npy", np.float64, columns=2)
        self.combinations: Final[NDArray[np.int64]] = mapped(folder / "combinations.npy", np.int64)
        self.instructed: Final[NDArray[np.int32]] = mapped(folder / "instructed.npy", np.int32)
        self.index: Final = Index(folder / "index", self._size)
        self._human: Final = Records(folder, "human")
        self._human_counts: Final[NDArray[np.int32]] = mapped(folder / "human.counts.npy", np.int32, columns=2)
        self._categories: Final = Labels(folder, "categories")
        self._queries: Final = Labels(folder, "queries")
        records = Records(folder, "products")
        lengths = {len(values) for values in (records, self.asins, self.order, self.prices, self.combinations)}
        if lengths != {self._size} or len(self._human) != len(self._human_counts):
            raise InputError(f"the files of {folder} do not match each other; build the catalogue again")
        # the caches must not refer to the catalogue: a reference cycle would delay unmapping the files
        self._make_product = partial(_product, folder, records)
        self._kept_products = bounded_cache(
            self._make_product, KEPT_PRODUCTS, LONGEST_KEPT, lambda _, index: records.size(index)
        )
        self.index_of = bounded_cache(
            partial(_index_of, folder, self.asins, self.order), KEPT_ASINS, LONGEST_ASIN, lambda _, asin: len(asin)
        )
        """The index of the product with an identifier. Raises KeyError if there is none."""
        self._kept_searches = bounded_cache(
            partial(_search, folder, self.index, self.order), KEPT_SEARCHES, LONGEST_QUERY, lambda _, query: len(query)
        )

    def __reduce__(self) -> tuple[Callable[[Path], Catalogue], tuple[Path]]:
        """Pickle the folder, which the other process opens again."""
        return Catalogue.open, (self.folder,)

    @classmethod
    def open(cls, folder: str | Path) -> Catalogue:
        """Open a built catalogue.

        Raises:
            InputError: If the folder is not a catalogue, it has another format version, or a file is missing or
                truncated.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        for name, (size, _) in manifest["files"].items():
            path = path_inside(folder, name)
            found = path.stat().st_size if path.is_file() else None
            if found != size:
                was = "is missing" if found is None else f"has {found:,} bytes, expected {size:,}"
                raise InputError(f"{path} {was}; build the catalogue again (hgpo data build webshop)")
        return cls(folder, manifest)

    def verify(self) -> None:
        """Compare every file with its checksum. Raises InputError for the first that differs."""
        for name, (_, expected) in self.manifest["files"].items():
            path = path_inside(self.folder, name)
            with open_regular(path, "catalogue's file") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                    raise InputError(f"{path} differs from its checksum; build the catalogue again")

    @property
    def id(self) -> str:
        """The identifier of the content. The same sources, rules and nouns give the same id."""
        return str(self.manifest["id"])

    @property
    def nouns(self) -> str:
        """The method that found the titles' nouns, from which the reward's type score is computed."""
        return str(self.manifest["nouns"])

    def __len__(self) -> int:
        return self._size

    def product(self, index: int) -> Product:
        """Return the product at an index. Raises IndexError outside 0 … len - 1."""
        if not 0 <= index < len(self):
            raise IndexError(f"product {index} of {len(self)}")
        return self._kept_products(index)

    def __iter__(self) -> Iterator[Product]:
        return map(self._make_product, range(len(self)))

    def search(self, query: str) -> tuple[int, ...]:
        """Return the best 50 products for a query by Lucene's ranking. Fewer if fewer contain any of its terms."""
        return self._kept_searches(query)

    def scored(self, query: str) -> list[tuple[int, float]]:
        """Return the results of `search`, each with its score."""
        with report_damage(self.folder):
            documents, scores = self.index.search(query)
            return list(zip(_within(self.order[documents], self._size).tolist(), scores.tolist(), strict=True))

    def in_category(self, category: str) -> NDArray[np.int64]:
        """Return the products with exactly this `category`, ascending (the original's search `<c>`)."""
        with report_damage(self.folder):
            return self._categories.rows(category)

    def with_query(self, query: str) -> NDArray[np.int64]:
        """Return the products with exactly this `query`, ascending (the original's search `<q>`)."""
        with report_damage(self.folder):
            return self._queries.rows(query)

    def synthetic_goals(self) -> int:
        """Return the number of synthetic goals: one per synthetic instruction and choice of options."""
        with report_damage(self.folder):
            return int(self.combinations[self.instructed].sum())

    def human_instructions(self) -> Iterator[HumanInstruction]:
        """Return an iterator over the human instructions in the original's order (by product, then as in the file)."""
        return map(self.human_instruction, range(len(self._human)))

    def human_instruction(self, number: int) -> HumanInstruction:
        """Return the human instruction at a position of this order."""
        with report_damage(self.folder):
            row = self._human[number]
            attributes, options = _texts(row["attributes"]), _texts(row["options"])
            "".join((row["instruction"],))  # raises TypeError unless it is a text
            return HumanInstruction(int(row["product"]), row["instruction"], attributes, options)

    def human_products(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return each human instruction's product and number of attributes, int32 arrays of shape (instructions,)."""
        return self._human_counts[:, 0], self._human_counts[:, 1]


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a catalogue's manifest. Raises InputError as in `Catalogue.open`."""
    path = folder / MANIFEST
    build = "`hgpo data build webshop --out DIR` builds one"
    if not path.is_file():
        raise InputError(f"no WebShop catalogue in {folder} (it has no {MANIFEST}); {build}")
    content = read_bytes(path, LONGEST_MANIFEST, "catalogue's manifest")
    try:
        manifest = parse_json(content)
        known = manifest["format"]
        if known == FORMAT:
            _check_manifest(manifest)
    except (InputError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{path} is damaged ({one_line(error)}); build the catalogue again: {build}") from None
    if known != FORMAT:
        raise InputError(
            f"{folder}: expected catalogue format {FORMAT}, received {known!r:.20}; build it again: {build}"
        )
    return dict(manifest)


def _check_manifest(manifest: dict[str, Any]) -> None:
    """Raise an error unless every field has the right type."""
    kinds = {"id": str, "nouns": str, "files": dict, "skipped": dict, "sources": dict}
    counts = ("products", "human_instructions", "synthetic_instructions")
    for name, kind in {**kinds, **dict.fromkeys(counts, int)}.items():
        if type(manifest[name]) is not kind:
            raise TypeError(f"{name}: expected {kind.__name__}, received {type(manifest[name]).__name__}")
    for name, (size, digest) in manifest["files"].items():
        path_inside(Path(), name)
        if type(size) is not int or not isinstance(digest, str):
            raise TypeError(f"files: expected a size and a digest of {name}")
    if not all(type(count) is int for count in manifest["skipped"].values()):
        raise TypeError("skipped: expected numbers")
    _texts([*manifest["sources"].values(), *manifest["skipped"]])


def _texts(values: object) -> tuple[str, ...]:
    """Return a list of texts as a tuple. Raises TypeError for other values."""
    if not isinstance(values, list):
        raise TypeError(f"expected a list of texts, received {type(values).__name__}")
    "".join(values)
    return tuple(values)


def _index_of(folder: Path, asins: NDArray[np.bytes_], order: NDArray[np.int32], asin: str) -> int:
    wanted = asin.encode("utf-8", "replace")
    at = int(np.searchsorted(asins, np.bytes_(wanted)))
    if at == len(asins) or asins[at] != wanted:
        raise KeyError(f"no product {asin!r} in {folder}")
    found = int(order[at])
    if not 0 <= found < len(order):
        raise InputError(f"the catalogue in {folder} is damaged (order.npy); build it again")
    return found


def _product(folder: Path, records: Records, index: int) -> Product:
    with report_damage(folder):
        return _made(records[index], index)


def _made(row: dict[str, Any], index: int) -> Product:
    """Return a product from its record. Raises KeyError or TypeError for an invalid record."""
    texts = [row[name] for name in ("asin", "title", "description", "category", "query", "product_category")]
    "".join(texts if row["instruction"] is None else [*texts, row["instruction"]])
    prices = tuple(math.inf if price is None else price for price in row["prices"])  # JSON has no infinity
    own = row["instruction_attributes"]
    return Product(
        index=index,
        asin=row["asin"],
        title=row["title"],
        description=row["description"],
        bullet_points=_texts(row["bullet_points"]),
        price_text=price_text(prices),
        prices=prices,
        options={option["name"]: _texts(option["values"]) for option in row["options"]},
        attributes=_texts(row["attributes"]),
        category=row["category"],
        query=row["query"],
        product_category=row["product_category"],
        nouns=_texts(row["nouns"]),
        instruction=row["instruction"],
        instruction_attributes=None if own is None else _texts(own),
        listed=bool(row["listed"]),
    )


def _within(rows: NDArray[np.int32], products: int) -> NDArray[np.int32]:
    if len(rows) and not (rows.min() >= 0 and rows.max() < products):
        raise ValueError("a row that no product has")
    return rows


def _search(folder: Path, index: Index, order: NDArray[np.int32], query: str) -> tuple[int, ...]:
    with report_damage(folder):
        documents, _ = index.search(query)
        return tuple(_within(order[documents], len(order)).tolist())
