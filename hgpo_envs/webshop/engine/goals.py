"""WebShop's goals in the original's order, from explicit seeds.

The original draws from Python's global generator, in this order: a price for each product with a price range, a price
bound for each instruction, and (seeded with 233) the order of the goals. A `GoalSet` draws the same values from its own
generators: `price_seed` corresponds to `random.seed(price_seed)` before the original loads, `shuffle_seed` to its 233.
Each verl-agent worker loads and shuffles with one seed, which corresponds to `price_seed = shuffle_seed = seed`.

Only prices, bounds and the order are stored (4 bytes per goal). Goals are created on access.

Source: WebShop's `web_agent_site/engine/goal.py` (`get_goals`), `engine/engine.py` (`generate_product_prices`) and
`envs/web_agent_text_env.py` (`SimServer`).
"""

from __future__ import annotations

import random
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

import numpy as np

from hgpo_envs.caching import bounded_cache
from hgpo_envs.errors import InputError, check_known
from hgpo_envs.webshop.records import report_damage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from hgpo_envs.webshop.catalogue import Catalogue
    from hgpo_envs.webshop.catalogue.products import Product

GoalKind = Literal["synthetic", "human"]

BOUNDS: Final = [10.0 * i for i in range(1, 100)]
NO_BOUND: Final = 1_000_000.0
KEPT_GOALS: Final = 512
LONGEST_GOAL: Final = 1 << 16
"""The maximum length in characters of a cached goal and its product."""

MOST_GOALS: Final = 1 << 27
"""The maximum number of goals of one kind in a catalogue. Each uses four bytes."""

PUBLISHED_TEST: Final = 500
PUBLISHED_EVAL: Final = 1500
PUBLISHED_LEAST: Final = 2000
"""Smaller sets of goals are split in proportion, because the published ranges would leave too few for training."""


SHUFFLE_SEED: Final = 233
"""The original's seed of the order."""


@dataclass(frozen=True, slots=True)
class Goal:
    """An instruction and the product properties that satisfy it.

    Attributes:
        index: The goal's position in the shuffled order.
        product: The product from which the goal was created.
        instruction: The instruction's text.
        attributes: The attributes that the product should have.
        options: The options to choose: values by option name (synthetic goals), or values only (human goals).
        price_upper: The maximum price in dollars. 1,000,000 means no bound.
    """

    index: int
    product: Product
    instruction: str
    attributes: tuple[str, ...]
    options: Mapping[str, str] | tuple[str, ...]
    price_upper: float


class GoalSet:
    """All goals of one kind in a catalogue.

    Args:
        catalogue: The products and instructions.
        kind: `synthetic` for an instruction combined with every choice of options, or `human` for instructions written
            by people.
        price_seed: The seed of prices drawn from ranges and of price bounds.
        shuffle_seed: The seed of the goals' order.

    Raises:
        InputError: If the kind is unknown, the catalogue has no goals of this kind, or it is damaged.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        kind: GoalKind,
        price_seed: int,
        shuffle_seed: int,
    ) -> None:
        check_known("kind of goals", kind, get_args(GoalKind))
        price_seed = checked_seed("price_seed", price_seed)
        shuffle_seed = checked_seed("shuffle_seed", shuffle_seed)
        self.catalogue: Final = catalogue
        self.kind: Final = kind
        # Of each instruction with goals: its position, its product, and the number of goals.
        if kind == "human":
            products, attributes = catalogue.human_products()
            # the original skips instructions without attributes
            sources = np.flatnonzero(attributes)
            rows = products[sources].astype(np.int64)
            counts = np.ones(len(sources), np.int64)
        else:
            sources = rows = np.array(catalogue.instructed, np.int64)
            counts = np.array(catalogue.combinations[rows], np.int64)
        self._sources = sources
        self._rows = rows
        self._ends = np.cumsum(counts, dtype=np.int64)
        total = int(self._ends[-1]) if len(self._ends) else 0
        if not total:
            raise InputError(
                f"the catalogue in {catalogue.folder} has no {kind} goals; try the other kind of goals"
            )
        if counts.min() < 0 or counts.max() > MOST_GOALS or total > MOST_GOALS:
            raise InputError(
                f"the catalogue in {catalogue.folder} has more than {MOST_GOALS:,} {kind} goals, or none"
            )
        # The original's draws, in its order: prices, then bounds; the order has its own seed.
        draw = random.Random(price_seed)
        self.prices = _prices(catalogue.prices, draw)
        self._bounds = _bounds(self.prices[rows], draw)
        self._order = _shuffled(total, shuffle_seed)
        self.goal = bounded_cache(self._goal, KEPT_GOALS, LONGEST_GOAL, _length)

    def __len__(self) -> int:
        return len(self._order)

    def _goal(self, index: int) -> Goal:
        """Return the goal at an index of the shuffled order. Raises IndexError outside 0 … len - 1."""
        if not 0 <= index < len(self):
            raise IndexError(f"goal {index} of {len(self)}")
        with report_damage(self.catalogue.folder):
            return self._compose(index)

    def _compose(self, index: int) -> Goal:
        # From the shuffled order to the place in the original's list, its instruction, and the choice of options.
        place = int(self._order[index])
        source = int(np.searchsorted(self._ends, place, side="right"))
        number = place - (int(self._ends[source - 1]) if source else 0)
        bound = float(self._bounds[source])
        product = self.catalogue.product(int(self._rows[source]))
        price = (
            "" if bound == NO_BOUND else f", and price lower than {bound:.2f} dollars"
        )
        if self.kind == "human":
            human = self.catalogue.human_instruction(int(self._sources[source]))
            text = human.instruction.strip(".") + price
            return Goal(
                index,
                product,
                text,
                human.attributes,
                human.options,
                bound,
            )
        if not product.instruction_attributes:
            raise InputError(
                f"the instruction of {product.asin} has no attributes; the original fails here too"
            )
        options = combination(product.options, number)
        chosen = ", and ".join(f"{name}: {value}" for name, value in options.items())
        text = f"{product.instruction}{' with ' if chosen else ''}{chosen}{price}"
        return Goal(
            index, product, text, product.instruction_attributes, options, bound
        )


def checked_seed(name: str, seed: object) -> int:
    """Return a seed as int.

    None is rejected, because Python's generator would then be seeded differently in every process, and a task's prices
    would differ between processes.

    Raises:
        InputError: If the seed is not an integer.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise InputError(f"{name}: expected an integer, received {seed!r:.40}")
    return int(seed)


