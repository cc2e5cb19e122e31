"""The environment's observation texts, identical to the original's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hgpo_envs.alfworld.engine.state import NOTHING, Ability, GameState, Trait

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hgpo_envs.alfworld.engine.game import Game

NOTHING_HAPPENS: Final = "Nothing happens."
_MIDDLE: Final = (
    "You are in the middle of a room. Looking quickly around you, you see {}."
)


def listing(names: Iterable[str], article: str = "a ") -> str:
    """Join names with articles: "nothing", "a mug 1", "a mug 2, and a mug 1"."""
    parts = [f"{article}{name}" for name in names]
    if not parts:
        return "nothing"
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])}, and {parts[-1]}"


def welcome(game: Game) -> str:
    """Return the first observation: the surroundings and the task."""
    game_state = game.start
    if game.receptacles_at[game_state.location]:
        around = look(game, game_state)
    else:
        seen = [
            name
            for name, place in zip(game.receptacle_names, game.places, strict=True)
            if place != NOTHING
        ]
        around = _MIDDLE.format(listing(seen))
    return f"-= Welcome to TextWorld, ALFRED! =-\n\n{around}\n\nYour task is to: {game.task}"


def look(game: Game, game_state: GameState, *_: int) -> str:
    """Return the observation of `look`: the receptacles here, and the objects moved from one of them to another."""
    here = game.receptacles_at[game_state.location]
    if not here:
        return _MIDDLE.format("nothing")
    moved = sorted(
        (o, r)
        for o, r in game_state.emptied
        if r in here and game_state.location in game_state.spots[o]
    )
    facing = listing([game.receptacle_names[r] for r in here], article="")
    return f"You are facing the {facing}. Next to it, you see {listing(game.object_names[o] for o, _ in moved)}."


def receptacle(game: Game, game_state: GameState, index: int, *_: int) -> str:
    """Return the description of a receptacle: its contents, or that it is closed."""
    name = game.receptacle_names[index]
    if game.openable[index] and not game_state.opened[index]:
        return f"The {name} is closed."
    inside = listing([game.object_names[o] for o in game_state.contents[index]])
    return (
        f"The {name} is open. In it, you see {inside}."
        if game.openable[index]
        else f"On the {name}, you see {inside}."
    )


def thing(game: Game, game_state: GameState, index: int, *_: int) -> str:
    """Return the description of an object."""
    name = game.object_names[index]
    ability = game.abilities[index]
    trait = game_state.traits[index]
    if ability & Ability.CONTAINER:
        inside = listing(game.object_names[o] for o in game.nested.get(index, ()))
        return f"This is a normal {name}. In it, you see {inside}."
    clean = bool(trait & Trait.CLEAN)
    sliced = bool(trait & Trait.SLICED)
    warmth = "hot" if trait & Trait.HOT else "cool" if trait & Trait.COOL else ""
    if clean or warmth:
        if warmth == "cool" and not clean and not sliced:
            warmth = "cold"
        words = [
            " and ".join(word for word in (warmth, "clean" if clean else "") if word)
        ]
        return f"This is a {' '.join([*words, *['sliced'] * sliced])} {name}."
    if ability & Ability.TOGGLEABLE and trait & Trait.TOGGLED:
        return f"This {name} is on."
    if ability & Ability.SLICEABLE and sliced:
        return f"This is a sliced {name}."
    return f"There's nothing special about {name}."


def inventory(game: Game, game_state: GameState, *_: int) -> str:
    """Return the observation of `inventory`: the held object."""
    if game_state.held == NOTHING:
        return "You are not carrying anything."
    return f"You are carrying: a {game.object_names[game_state.held]}."
