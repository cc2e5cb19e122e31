"""Goals: what the shopper is asked for, in the original's order, from explicit seeds.

The original draws from Python's global generator, in this order: a price for each product whose price is a range, a
price bound for each instruction, then (seeded 233) the order of the goals. A `GoalSet` draws the same from generators
of its own: `price_seed` stands for a `random.seed(price_seed)` before the original loads, `shuffle_seed` for its 233.
verl-agent's worker i loads and shuffles with the one seed of its own: that is `price_seed = shuffle_seed = seed`.

Only prices, bounds and the order are kept (4 bytes a goal); goals are made when asked for.

Source: WebShop's `web_agent_site/engine/goal.py` (`get_goals`), `engine/engine.py` (`generate_product_prices`) and
`envs/web_agent_text_env.py` (`SimServer`).
"""

from __future__ import annotations

import random
from array import array
from bisect import bisect, bisect_right
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

import numpy as np

from hgpo_envs.caching import bounded_cache
from hgpo_envs.errors import InputError, unknown
from hgpo_envs.webshop.records import mapped, report_damage

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
"""Characters of the longest goal that is kept, with those of its product."""

MOST_GOALS: Final = 1 << 27
"""Goals of one kind in a catalogue; each takes four bytes."""

PUBLISHED_TEST: Final = 500
PUBLISHED_EVAL: Final = 1500
PUBLISHED_LEAST: Final = 2000
"""Sets of fewer goals are split in proportion: the published ranges would leave little or nothing to train on."""


PRICE_SEED: Final = 0
SHUFFLE_SEED: Final = 233
"""The original's own; `PRICE_SEED` is this package's default for what the original leaves unseeded."""

KEPT_FROM: Final = 100_000
"""Catalogues with so many goals hold what the default seeds draw."""

_KEPT_NAMES: Final = ("goals.{}.prices.npy", "goals.{}.bounds.npy", "goals.{}.order.npy")

_Drawn: TypeAlias = "tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.int32]]"
_Material: TypeAlias = "tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]"
"""For each instruction that makes goals: where it is, its product, and how many goals it makes."""


@dataclass(frozen=True, slots=True)
class Goal:
    """One instruction and what satisfies it.

    Attributes:
        index: The goal's place in the shuffled order.
        product: The product that the goal was made from.
        instruction: The text that the shopper is shown.
        attributes: What the product should have.
        options: What should be chosen: values by option name (synthetic goals), or values alone (human goals).
        price_upper: The most that the product may cost, in dollars; 1,000,000 is no bound.
    """

    index: int
    product: Product
    instruction: str
    attributes: tuple[str, ...]
    options: Mapping[str, str] | tuple[str, ...]
    price_upper: float


