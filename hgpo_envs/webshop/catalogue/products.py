"""The original's rules for making a product out of its raw record (`load_products` in its engine.py)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError
from hgpo_envs.unicode_text import clean_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NO_ATTRIBUTES: Final = ("DUMMY_ATTR",)
"""What the original gives a product that the attribute file does not name."""

NO_PRICE: Final = 100.0

_NO_DIGIT: Final = re.compile(r"[^\d.]")


@dataclass(frozen=True, slots=True)
class Product:
    """What can be observed of a product, after the original's normalisations.

    Attributes:
        index: Its position in the catalogue: the original's order, without what the loader skips.
        asin: Identifier.
        title: The record's `name`.
        description: The record's `full_description`.
        bullet_points: The record's `small_description`; a lone text is one point.
        price_text: The price as pages show it, `$10.0` or `$10.0 to $20.0`.
        prices: One price, or the two ends between which the original draws one, unseeded.
        options: Values by option name, in the record's order; stripped, `/` spaced as ` | `, lowercase.
        attributes: From the attribute file; `DUMMY_ATTR` alone where it has none.
        category: The record's `category`.
        query: The record's `query`, lowercase and stripped.
        product_category: The path of categories, joined by ` › `.
        nouns: The title's NOUN and PROPN words in lowercase, in order and repeated as they are (`Catalogue.nouns`
            says who found them).
        instruction: The synthetic instruction of the attribute file, if any.
        instruction_attributes: That instruction's attributes.
        listed: Whether the attribute file names this product. With synthetic goals the original needs all of them.
    """

    index: int
    asin: str
    title: str
    description: str
    bullet_points: tuple[str, ...]
    price_text: str
    prices: tuple[float, ...]
    options: Mapping[str, tuple[str, ...]]
    attributes: tuple[str, ...]
    category: str
    query: str
    product_category: str
    nouns: tuple[str, ...]
    instruction: str | None
    instruction_attributes: tuple[str, ...] | None
    listed: bool


@dataclass(frozen=True, slots=True)
class HumanInstruction:
    """One instruction written by a person, the raw material of a human goal.

    Attributes:
        product: The product's index.
        instruction: The text, as recorded.
        attributes: Its `instruction_attributes`; the original skips instructions without any.
        options: Its `instruction_options`.
    """

    product: int
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]


def is_skipped(record: Mapping[str, Any]) -> bool:
    """Whether the original passes over a record for its identifier: `nan`, or longer than ten characters."""
    asin = text(record, "asin")
    return asin == "nan" or len(asin) > 10


def text(record: Mapping[str, Any], name: str) -> str:
    """A record's text field.

    Raises:
        InputError: It is missing or no text; the line names neither file nor record.
    """
    value = record.get(name)
    if not isinstance(value, str):
        raise InputError(f"field {name!r} is {'missing' if name not in record else f'no text but {value!r:.40}'}")
    return clean_text(value)


def texts(values: object, name: str) -> tuple[str, ...]:
    """A field that is a list of texts. Raises InputError as `text` does."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InputError(f"field {name!r} is no list of texts but {values!r:.60}")
    return tuple(map(clean_text, values))


def prices(pricing: object) -> tuple[float, ...]:
    """The one or two prices of a product.

    What follows each `$` has its digits and points run together; more than two are cut to two; no price is $100.

    >>> prices("$19.89 - $24.89 - $28.89"), prices("$28.35 ($2.36 / Ounce)"), prices(None)
    ((19.89, 24.89), (28.35, 2.36), (100.0,))

    Raises:
        InputError: No `$`, or no number after one. The original stops here.
    """
    if not pricing:
        return (NO_PRICE,)
    if not isinstance(pricing, str) or "$" not in pricing:
        raise InputError(f"the price {pricing!r:.40} has no '$'")
    try:
        values = [float(Decimal(_NO_DIGIT.sub("", part))) for part in pricing.split("$")[1:]]
    except InvalidOperation:
        raise InputError(f"the price {pricing!r:.40} has no number after a '$'") from None
    return tuple(values[:2])


def price_text(values: tuple[float, ...]) -> str:
    """How pages show a price.

    >>> price_text((5.0,)), price_text((28.35, 2.36))
    ('$5.0', '$28.35 to $2.36')
    """
    return " to ".join(f"${value}" for value in values)


def options(customization: object) -> dict[str, tuple[str, ...]]:
    """A record's options: lowercase names; values stripped, `/` spaced as ` | `, lowercase. None is skipped.

    >>> options({"Size": [{"value": " 8/10 Wide "}], "Color": None})
    {'size': ('8 | 10 wide',)}
    """
    if not customization:
        return {}
    if not isinstance(customization, dict):
        raise InputError(f"field 'customization_options' is no object but {customization!r:.40}")
    found: dict[str, tuple[str, ...]] = {}
    for name, choices in customization.items():
        if choices is None:
            continue
        try:
            values = tuple(text(choice, "value").strip().replace("/", " | ").lower() for choice in choices)
        except (TypeError, AttributeError):
            raise InputError(f"option {name!r:.40} holds no list of objects with a 'value'") from None
        found[clean_text(name.lower())] = values
    return found


def bullet_points(small_description: object) -> tuple[str, ...]:
    """The features: a list of texts, or a lone text."""
    return texts(small_description if isinstance(small_description, list) else [small_description], "small_description")


def indexed_text(title: str, description: str, bullets: tuple[str, ...], choices: Mapping[str, Iterable[str]]) -> str:
    """What the search index holds of a product: title, description, the first feature alone, options; lowercase.

    Source: the original's search_engine/convert_product_file_format.py. It stops at a product without any feature;
    here that part is empty.

    >>> indexed_text("Red Mug", "Large", ("Safe", "Light"), {"size": ("s", "m"), "color": ("red",)})
    'red mug large safe size: s, m, and color: red'
    """
    chosen = ", and ".join(f"{name}: {', '.join(values)}" for name, values in choices.items())
    return " ".join((title, description, bullets[0] if bullets else "", chosen)).lower()


def attribute_entry(entry: object) -> tuple[tuple[str, ...], str | None, tuple[str, ...] | None]:
    """What the attribute file says of a product: attributes, synthetic instruction, that instruction's attributes.

    >>> attribute_entry({"attributes": ["gluten free"]})
    (('gluten free',), None, None)
    """
    if not isinstance(entry, dict):
        raise InputError(f"expected an object, found {entry!r:.40}")
    own = entry.get("instruction_attributes")
    return (
        texts(entry["attributes"], "attributes") if "attributes" in entry else NO_ATTRIBUTES,
        None if entry.get("instruction") is None else text(entry, "instruction"),
        None if own is None else texts(own, "instruction_attributes"),
    )
