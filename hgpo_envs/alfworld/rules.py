"""What each rule changes and what it says: one function a rule, of the game, its world and the two things named.

Source: the effects of alfworld's `alfred.pddl` and the feedback of its `alfred.twl2`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hgpo_envs.alfworld import text
from hgpo_envs.alfworld.games import Ability
from hgpo_envs.alfworld.world import NOTHING, Trait, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from hgpo_envs.alfworld.games import Game

    Rule = Callable[[Game, World, int, int], str]


def _look(game: Game, world: World, _first: int, _second: int) -> str:
    return text.look(game, world)


def _inventory(game: Game, world: World, _first: int, _second: int) -> str:
    return text.inventory(game, world)


def _help(game: Game, _world: World, _first: int, _second: int) -> str:
    return game.grammar.help or ""


def _go(game: Game, world: World, r: int, _second: int) -> str:
    world.location = game.places[r]
    names = game.location_names if game.grammar.arrives_at_location else None
    name = names[world.location] if names else game.receptacle_names[r]
    return f"You arrive at {name}. {text.receptacle(game, world, r)}"


def _open(game: Game, world: World, r: int, _second: int) -> str:
    world.opened[r] = True
    return f"You open the {game.receptacle_names[r]}. {text.receptacle(game, world, r)}"


def _close(game: Game, world: World, r: int, _second: int) -> str:
    world.opened[r] = False
    return f"You close the {game.receptacle_names[r]}."


def _inspect(game: Game, world: World, r: int, _second: int) -> str:
    return text.receptacle(game, world, r)


def _examine(game: Game, world: World, o: int, _second: int) -> str:
    return text.thing(game, world, o)


def _take(game: Game, world: World, o: int, r: int) -> str:
    world.contents[r] = tuple(other for other in world.contents[r] if other != o)
    world.emptied.add((o, r))
    world.held = o
    world.spots[o] -= {world.location}
    return f"You pick up the {game.object_names[o]} from the {game.receptacle_names[r]}."


def _put(game: Game, world: World, o: int, r: int) -> str:
    world.contents[r] = tuple(sorted({*world.contents[r], o}))
    world.emptied.discard((o, r))
    world.held = NOTHING
    world.spots[o] |= {world.location}
    return game.grammar.puts.format(object=game.object_names[o], receptacle=game.receptacle_names[r])


def _clean(game: Game, world: World, o: int, r: int) -> str:
    world.traits[o] |= Trait.CLEAN
    return f"You clean the {game.object_names[o]} using the {game.receptacle_names[r]}."


def _heat(game: Game, world: World, o: int, r: int) -> str:
    world.traits[o] = world.traits[o] & ~Trait.COOL | Trait.HOT
    return f"You heat the {game.object_names[o]} using the {game.receptacle_names[r]}."


def _cool(game: Game, world: World, o: int, r: int) -> str:
    world.traits[o] = world.traits[o] & ~Trait.HOT | Trait.COOL
    return f"You cool the {game.object_names[o]} using the {game.receptacle_names[r]}."


def _use(game: Game, world: World, o: int, _second: int) -> str:
    world.traits[o] |= Trait.TOGGLED  # never off again
    return f"You turn on the {game.object_names[o]}."


def _slice(game: Game, world: World, o: int, knife: int) -> str:
    world.traits[o] |= Trait.SLICED
    return f"You sliced the {game.object_names[o]} with the {game.object_names[knife]}."


RULES: Final[dict[str, Rule]] = {
    "look": _look,
    "inventory": _inventory,
    "help": _help,
    "go": _go,
    "open": _open,
    "close": _close,
    "inspect": _inspect,
    "examine": _examine,
    "take": _take,
    "put": _put,
    "clean": _clean,
    "heat": _heat,
    "cool": _cool,
    "use": _use,
    "slice": _slice,
}
"""Every rule by its verb. `inspect` is the command `examine` for a receptacle."""


def won(game: Game, world: World) -> bool:
    """Whether the goal holds."""
    goal = game.goal
    if goal.lamp_type:
        return (
            world.held != NOTHING
            and game.object_types[world.held] == goal.object_type
            and any(_lit(game, world, o) for r in game.receptacles_at[world.location] for o in world.contents[r])
        )
    return any(
        sum(_wanted(game, world, o) for o in world.contents[r]) >= goal.count
        for r, kind in enumerate(game.receptacle_types)
        if kind == goal.receptacle_type
    )


def _lit(game: Game, world: World, o: int) -> bool:
    return (
        game.object_types[o] == game.goal.lamp_type
        and game.abilities[o] & Ability.TOGGLEABLE != 0
        and world.traits[o] & Trait.TOGGLED != 0
    )


def _wanted(game: Game, world: World, o: int) -> bool:
    goal = game.goal
    return (
        game.object_types[o] == goal.object_type
        and game.abilities[o] & goal.ability == goal.ability
        and world.traits[o] & goal.trait == goal.trait
    )