def _length(goal: Goal, _: int) -> int:
    """Return the length in characters of a goal and its product."""
    product = goal.product
    return (
        len(goal.instruction)
        + len(product.title)
        + len(product.description)
        + sum(map(len, product.bullet_points))
    )


def split_ranges(goals: int) -> dict[str, range]:
    """Return the goals of each split as ranges of the shuffled order. The splits are disjoint.

    The published splits are test 0-500, eval 500-1500 and train from 1500. With fewer than 2,000 goals, the first tenth
    is test, the next fifth eval and the rest train.

    >>> split_ranges(12_087)["train"], split_ranges(505)
    (range(1500, 12087), {'test': range(0, 50), 'eval': range(50, 151), 'train': range(151, 505)})
    """
    first = PUBLISHED_TEST
    second = PUBLISHED_EVAL
    if goals < PUBLISHED_LEAST:
        first = goals // 10
        second = goals // 10 + goals // 5
    return {
        "test": range(first),
        "eval": range(first, second),
        "train": range(second, goals),
    }


def combination(options: Mapping[str, Sequence[str]], number: int) -> dict[str, str]:
    """Return the choice of options with a number. Names are in alphabetical order, and the last name varies fastest.

    >>> combination({"size": ("s", "m"), "color": ("red", "blue")}, 1)
    {'color': 'red', 'size': 'm'}
    """
    chosen: dict[str, str] = {}
    for name in sorted(options, reverse=True):
        number, at = divmod(number, len(options[name]))
        chosen[name] = options[name][at]
    return dict(reversed(chosen.items()))


def _prices(ends: NDArray[np.float64], draw: random.Random) -> NDArray[np.float64]:
    """Return each product's price: its single price, or a draw from its range, in the products' order."""
    prices = np.array(ends[:, 0])
    for row in np.flatnonzero(~np.isnan(ends[:, 1])).tolist():
        prices[row] = draw.uniform(float(ends[row, 0]), float(ends[row, 1]))
    return prices


def _bounds(prices: NDArray[np.float64], draw: random.Random) -> NDArray[np.float64]:
    """Return a price bound for each instruction: the larger of two draws from the first four tens above the price.

    The draws are those of Python's `random.sample`.
    """
    bounds = np.full(len(prices), NO_BOUND)
    bits = draw.getrandbits
    for at, price in enumerate(prices.tolist()):
        first = bisect_right(BOUNDS, price)
        choices = min(4, len(BOUNDS) - first)
        if choices >= 2:
            one = _below(choices, bits)
            other = _below(choices - 1, bits)
            bounds[at] = BOUNDS[
                first + max(one, choices - 1 if other == one else other)
            ]
    return bounds


def _shuffled(count: int, seed: int) -> NDArray[np.int32]:
    """Return 0 … count - 1 as shuffled by `random.seed(seed)` and `random.shuffle`."""
    bits = random.Random(seed).getrandbits
    order = array("i", range(count))
    for last in range(count - 1, 0, -1):
        at = _below(last + 1, bits)
        order[last], order[at] = order[at], order[last]
    return np.frombuffer(order, np.int32)


def _below(bound: int, bits: Callable[[int], int]) -> int:
    """Return a random integer from 0 to bound - 1, by Python's rejection sampling of bits.

    This function, `sample` and `shuffle` are implemented here so that goals do not change if a later Python version
    draws differently.
    """
    length = bound.bit_length()
    number = bits(length)
    while number >= bound:
        number = bits(length)
    return number
