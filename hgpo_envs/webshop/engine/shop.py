"""The data that all engines of a process share: a catalogue, its goals, and caches of pages and results.

All caches are bounded, so that memory does not grow with the number of environments or episodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from hgpo_envs.caching import bounded_cache
from hgpo_envs.task_sampling import task_number
from hgpo_envs.webshop.catalogue.catalogue import LONGEST_QUERY
from hgpo_envs.webshop.engine import pages
from hgpo_envs.webshop.engine.goals import Goal, GoalKind, GoalSet

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hgpo_envs.webshop.catalogue import Catalogue
    from hgpo_envs.webshop.engine.pages import Node

Selection: TypeAlias = "tuple[int, ...] | NDArray[np.int64]"
"""Products as indices into the catalogue."""

GOAL_INDEX: Final = "a WebShop task is a goal's index"

KEPT_ITEMS: Final = 512
LONGEST_ITEM: Final = 1 << 16
"""The maximum length of a cached item page in characters."""
KEPT_SELECTIONS: Final = 4


class Shop:
    """A catalogue with one set of goals and prices.

    Args:
        catalogue: The products.
        goals: The kind of goals.
        price_seed: The seed of prices drawn from ranges and of price bounds.
        shuffle_seed: The seed of the goals' order.
    """

    def __init__(
        self, catalogue: Catalogue, goals: GoalKind, price_seed: int, shuffle_seed: int
    ) -> None:
        self.catalogue: Final = catalogue
        self.goals: Final = GoalSet(catalogue, goals, price_seed, shuffle_seed)
        self.item_nodes = bounded_cache(
            self._item_nodes,
            KEPT_ITEMS,
            LONGEST_ITEM,
            lambda nodes, *_: sum(len(node.text) for node in nodes),
        )
        self.products_where = bounded_cache(
            catalogue.products_where,
            KEPT_SELECTIONS,
            LONGEST_QUERY,
            lambda _, __, value: len(value),
        )

    def goal(self, task_id: str | int) -> Goal:
        """Return the goal with this task id. Raises UnknownTask if there is none."""
        return self.goals.goal(task_number(task_id, len(self.goals), GOAL_INDEX))

    def price(self, index: int) -> float:
        """Return a product's price in this shop in dollars. For a price range, the price is a draw from it."""
        return float(self.goals.prices[index])

    def _item_nodes(self, index: int, show_attributes: bool) -> tuple[Node, ...]:
        return pages.item_nodes(
            self.catalogue.product(index), show_attributes=show_attributes
        )
