"""Count the cases of rules that ALFWorld episodes reach."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hgpo_envs.alfworld.engine import ALFWorldEngine
from hgpo_envs.alfworld.engine.state import NOTHING, Ability, GameState, Trait

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hgpo_envs.alfworld.engine.game import Game
    from hgpo_envs.engine import State


class CountingEngine(ALFWorldEngine):
    """An engine that counts in `fired` how often each case of each rule is reached."""

    def __init__(self) -> None:
        super().__init__()
        self.fired: Counter[str] = Counter()

    def play(self, game: Game) -> State:
        """Start a game."""
        return self._count_won(super().play(game))

    def act(self, command: str) -> State:
        """Execute a command and count its cases."""
        state = self._state
        if state is None or state.terminated:
            return super().act(command)
        if command.strip() in state.actions:
            self.fired.update(
                cases(
                    self.game, self.game_state, *self._commands.meaning[command.strip()]
                )
            )
        else:
            self.fired["nothing happens"] += 1
        return self._count_won(super().act(command))

    def _count_won(self, state: State) -> State:
        if state.terminated:
            self.fired[f"won: {self.game.goal.task_type}"] += 1
        return state


def cases(
    game: Game, game_state: GameState, verb: str, first: int, second: int
) -> Iterator[str]:
    """Return the cases of a rule before it is applied: its verb, and the special conditions."""
    yield verb
    match verb:
        case "look" | "inventory":
            yield from _sight(game, game_state, verb)
        case "go" | "inspect":
            yield from _face(game, game_state, verb, first)
        case "take" | "put":
            yield from _move(game, game_state, verb, first, second)
        case "clean" | "heat" | "cool":
            yield from _treat(game, game_state, verb, first, second)
        case "examine":
            yield from _examine(game, game_state, first)
        case "use" | "slice":
            yield from _change(game, game_state, verb, first)


def _kind(game: Game, game_state: GameState, r: int) -> str:
    if not game.openable[r]:
        return "surface"
    return "open receptacle" if game_state.opened[r] else "closed receptacle"


def _around(game: Game, game_state: GameState, o: int) -> Iterator[int]:
    return (
        r
        for r in game.receptacles_at[game_state.location]
        if o in game_state.contents[r]
    )


def _sight(game: Game, game_state: GameState, verb: str) -> Iterator[str]:
    if verb == "inventory":
        yield (
            "inventory: nothing"
            if game_state.held == NOTHING
            else "inventory: something"
        )
        return
    here = game.receptacles_at[game_state.location]
    yield (
        "look: in the middle"
        if not here
        else "look: one receptacle"
        if len(here) == 1
        else "look: several"
    )
    if any(
        r in here and game_state.location in game_state.spots[o]
        for o, r in game_state.emptied
    ):
        yield "look: an object moved beside"


def _face(game: Game, game_state: GameState, verb: str, r: int) -> Iterator[str]:
    yield f"{verb}: {_kind(game, game_state, r)}"
    if verb == "go" and len(game.receptacles_at[game.places[r]]) > 1:
        yield "go: several receptacles at one location"


def _change(game: Game, game_state: GameState, verb: str, o: int) -> Iterator[str]:
    trait = Trait.TOGGLED if verb == "use" else Trait.SLICED
    yield f"{verb}: again" if game_state.traits[o] & trait else f"{verb}: first time"
    around = list(_around(game, game_state, o))
    yield from (f"{verb}: {_kind(game, game_state, r)}" for r in around)
    if not around:
        yield f"{verb}: where it only counts as being"


def _move(
    game: Game, game_state: GameState, verb: str, o: int, r: int
) -> Iterator[str]:
    yield f"{verb}: {_kind(game, game_state, r)}"
    elsewhere = [
        other
        for other, inside in enumerate(game_state.contents)
        if other != r and o in inside
    ]
    if elsewhere:
        yield f"{verb}: object in two receptacles"
    if verb == "take" and game_state.location not in game_state.spots[o]:
        yield "take: object counts as being elsewhere"
    if game.abilities[o] & Ability.CONTAINER:
        yield f"{verb}: container, {'holding something' if game.nested.get(o) else 'empty'}"
    if verb == "put" and (o, r) in game_state.emptied:
        yield "put: back where it was"
    if verb == "put" and game.goal.count == 2:
        yield "put: in a two-object task"


def _treat(
    game: Game, game_state: GameState, verb: str, o: int, r: int
) -> Iterator[str]:
    yield f"{verb}: {_kind(game, game_state, r)}"
    undone = {"heat": Trait.COOL, "cool": Trait.HOT}.get(verb)
    if undone and game_state.traits[o] & undone:
        yield f"{verb}: undoes the other"


def _examine(game: Game, game_state: GameState, o: int) -> Iterator[str]:
    if game.abilities[o] & Ability.CONTAINER:
        yield f"examine: container, {'holding something' if game.nested.get(o) else 'empty'}"
    else:
        traits = [
            trait.name.lower()
            for trait in Trait
            if game_state.traits[o] & trait and trait.name
        ]
        yield f"examine: {' and '.join(traits) or 'nothing special'}"
