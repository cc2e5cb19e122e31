"""The explorer: plays from the instruction, state texts and actions only, like a policy.

It searches with the words of the instruction, opens the affordable result whose title contains the most of them,
chooses the options that the instruction names, and buys. It opens the next results page, up to the third, only if no
result on the current page is affordable.
"""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from hgpo_envs.webshop.engine import pages

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hgpo_envs.engine import Engine, State, Task

_BOUND: Final = re.compile(r",? and price lower than ([\d.]+) dollars")
_WORD: Final = re.compile(r"\w+")
_PRICE: Final = re.compile(r"\$([\d.]+)")
_MARK: Final = re.compile(r"\[(?:clicked )?button\] (.*) \[(?:clicked )?button_\]")
_EMPTY: Final = frozenset(
    (  # noqa: SIM905 - a word list
        "a an and are be buy can find for from get give i im in is it like looking lower me my need needs of or please "
        "price show some than that the them these this to under want with would you"
    ).split()
)
_MOST_PAGES: Final = 3
_BUTTONS: Final = frozenset(
    text.lower() for text in (pages.BUY, pages.NEXT, pages.PREVIOUS, pages.BACK, "Search", *pages.SUB_PAGES)
)


class _Offer(NamedTuple):
    """One search result."""

    asin: str
    title: str
    price: float


class ExplorerPlayer:
    """A player that uses the instruction, state texts and admissible actions only, and so plays both backends."""

    def __init__(self) -> None:
        self._instruction = ""
        self._bound = float("inf")
        self._wanted: Counter[str] = Counter()
        self._offers: list[_Offer] = []
        self._opened: set[str] = set()
        self._pages = 0
        self._choices: list[str] | None = None

    def reset(self, task: Task, state: State, engine: Engine | None = None) -> None:
        """Parse the instruction of a new task."""
        del state, engine
        bound = _BOUND.search(task.instruction)
        self._bound = float(bound[1]) if bound else float("inf")
        self._instruction = _BOUND.sub("", task.instruction).lower()
        self._wanted = Counter(_words(self._instruction))
        self._offers, self._opened, self._pages, self._choices = [], set(), 0, None

    def fork(self, engine: Engine | None) -> ExplorerPlayer:
        """Return an independent copy. The engine is not used."""
        del engine
        player = ExplorerPlayer()
        player._instruction, player._bound, player._wanted = self._instruction, self._bound, self._wanted
        player._offers, player._opened, player._pages = list(self._offers), set(self._opened), self._pages
        player._choices = None if self._choices is None else list(self._choices)
        return player

    def act(self, state: State) -> str:
        """Return the next action."""
        clicks = [action[6:-1] for action in state.actions if action.startswith("click[")]
        if pages.QUERY_ACTION in state.actions:
            return f"search[{' '.join(self._wanted) or self._instruction}]"
        if pages.BUY.lower() in clicks:
            return self._on_item(state, clicks)
        if pages.NEXT.lower() in clicks:
            return self._on_results(state, clicks)
        return f"click[{clicks[0]}]" if clicks else f"click[{pages.BACK.lower()}]"

    def _on_results(self, state: State, clicks: Sequence[str]) -> str:
        here = list(_offers(_parts(state.text), set(clicks) - _BUTTONS - self._opened))
        self._offers += here
        self._pages += 1
        affordable = [offer for offer in here if offer.price <= self._bound]
        if not affordable and self._pages < _MOST_PAGES and here:
            return f"click[{pages.NEXT.lower()}]"
        if not here:
            return f"click[{pages.BACK.lower()}]"
        best = max(affordable or here, key=lambda offer: self._worth(offer.title))
        self._opened.add(best.asin.lower())  # do not try again if it does not open
        return f"click[{best.asin.lower()}]"

    def _worth(self, title: str) -> float:
        """Return how well a title matches the instruction. Words that are rare in the titles seen count more."""
        often = Counter(word for offer in self._offers for word in set(_words(offer.title)))
        return sum(1.0 / often[word] for word in set(_words(title)) & self._wanted.keys())

    def _on_item(self, state: State, clicks: Sequence[str]) -> str:
        if self._choices is None:
            values = [click for click in clicks if click not in _BUTTONS]
            groups = _groups(_parts(state.text), values)
            self._choices = [best for name, group in groups if (best := self._choice(name, group)) is not None]
        return f"click[{self._choices.pop(0)}]" if self._choices else f"click[{pages.BUY.lower()}]"

    def _choice(self, name: str, values: Sequence[str]) -> str | None:
        """Return the value that the instruction names, with or without its option's name, or None."""
        for prefix in (f"{name}: ", ""):
            named = [value for value in values if value and _says(self._instruction, f"{prefix}{value}")]
            if named:
                return max(named, key=len)
        overlap = {value: len(set(_words(value)) & self._wanted.keys()) for value in values}
        best = max(values, key=lambda value: overlap[value], default=None)
        return best if best is not None and overlap[best] else None


def _words(text: str) -> list[str]:
    """Return the distinct words of a text in order, without stop words."""
    return [word for word in dict.fromkeys(_WORD.findall(text.lower())) if word not in _EMPTY]


def _says(text: str, phrase: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(phrase)}(?!\w)", text) is not None


def _parts(text: str) -> list[str]:
    """Return the texts of a page from either kind of state text."""
    if text.startswith("'"):
        return text[1:-1].split(f"'{pages.SEPARATOR}'")
    return [mark[1] if (mark := _MARK.search(line)) else line for line in text.split("\n") if line]


def _offers(parts: Sequence[str], asins: Iterable[str]) -> Iterable[_Offer]:
    """Yield the products on a results page, which shows an asin, then its title and price."""
    known = set(asins)
    for at, part in enumerate(parts[:-2]):
        price = _PRICE.match(parts[at + 2])
        if part.lower() in known and price:
            yield _Offer(part, parts[at + 1], float(price[1]))


def _groups(parts: Sequence[str], values: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return the options of an item page: names with the values that can be clicked."""
    known, groups = set(values), list[tuple[str, list[str]]]()
    for before, part in pairwise(parts):
        if part not in known:
            continue
        if before not in known or not groups:
            groups.append((before, []))
        groups[-1][1].append(part)
    return groups
