"""The admissible commands: the preconditions of the rules and the commands' texts.

All data here belongs to one game and is shared by all engines that play it. Texts are created on first use. The
admissible commands of a scene (location, held object and the content of the receptacles there) are cached, because the
members of a group reach the same scenes.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from hgpo_envs.alfworld.engine.game import KNIVES, STATIONS, Ability
from hgpo_envs.alfworld.engine.state import NOTHING

if TYPE_CHECKING:
    from collections.abc import Callable

    from hgpo_envs.alfworld.engine.game import Game
    from hgpo_envs.alfworld.engine.state import GameState

_TREATMENTS: Final = {Ability.CLEANABLE.value: "clean", Ability.HEATABLE.value: "heat", Ability.COOLABLE.value: "cool"}
_PICKUPABLE: Final = Ability.PICKUPABLE.value  # plain integers, because operations on flags are slow
_TOGGLEABLE: Final = Ability.TOGGLEABLE.value
_SLICEABLE: Final = Ability.SLICEABLE.value
_KEPT_SCENES: Final = 1024

_PHRASES: Final[dict[str, Callable[[Game, int, int], str]]] = {
    "look": lambda _game, _first, _second: "look",
    "inventory": lambda _game, _first, _second: "inventory",
    "help": lambda _game, _first, _second: "help",
    "go": lambda game, r, _second: f"go to {game.receptacle_names[r]}",
    "open": lambda game, r, _second: f"open {game.receptacle_names[r]}",
    "close": lambda game, r, _second: f"close {game.receptacle_names[r]}",
    "inspect": lambda game, r, _second: f"examine {game.receptacle_names[r]}",
    "examine": lambda game, o, _second: f"examine {game.object_names[o]}",
    "use": lambda game, o, _second: f"use {game.object_names[o]}",
    "take": lambda game, o, r: f"take {game.object_names[o]} from {game.receptacle_names[r]}",
    "put": lambda game, o, r: game.grammar.put.format(object=game.object_names[o], receptacle=game.receptacle_names[r]),
    "clean": lambda game, o, r: f"clean {game.object_names[o]} with {game.receptacle_names[r]}",
    "heat": lambda game, o, r: f"heat {game.object_names[o]} with {game.receptacle_names[r]}",
    "cool": lambda game, o, r: f"cool {game.object_names[o]} with {game.receptacle_names[r]}",
    "slice": lambda game, o, knife: f"slice {game.object_names[o]} with {game.object_names[knife]}",
}
"""The command of each rule. `inspect` is the command `examine` for a receptacle."""


class Commands:
    """The commands of one game.

    Attributes:
        meaning: The verb and the indices of its arguments for each command that was admissible so far.
    """

    def __init__(self, game: Game) -> None:
        self.meaning: dict[str, tuple[str, int, int]] = {}
        self._game = game
        self._texts: dict[tuple[str, int, int], str] = {}
        self._elsewhere: dict[int, tuple[str, ...]] = {}
        self._scenes: dict[tuple[object, ...], tuple[str, ...]] = {}
        receptacles = range(len(game.places))
        self._go = [self._text("go", r) for r in receptacles]
        self._anywhere = sorted(self._go[r] for r in receptacles if game.places[r] != NOTHING)
        self._stations = [int(STATIONS.get(kind, 0)) for kind in game.receptacle_types]
        self._sliceable = [o for o, ability in enumerate(game.abilities) if ability & _SLICEABLE]
        self._knives = frozenset(o for o, kind in enumerate(game.object_types) if kind in KNIVES)
        alone = ("inventory", "look") if game.grammar.help is None else ("help", "inventory", "look")
        self._last = tuple(self._text(verb) for verb in alone)

    def offered(self, game_state: GameState) -> tuple[str, ...]:
        """Return the admissible commands, sorted."""
        if game_state.held in self._knives:  # a scene does not determine which objects can be sliced
            return self._offered(game_state)
        here = self._game.receptacles_at[game_state.location]
        scene = (game_state.location, game_state.held, *[(game_state.contents[r], game_state.opened[r]) for r in here])
        commands = self._scenes.get(scene)
        if commands is None:
            if len(self._scenes) >= _KEPT_SCENES:
                self._scenes.clear()
            commands = self._scenes[scene] = self._offered(game_state)
        return commands

    def _offered(self, game_state: GameState) -> tuple[str, ...]:
        """Compute the admissible commands.

        They are sorted in parts: clean, close, cool and examine, then go, heat, help, inventory, look, then the rest.
        """
        first: list[str] = []
        heat: list[str] = []
        rest: list[str] = []
        for r in self._game.receptacles_at[game_state.location]:
            first.append(self._text("inspect", r))
            if self._game.openable[r]:
                (first if game_state.opened[r] else rest).append(
                    self._text("close" if game_state.opened[r] else "open", r)
                )
            verb = self._treatment(r, game_state.held)
            if verb:
                (heat if verb == "heat" else first).append(self._text(verb, game_state.held, r))
            rest += self._handling(game_state, r)
        if game_state.held != NOTHING:
            first.append(self._text("examine", game_state.held))
        if game_state.held in self._knives:
            rest += [
                self._text("slice", o, game_state.held)
                for o in self._sliceable
                if game_state.location in game_state.spots[o]
            ]
        return (*_unique(first), *self._going(game_state.location), *_unique(heat), *self._last, *_unique(rest))

    def _handling(self, game_state: GameState, r: int) -> list[str]:
        """Return the commands that take from, put into (both only if it is open) or use objects in a receptacle."""
        game, held = self._game, game_state.held
        offers = [self._text("use", o) for o in game_state.contents[r] if game.abilities[o] & _TOGGLEABLE]
        if not game.openable[r] or game_state.opened[r]:
            if held == NOTHING:
                offers += [self._text("take", o, r) for o in game_state.contents[r] if game.abilities[o] & _PICKUPABLE]
            elif game.object_types[held] in game.accepts[r]:
                offers.append(self._text("put", held, r))
        return offers

    def _treatment(self, r: int, held: int) -> str | None:
        """Return the verb of the treatment that a receptacle can apply to the held object, or None."""
        ability = self._stations[r]
        return _TREATMENTS[ability] if held != NOTHING and self._game.abilities[held] & ability else None

    def _going(self, location: int) -> tuple[str, ...]:
        going = self._elsewhere.get(location)
        if going is None:
            rest = self._anywhere.copy()
            for r in self._game.receptacles_at[location]:
                rest.remove(self._go[r])
            going = self._elsewhere[location] = tuple(rest)
        return going

    def _text(self, verb: str, first: int = NOTHING, second: int = NOTHING) -> str:
        meaning = (verb, first, second)
        text = self._texts.get(meaning)
        if text is None:
            # interned, because thousands of games share the same few thousand commands
            phrase = _PHRASES[verb](self._game, first, second)
            text = self._texts[meaning] = sys.intern(phrase)
            self.meaning[text] = meaning
        return text


def commands_of(game: Game) -> Commands:
    """Return the game's commands, which are created once and shared by all engines that play it."""
    commands = game.cache.get("commands")
    if not isinstance(commands, Commands):
        commands = game.cache["commands"] = Commands(game)
    return commands


def _unique(commands: list[str]) -> tuple[str, ...]:
    return tuple(sorted(set(commands)) if len(commands) > 1 else commands)
