"""WebShop, described for Gymnasium, the command line and training."""

from __future__ import annotations

from functools import partial
from importlib.resources import files
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.environment_spec import BACKENDS, EnvironmentSpec
from hgpo_envs.errors import InputError, check_known
from hgpo_envs.responses import parse

if TYPE_CHECKING:
    from hgpo_envs.engine import TaskSource


def open_source(
    *,
    data: str | None = None,
    goals: str = "synthetic",
    observation_mode: str = "text",
    show_attributes: bool = False,
    price_seed: int = 0,
    shuffle_seed: int = 233,
    option_colours: str = "original",
    magic_queries: bool = True,
    after_done: str = "continue",
    reward_scale: str = "score",
    python: str | None = None,
    num_products: int | None = None,
    nouns: str | None = None,
    backend: str = "native",
) -> TaskSource:
    """Open a WebShop catalogue with its goals.

    Args:
        data: A built catalogue, or None for the bundled one; with ``backend="original"`` a WebShop checkout.
        goals: The instructions: ``synthetic``, made from a product's attributes, or ``human``, written by people.
        observation_mode: ``text``, or ``text_rich`` with marks of buttons and clicked buttons, as in the original.
        show_attributes: Whether item pages have the attributes tab.
        price_seed: Seed of ranged prices and price bounds, which the original draws without a seed.
        shuffle_seed: Seed of the goals' order.
        option_colours: With ``original``, some correct choices of a colour never count; with ``both``, they do. This
            argument and the next three can switch off irregularities of the original that may harm training (native
            backend only): `hgpo_envs.webshop.engine.engine.Quirks`.
        magic_queries: Whether queries such as ``<r>`` are commands.
        after_done: Whether a search on the last page opens a new page (``continue``) or nothing has an effect
            (``freeze``).
        reward_scale: ``score``, or ``success`` for verl-agent's 10 or 0.
        python: The interpreter that the original is installed for; this and the next two are for the original backend:
            `hgpo_envs.webshop.reference.original.OriginalSource`.
        num_products: Which of the original's indexes to search.
        nouns: A file that stands in for spaCy.
        backend: ``native`` for this package's engine, ``original`` for a checkout of WebShop.

    Raises:
        InputError: If an argument is unknown or for the other backend, or the data cannot be used.
    """
    check_known("backend", backend, BACKENDS)
    common: Any = (goals, observation_mode, show_attributes, price_seed, shuffle_seed)
    native: dict[str, Any] = {
        "option_colours": option_colours,
        "magic_queries": magic_queries,
        "after_done": after_done,
        "reward_scale": reward_scale,
    }
    original: dict[str, Any] = {
        "python": python,
        "num_products": num_products,
        "nouns": nouns,
    }
    other = "native" if backend == "original" else "original"
    defaults = signature(open_source).parameters
    for name, value in (native if backend == "original" else original).items():
        if value != defaults[name].default:
            raise InputError(
                f"{name} is for backend={other!r}; leave it out with backend={backend!r}"
            )
    if backend == "original":
        from hgpo_envs.webshop.reference.original import OriginalSource

        return OriginalSource(data, *common, **original)
    from hgpo_envs.webshop.data.source import WebShopSource

    return WebShopSource(data, *common, **native)


def data_places() -> list[Path]:
    """Return the built catalogues in the working directory and its folders."""
    return sorted(
        path.parent
        for pattern in ("", "*/")
        for path in Path().glob(f"{pattern}catalogue.json")
    )


WEBSHOP: Final = EnvironmentSpec(
    id="HGPO/WebShop-v0",
    source=open_source,
    max_steps=15,
    template=(files("hgpo_envs.webshop") / "prompt.j2").read_text(encoding="utf-8"),
    accepted={
        "admissible actions": "the original lists click[search], which does nothing",
        "after the end": "the original's pages can be clicked after a purchase; episodes end before",
    },
    parse_response=partial(parse, fallback_characters=20, lowercase=True),
    players={
        "expert": "hgpo_envs.webshop.players.expert:ExpertPlayer",
        "explorer": "hgpo_envs.webshop.players.explorer:ExplorerPlayer",
    },
    evaluation_split="eval",
    splits=("train", "eval", "test"),
    data_places=data_places,
    data_command="hgpo data fetch webshop && hgpo data build webshop --items webshop/items_shuffle_1000.json "
    "--attributes webshop/items_ins_v2_1000.json --human webshop/items_human_ins.json --out catalogue",
)
