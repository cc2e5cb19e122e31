"""The admissible commands: the preconditions of the rules and the commands' texts.

All data here belongs to one game and is shared by all engines that play it. Texts are created on first use. The
admissible commands of a scene (location, held object and the content of the receptacles there) are cached, because the
members of a group reach the same scenes.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from hgpo_envs.alfworld.engine.game import KNIVES, STATIONS
from hgpo_envs.alfworld.engine.state import NOTHING, Ability

if TYPE_CHECKING:
    from hgpo_envs.alfworld.engine.game import Game
    from hgpo_envs.alfworld.engine.state import GameState

_TREATMENTS: Final = {
    Ability.CLEANABLE.value: "clean",
    Ability.HEATABLE.value: "heat",
    Ability.COOLABLE.value: "cool",
}
# plain integers, because operations on flags are slow
_PICKUPABLE: Final = Ability.PICKUPABLE.value
_TOGGLEABLE: Final = Ability.TOGGLEABLE.value
_SLICEABLE: Final = Ability.SLICEABLE.value
_KEPT_SCENES: Final = 1024

_PATTERNS: Final = {
    "go": "go to {0}",
    "inspect": "examine {0}",
    "take": "take {0} from {1}",
    "clean": "clean {0} with {1}",
    "heat": "heat {0} with {1}",
    "cool": "cool {0} with {1}",
    "slice": "slice {0} with {1}",
}
"""The commands of rules, where they are more than the verb and a name. `inspect` is `examine` for a receptacle."""
_OF_RECEPTACLES: Final = frozenset({"go", "open", "close", "inspect"})


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
        self._anywhere = sorted(
            self._go[r] for r in receptacles if game.places[r] != NOTHING
        )
        self._stations = [int(STATIONS.get(kind, 0)) for kind in game.receptacle_types]
        self._sliceable = [
            o for o, ability in enumerate(game.abilities) if ability & _SLICEABLE
        ]
        self._knives = frozenset(
            o for o, kind in enumerate(game.object_types) if kind in KNIVES
        )
        alone = (
            ("inventory", "look")
            if game.grammar.help is None
            else ("help", "inventory", "look")
        )
        self._last = tuple(self._text(verb) for verb in alone)

    def offered(self, game_state: GameState) -> tuple[str, ...]:
        """Return the admissible commands, sorted."""
        # a scene does not determine which objects can be sliced
        if game_state.held in self._knives:
            return self._offered(game_state)
        here = self._game.receptacles_at[game_state.location]
        scene = (
            game_state.location,
            game_state.held,
            *[(game_state.contents[r], game_state.opened[r]) for r in here],
        )
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
        game = self._game
        held = game_state.held
        text = self._text
        first: list[str] = []
        heat: list[str] = []
        rest: list[str] = []
        for r in game.receptacles_at[game_state.location]:
            closed = game.openable[r] and not game_state.opened[r]
            contents = game_state.contents[r]
            first.append(text("inspect", r))
            if game.openable[r]:
                (rest if closed else first).append(
                    text("open" if closed else "close", r)
                )
            if held != NOTHING and game.abilities[held] & self._stations[r]:
                verb = _TREATMENTS[self._stations[r]]
                (heat if verb == "heat" else first).append(text(verb, held, r))
            rest += [
                text("use", o) for o in contents if game.abilities[o] & _TOGGLEABLE
            ]
            if not closed and held == NOTHING:
                rest += [
                    text("take", o, r)
                    for o in contents
                    if game.abilities[o] & _PICKUPABLE
                ]
            elif not closed and game.object_types[held] in game.accepts[r]:
                rest.append(text("put", held, r))
        if held != NOTHING:
            first.append(text("examine", held))
        if held in self._knives:
            rest += [
                text("slice", o, held)
                for o in self._sliceable
                if game_state.location in game_state.spots[o]
            ]
        go = self._elsewhere.get(game_state.location)
        if go is None:
            here = {self._go[r] for r in game.receptacles_at[game_state.location]}
            go = self._elsewhere[game_state.location] = tuple(
                text for text in self._anywhere if text not in here
            )
        return (
            *sorted(set(first)),
            *go,
            *sorted(set(heat)),
            *self._last,
            *sorted(set(rest)),
        )

    def _text(self, verb: str, first: int = NOTHING, second: int = NOTHING) -> str:
        meaning = (verb, first, second)
        text = self._texts.get(meaning)
        if text is None:
            game = self._game
            names = (
                game.receptacle_names if verb in _OF_RECEPTACLES else game.object_names
            )
            others = game.object_names if verb == "slice" else game.receptacle_names
            if first == NOTHING:
                phrase = verb
            elif verb == "put":
                phrase = game.grammar.put.format(
                    object=names[first], receptacle=others[second]
                )
            else:
                phrase = _PATTERNS.get(verb, f"{verb} {{0}}").format(
                    names[first], others[second]
                )
            # interned, because thousands of games share the same few thousand commands
            text = self._texts[meaning] = sys.intern(phrase)
            self.meaning[text] = meaning
        return text
