"""`expert`: a player that reads the whole state of a game and follows a shortest plan of a simple form.

It makes a new plan at every step, so it can continue any game at any point. A plan fetches the missing objects one
after another. Of all combinations of objects, places and lamps, the expert chooses the one with the fewest commands.
"""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Final, cast

from hgpo_envs.alfworld.engine import ALFWorldEngine
from hgpo_envs.alfworld.engine.game import STATIONS
from hgpo_envs.alfworld.engine.state import NOTHING, Ability, Trait
from hgpo_envs.players import engine_to_read

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hgpo_envs.alfworld.engine.game import Game
    from hgpo_envs.alfworld.engine.state import GameState
    from hgpo_envs.engine import Engine, State, Task

TREATMENTS: Final = {
    Trait.CLEAN: ("clean", Ability.CLEANABLE),
    Trait.HOT: ("heat", Ability.HEATABLE),
    Trait.COOL: ("cool", Ability.COOLABLE),
}


class ExpertPlayer:
    """A player that solves every solvable game from any state by reading the engine (`hgpo_envs.engine.Player`)."""

    _engine: ALFWorldEngine

    def reset(self, task: Task, state: State, engine: Engine | None = None) -> None:
        """Start a game. Raises InputError if the engine is not the native one."""
        del task, state
        reading = "ALFWorld's expert needs the native engine"
        self._engine = engine_to_read(engine, ALFWorldEngine, reading)

    def fork(self, engine: Engine | None) -> ExpertPlayer:
        """Return a player of another engine, which must be a native one, too."""
        copy = ExpertPlayer()
        copy._engine = cast("ALFWorldEngine", engine)
        return copy

    def act(self, state: State) -> str:
        """Return the first command of a shortest plan, or `look` if there is no plan."""
        plan = find_plan(self._engine.game, self._engine.game_state)
        return plan[0] if plan and plan[0] in state.actions else "look"


def find_plan(game: Game, game_state: GameState) -> list[str] | None:
    """Return commands that win from a state, or None if there are none (no receptacle accepts the held object)."""
    plans = (
        _light_plans(game, game_state)
        if game.goal.lamp_type
        else _place_plans(game, game_state)
    )
    return min(plans, key=lambda plan: (len(plan), plan), default=None)


class _Plan:
    """A plan under construction, with the resulting location, held object and opened receptacles.

    Attributes:
        stuck: Whether the held object cannot be put down, because no receptacle in the room accepts it.
    """

    def __init__(self, game: Game, game_state: GameState) -> None:
        self.game = game
        self.stuck = False
        self.commands: list[str] = []
        self.location = game_state.location
        self.held = game_state.held
        self.opened = {r for r, is_open in enumerate(game_state.opened) if is_open}

    def reach(self, r: int) -> None:
        if self.game.places[r] != self.location:
            self.commands.append(f"go to {self.game.receptacle_names[r]}")
            self.location = self.game.places[r]

    def access(self, r: int) -> None:
        self.reach(r)
        if self.game.openable[r] and r not in self.opened:
            self.commands.append(f"open {self.game.receptacle_names[r]}")
            self.opened.add(r)

    def put(self, r: int) -> None:
        self.access(r)
        names = self.game.object_names[self.held], self.game.receptacle_names[r]
        self.commands.append(
            self.game.grammar.put.format(object=names[0], receptacle=names[1])
        )
        self.held = NOTHING

    def take(self, o: int, r: int) -> None:
        if self.held not in (NOTHING, o):
            self._lay_down()
        if self.held == NOTHING:
            self.access(r)
            self.commands.append(
                f"take {self.game.object_names[o]} from {self.game.receptacle_names[r]}"
            )
            self.held = o

    def treat(self, verb: str, station: int) -> None:
        self.reach(station)
        names = self.game.object_names[self.held], self.game.receptacle_names[station]
        self.commands.append(f"{verb} {names[0]} with {names[1]}")

    def use(self, lamp: int, r: int, *, on: bool) -> None:
        self.reach(r)
        if not on:
            self.commands.append(f"use {self.game.object_names[lamp]}")

    def _lay_down(self) -> None:
        """Put the held object down where this takes the fewest commands."""
        kind = self.game.object_types[self.held]

        def cost(r: int) -> tuple[int, int]:
            closed = self.game.openable[r] and r not in self.opened
            return (self.game.places[r] != self.location) + closed, r

        taker = min(
            (r for r in _receptacles(self.game) if kind in self.game.accepts[r]),
            key=cost,
            default=None,
        )
        if taker is None:
            self.stuck = True
        else:
            self.put(taker)


