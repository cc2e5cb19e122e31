"""The score of a purchase, and its parts.

    score = r_type · (matched attributes + matched options + [price ≤ bound]) / (|attributes| + |options| + 1)

Source: WebShop (Yao et al. 2022), section 3 and equation 1; `web_agent_site/engine/goal.py` (`get_reward`,
`get_type_reward`, `get_attribute_reward`, `get_option_reward`) and `engine/normalize.py` (`normalize_color`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final, Literal

from rapidfuzz import fuzz, utils

from hgpo_envs.caching import bounded_cache

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hgpo_envs.webshop.catalogue.products import Product
    from hgpo_envs.webshop.engine.goals import Goal

OptionColours = Literal["original", "both"]

# The order matters: `first_colour` returns the first word found.
COLOURS: Final = (  # noqa: SIM905 - a list would need a hundred lines
    "alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel "
    "camo caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry "
    "cream crystal dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green "
    "grey heather indigo ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot "
    "midnight mint mocha multicolor mushroom mustard natural navy nude olive orange peach pewter pink plum purple "
    "rainbow red rose royal rust sand sapphire seashell silver skull slate steel stone stonewash sunflower tan "
    "taupe teal tiger turquoise violet walnut wheat white wine yellow"
).split()

_SAME: Final = 85
_LATIN_1: Final = dict.fromkeys(range(128, 256))
_LEVELS: Final = "›"


@dataclass(frozen=True, slots=True)
class Reward:
    """A purchase's score and its parts, with the names and meanings of the original's `verbose_info`.

    Attributes:
        score: The score in [0, 1].
        r_type: How well the product's type matches the goal's: 1, 0.5, 0.1 or 0.
        r_att: The fraction of the goal's attributes that the product has.
        w_att: The weight of the attributes in the score.
        query_match: Whether the product has the same query as the goal's product.
        category_match: Whether the categories of the two products share at least two levels.
        title_score: The fraction of the nouns in the goal product's title that the product's title contains.
        r_option: The fraction of the goal's options that were chosen. None if the goal has no options.
        w_option: The weight of the options in the score.
        r_price: Whether the price is within the bound.
        w_price: The weight of the price in the score.
    """

    score: float
    r_type: float
    r_att: float
    w_att: float
    query_match: bool
    category_match: bool
    title_score: float
    r_option: float | None
    w_option: float
    r_price: bool
    w_price: float

    def parts(self) -> dict[str, float | bool]:
        """Return the parts under the original's names. Those of options are omitted if the goal has no options."""
        left_out = (
            {"score"}
            if self.r_option is not None
            else {"score", "r_option", "w_option"}
        )
        return {
            name: value for name, value in asdict(self).items() if name not in left_out
        }


def _process(text: str) -> str:
    """Normalise a text like thefuzz: drop characters 128 to 255, keep letters and digits only, in lowercase."""
    return utils.default_process(text.translate(_LATIN_1))


_processed = bounded_cache(
    _process,
    1 << 14,
    1 << 10,
    lambda _, text: len(text),
)


def same(first: str, second: str) -> bool:
    """Return whether two texts count as equal: thefuzz's `token_set_ratio` exceeds 85.

    >>> same("wide leg", "wide leg pants"), same("red", "blue")
    (True, False)
    """
    return round(fuzz.token_set_ratio(_processed(first), _processed(second))) > _SAME


def first_colour(text: str) -> str:
    """Return the first word of `COLOURS` that the text contains, or else the text.

    A colour inside another word counts: `wired` contains `red`.

    >>> first_colour("dark blue"), first_colour("wired"), first_colour("xl")
    ('blue', 'red', 'xl')
    """
    return next((colour for colour in COLOURS if colour in text), text)


def wanted_options(goal: Goal, colours: OptionColours = "original") -> list[str]:
    """Return the goal's options in the form with which chosen values are compared.

    Human goals contain values, which are normalised to their colour word like chosen values. Synthetic goals contain
    pairs of name and value. Here the original compares with a colour word only if it equals the name or value, and
    else with the printed pair. The chosen value `wired`, normalised to `red`, therefore does not match
    `('connectivity', 'wired')`. With `both`, only the value is compared, normalised on both sides.
    """
    if isinstance(goal.options, tuple):
        return [first_colour(value) for value in goal.options]
    pairs = goal.options.items()
    if colours == "both":
        return [first_colour(value) for _, value in pairs]
    return [
        next((colour for colour in COLOURS if colour in pair), str(pair))
        for pair in pairs
    ]


def matched_options(chosen: Sequence[str], wanted: Sequence[str]) -> int:
    """Return how many of the wanted options (from `wanted_options`) some chosen value satisfies."""
    normal = [first_colour(value) for value in chosen]
    return sum(any(same(have, want) for have in normal) for want in wanted)


def has_attribute(product: Product, attribute: str) -> bool:
    """Return whether a product has an attribute, in its attributes, title, bullet points or description."""
    return (
        any(same(own, attribute) for own in product.attributes)
        or attribute in product.title.lower()
        or attribute in " ".join(product.bullet_points).lower()
        or attribute in product.description.lower()
    )


def type_match(product: Product, target: Product) -> tuple[float, bool, bool, float]:
    """Return how well a product's type matches the target's.

    Returns:
        r_type, query_match, category_match and title_score.
    """
    query = product.query == target.query
    category = len(_levels(product) & _levels(target)) >= 2
    nouns = target.nouns
    title = len(set(product.nouns) & set(nouns)) / len(nouns) if nouns else 0.2
    if title == 0.0:
        kind = 0.0
    elif title < 0.1:
        kind = 0.1
    else:
        kind = 1.0 if query or category or title > 0.2 else 0.5
    return kind, query, category, title


def _levels(product: Product) -> set[str]:
    return {level.strip() for level in product.product_category.split(_LEVELS)}


def reward(
    product: Product,
    goal: Goal,
    price: float,
    options: Mapping[str, str],
    colours: OptionColours = "original",
) -> Reward:
    """Score the purchase of a product.

    Args:
        product: The purchased product.
        goal: The goal.
        price: The product's price in this shop in dollars.
        options: The chosen value of each option.
        colours: How the options of synthetic goals are compared; see `wanted_options`.
    """
    r_type, query, category, title = type_match(product, goal.product)
    wanted = wanted_options(goal, colours)
    attributes = sum(has_attribute(product, attribute) for attribute in goal.attributes)
    matched = matched_options(list(options.values()), wanted)
    affordable = price <= goal.price_upper
    whole = len(goal.attributes) + len(wanted) + 1
    return Reward(
        score=(attributes + matched + affordable) / whole * r_type,
        r_type=r_type,
        r_att=attributes / len(goal.attributes),
        w_att=len(goal.attributes) / whole,
        query_match=query,
        category_match=category,
        title_score=title,
        r_option=matched / len(wanted) if wanted else None,
        w_option=len(wanted) / whole,
        r_price=affordable,
        w_price=1 / whole,
    )
