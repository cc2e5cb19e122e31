"""What synthetic products are made of: kinds of products, options, and the sentences about them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class ProductKind:
    """A kind of product.

    Attributes:
        query: What a shopper types to find it; the record's `query`.
        category: The shop's department; the record's `category`.
        path: The category path; the record's `product_category`.
        names: Title nouns, the usual one first.
        attributes: What it may be said to be or have.
        options: Names of the options it may come in, keys of `OPTIONS`.
        materials: What it is made of.
        price: The usual price in dollars.
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

_KINDS: Final[list[dict[str, Any]]] = [
    {name: tuple(value) if isinstance(value, list) else value for name, value in kind.items()}
    for kind in _WORDS["kinds"]
]
PRODUCT_KINDS: Final = tuple(ProductKind(**kind) for kind in _KINDS)

OPTIONS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    name: (option["label"], tuple(option["values"])) for name, option in _WORDS["options"].items()
}
"""Label and values of each option."""

SENTENCES: Final[tuple[str, ...]] = tuple(_WORDS["sentences"])
POINTS: Final[tuple[str, ...]] = tuple(_WORDS["points"])
FIRST_POINT: Final[str] = _WORDS["first_point"]
MOODS: Final[tuple[str, ...]] = tuple(_WORDS["moods"])
STYLES: Final[tuple[str, ...]] = tuple(_WORDS["styles"])
SYLLABLES: Final[tuple[str, ...]] = tuple(_WORDS["syllables"])
"""Invented words are made of these."""

DESCRIBING: Final = frozenset(_WORDS["describing"])
"""An attribute whose last word is one of these says how a product is; the others say what it has."""