def _receptacles(game: Game, kind: str | None = None) -> Iterator[int]:
    """Yield the reachable receptacles, of one kind or all."""
    for r, place in enumerate(game.places):
        if place != NOTHING and kind in (None, game.receptacle_types[r]):
            yield r


def _candidates(
    game: Game, game_state: GameState, ability: int
) -> Iterator[tuple[int, int]]:
    """Yield objects of the goal's kind, each with its receptacle (`NOTHING` for the held object)."""
    if game_state.held != NOTHING and _fits(game, game_state.held, ability):
        yield game_state.held, NOTHING
    for r in _receptacles(game):
        for o in game_state.contents[r]:
            if (
                o != game_state.held
                and _fits(game, o, ability)
                and game.abilities[o] & Ability.PICKUPABLE
            ):
                yield o, r


def _fits(game: Game, o: int, ability: int) -> bool:
    return (
        game.object_types[o] == game.goal.object_type
        and game.abilities[o] & ability == ability
    )


def _place_plans(game: Game, game_state: GameState) -> Iterator[list[str]]:
    """Yield plans that bring the missing objects to one receptacle of the goal's kind."""
    goal = game.goal
    verb, ability = TREATMENTS.get(Trait(goal.trait), ("", Ability(0)))
    stations = [
        r
        for r in _receptacles(game)
        if verb and STATIONS.get(game.receptacle_types[r]) == ability
    ]
    candidates = list(_candidates(game, game_state, goal.ability))
    for target in _receptacles(game, goal.receptacle_type):
        if goal.object_type not in game.accepts[target]:
            continue
        done = {
            o
            for o in game_state.contents[target]
            if _fits(game, o, goal.ability) and _treated(game, game_state, o)
        }
        lacking = [(o, r) for o, r in candidates if o not in done]
        for chosen in permutations(lacking, max(0, goal.count - len(done))):
            objects = {o for o, _ in chosen}
            held_later = any(r == NOTHING for _, r in chosen[1:])
            if len(objects) < len(chosen) or held_later:
                continue
            is_ready = all(_treated(game, game_state, o) for o in objects)
            for station in stations or [NOTHING]:
                if verb and station == NOTHING and not is_ready:
                    continue
                plan = _fetch(game, game_state, chosen, target, verb, station)
                if not plan.stuck:
                    yield plan.commands


def _treated(game: Game, game_state: GameState, o: int) -> bool:
    return game_state.traits[o] & game.goal.trait == game.goal.trait


def _fetch(
    game: Game,
    game_state: GameState,
    chosen: Iterable[tuple[int, int]],
    target: int,
    verb: str,
    station: int,
) -> _Plan:
    plan = _Plan(game, game_state)
    for o, r in chosen:
        plan.take(o, r)
        if verb and not _treated(game, game_state, o):
            plan.treat(verb, station)
        plan.put(target)
    return plan


def _light_plans(game: Game, game_state: GameState) -> Iterator[list[str]]:
    """Yield plans that hold an object of the goal's kind next to a lamp that is on."""
    lamps = [
        (o, r)
        for r in _receptacles(game)
        for o in game_state.contents[r]
        if game.object_types[o] == game.goal.lamp_type
        and game.abilities[o] & Ability.TOGGLEABLE
    ]
    for o, r in _candidates(game, game_state, 0):
        for lamp, stand in lamps:
            plan = _Plan(game, game_state)
            plan.take(o, r)
            plan.use(lamp, stand, on=bool(game_state.traits[lamp] & Trait.TOGGLED))
            if not plan.stuck:
                yield plan.commands
