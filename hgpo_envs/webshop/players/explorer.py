"""The explorer: plays from the instruction, state texts and actions only, like a policy.

It searches with the words of the instruction, opens the affordable result whose title contains the most of them,
chooses the options that the instruction names, and buys. It opens the next results page, up to the third, only if no
result on the current page is affordable.
"""

from __future__ import annotations

import copy
from collections import Counter
from typing import TYPE_CHECKING, Final

from hgpo_envs.webshop.engine import pages
from hgpo_envs.webshop.players.page_texts import (
    BOUND,
    BUTTONS,
    Offer,
    named_value,
    offers,
    option_groups,
    page_parts,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hgpo_envs.engine import Engine, State, Task

_MOST_PAGES: Final = 3


class ExplorerPlayer:
    """A player that uses the instruction, state texts and admissible actions only, and so plays both backends."""

    def __init__(self) -> None:
        self._instruction = ""
        self._bound = float("inf")
        self._wanted: Counter[str] = Counter()
        self._offers: list[Offer] = []
        self._opened: set[str] = set()
        self._pages = 0
        self._choices: list[str] | None = None

    def reset(self, task: Task, state: State, engine: Engine | None = None) -> None:
        """Parse the instruction of a new task."""
        del state, engine
        bound = BOUND.search(task.instruction)
        self._bound = float(bound[1]) if bound else float("inf")
        self._instruction = BOUND.sub("", task.instruction).lower()
        self._wanted = Counter(words(self._instruction))
        self._offers = []
        self._opened = set()
        self._pages = 0
        self._choices = None

    def fork(self, engine: Engine | None) -> ExplorerPlayer:
        """Return an independent copy. The engine is not used."""
        del engine
        return copy.deepcopy(self)

    def act(self, state: State) -> str:
        """Return the next action."""
        clicks = [
            action[6:-1] for action in state.actions if action.startswith("click[")
        ]
        if pages.QUERY_ACTION in state.actions:
            return f"search[{' '.join(self._wanted) or self._instruction}]"
        if pages.BUY.lower() in clicks:
            return self._on_item(state, clicks)
        if pages.NEXT.lower() in clicks:
            return self._on_results(state, clicks)
        return f"click[{clicks[0]}]" if clicks else f"click[{pages.BACK.lower()}]"

    def _on_results(self, state: State, clicks: Sequence[str]) -> str:
        # An offer that was opened is not opened again: it may have had no page.
        here = list(
            offers(page_parts(state.text), set(clicks) - BUTTONS - self._opened)
        )
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
        often = Counter(word for offer in self._offers for word in words(offer.title))
        # In the title's order: in that of a set, which differs between processes, the sum would be rounded differently.
        return sum(1.0 / often[word] for word in words(title) if word in self._wanted)

    def _on_item(self, state: State, clicks: Sequence[str]) -> str:
        if self._choices is None:
            values = [click for click in clicks if click not in BUTTONS]
            groups = option_groups(page_parts(state.text), values)
            self._choices = [
                best
                for name, group in groups
                if (best := named_value(self._instruction, name, group)) is not None
            ]
        return (
            f"click[{self._choices.pop(0)}]"
            if self._choices
            else f"click[{pages.BUY.lower()}]"
        )
