"""The tables that `hgpo data show webshop` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from hgpo_envs.webshop.catalogue import Catalogue


def catalogue_summary(catalogue: Catalogue) -> Table:
    """Return a table of a catalogue's counts, sources and size."""
    manifest = catalogue.manifest
    table = Table("", escape(str(catalogue.folder)), title="WebShop catalogue")
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in manifest["skipped"].items() if count)
    size = sum(size for size, _ in manifest["files"].values())
    for name, value in (
        ("id", catalogue.id),
        ("products", f"{len(catalogue):,}"),
        ("human instructions", f"{manifest['human_instructions']:,}"),
        ("synthetic instructions", f"{manifest['synthetic_instructions']:,}"),
        ("synthetic goals", f"{catalogue.synthetic_goals():,}"),
        ("nouns", catalogue.nouns),
        ("skipped records", skipped or "none"),
        ("sources", ", ".join(f"{name} ({digest[:12]})" for name, digest in manifest["sources"].items())),
        ("size", f"{size:,} bytes"),
    ):
        table.add_row(name, Text(value))
    return table


def search_results(catalogue: Catalogue, query: str) -> Table:
    """Return a table of the results of a query, best first."""
    table = Table("", "score", "asin", "price", "title", title=Text(f"{query!r} in {catalogue.folder}"))
    for place, (index, score) in enumerate(catalogue.scored(query), 1):
        product = catalogue.product(index)
        table.add_row(str(place), f"{score:.4f}", Text(product.asin), product.price_text, Text(product.title))
    return table
