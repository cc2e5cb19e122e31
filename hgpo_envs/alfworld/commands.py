"""Which commands are admissible: the preconditions of the rules, and the texts that name them."""

from __future__ import annotations

from typing import Final

from hgpo_envs.alfworld.games import KNIVES, STATIONS, Ability, Game
from hgpo_envs.alfworld.world import NOTHING, World

TREATMENTS: Final = {Ability.CLEANABLE: "clean", Ability.HEATABLE: "heat", Ability.COOLABLE: "cool"}


class Commands:
    """The commands of one game: each text is made once, when it is first offered, with what it means.

    Attributes:
        meaning: For each command that was offered: its verb and the indices that it speaks of.
    """

    def __init__(self, game: Game) -> None:
        self.game = game
        self.meaning: dict[str, tuple[str, int, int]] = {}
        self._known: dict[tuple[str, int, int], str] = {}
        self._anywhere: dict[int, list[str]] = {}
        self._sliceable = tuple(o for o, ability in enumerate(game.abilities) if ability & Ability.SLICEABLE)

    def _say(self, verb: str, first: int = NOTHING, second: int = NOTHING) -> str:
        key = (verb, first, second)
        command = self._known.get(key)
        if command is None:
            command = self._known[key] = self._phrase(*key)
            self.meaning[command] = key
        return command

    def _phrase(self, verb: str, first: int, second: int) -> str:
        things, receptacles = self.game.object_names, self.game.receptacle_names
        match verb:
            case "look" | "inventory" | "help":
                return verb
            case "go":
                return f"go to {receptacles[first]}"
            case "open" | "close":
                return f"{verb} {receptacles[first]}"
            case "inspect":
                return f"examine {receptacles[first]}"
            case "examine" | "use":
                return f"{verb} {things[first]}"
            case "take":
                return f"take {things[first]} from {receptacles[second]}"
            case "put":
                return self.game.grammar.put.format(object=things[first], receptacle=receptacles[second])
            case "slice":
                return f"slice {things[first]} with {things[second]}"
            case _:  # clean, heat, cool
                return f"{verb} {things[first]} with {receptacles[second]}"

    def _always(self, location: int) -> list[str]:
        """What is offered at a location whatever is there."""
        offers = self._anywhere.get(location)
        if offers is None:
            offers = [self._say("look"), self._say("inventory")]
            if self.game.grammar.help is not None:
                offers.append(self._say("help"))
            offers += [self._say("go", r) for r, p in enumerate(self.game.places) if p not in (NOTHING, location)]
            offers += [self._say("inspect", r) for r in self.game.receptacles_at[location]]
            self._anywhere[location] = offers
        return offers

    def offered(self, world: World) -> list[str]:
        """The admissible commands, sorted."""
        game, say, held = self.game, self._say, world.held
        offers = self._always(world.location).copy()
        for r in game.receptacles_at[world.location]:
            accessible = True
            if game.openable[r]:
                accessible = world.opened[r]
                offers.append(say("close" if accessible else "open", r))
            if held == NOTHING:
                offers += [
                    say("take", o, r)
                    for o in world.contents[r]
                    if accessible and game.abilities[o] & Ability.PICKUPABLE
                ]
            else:
                if accessible and game.object_types[held] in game.accepts[r]:
                    offers.append(say("put", held, r))
                ability = STATIONS.get(game.receptacle_types[r])
                if ability and game.abilities[held] & ability:
                    offers.append(say(TREATMENTS[ability], held, r))
            offers += [say("use", o) for o in world.contents[r] if game.abilities[o] & Ability.TOGGLEABLE]
        if held != NOTHING:
            offers.append(say("examine", held))
            if game.object_types[held] in KNIVES:
                offers += [say("slice", o, held) for o in self._sliceable if world.location in world.spots[o]]
        return sorted(set(offers))
