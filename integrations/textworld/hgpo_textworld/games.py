"""Games that TextWorld generates: families, levels, and the folder in which compiled games are kept.

A game is a function of its family, level and seed, and of TextWorld's version. Generating and compiling it takes a
second or more, so that compiled games are kept in ``$XDG_CACHE_HOME/hgpo/textworld/VERSION`` (``~/.cache`` by default).
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import textworld
from textworld.challenges import CHALLENGES
from textworld.generator import compile_game

from hgpo_envs.errors import InputError, check_known
from hgpo_envs.files.atomic import make_folder, new_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSION: Final[str] = textworld.__version__


class Family(NamedTuple):
    """One kind of game.

    Attributes:
        challenge: TextWorld's name.
        levels: The highest level.
        about: What the player does, and what a level adds.
    """

    challenge: str
    levels: int
    about: str


FAMILIES: Final[Mapping[str, Family]] = {
    "coin-collector": Family(
        "tw-coin_collector", 300, "find a coin; LEVEL rooms, from 101 on with dead ends"
    ),
    "treasure-hunter": Family(
        "tw-treasure_hunter", 30, "find an object; from 11 on with doors and containers"
    ),
    "cooking": Family(
        "tw-cooking", 4, "find, cut and cook the ingredients of a recipe"
    ),
}

# the levels of GATA (Adhikari et al. 2020), sizes and skills
_COOKING: Final[tuple[Mapping[str, Any], ...]] = (
    {"recipe": 1, "take": 1, "go": 1, "cut": True},
    {"recipe": 1, "take": 1, "go": 1, "cut": True, "cook": True},
    {"recipe": 1, "take": 1, "go": 9},
    {
        "recipe": 3,
        "take": 3,
        "go": 6,
        "cut": True,
        "cook": True,
        "open": True,
        "drop": True,
    },
)


def check_family(family: str, level: int) -> None:
    """Raise InputError unless the family has the level."""
    check_known("family", family, FAMILIES)
    if level not in range(1, FAMILIES[family].levels + 1):
        raise InputError(
            f"level: expected 1 to {FAMILIES[family].levels} for {family}, received {level!r}"
        )


def compiled(family: str, level: int, seed: int) -> Path:
    """Return the file of a compiled game, which is generated if it is not in the cache."""
    path = _cache() / f"{family}-{level}-{seed}"
    game = path / "game.z8"
    if not game.exists():
        make_folder(path.parent)
        try:
            with new_folder(path) as folder:
                _generate(family, level, seed, folder / game.name)
        except (InputError, OSError):  # another process may have been faster
            if not game.exists():
                raise
    return game


def _generate(family: str, level: int, seed: int, path: Path) -> None:
    options = textworld.GameOptions()
    options.seeds = seed
    options.path = str(path)
    # the objective names the goal, not the way to it
    options.grammar.only_last_action = True
    settings: dict[str, Any] = {"level": level}
    if family == "cooking":
        absent = dict.fromkeys(("cut", "cook", "open", "drop"), False)
        settings = {**absent, **_COOKING[level - 1], "recipe_seed": seed, "split": None}
    _, make, _ = CHALLENGES[FAMILIES[family].challenge]
    # Jericho's, which knows commercial games only
    with warnings.catch_warnings(action="ignore"):
        compile_game(make(settings, options), options)


def _cache() -> Path:
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "hgpo"
        / "textworld"
        / VERSION
    )
