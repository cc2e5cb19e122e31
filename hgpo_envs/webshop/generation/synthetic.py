"""Synthetic catalogues in the official raw formats. A seed determines all bytes.

Products are of real kinds, with attributes, options and prices that instructions ask for and with invented brands. Each
product has its own random generator, so a larger catalogue starts with the products of a smaller one.
"""

from __future__ import annotations

import itertools
import json
import math
import random
import re
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson

from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import new_folder
from hgpo_envs.files.untrusted_files import writing
from hgpo_envs.webshop.catalogue.products import options
from hgpo_envs.webshop.engine.reward import first_colour
from hgpo_envs.webshop.generation.vocabulary import (
    DESCRIBING,
    FIRST_POINT,
    MOODS,
    OPTIONS,
    POINTS,
    PRODUCT_KINDS,
    SENTENCES,
    STYLES,
    SYLLABLES,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hgpo_envs.webshop.generation.vocabulary import ProductKind

FILES: Final = ("items_shuffle.json", "items_ins_v2.json", "items_human_ins.json")

NOTE: Final = "hgpo-source.json"

HUMAN_INSTRUCTIONS: Final = 12_000
"""The number of human-style instructions in a large catalogue, about as many as in the official file."""

_RARE_WORDS: Final = 300_000
_IDENTIFIERS: Final = 36**8
_PLURAL: Final = "s"


def write_synthetic(
    out: Path,
    products: int,
    seed: int,
    *,
    text: float = 1.0,
    people: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Write `items_shuffle.json`, `items_ins_v2.json` and `items_human_ins.json` into a new folder.

    Args:
        out: The folder. It is written atomically and contains a file `NOTE` that says how it was made.
        products: The number of records.
        seed: Any integer. The same seed and arguments give the same bytes.
        text: The length of descriptions and features, relative to the official files.
        people: The mean number of human-style instructions per product. None distributes `HUMAN_INSTRUCTIONS` over the
            catalogue, with a mean of at most 0.5.
        progress: Called after every 1,000 products with the number written so far.

    Raises:
        InputError: If a number is out of range, the folder exists, or the disk is full.
    """
    if not 0 < products < _IDENTIFIERS:
        raise InputError(
            f"products: expected a number from 1 to {_IDENTIFIERS - 1:,}, received {products}"
        )
    rate = min(0.5, HUMAN_INSTRUCTIONS / products) if people is None else people
    report_progress = progress or (lambda _: None)
    with writing(out), new_folder(out) as folder:
        # orjson has no integers of more than 64 bits.
        made = {
            "made_by": "hgpo data synth webshop",
            "products": products,
            "seed": seed,
        }
        (folder / NOTE).write_text(json.dumps(made, separators=(",", ":")))
        with ExitStack() as stack:
            items, attributes, human = (
                stack.enter_context((folder / name).open("wb")) for name in FILES
            )
            items.write(b"[")
            attributes.write(b"{")
            human.write(b"{")
            for number in range(products):
                product = SyntheticProduct(seed, number, text=text)
                comma = b", " if number else b""
                items.write(comma + orjson.dumps(product.record))
                attributes.write(
                    comma + _entry(product.asin, product.attribute_entry())
                )
                if instructions := product.human_entries(rate):
                    human.write(
                        (b", " if human.tell() > 1 else b"")
                        + _entry(product.asin, instructions)
                    )
                if not number % 1000:
                    report_progress(number)
            items.write(b"]")
            attributes.write(b"}")
            human.write(b"}")
    report_progress(products)


def _entry(asin: str, value: object) -> bytes:
    return orjson.dumps(asin) + b": " + orjson.dumps(value)


def identifier(number: int) -> str:
    """Return the asin of a product number. Different numbers have different asins.

    >>> len({identifier(number) for number in range(1000)}), len(identifier(7))
    (1000, 10)
    """
    value = number * 1_234_567_890_121 % _IDENTIFIERS
    return f"B0{np.base_repr(value, 36):0>8}"


def rare_word(rank: int) -> str:
    """Return the invented word of a frequency rank. Frequent words are short."""
    word = ""
    rest = rank + len(SYLLABLES)
    while rest:
        rest, syllable = divmod(rest, len(SYLLABLES))
        word = SYLLABLES[syllable] + word
    return (word if len(word) > 3 else word + word).capitalize()


def plain_values(option: str) -> tuple[str, ...]:
    """Return an option's values without those that contain a colour word by the original's reward.

    A synthetic goal that asks for such a value cannot be satisfied completely
    (`hgpo_envs.webshop.engine.reward.wanted_options`).

    >>> "Standard" in OPTIONS["style"][1], "Standard" in plain_values("style")
    (True, False)
    """
    return tuple(
        value
        for value in OPTIONS[option][1]
        if option == "color" or first_colour(value.lower()) == value.lower()
    )


class SyntheticProduct:
    """A synthetic product and its instructions."""

    def __init__(self, seed: int, number: int, *, text: float) -> None:
        self.random = random.Random(seed << 40 | number)
        self.kind: ProductKind = self.pick(PRODUCT_KINDS)
        self.asin = identifier(number)
        self.brand = self.rare()
        self.name = self.pick(self.kind.names)
        self.material = self.pick(self.kind.materials)
        self.attributes = self.some(
            self.kind.attributes,
            2,
            5,
        )
        self.known = {
            "brand": self.brand,
            "name": self.name,
            "material": self.material,
            "Material": self.material.capitalize(),
        }
        self.choices = self._choices()
        self.record = self._record(text)

    def pick(self, choices: Sequence[Any]) -> Any:  # noqa: ANN401 - an element of any sequence
        """Return a random element."""
        return choices[int(self.random.random() * len(choices))]

    def some(self, choices: Sequence[str], least: int, most: int) -> list[str]:
        """Return `least` to `most` distinct elements."""
        return self.random.sample(
            choices, min(len(choices), self.random.randint(least, most))
        )

    def chance(self, share: float) -> bool:
        """Return True with the probability `share`."""
        return self.random.random() < share

    def rare(self) -> str:
        """Return an invented word. The frequency of the word of rank n is proportional to 1/n."""
        return rare_word(
            int(math.exp(self.random.random() * math.log(_RARE_WORDS))) - 1
        )

    def model(self) -> str:
        """Return an invented model number."""
        letters = "ABCDEFGHKLMNPRSTVWXZ"
        number = 100 + int(self.random.random() * 99900)
        return f"{self.pick(letters)}{self.pick(letters)}-{number}{self.pick(('A', 'B', 'X', ''))}"

    def _choices(self) -> dict[str, list[str]]:
        names = [name for name in self.kind.options if self.chance(0.85)]
        return {
            OPTIONS[name][0]: self.some(
                plain_values(name), 2, 8 if name == "color" else 5
            )
            for name in names
        }

    def _title(self) -> str:
        first, *others = [attribute.title() for attribute in self.attributes]
        tail = self.pick(
            (
                f", {self.pick(others)}",
                f" with {self.pick(others)}, {self.material.title()}",
                f" - {self.material.title()}, {self.pick(MOODS).title()} {self.pick(STYLES)} Style",
                f" ({self.model()})",
                f" for {self.pick(('Home', 'Travel', 'Daily Use', 'Gifts', 'Men and Women'))}, {self.pick(others)}",
            )
        )
        return f"{self.brand} {first} {self.name}{tail}"

    def _filled(self, form: str) -> str:
        """Fill the gaps of a sentence. Random values are drawn only for the gaps it has."""
        attribute, other = self.random.sample(self.attributes, 2)
        values = {
            "attribute": attribute,
            "Attribute": attribute.capitalize(),
            "other": other,
            **self.known,
        }

        def filled(gap: re.Match[str]) -> str:
            # the names of a series, place or artist
            draw = _DRAWN.get(gap[1], SyntheticProduct.rare)
            return values.get(gap[1]) or str(draw(self))

        return _GAP.sub(filled, form)

    def _record(self, text: float) -> dict[str, Any]:
        kind = self.kind
        number = self.random.randint(10**8, 10**9)
        sentences = self.random.sample(
            SENTENCES,
            max(1, min(len(SENTENCES), round(self.random.uniform(5, 13) * text))),
        )
        features = [
            FIRST_POINT,
            *self.random.sample(POINTS, max(1, min(len(POINTS), round(4 * text)))),
        ]
        bullets = [self._filled(form) for form in features]
        bullets += [
            f"{attribute.capitalize()} {self.name.lower()}"
            for attribute in self.attributes
        ]
        price = max(1.99, kind.price * math.exp(self.random.gauss(0, 0.55)))
        rating = round(self.random.uniform(1, 5), 1)
        return {
            "name": self._title(),
            "product_information": {
                "Item Weight": f"{rating} pounds",
                "ASIN": self.asin,
                "Manufacturer": self.brand,
            },
            "brand": f"Visit the {self.brand} Store",
            "full_description": " ".join(
                self._filled(sentence) for sentence in sentences
            ),
            "pricing": f"${price:.2f}"
            + (
                f" - ${price * self.random.uniform(1.1, 2.2):.2f}"
                if self.chance(0.12)
                else ""
            ),
            "images": [
                f"https://m.media-amazon.com/images/I/{number + n}.jpg"
                for n in range(self.random.randint(1, 4))
            ],
            "product_category": kind.path,
            "average_rating": rating,
            "small_description": bullets,
            "customization_options": {
                label: [{"value": value, "price": 0, "image": None} for value in values]
                for label, values in self.choices.items()
            },
            "asin": self.asin,
            "category": kind.category,
            "query": kind.query,
            "page": self.random.randint(1, 7),
        }

    def attribute_entry(self) -> dict[str, Any]:
        """Return the product's entry in the attribute file, with its synthetic instruction."""
        asked = self.some(self.attributes, 1, 3)
        first, *others = asked
        more = f" with {', and '.join(others)}" if others else ""
        entry = {
            "attributes": self.attributes,
            "instruction": f"Find me {first} {self.kind.query}{more}",
        }
        return {**entry, "instruction_attributes": asked}

    def human_entries(self, rate: float) -> list[dict[str, Any]]:
        """Return human-style instructions, `rate` on average."""
        count = int(rate) + self.chance(rate % 1)
        return [self._human_entry() for _ in range(count)]

    def _human_entry(self) -> dict[str, Any]:
        asked = self.some(self.attributes, 1, 2)
        offered = options(self.record["customization_options"])
        choices = {
            label: self.pick(values)
            for label, values in offered.items()
            if self.chance(0.8)
        }
        name = self.name.lower()
        article = "an" if name[0] in "aeiou" else "a"
        noun = name if name.endswith(_PLURAL) else f"{article} {name}"
        opening = self.pick(
            (
                "i am looking for",
                "i need",
                "find me",
                "i would like to buy",
                "im shopping for",
                "i want",
            )
        )
        is_so = [
            attribute for attribute in asked if attribute.split()[-1] in DESCRIBING
        ]
        has = [attribute for attribute in asked if attribute not in is_so]
        verb = "are" if noun == name else "is"
        clauses = []
        if is_so:
            clauses.append(f"that {verb} {' and '.join(is_so)}")
        if has:
            clauses.append(f"with {' and '.join(has)}")
        wishes = [
            self.pick(
                ("{} {}", "the {} should be {}", "i prefer {} {}", "and {} {}")
            ).format(label, value)
            for label, value in itertools.islice(choices.items(), 3)
        ]
        return {
            "asin": self.asin,
            "instruction": ", ".join(
                [" ".join([opening, noun, *clauses]), *wishes]
            ).lower()
            + self.pick((".", "", ".")),
            "attributes": asked,
            "options": list(choices.values()),
            "instruction_attributes": [] if self.chance(0.02) else asked,
            "instruction_options": list(choices.values()),
            "assignment_id": f"A{self.random.randint(10**11, 10**12)}",
            "worker_id": f"W{self.random.randint(10**5, 10**6)}",
        }


_GAP: Final = re.compile(r"\{(\w+)\}")
_DRAWN: Final[dict[str, Callable[[SyntheticProduct], object]]] = {
    "mood": lambda product: product.pick(MOODS),
    "style": lambda product: product.pick(STYLES),
    "number": lambda product: round(product.random.uniform(1, 90), 1),
    "count": lambda product: product.random.randint(2, 48),
    "weight": lambda product: round(product.random.uniform(0.1, 40), 2),
    "model": SyntheticProduct.model,
    "earlier": SyntheticProduct.model,
}
"""The random values for the remaining gaps of a sentence that are no names."""
