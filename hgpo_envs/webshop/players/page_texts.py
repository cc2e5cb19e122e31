"""What WebShop's pages say: the parts of a page's text, the offers and options in it, and words."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from hgpo_envs.webshop.engine import pages

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

BOUND: Final = re.compile(r",? and price lower than ([\d.]+) dollars")
_WORD: Final = re.compile(r"\w+")
_PRICE: Final = re.compile(r"\$([\d.]+)")
_MARK: Final = re.compile(r"\[(?:clicked )?button\] (.*) \[(?:clicked )?button_\]")
_EMPTY: Final = frozenset(
    (  # noqa: SIM905 - a word list
        "a an and are be buy can find for from get give i im in is it like looking lower me my need needs of or please "
        "price show some than that the them these this to under want with would you"
    ).split()
)
BUTTONS: Final = frozenset(
    text.lower()
    for text in (
        pages.BUY,
        pages.NEXT,
        pages.PREVIOUS,
        pages.BACK,
        "Search",
        *pages.SUB_PAGES,
    )
)


class Offer(NamedTuple):
    """One search result."""

    asin: str
    title: str
    price: float


def words(text: str) -> list[str]:
    """Return the distinct words of a text in order, without stop words."""
    return [
        word
        for word in dict.fromkeys(_WORD.findall(text.lower()))
        if word not in _EMPTY
    ]


def says(text: str, phrase: str) -> bool:
    """Return whether a text contains a phrase as whole words."""
    return re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text) is not None


def page_parts(text: str) -> list[str]:
    """Return the texts of a page from either kind of state text."""
    if text.startswith("'"):
        return text[1:-1].split(f"'{pages.SEPARATOR}'")
    return [
        mark[1] if (mark := _MARK.search(line)) else line
        for line in text.split("\n")
        if line
    ]


def offers(parts: Sequence[str], asins: Iterable[str]) -> Iterable[Offer]:
    """Yield the products on a results page, which shows an asin, then its title and price."""
    known = set(asins)
    for at, part in enumerate(parts[:-2]):
        price = _PRICE.match(parts[at + 2])
        if part.lower() in known and price:
            yield Offer(part, parts[at + 1], float(price[1]))


def option_groups(
    parts: Sequence[str], values: Sequence[str]
) -> list[tuple[str, list[str]]]:
    """Return the options of an item page: names with the values that can be clicked."""
    known = set(values)
    groups = list[tuple[str, list[str]]]()
    for before, part in pairwise(parts):
        if part not in known:
            continue
        if before not in known or not groups:
            groups.append((before, []))
        groups[-1][1].append(part)
    return groups


def named_value(instruction: str, name: str, values: Sequence[str]) -> str | None:
    """Return the option's value that an instruction names, with or without the option's name, or None.

    Args:
        instruction: The instruction in lower case, without the price.
        name: The option's name.
        values: The option's values.
    """
    for prefix in (f"{name}: ", ""):
        named = [
            value for value in values if value and says(instruction, f"{prefix}{value}")
        ]
        if named:
            return max(named, key=len)
    wanted = set(words(instruction))
    overlap = {value: len(wanted.intersection(words(value))) for value in values}
    best = max(
        values,
        key=lambda value: overlap[value],
        default=None,
    )
    return best if best is not None and overlap[best] else None
