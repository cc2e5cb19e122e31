"""The original's rules that convert a raw record to a product (`load_products` in its engine.py)."""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003 (read by msgspec)
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

import msgspec

from hgpo_envs.errors import InputError
from hgpo_envs.unicode_text import clean_text

if TYPE_CHECKING:
    from collections.abc import Iterable

NO_ATTRIBUTES: Final = ("DUMMY_ATTR",)
"""The original's attributes of a product that the attribute file does not list."""

NO_PRICE: Final = 100.0

_NO_DIGIT: Final = re.compile(r"[^\d.]")


class Product(msgspec.Struct, frozen=True):
    """The observable properties of a product after the original's normalisation.

    Attributes:
        index: The position in the catalogue, in the original's order without skipped records.
        asin: The identifier.
        title: The record's `name`.
        description: The record's `full_description`.
        bullet_points: The record's `small_description`. A single text is one bullet point.
        price_text: The price as shown on pages, `$10.0` or `$10.0 to $20.0`.
        prices: One price in dollars, or the two ends of the range from which the original draws a price.
        options: The values by option name, in the record's order: stripped, lowercase, with `/` replaced by ` | `.
        attributes: The attributes in the attribute file, or `DUMMY_ATTR` if it has none.
        category: The record's `category`.
        query: The record's `query`, lowercase and stripped.
        product_category: The path of categories, joined by ` › `.
        nouns: The title's NOUN and PROPN words in lowercase, in order and with repetitions. The manifest names
            the method.
        instruction: The synthetic instruction in the attribute file, or None.
        instruction_attributes: The attributes of this instruction, or None.
        listed: Whether the attribute file lists this product. With synthetic goals the original requires this.
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
    """An instruction written by a person, from which a human goal is created.

    Attributes:
        product: The product's index.
        instruction: The text.
        attributes: The `instruction_attributes`. The original skips instructions without attributes.
        options: The `instruction_options`.
    """

    product: int
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]


def is_skipped(record: Mapping[str, Any]) -> bool:
    """Return whether the original skips a record: its asin is `nan` or longer than ten characters."""
    asin = text(record, "asin")
    return asin == "nan" or len(asin) > 10


def text(record: Mapping[str, Any], name: str) -> str:
    """Return a record's text field.

    Raises:
        InputError: If it is missing or not a text. The message names neither file nor record.
    """
    value = record.get(name)
    if not isinstance(value, str):
        fault = (
            " is missing"
            if name not in record
            else f": expected a text, received {value!r:.40}"
        )
        raise InputError(f"field {name!r}{fault}")
    return clean_text(value)


def texts(values: object, name: str) -> tuple[str, ...]:
    """Return a field that is a list of texts. Raises InputError as `text` does."""
    if not isinstance(values, list) or not all(
        isinstance(value, str) for value in values
    ):
        raise InputError(
            f"field {name!r}: expected a list of texts, received {values!r:.60}"
        )
    return tuple(map(clean_text, values))


def prices(pricing: object) -> tuple[float, ...]:
    """Return the one or two prices of a product in dollars.

    The digits and points after each `$` are concatenated to a price. Only the first two prices are used. A missing
    price is $100.

    >>> prices("$19.89 - $24.89 - $28.89"), prices("$28.35 ($2.36 / Ounce)"), prices(None)
    ((19.89, 24.89), (28.35, 2.36), (100.0,))

    Raises:
        InputError: If there is no `$`, or no number after a `$`. The original fails here.
    """
    if not pricing:
        return (NO_PRICE,)
    if not isinstance(pricing, str) or "$" not in pricing:
        raise InputError(f"expected a price with '$', received {pricing!r:.40}")
    try:
        values = [
            float(Decimal(_NO_DIGIT.sub("", part))) for part in pricing.split("$")[1:]
        ]
    except InvalidOperation:
        raise InputError(
            f"expected a price with a number after each '$', received {pricing!r:.40}"
        ) from None
    return tuple(values[:2])


def price_text(values: tuple[float, ...]) -> str:
    """Return a price as shown on pages.

    >>> price_text((5.0,)), price_text((28.35, 2.36))
    ('$5.0', '$28.35 to $2.36')
    """
    return " to ".join(f"${value}" for value in values)


def options(customization: object) -> dict[str, tuple[str, ...]]:
    """Return a record's options: lowercase names, and stripped lowercase values with `/` replaced by ` | `.

    Options whose value is None are skipped.

    >>> options({"Size": [{"value": " 8/10 Wide "}], "Color": None})
    {'size': ('8 | 10 wide',)}
    """
    if not customization:
        return {}
    if not isinstance(customization, dict):
        raise InputError(
            f"field 'customization_options': expected an object, received {customization!r:.40}"
        )
    result: dict[str, tuple[str, ...]] = {}
    for name, choices in customization.items():
        if choices is None:
            continue
        try:
            values = tuple(
                text(choice, "value").strip().replace("/", " | ").lower()
                for choice in choices
            )
        except (TypeError, AttributeError):
            raise InputError(
                f"option {name!r:.40}: expected a list of objects with a text 'value'"
            ) from None
        result[clean_text(name.lower())] = values
    return result


def bullet_points(small_description: object) -> tuple[str, ...]:
    """Return the features, from a list of texts or a single text."""
    return texts(
        small_description
        if isinstance(small_description, list)
        else [small_description],
        "small_description",
    )


def indexed_text(
    title: str,
    description: str,
    bullets: tuple[str, ...],
    choices: Mapping[str, Iterable[str]],
) -> str:
    """Return the indexed text of a product: title, description, the first feature and options, in lowercase.

    Source: the original's search_engine/convert_product_file_format.py. It fails for a product without features; here
    this part is empty.

    >>> indexed_text("Red Mug", "Large", ("Safe", "Light"), {"size": ("s", "m"), "color": ("red",)})
    'red mug large safe size: s, m, and color: red'
    """
    chosen = ", and ".join(
        f"{name}: {', '.join(values)}" for name, values in choices.items()
    )
    return " ".join((title, description, bullets[0] if bullets else "", chosen)).lower()


def attribute_entry(
    entry: object,
) -> tuple[tuple[str, ...], str | None, tuple[str, ...] | None]:
    """Return a product's attributes, synthetic instruction and the instruction's attributes from the attribute file.

    >>> attribute_entry({"attributes": ["gluten free"]})
    (('gluten free',), None, None)
    """
    if not isinstance(entry, dict):
        raise InputError(f"expected an object, received {entry!r:.40}")
    own = entry.get("instruction_attributes")
    return (
        texts(entry["attributes"], "attributes")
        if "attributes" in entry
        else NO_ATTRIBUTES,
        None if entry.get("instruction") is None else text(entry, "instruction"),
        None if own is None else texts(own, "instruction_attributes"),
    )
