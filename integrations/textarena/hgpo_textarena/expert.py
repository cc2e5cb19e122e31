"""The expert: the shortest way to win, searched in copies of the game."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from hgpo_envs.players import engine_to_read
from hgpo_textarena.engine import TextArenaEngine

if TYPE_CHECKING:
    from hgpo_envs.engine import Engine, State, Task


class Expert:
    """Plays the shortest sequence of actions that wins, found by breadth-first search."""

    def reset(self, task: Task, state: State, engine: Engine | None = None) -> None:
        """Start a game.

        Raises:
            InputError: The engine is in another process, or is not TextArena's.
        """
        del task, state
        reading = "TextArena's expert searches the game"
        self._engine = engine_to_read(engine, TextArenaEngine, reading)
        self._plan: deque[str] = deque()
        self._expected: object = None

    def act(self, state: State) -> str:
        """Return the next action, after a new search if another player has moved."""
        if not self._plan or self._expected != self._engine.key():
            self._plan = deque(shortest_win(self._engine))
        action = self._plan.popleft() if self._plan else state.actions[0]
        ahead = self._engine.fork()
        ahead.act(action)
        self._expected = ahead.key()
        return action

    def fork(self, engine: Engine | None) -> Expert:
        """Return a copy for another engine in the same state."""
        other = Expert()
        other._engine = engine if isinstance(engine, TextArenaEngine) else self._engine
        other._plan = deque(self._plan)
        other._expected = self._expected
        return other


def shortest_win(engine: TextArenaEngine) -> list[str]:
    """Return the fewest actions that win from here; empty if none do."""
    queue: deque[tuple[TextArenaEngine, list[str]]] = deque([(engine.fork(), [])])
    seen = {str(engine.game.state.game_state)}
    while queue:
        present, path = queue.popleft()
        for action in present.state.actions:
            ahead = present.fork()
            state = ahead.act(action)
            if state.won:
                return [*path, action]
            known = str(ahead.game.state.game_state)  # without the number of turns
            if not state.terminated and known not in seen:
                seen.add(known)
                queue.append((ahead, [*path, action]))
    return []