class GoalSet:
    """All goals of a catalogue, of one kind.

    Args:
        catalogue: The products and the goals' raw material.
        kind: `synthetic` goals combine an instruction with every choice of options; `human` ones were written by
            people.
        price_seed: Seeds ranged prices and price bounds.
        shuffle_seed: Seeds the goals' order.

    Raises:
        InputError: The kind is not known, the catalogue has no goals of it, or the original could not have made them.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        kind: GoalKind = "synthetic",
        price_seed: int = PRICE_SEED,
        shuffle_seed: int = SHUFFLE_SEED,
    ) -> None:
        if kind not in ("synthetic", "human"):
            raise InputError(unknown("kind of goals", kind, ("synthetic", "human")))
        price_seed, shuffle_seed = checked_seed("price_seed", price_seed), checked_seed("shuffle_seed", shuffle_seed)
        self.catalogue: Final = catalogue
        self.kind: Final = kind
        with report_damage(catalogue.folder):
            material = _human_material(catalogue) if kind == "human" else _material(catalogue)
            if len(material[1]) and not (material[1].min() >= 0 and material[1].max() < len(catalogue)):
                raise ValueError("a goal of a product that does not exist")
        self._sources, self._rows, counts = material
        self._ends = np.cumsum(counts, dtype=np.int64)
        total = int(self._ends[-1]) if len(self._ends) else 0
        if not total:
            raise InputError(f"the catalogue in {catalogue.folder} has no {kind} goals; try the other kind of goals")
        if not (counts >= 0).all() or counts.max() > MOST_GOALS or not 0 < total <= MOST_GOALS:
            raise InputError(f"the catalogue in {catalogue.folder} has more than {MOST_GOALS:,} {kind} goals, or none")
        kept = (
            _kept(catalogue, kind, len(self._rows), total)
            if (price_seed, shuffle_seed) == (PRICE_SEED, SHUFFLE_SEED)
            else None
        )
        self.prices, self._bounds, self._order = kept or _drawn(
            catalogue, self._rows, total, price_seed=price_seed, shuffle_seed=shuffle_seed
        )
        self.goal = bounded_cache(self._goal, KEPT_GOALS, LONGEST_GOAL, _length)

    def __len__(self) -> int:
        return len(self._order)

    def _goal(self, index: int) -> Goal:
        """The goal at a place of the shuffled order. Raises IndexError outside 0 … len - 1."""
        if not 0 <= index < len(self):
            raise IndexError(f"goal {index} of {len(self)}")
        with report_damage(self.catalogue.folder):
            return self._made(index)

    def _made(self, index: int) -> Goal:
        place = int(self._order[index])
        source = int(np.searchsorted(self._ends, place, side="right"))
        number = place - (int(self._ends[source - 1]) if source else 0)
        bound = float(self._bounds[source])
        product = self.catalogue.product(int(self._rows[source]))
        price = "" if bound == NO_BOUND else f", and price lower than {bound:.2f} dollars"
        if self.kind == "human":
            human = self.catalogue.human_instruction(int(self._sources[source]))
            text = human.instruction.strip(".") + price
            return Goal(index, product, text, human.attributes, human.options, bound)
        if not product.instruction_attributes:
            raise InputError(f"the instruction of {product.asin} names no attribute; the original stops there too")
        options = combination(product.options, number)
        chosen = ", and ".join(f"{name}: {value}" for name, value in options.items())
        text = f"{product.instruction}{' with ' if chosen else ''}{chosen}{price}"
        return Goal(index, product, text, product.instruction_attributes, options, bound)

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """How likely each goal is, relative to the others, when the original draws one: float64, shuffled order.

        1 for human goals; for synthetic ones the mean over the goal's attributes of 1 / goals with that attribute.
        """
        if self.kind == "human":
            return np.ones(len(self))
        counts = np.diff(self._ends, prepend=0)
        wanted = [self.catalogue.product(int(row)).instruction_attributes or () for row in self._rows]
        often: Counter[str] = Counter()
        for attributes, count in zip(wanted, counts.tolist(), strict=True):
            for attribute in attributes:
                often[attribute] += count
        means = [
            sum(1.0 / often[attribute] for attribute in attributes) / len(attributes) if count else 0.0
            for attributes, count in zip(wanted, counts.tolist(), strict=True)
        ]
        return np.repeat(np.array(means), counts)[self._order]

    def draw(self, seed: int) -> int:
        """The goal that the original draws, by weight, for `random.seed(seed)` and a reset without a session.

        It takes the goal after the one that the drawn weight falls on.
        """
        generator = random.Random(seed)
        generator.choices("abcdefghijklmnopqrstuvwxyz", k=10)  # the session's name
        ends = [0.0, *np.cumsum(self.weights).tolist()]
        return min(bisect(ends, generator.uniform(0, ends[-1])), len(ends) - 2)


def checked_seed(name: str, seed: object) -> int:
    """A seed, if it is an integer.

    Python's generator would take None for a new seed in every process, so that the same task had other prices there.

    Raises:
        InputError: It is not.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
        raise InputError(f"{name}: expected an integer, got {seed!r:.40}")
    return int(seed)


def _length(goal: Goal, _: int) -> int:
    """Characters of a goal and its product."""
    product = goal.product
    return len(goal.instruction) + len(product.title) + len(product.description) + sum(map(len, product.bullet_points))


def split_ranges(goals: int) -> dict[str, range]:
    """The goals of each split, by place in the shuffled order; splits never overlap.

    As published: test 0-500, eval 500-1500, train from 1500. Of fewer than 2,000 goals the first tenth is test, the
    next fifth eval and the rest train.

    >>> split_ranges(12_087)["train"], split_ranges(505)
    (range(1500, 12087), {'test': range(0, 50), 'eval': range(50, 151), 'train': range(151, 505)})
    """
    first, second = PUBLISHED_TEST, PUBLISHED_EVAL
    if goals < PUBLISHED_LEAST:
        first, second = goals // 10, goals // 10 + goals // 5
    return {"test": range(first), "eval": range(first, second), "train": range(second, goals)}


