"""What each rule changes and what it says: one function a rule, of the game, its world and the two things named.

Source: the effects of alfworld's `alfred.pddl` and the feedback of its `alfred.twl2`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hgpo_envs.alfworld import text
from hgpo_envs.alfworld.world import NOTHING, Trait, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from hgpo_envs.alfworld.games import Game

    Rule = Callable[[Game, World, int, int], str]

# plain integers: flags are slow to combine
_CLEAN, _HOT, _COOL, _SLICED, _TOGGLED = (trait.value for trait in Trait)


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
    world.traits[o] |= _CLEAN
    return f"You clean the {game.object_names[o]} using the {game.receptacle_names[r]}."


def _heat(game: Game, world: World, o: int, r: int) -> str:
    world.traits[o] = world.traits[o] & ~_COOL | _HOT
    return f"You heat the {game.object_names[o]} using the {game.receptacle_names[r]}."


def _cool(game: Game, world: World, o: int, r: int) -> str:
    world.traits[o] = world.traits[o] & ~_HOT | _COOL
    return f"You cool the {game.object_names[o]} using the {game.receptacle_names[r]}."


def _use(game: Game, world: World, o: int, _second: int) -> str:
    world.traits[o] |= _TOGGLED  # never off again
    return f"You turn on the {game.object_names[o]}."


def _slice(game: Game, world: World, o: int, knife: int) -> str:
    world.traits[o] |= _SLICED
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


SEEING: Final = frozenset({"look", "inventory", "help", "inspect", "examine"})
"""Verbs that change nothing."""
_DECIDES_PLACE: Final = frozenset({"put", "clean", "heat", "cool"})
_DECIDES_LIGHT: Final = frozenset({"go", "take", "use"})


def deciding(game: Game) -> frozenset[str]:
    """The verbs after which the goal may newly hold."""
    return _DECIDES_LIGHT if game.goal.lamp_type else _DECIDES_PLACE


def won(game: Game, world: World) -> bool:
    """Whether the goal holds."""
    goal, traits = game.goal, world.traits
    if goal.lamp_type:
        return world.held in game.wanted and any(
            o in game.lamps and traits[o] & _TOGGLED
            for r in game.receptacles_at[world.location]
            for o in world.contents[r]
        )
    for r in game.targets:
        ready = [o for o in world.contents[r] if o in game.wanted and traits[o] & goal.trait == goal.trait]
        if len(ready) >= goal.count:
            return True
    return False
