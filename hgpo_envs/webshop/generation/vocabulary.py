"""The vocabulary of synthetic products: kinds of products, options and sentences."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import msgspec


@dataclass(frozen=True, slots=True)
class ProductKind:
    """A kind of product.

    Attributes:
        query: The search query for it (the record's `query`).
        category: The shop's department (the record's `category`).
        path: The category path (the record's `product_category`).
        names: The nouns for titles, the most common first.
        attributes: The possible attributes.
        options: The names of its possible options, keys of `OPTIONS`.
        materials: The possible materials.
        price: The typical price in dollars.
    """

    query: str
    category: str
    path: str
    names: tuple[str, ...]
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    materials: tuple[str, ...]
    price: float


_WORDS: Final[dict[str, Any]] = json.loads(
    (resources.files("hgpo_envs.webshop.generation") / "vocabulary.json").read_bytes()
)

PRODUCT_KINDS: Final = msgspec.convert(_WORDS["kinds"], tuple[ProductKind, ...])

OPTIONS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    name: (option["label"], tuple(option["values"]))
    for name, option in _WORDS["options"].items()
}
"""The label and values of each option."""

SENTENCES: Final[tuple[str, ...]] = tuple(_WORDS["sentences"])
POINTS: Final[tuple[str, ...]] = tuple(_WORDS["points"])
FIRST_POINT: Final[str] = _WORDS["first_point"]
MOODS: Final[tuple[str, ...]] = tuple(_WORDS["moods"])
STYLES: Final[tuple[str, ...]] = tuple(_WORDS["styles"])
SYLLABLES: Final[tuple[str, ...]] = tuple(_WORDS["syllables"])
"""The syllables of invented words."""

DESCRIBING: Final = frozenset(_WORDS["describing"])
"""The last words of attributes that follow "is" ("is easy clean"). Other attributes follow "with"."""
