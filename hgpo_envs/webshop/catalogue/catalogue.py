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
    index/                  the search index (`hgpo_envs.webshop.search.index`)
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypedDict

import msgspec
import numpy as np

from hgpo_envs.caching import bounded_cache
from hgpo_envs.errors import InputError, one_line
from hgpo_envs.files.untrusted_files import parse_json, path_inside, read_bytes, sha256
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


class _Manifest(TypedDict):
    """The fields of a manifest that are read."""

    format: int
    id: str
    nouns: str
    products: int
    human_instructions: int
    synthetic_instructions: int
    skipped: dict[str, int]
    sources: dict[str, str]
    files: dict[str, tuple[int, str]]


class Catalogue:
    """The products of one shop, opened by `Catalogue.open`.

    Large files are memory-mapped, so opening takes milliseconds and processes share the memory. If the folder is
    deleted, an open catalogue stays usable.
    """

    def __init__(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        self.folder: Final = folder
        self.manifest: Final = manifest
        self._size: Final = int(manifest["products"])
        self.asins: Final = mapped(folder / "asins.npy", np.bytes_)
        self.order: Final = mapped(folder / "order.npy", np.int32)
        self.prices: Final = mapped(folder / "prices.npy", np.float64, columns=2)
        self.combinations: Final = mapped(folder / "combinations.npy", np.int64)
        self.instructed: Final = mapped(folder / "instructed.npy", np.int32)
        self.index: Final = Index(folder / "index", self._size)
        self._human: Final = Records(folder, "human", HumanInstruction)
        self._human_counts: Final = mapped(
            folder / "human.counts.npy", np.int32, columns=2
        )
        self._labels: Final = {
            "category": Labels(folder, "categories"),
            "query": Labels(folder, "queries"),
        }
        records = Records(folder, "products", dict[str, Any])
        # Rows of products are checked once, here, and trusted from then on.
        lengths = {
            len(values)
            for values in (
                records,
                self.asins,
                self.order,
                self.prices,
                self.combinations,
            )
        }
        rows = np.concatenate([self.order, self.instructed, self._human_counts[:, 0]])
        inside = not len(rows) or 0 <= rows.min() <= rows.max() < self._size
        if (
            lengths != {self._size}
            or len(self._human) != len(self._human_counts)
            or not inside
        ):
            raise InputError(
                f"the files of {folder} do not match each other; build the catalogue again"
            )
        # the caches must not refer to the catalogue: a reference cycle would delay unmapping the files
        self._make_product = partial(_product, folder, records)
        self.product = bounded_cache(
            self._make_product,
            KEPT_PRODUCTS,
            LONGEST_KEPT,
            lambda _, index: records.size(index),
        )
        """The product at an index. Raises InputError outside 0 … len - 1, because only a damaged file has such one."""
        self.index_of = bounded_cache(
            partial(_index_of, folder, self.asins, self.order),
            KEPT_ASINS,
            LONGEST_ASIN,
            lambda _, asin: len(asin),
        )
        """The index of the product with an identifier. Raises KeyError if there is none."""
        self.search = bounded_cache(
            partial(_search, folder, self.index, self.order),
            KEPT_SEARCHES,
            LONGEST_QUERY,
            lambda _, query: len(query),
        )
        """The best 50 products for a query by Lucene's ranking. Fewer if fewer contain any of its terms."""

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
            actual = path.stat().st_size if path.is_file() else None
            if actual != size:
                was = (
                    "is missing"
                    if actual is None
                    else f"has {actual:,} bytes, expected {size:,}"
                )
                raise InputError(
                    f"{path} {was}; build the catalogue again (hgpo data build webshop)"
                )
        return cls(folder, manifest)

    def verify(self) -> None:
        """Compare every file with its checksum. Raises InputError for the first that differs."""
        for name, (_, expected) in self.manifest["files"].items():
            path = path_inside(self.folder, name)
            if sha256(path, "catalogue's file") != expected:
                raise InputError(
                    f"{path} differs from its checksum; build the catalogue again"
                )

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Product]:
        return map(self._make_product, range(len(self)))

    def products_where(
        self, field: Literal["category", "query"], text: str
    ) -> NDArray[np.int64]:
        """Return the products with exactly this text in a field, ascending (the original's searches `<c>`, `<q>`)."""
        with report_damage(self.folder):
            return self._labels[field].rows(text)

    def human_instructions(self) -> Iterator[HumanInstruction]:
        """Return an iterator over the human instructions in the original's order (by product, then as in the file)."""
        return map(self.human_instruction, range(len(self._human)))

    def human_instruction(self, number: int) -> HumanInstruction:
        """Return the human instruction at a position of this order."""
        with report_damage(self.folder):
            instruction: HumanInstruction = self._human[number]
            return instruction

    def human_products(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Return each human instruction's product and number of attributes, int32 arrays of shape (instructions,)."""
        return self._human_counts[:, 0], self._human_counts[:, 1]


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a catalogue's manifest. Raises InputError as in `Catalogue.open`."""
    path = folder / MANIFEST
    build = "`hgpo data build webshop --out DIR` builds one"
    if not path.is_file():
        raise InputError(
            f"no WebShop catalogue in {folder} (it has no {MANIFEST}); {build}"
        )
    content = read_bytes(path, LONGEST_MANIFEST, "catalogue's manifest")
    try:
        manifest = parse_json(content)
        known = manifest["format"]
        if known == FORMAT:
            msgspec.convert(manifest, _Manifest)
            for name in manifest["files"]:
                path_inside(Path(), name)
    except (InputError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is damaged ({one_line(error)}); build the catalogue again: {build}"
        ) from None
    if known != FORMAT:
        raise InputError(
            f"{folder}: expected catalogue format {FORMAT}, received {known!r:.20}; build it again: {build}"
        )
    return dict(manifest)


def _index_of(
    folder: Path, asins: NDArray[np.bytes_], order: NDArray[np.int32], asin: str
) -> int:
    wanted = asin.encode("utf-8", "replace")
    at = int(np.searchsorted(asins, np.bytes_(wanted)))
    if at == len(asins) or asins[at] != wanted:
        raise KeyError(f"no product {asin!r} in {folder}")
    return int(order[at])


def _product(folder: Path, records: Records, index: int) -> Product:
    with report_damage(folder):
        row = records[index]
        # JSON has no infinity
        prices = tuple(
            [math.inf if price is None else price for price in row["prices"]]
        )
        options = {option["name"]: option["values"] for option in row["options"]}
        derived = {
            "index": index,
            "prices": prices,
            "price_text": price_text(prices),
            "options": options,
        }
        return msgspec.convert(row | derived, Product)


def _search(
    folder: Path, index: Index, order: NDArray[np.int32], query: str
) -> tuple[int, ...]:
    with report_damage(folder):
        documents, _ = index.search(query)
        return tuple(order[documents].tolist())
