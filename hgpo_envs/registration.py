"""The environment ids, and what each keyword argument means.

    HGPO/ALFWorld-v0    HGPO/WebShop-v0

Every keyword argument is a JSON value, so that `gymnasium.envs.registration.EnvSpec.to_json` works. Task sources are
opened once a process (`hgpo_envs.sources`): a thousand environments over one data path share one.
"""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any, Final

import gymnasium

from hgpo_envs.errors import InputError, unknown
from hgpo_envs.sources import open_shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from hgpo_envs.env import TextEnv
    from hgpo_envs.sources import SharedSource
    from hgpo_envs.vector import TextVectorEnv

BACKENDS: Final = ("native", "original")
"""The package's own engine, or the original package for comparison."""

_FACTORIES: Final = {
    ("ALFWorld", "native"): "hgpo_envs.alfworld.data.source:ALFWorldSource",
    ("ALFWorld", "original"): "hgpo_envs.alfworld.reference.original:OriginalSource",
    ("WebShop", "native"): "hgpo_envs.webshop.data.source:WebShopSource",
    ("WebShop", "original"): "hgpo_envs.webshop.reference.original:OriginalSource",
}


def register_environments() -> None:
    """Registers the environments with Gymnasium; a second call changes nothing."""
    for benchmark in ("ALFWorld", "WebShop"):
        env_id, maker = f"HGPO/{benchmark}-v0", f"hgpo_envs.registration:make_{benchmark.lower()}"
        if env_id not in gymnasium.registry:
            gymnasium.register(id=env_id, entry_point=maker, vector_entry_point=f"{maker}_vector")


def alfworld_source(*, data: str | None = None, grammar: str | None = None, backend: str = "native") -> SharedSource:
    """ALFWorld's games.

    Args:
        data: An official folder, a pack, or None for the bundled games.
        grammar: ``move`` or ``put`` converts every game to that wording; None plays each as its file has it.
        backend: ``native`` or ``original``.

    Raises:
        InputError: The backend is unknown, or the data cannot be used.
    """
    return _open("ALFWorld", backend, data=_path(data), grammar=grammar)


def webshop_source(
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
    checkout: str | None = None,
    python: str | None = None,
    num_products: int | None = None,
    nouns: str | None = None,
    backend: str = "native",
) -> SharedSource:
    """WebShop's goals over a catalogue.

    Args:
        data: A built catalogue, or None for the bundled one; with ``backend="original"`` a WebShop checkout.
        goals: ``synthetic`` or ``human``.
        observation_mode: ``text`` or ``text_rich``.
        show_attributes: Whether item pages have the attributes tab.
        price_seed: Seeds what the original leaves unseeded: ranged prices, then price bounds.
        shuffle_seed: Seeds the order of the goals.
        option_colours: ``original`` or ``both``; this and the next three switch off oddities of the original that may
            harm training, in the native backend: `hgpo_envs.webshop.engine.engine.Quirks`.
        magic_queries: Whether queries such as ``<r>`` are commands.
        after_done: ``continue`` or ``freeze``.
        reward_scale: ``score``, or ``success`` for verl-agent's 10 or 0.
        checkout: The original's checkout; this and the next three are for the original backend:
            `hgpo_envs.webshop.reference.original.OriginalSource`.
        python: The interpreter that the original is installed for.
        num_products: Which of the original's indexes to search.
        nouns: A file that stands in for spaCy.
        backend: ``native`` or ``original``.

    Raises:
        InputError: An argument is unknown or for the other backend, or the data cannot be used.
    """
    common = {
        "goals": goals,
        "observation_mode": observation_mode,
        "show_attributes": show_attributes,
        "price_seed": price_seed,
        "shuffle_seed": shuffle_seed,
    }
    special: dict[str, dict[str, Any]] = {
        "native": {
            "option_colours": option_colours,
            "magic_queries": magic_queries,
            "after_done": after_done,
            "reward_scale": reward_scale,
        },
        "original": {"checkout": checkout, "python": python, "num_products": num_products, "nouns": nouns},
    }
    defaults = signature(webshop_source).parameters
    for other in special.keys() - {backend}:
        for name, value in special[other].items():
            if backend in special and value != defaults[name].default:
                raise InputError(f"{name} is for backend={other!r}; leave it out with backend={backend!r}")
    return _open("WebShop", backend, data=_path(data), **common, **special.get(backend, {}))


def make_alfworld(*, max_steps: int = 50, **arguments: Any) -> TextEnv:
    """One ALFWorld environment; `arguments` are `alfworld_source`'s and those of `hgpo_envs.env.TextEnv`."""
    return _one(alfworld_source, max_steps, arguments)


def make_alfworld_vector(*, num_envs: int = 1, max_steps: int = 50, **arguments: Any) -> TextVectorEnv:
    """Many ALFWorld environments; `arguments` are `alfworld_source`'s and `hgpo_envs.vector.TextVectorEnv`'s."""
    return _many(alfworld_source, num_envs, max_steps, arguments)


def make_webshop(*, max_steps: int = 15, **arguments: Any) -> TextEnv:
    """One WebShop environment; `arguments` are `webshop_source`'s and those of `hgpo_envs.env.TextEnv`."""
    return _one(webshop_source, max_steps, arguments)


def make_webshop_vector(*, num_envs: int = 1, max_steps: int = 15, **arguments: Any) -> TextVectorEnv:
    """Many WebShop environments; `arguments` are `webshop_source`'s and `hgpo_envs.vector.TextVectorEnv`'s."""
    return _many(webshop_source, num_envs, max_steps, arguments)


def _one(source: Callable[..., SharedSource], max_steps: int, arguments: dict[str, Any]) -> TextEnv:
    from hgpo_envs.env import TextEnv

    given, common = _divided(source, arguments, TextEnv)
    return TextEnv(source(**given), max_steps=max_steps, **common)


def _many(
    source: Callable[..., SharedSource], num_envs: int, max_steps: int, arguments: dict[str, Any]
) -> TextVectorEnv:
    from hgpo_envs.vector import TextVectorEnv

    given, common = _divided(source, arguments, TextVectorEnv)
    return TextVectorEnv(source(**given), num_envs, max_steps=max_steps, **common)


def _divided(
    source: Callable[..., SharedSource], arguments: dict[str, Any], env: type
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments for the task source, and those for the environment."""
    own, common = set(signature(source).parameters), set(signature(env).parameters) - {"source", "num_envs"}
    for name in arguments:
        if name not in own | common:
            raise InputError(unknown("argument", name, sorted(own | common | {"max_steps"}), limit=30))
    return (
        {name: value for name, value in arguments.items() if name in own},
        {name: value for name, value in arguments.items() if name in common},
    )


def _path(data: object) -> str | None:
    if data is None:
        return None
    if not isinstance(data, str) and not hasattr(data, "__fspath__"):
        raise InputError(f"data: expected a path or None for the bundled set, got {data!r}")
    return str(data)


def _open(benchmark: str, backend: str, **arguments: Any) -> SharedSource:
    if backend not in BACKENDS:
        raise InputError(unknown("backend", backend, BACKENDS))
    return open_shared(_FACTORIES[benchmark, backend], **arguments)
