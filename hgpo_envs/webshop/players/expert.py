"""The expert: reads the engine's data, finds the purchase with the best score, and makes it directly.

It scores 1 on every goal that some purchase satisfies, provided that a search finds the product. For other goals it
makes the best purchase of the goal's own product.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hgpo_envs.players import engine_to_read
from hgpo_envs.webshop.engine import WebShopEngine, pages
from hgpo_envs.webshop.engine.reward import (
    first_colour,
    has_attribute,
    reward,
    same,
    type_match,
    wanted_options,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hgpo_envs.engine import Engine, State, Task
    from hgpo_envs.webshop.catalogue.products import Product
    from hgpo_envs.webshop.engine.goals import Goal

EXAMINED: Final = 20_000
"""The size up to which a catalogue is searched completely for another product that satisfies a goal."""

# characters that would end an action or start a magic query
_UNSAFE: Final = re.compile(r"[\[\]<>\s]+")
_QUERY_WORDS: Final = 60
_GIVE_UP: Final = f"click[{pages.BACK.lower()}]"


@dataclass(frozen=True, slots=True)
class PurchasePlan:
    """The expert's plan for a goal.

    Attributes:
        actions: The actions from the search page to the purchase.
        score: The score of the purchase.
    """

    actions: tuple[str, ...]
    score: float


class ExpertPlayer:
    """A player that executes the plan of `plan_purchase`. `reset` needs the native engine."""

    def __init__(self) -> None:
        self.plan = PurchasePlan((), 0.0)
        self._done = 0

    def reset(self, task: Task, state: State, engine: Engine | None = None) -> None:
        """Make the plan for the engine's current task.

        Raises:
            InputError: If the engine is not the native one.
        """
        del task, state
        reading = "WebShop's expert needs the native engine"
        self.plan = plan_purchase(engine_to_read(engine, WebShopEngine, reading))
        self._done = 0

    def fork(self, engine: Engine | None) -> ExpertPlayer:
        """Return an independent copy. The engine is not used: the plan is complete."""
        del engine
        return copy.copy(self)

    def act(self, state: State) -> str:
        """Return the next action of the plan."""
        del state
        self._done += 1
        return (
            self.plan.actions[self._done - 1]
            if self._done <= len(self.plan.actions)
            else _GIVE_UP
        )


def plan_purchase(engine: WebShopEngine) -> PurchasePlan:
    """Return the expert's plan for the engine's current goal."""
    own = _purchase(engine, engine.goal.product)
    if own.score == 1.0:
        return own
    others = (_purchase(engine, product) for product in _others(engine))
    return next((other for other in others if other.score == 1.0), own)


def _purchase(engine: WebShopEngine, product: Product) -> PurchasePlan:
    """Return the best plan to buy a product: a search that finds it and the options to choose."""
    goal = engine.goal
    shop = engine.shop
    choices = best_choices(product, goal, engine)
    chosen = {name: value for value, name in choices.items()}
    path = _path(engine, product)
    if path is None:
        return PurchasePlan((), 0.0)
    result = reward(
        product,
        goal,
        shop.price(product.index),
        chosen,
        engine.quirks.option_colours,
    )
    clicks = [
        product.asin.lower(),
        *choices,
        pages.BUY.lower(),
    ]
    actions = (*path, *(f"click[{name}]" for name in clicks))
    return PurchasePlan(actions, result.score)


def best_choices(product: Product, goal: Goal, engine: WebShopEngine) -> dict[str, str]:
    """Return the smallest set of values that satisfies as many of a goal's options as possible.

    Returns:
        The option name of each value to click.
    """
    wanted = wanted_options(goal, engine.quirks.option_colours)
    # A goal's options are bits. Option by option, `found` keeps for each set of satisfied ones the fewest clicks that
    # satisfy it: one value can satisfy several, and only one value of an option can be chosen.
    found: dict[int, dict[str, str]] = {0: {}}
    for name, values in _clickable_values(engine, product).items():
        counted = {value: _satisfied(value, wanted) for value in values}
        for mask, clicks in list(found.items()):
            for value, bits in counted.items():
                more = mask | bits
                fewest = len(found[more]) if more in found else len(clicks) + 2
                if more != mask and len(clicks) + 1 < fewest:
                    found[more] = {**clicks, value: name}
    return found[max(found, key=int.bit_count)]


def _satisfied(value: str, wanted: list[str]) -> int:
    normal = first_colour(value)
    return sum(1 << place for place, want in enumerate(wanted) if same(normal, want))


def _clickable_values(engine: WebShopEngine, product: Product) -> dict[str, list[str]]:
    """Return the values of each option that a click can choose.

    Some values cannot be chosen: a button has the same text, or an action cannot contain the text.
    """
    page = pages.item_page(
        "", engine.shop.item_nodes(product.index, engine.show_attributes)
    )
    taken = {
        "search",
        pages.BUY.lower(),
        pages.BACK.lower(),
        pages.PREVIOUS.lower(),
        *map(str.lower, pages.SUB_PAGES),
    }
    values: dict[str, list[str]] = {}
    for value, node in pages.clickables(page).items():
        if (
            node.kind == "option"
            and value not in taken
            and pages.parse_action(f"click[{value}]") == ("click", value)
        ):
            values.setdefault(node.option.lower(), []).append(value)
    return values


def _others(engine: WebShopEngine) -> Iterable[Product]:
    """Yield other products that may satisfy the goal, judged by price, type and attributes."""
    shop = engine.shop
    goal = engine.goal
    small = len(shop.catalogue) <= EXAMINED
    rows = (
        range(len(shop.catalogue))
        if small
        else shop.catalogue.search(_clean(goal.instruction))
    )
    for row in rows:
        if row == goal.product.index or shop.price(int(row)) > goal.price_upper:
            continue
        product = shop.catalogue.product(int(row))
        if type_match(product, goal.product)[0] == 1.0 and all(
            has_attribute(product, a) for a in goal.attributes
        ):
            yield product


def _path(engine: WebShopEngine, product: Product) -> tuple[str, ...] | None:
    """Return a search and the clicks on `Next >` that bring a product into view, or None if no search finds it."""
    if (
        pages.parse_action(f"click[{product.asin}]") != ("click", product.asin.lower())
        or product.asin.upper() != product.asin
    ):
        return None
    best: tuple[int, str] | None = None
    for query in _queries(engine, product):
        rank = engine.rank(product.index, query)
        if rank is not None and (best is None or rank // pages.PAGE_SIZE < best[0]):
            best = (rank // pages.PAGE_SIZE, query)
        if best and best[0] == 0:
            break
    if best is None:
        return None
    return (f"search[{best[1]}]", *[f"click[{pages.NEXT.lower()}]"] * best[0])


def _queries(engine: WebShopEngine, product: Product) -> Iterator[str]:
    """Yield queries that may find a product, the most promising first."""
    options = " ".join(value for values in product.options.values() for value in values)
    first = product.bullet_points[0] if product.bullet_points else ""
    texts = (
        product.title,
        f"{product.title} {product.query}",
        f"{product.title} {options}",
        f"{product.title} {first}",
        f"{product.title} {product.description}",
        f"{product.description}",
        f"{first} {options}",
    )
    yield from filter(None, map(_clean, texts))
    if engine.quirks.magic_queries:
        yield f"<q> {_clean(product.query)}"
        yield f"<c> {_clean(product.category)}"


def _clean(text: str) -> str:
    """Return a text as a query: without characters that have a meaning in actions or magic queries, and truncated."""
    return " ".join(_UNSAFE.sub(" ", text.lower()).split()[:_QUERY_WORDS])
