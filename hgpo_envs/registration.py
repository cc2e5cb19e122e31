"""The environment ids, and what each keyword argument means.

    HGPO/ALFWorld-v0    HGPO/WebShop-v0

Every keyword argument is a JSON value, so that `gymnasium.envs.registration.EnvSpec.to_json` works. Task sources are
opened once a process (`hgpo_envs.sources`): a thousand environments over one data path share one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import gymnasium

from hgpo_envs.errors import InputError, unknown
from hgpo_envs.sources import open_shared

if TYPE_CHECKING:
    from hgpo_envs.env import TextEnv
    from hgpo_envs.sources import SharedSource
    from hgpo_envs.vector import TextVectorEnv

BACKENDS: Final = ("native", "original")
"""The package's own engine, or the original package for comparison."""

_FACTORIES: Final = {
    ("ALFWorld", "native"): "hgpo_envs.alfworld.source:ALFWorldSource",
    ("ALFWorld", "original"): "hgpo_envs.alfworld.original:OriginalSource",
    ("WebShop", "native"): "hgpo_envs.webshop.source:WebShopSource",
    ("WebShop", "original"): "hgpo_envs.webshop.original:OriginalSource",
}


def register_environments() -> None:
    """Tells Gymnasium the ids; a second call changes nothing."""
    for benchmark in ("ALFWorld", "WebShop"):
        env_id, maker = f"HGPO/{benchmark}-v0", f"hgpo_envs.registration:make_{benchmark.lower()}"
        if env_id not in gymnasium.registry:
            gymnasium.register(id=env_id, entry_point=maker, vector_entry_point=f"{maker}_vector")


def alfworld_source(*, data: str | None = None, backend: str = "native") -> SharedSource:
    """ALFWorld's games.

    Args:
        data: An official folder, a pack, or None for the bundled games.
        backend: ``native`` or ``original``.

    Raises:
        InputError: The backend is unknown, or the data cannot be used.
    """
    return _open("ALFWorld", backend, data=_path(data))


def webshop_source(
    *,
    data: str | None = None,
    goals: str = "synthetic",
    observation_mode: str = "text",
    show_attributes: bool = False,
    price_seed: int = 0,
    shuffle_seed: int = 233,
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
        backend: ``native`` or ``original``.

    Raises:
        InputError: An argument is unknown, or the data cannot be used.
    """
    return _open(
        "WebShop",
        backend,
        data=_path(data),
        goals=goals,
        observation_mode=observation_mode,
        show_attributes=show_attributes,
        price_seed=price_seed,
        shuffle_seed=shuffle_seed,
    )


def make_alfworld(*, data: str | None = None, backend: str = "native", max_steps: int = 50, **common: Any) -> TextEnv:
    """One ALFWorld environment; for `common` see `hgpo_envs.env.TextEnv`."""
    from hgpo_envs.env import TextEnv

    return TextEnv(alfworld_source(data=data, backend=backend), max_steps=max_steps, **common)


def make_alfworld_vector(
    *, num_envs: int = 1, data: str | None = None, backend: str = "native", max_steps: int = 50, **common: Any
) -> TextVectorEnv:
    """Many ALFWorld environments; for `common` see `hgpo_envs.vector.TextVectorEnv`."""
    from hgpo_envs.vector import TextVectorEnv

    return TextVectorEnv(alfworld_source(data=data, backend=backend), num_envs, max_steps=max_steps, **common)


def make_webshop(*, max_steps: int = 15, **arguments: Any) -> TextEnv:
    """One WebShop environment; `arguments` are `webshop_source`'s and those of `hgpo_envs.env.TextEnv`."""
    from hgpo_envs.env import TextEnv

    source, common = _divided(arguments)
    return TextEnv(webshop_source(**source), max_steps=max_steps, **common)


def make_webshop_vector(*, num_envs: int = 1, max_steps: int = 15, **arguments: Any) -> TextVectorEnv:
    """Many WebShop environments; `arguments` are `webshop_source`'s and those of `hgpo_envs.vector.TextVectorEnv`."""
    from hgpo_envs.vector import TextVectorEnv

    source, common = _divided(arguments)
    return TextVectorEnv(webshop_source(**source), num_envs, max_steps=max_steps, **common)


def _divided(arguments: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    names = webshop_source.__kwdefaults__ or {}
    return (
        {name: value for name, value in arguments.items() if name in names},
        {name: value for name, value in arguments.items() if name not in names},
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
