"""The engine: plays one ALFWorld game at a time by its rules and admissible commands."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from hgpo_envs.alfworld import coverage, rules, text
from hgpo_envs.alfworld.commands import Commands
from hgpo_envs.engine import State

if TYPE_CHECKING:
    from hgpo_envs.alfworld.games import Game
    from hgpo_envs.alfworld.world import World


class Games(Protocol):
    """Where an engine gets its games from."""

    def game(self, task_id: str) -> Game:
        """The compiled game."""
        ...


class ALFWorldEngine:
    """Plays ALFWorld games, one at a time (`hgpo_envs.engine.Engine`).

    Args:
        games: Where the games come from.
        count: Count how often each rule fired, in `fired`.

    Attributes:
        game: The game being played.
        world: Its state, to be looked at and copied, not changed.
        fired: How often each rule fired, when counted.
    """

    game: Game
    world: World

    def __init__(self, games: Games | None = None, *, count: bool = False) -> None:
        self._games = games
        self._commands: Commands | None = None
        self._state: State | None = None
        self.fired: Counter[str] | None = Counter() if count else None

    def start(self, task_id: str) -> State:
        """Begins a task of the source."""
        if self._games is None:
            raise RuntimeError("this engine has no source of games; use play(game)")
        return self.play(self._games.game(task_id))

    def play(self, game: Game) -> State:
        """Begins a game that need not come from a source."""
        if self._commands is None or self._commands.game is not game:
            self._commands = Commands(game)
        self.game, self.world = game, game.start.copy()
        return self._show(text.welcome(game), valid=True)

    def act(self, command: str) -> State:
        """Carries out a command. What is not admissible changes nothing; after the end nothing changes."""
        state = self._state
        if state is None or self._commands is None:
            raise RuntimeError("act before start")
        if state.terminated:
            return replace(state, valid=False, reward=0.0)
        command = command.strip()
        if command not in state.actions:
            self._count("nothing happens")
            return self._show(text.NOTHING_HAPPENS, valid=False)
        verb, first, second = self._commands.meaning[command]
        if self.fired is not None:
            self._count(*coverage.cases(self.game, self.world, verb, first, second))
        return self._show(rules.RULES[verb](self.game, self.world, first, second), valid=True)

    def _show(self, observation: str, *, valid: bool) -> State:
        assert self._commands is not None
        won = rules.won(self.game, self.world)
        if won:
            self._count(f"won: {self.game.goal.task_type}")
        self._state = State(
            text=observation,
            actions=self._commands.offered(self.world),
            valid=valid,
            terminated=won,
            won=won,
            reward=float(won),
            score=float(won),
            info={},
        )
        return self._state

    def _count(self, *cases: str) -> None:
        if self.fired is not None:
            self.fired.update(cases)