def combination(options: Mapping[str, Sequence[str]], number: int) -> dict[str, str]:
    """One choice of options: the names in alphabetical order, the last one's values changing fastest.

    >>> combination({"size": ("s", "m"), "color": ("red", "blue")}, 1)
    {'color': 'red', 'size': 'm'}
    """
    chosen: dict[str, str] = {}
    for name in sorted(options, reverse=True):
        number, at = divmod(number, len(options[name]))
        chosen[name] = options[name][at]
    return dict(reversed(chosen.items()))


def keep_goals(catalogue: Catalogue) -> None:
    """Writes what the default seeds draw into a large catalogue's folder, so that processes map it and need not draw.

    Called when the catalogue is built; smaller ones are drawn in no time.
    """
    for kind in get_args(GoalKind):
        _, rows, counts = _human_material(catalogue) if kind == "human" else _material(catalogue)
        total = int(counts.sum())
        if total >= KEPT_FROM:
            arrays: tuple[NDArray[Any], ...] = _drawn(
                catalogue, rows, total, price_seed=PRICE_SEED, shuffle_seed=SHUFFLE_SEED
            )
            for name, array in zip(_KEPT_NAMES, arrays, strict=True):
                np.save(catalogue.folder / name.format(kind), array)


def _kept(catalogue: Catalogue, kind: GoalKind, instructions: int, total: int) -> _Drawn | None:
    paths = [catalogue.folder / name.format(kind) for name in _KEPT_NAMES]
    if not all(path.is_file() for path in paths):
        return None
    prices, bounds, order = (mapped(path, np.float64, np.int32) for path in paths)
    if [len(prices), len(bounds), len(order)] != [len(catalogue), instructions, total]:
        raise InputError(f"the goals kept in {catalogue.folder} do not fit its products; build the catalogue again")
    return prices, bounds, order


def _drawn(catalogue: Catalogue, rows: NDArray[np.int64], total: int, *, price_seed: int, shuffle_seed: int) -> _Drawn:
    """Prices by product, bounds by instruction, and the goals' order."""
    draw = random.Random(price_seed)
    prices = _prices(catalogue.prices, draw)
    return prices, _bounds(prices[rows], draw), _shuffled(total, shuffle_seed)


def _prices(ends: NDArray[np.float64], draw: random.Random) -> NDArray[np.float64]:
    """Each product's price: its only one, or one drawn between both ends, in the products' order."""
    prices = np.array(ends[:, 0])
    for row in np.flatnonzero(~np.isnan(ends[:, 1])).tolist():
        prices[row] = draw.uniform(float(ends[row, 0]), float(ends[row, 1]))
    return prices


def _bounds(prices: NDArray[np.float64], draw: random.Random) -> NDArray[np.float64]:
    """A price bound for each instruction: the larger of two that `sample` draws of the first four tens above it."""
    bounds = np.full(len(prices), NO_BOUND)
    bits = draw.getrandbits
    for at, price in enumerate(prices.tolist()):
        first = bisect_right(BOUNDS, price)
        choices = min(4, len(BOUNDS) - first)
        if choices >= 2:
            one = _below(choices, bits)
            other = _below(choices - 1, bits)
            bounds[at] = BOUNDS[first + max(one, choices - 1 if other == one else other)]
    return bounds


def _shuffled(count: int, seed: int) -> NDArray[np.int32]:
    """The numbers 0 … count - 1 in the order that `random.seed(seed)` and `random.shuffle` give a list."""
    bits = random.Random(seed).getrandbits
    order = array("i", range(count))
    for last in range(count - 1, 0, -1):
        at = _below(last + 1, bits)
        order[last], order[at] = order[at], order[last]
    return np.frombuffer(order, np.int32)


def _below(bound: int, bits: Callable[[int], int]) -> int:
    """A number from 0 to bound - 1 as Python's generator draws it: bits again until they are small enough.

    Written out, as `sample` and `shuffle` are here, so that goals do not change if a later Python draws otherwise.
    """
    length = bound.bit_length()
    number = bits(length)
    while number >= bound:
        number = bits(length)
    return number


def _human_material(catalogue: Catalogue) -> _Material:
    products, attributes = catalogue.human_products()
    kept = np.flatnonzero(attributes)
    return kept, products[kept].astype(np.int64), np.ones(len(kept), np.int64)


def _material(catalogue: Catalogue) -> _Material:
    rows = np.array(catalogue.instructed, np.int64)
    return rows, rows, np.array(catalogue.combinations[rows], np.int64)
