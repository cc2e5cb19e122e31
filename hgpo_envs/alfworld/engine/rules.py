"""The effects and observations of the rules.

Each rule is a function of the game, its state and the indices of the command's two arguments. It changes the state and
returns the observation.

Source: the effects in alfworld's `alfred.pddl` and the feedback in its `alfred.twl2`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hgpo_envs.alfworld.engine import observations
from hgpo_envs.alfworld.engine.state import NOTHING, GameState, Trait

if TYPE_CHECKING:
    from collections.abc import Callable

    from hgpo_envs.alfworld.engine.game import Game

    Rule = Callable[[Game, GameState, int, int], str]

# plain integers, because operations on flags are slow
_CLEAN, _HOT, _COOL, _SLICED, _TOGGLED = (trait.value for trait in Trait)


def _help(game: Game, _world: GameState, _first: int, _second: int) -> str:
    return game.grammar.help or ""


def _go(game: Game, game_state: GameState, r: int, _second: int) -> str:
    game_state.location = game.places[r]
    names = game.location_names if game.grammar.arrives_at_location else None
    name = names[game_state.location] if names else game.receptacle_names[r]
    return f"You arrive at {name}. {observations.receptacle(game, game_state, r)}"


def _open(game: Game, game_state: GameState, r: int, _second: int) -> str:
    game_state.opened[r] = True
    return f"You open the {game.receptacle_names[r]}. {observations.receptacle(game, game_state, r)}"


def _close(game: Game, game_state: GameState, r: int, _second: int) -> str:
    game_state.opened[r] = False
    return f"You close the {game.receptacle_names[r]}."


def _take(game: Game, game_state: GameState, o: int, r: int) -> str:
    game_state.contents[r] = tuple(
        other for other in game_state.contents[r] if other != o
    )
    game_state.emptied.add((o, r))
    game_state.held = o
    game_state.spots[o] -= {game_state.location}
    return (
        f"You pick up the {game.object_names[o]} from the {game.receptacle_names[r]}."
    )


def _put(game: Game, game_state: GameState, o: int, r: int) -> str:
    game_state.contents[r] = tuple(sorted({*game_state.contents[r], o}))
    game_state.emptied.discard((o, r))
    game_state.held = NOTHING
    game_state.spots[o] |= {game_state.location}
    return game.grammar.puts.format(
        object=game.object_names[o], receptacle=game.receptacle_names[r]
    )


def _clean(game: Game, game_state: GameState, o: int, r: int) -> str:
    game_state.traits[o] |= _CLEAN
    return f"You clean the {game.object_names[o]} using the {game.receptacle_names[r]}."


def _heat(game: Game, game_state: GameState, o: int, r: int) -> str:
    game_state.traits[o] = game_state.traits[o] & ~_COOL | _HOT
    return f"You heat the {game.object_names[o]} using the {game.receptacle_names[r]}."


def _cool(game: Game, game_state: GameState, o: int, r: int) -> str:
    game_state.traits[o] = game_state.traits[o] & ~_HOT | _COOL
    return f"You cool the {game.object_names[o]} using the {game.receptacle_names[r]}."


def _use(game: Game, game_state: GameState, o: int, _second: int) -> str:
    game_state.traits[o] |= _TOGGLED  # `use` does not turn lamps off
    return f"You turn on the {game.object_names[o]}."


def _slice(game: Game, game_state: GameState, o: int, knife: int) -> str:
    game_state.traits[o] |= _SLICED
    return f"You sliced the {game.object_names[o]} with the {game.object_names[knife]}."


RULES: Final[dict[str, Rule]] = {
    "look": observations.look,
    "inventory": observations.inventory,
    "help": _help,
    "go": _go,
    "open": _open,
    "close": _close,
    "inspect": observations.receptacle,
    "examine": observations.thing,
    "take": _take,
    "put": _put,
    "clean": _clean,
    "heat": _heat,
    "cool": _cool,
    "use": _use,
    "slice": _slice,
}
"""The rules by verb. `inspect` is the command `examine` for a receptacle."""


SEEING: Final = frozenset({"look", "inventory", "help", "inspect", "examine"})
"""The verbs that do not change the state."""
DECIDES_PLACE: Final = frozenset({"put", "clean", "heat", "cool"})
"""The verbs that can satisfy a goal of bringing objects."""
DECIDES_LIGHT: Final = frozenset({"go", "take", "use"})
"""The verbs that can satisfy a goal with a lamp."""


def won(game: Game, game_state: GameState) -> bool:
    """Return whether the goal is satisfied."""
    goal = game.goal
    traits = game_state.traits
    if goal.lamp_type:
        return game_state.held in game.wanted and any(
            o in game.lamps and traits[o] & _TOGGLED
            for r in game.receptacles_at[game_state.location]
            for o in game_state.contents[r]
        )
    for r in game.targets:
        ready = [
            o
            for o in game_state.contents[r]
            if o in game.wanted and traits[o] & goal.trait == goal.trait
        ]
        if len(ready) >= goal.count:
            return True
    return False
