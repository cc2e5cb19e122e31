"""Features of WebShop's actions for the policy `softmax`, from what a prompt shows.

The text of a page does not show which options were chosen (unless `observation_mode="text_rich"`). These features know
it only while the visible history shows the click.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from hgpo_envs.webshop.engine import pages
from hgpo_envs.webshop.players.page_texts import (
    BOUND,
    BUTTONS,
    named_value,
    offers,
    option_groups,
    page_parts,
    words,
)
from hgpo_research.features.words import CountedFeatures

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hgpo_envs.memory import Pair
    from hgpo_research.features.words import Features

_QUERY_LENGTHS: Final = (1, 2, 4, 8)
"""Numbers of words of the queries, besides the query of all words."""
_PRICE: Final = re.compile(r"Price: \$([\d.]+)")
_CLICKED: Final = re.compile(r"^You have clicked (.*)\.$", re.MULTILINE)
_BUY, _NEXT, _PREVIOUS, _BACK = (
    f"click[{text.lower()}]"
    for text in (pages.BUY, pages.NEXT, pages.PREVIOUS, pages.BACK)
)


class _Wish(NamedTuple):
    """A parsed instruction: its text without the price, its words, and the highest price in dollars."""

    text: str
    words: tuple[str, ...]
    bound: float


@lru_cache(maxsize=256)
def _wish(instruction: str) -> _Wish:
    bound = BOUND.search(instruction)
    text = BOUND.sub("", instruction).lower()
    return _Wish(text, tuple(words(text)), float(bound[1]) if bound else float("inf"))


class ShopFeatures:
    """Features of WebShop's actions (`hgpo_research.features.words.ActionFeatures`). The values are 1 unless stated.

    - query: share of the instruction's words in a query. The queries are its first 1, 2, 4, 8 and all words.
    - result: open a result; how well its title matches, words that are rare in the page's titles counting more,
      divided by the best match of the page
    - dear: open a result, or buy a product, whose price is above the bound
    - next: the next page, if no result here is affordable
    - named: choose the option's value that the instruction names
    - other_value: choose another value
    - buy: the purchase
    - unchosen: the purchase; number of options whose named value was not chosen, as far as the prompt shows
    - fit: the purchase; share of the instruction's words in the page's text
    - return: from a product's tab to the product
    - leave: another page
    - tab: a product's description, features or reviews
    - repeated: how often the history contains the action at the same observation
    """

    weights: Mapping[str, float] = {
        "query": 4.0,
        "result": 6.0,
        "dear": -4.0,
        "next": 4.0,
        "named": 6.0,
        "other_value": -1.0,
        "buy": 5.0,
        "unchosen": -2.5,
        "fit": 2.0,
        "return": 3.0,
        "leave": -1.0,
        "tab": -1.0,
        "repeated": -6.0,
    }

    def read(
        self, instruction: str, observation: str, actions: tuple[str, ...]
    ) -> CountedFeatures:
        """See `ActionFeatures`."""
        wish = _wish(instruction)
        if pages.QUERY_ACTION in actions:
            others: dict[str, Features] = {
                action: {} for action in actions if action != pages.QUERY_ACTION
            }
            return CountedFeatures(observation, {**_queries(wish), **others})
        if _BUY in actions:
            return _ItemFeatures(observation, _item_page(wish, observation, actions))
        if _NEXT in actions:
            return CountedFeatures(
                observation, _results_page(wish, observation, actions)
            )
        leaving = {
            action: {"return": 1.0} if action == _PREVIOUS else {"leave": 1.0}
            for action in actions
        }
        return CountedFeatures(observation, leaving)


class _ItemFeatures(CountedFeatures):
    """The features of a product's page: options that the history shows as chosen count at the purchase."""

    def changes(self, history: Sequence[Pair]) -> dict[str, Features]:
        """See `StateFeatures`."""
        changed = super().changes(history)
        chosen = sum(
            "named" in self.choices[action] and "repeated" not in self.choices[action]
            for action in changed
        )
        if chosen:
            purchase = changed.get(_BUY, self.choices[_BUY])
            changed[_BUY] = {
                **purchase,
                "unchosen": purchase["unchosen"] - chosen,
            }
        return changed


def _queries(wish: _Wish) -> dict[str, Features]:
    # Longer queries are more specific; the first words name the product.
    most = len(wish.words)
    lengths = [
        *(length for length in _QUERY_LENGTHS if length < most),
        most,
    ]
    return {
        f"search[{' '.join(wish.words[:length]) or wish.text}]": {
            "query": length / max(most, 1)
        }
        for length in lengths
    }


def _results_page(
    wish: _Wish, observation: str, actions: Sequence[str]
) -> dict[str, Features]:
    found: dict[str, Features] = {action: {"leave": 1.0} for action in actions}
    here = list(
        offers(
            page_parts(observation),
            {action[6:-1] for action in actions} - BUTTONS,
        )
    )
    # Words that all titles share tell no product from another.
    often = Counter(word for offer in here for word in words(offer.title))
    worth = {
        offer.asin: sum(
            1 / often[word] for word in words(offer.title) if word in wish.words
        )
        for offer in here
    }
    best = max(worth.values(), default=0.0) or 1.0
    for offer in here:
        dear = {"dear": 1.0} if offer.price > wish.bound else {}
        found[f"click[{offer.asin.lower()}]"] = {
            "result": worth[offer.asin] / best,
            **dear,
        }
    if all(offer.price > wish.bound for offer in here):
        found[_NEXT] = {"next": 1.0}
    return found


def _item_page(
    wish: _Wish, observation: str, actions: Sequence[str]
) -> dict[str, Features]:
    clicks = {action[6:-1]: action for action in actions}
    found: dict[str, Features] = {action: {"tab": 1.0} for action in actions}
    found |= {
        action: {"leave": 1.0} for action in (_PREVIOUS, _BACK) if action in found
    }
    for name, group in option_groups(
        page_parts(observation),
        [click for click in clicks if click not in BUTTONS],
    ):
        best = named_value(wish.text, name, group)
        found |= {
            clicks[value]: {"named": 1.0} if value == best else {"other_value": 1.0}
            for value in group
        }
    # Rich pages say which options were chosen, as a click in the history does.
    for action in {
        f"click[{value}]" for value in _CLICKED.findall(observation)
    } & found.keys():
        found[action] = {**found[action], "repeated": 1.0}
    unchosen = sum(
        "named" in values and "repeated" not in values for values in found.values()
    )
    # The purchase is judged by what the page shows: its price, its words, and the options that were clicked.
    price = _PRICE.search(observation)
    shown = set(words(observation))
    found[_BUY] = {
        "buy": 1.0,
        "unchosen": float(unchosen),
        "fit": sum(word in shown for word in wish.words) / max(len(wish.words), 1),
        "dear": float(price is not None and float(price[1]) > wish.bound),
    }
    return found
