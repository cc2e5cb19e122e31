"""Plays TextArena's single-player games, and lists their tasks."""

from __future__ import annotations

import copy
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import textarena
from textarena.core import ObservationType

from hgpo_envs.engine import State, Task
from hgpo_envs.errors import UnknownTask, check_known
from hgpo_textarena.games import GAMES
from hgpo_textarena.process_random import OwnRandom

if TYPE_CHECKING:
    from collections.abc import Hashable

SPLITS: Final = ("train", "test")
"""The names of the splits."""

SEEDS: Final = 1_100
"""The number of seeds among which different games are searched."""

_HELD_OUT: Final = 10  # every how many games one is held out for tests

# the reward of a solved game; others are graded by how near the end was
_WON: Final = 1.0


class TextArenaEngine:
    """A single-player game (`hgpo_envs.engine.BranchingEngine`).

    The text is what the game says after an action. Where it shows a board, the board alone is compared with other
    states. TextArena draws from the random generators of the process; here each engine has its own.

    Args:
        game_id: TextArena's id.
    """

    def __init__(self, game_id: str) -> None:
        self._game_id = game_id

    def start(self, task_id: str) -> State:
        """Start the game with a seed."""
        seed = int(task_id.rpartition("-")[2])
        self._random = OwnRandom(seed)
        self._game: Any = textarena.make(f"{self._game_id}-raw")
        with self._random:
            self._game.reset(num_players=1, seed=seed)
        self._state = self._observed(valid=True)
        return self._state

    def act(self, command: str) -> State:
        """Take an action. The game forgives one invalid action in a row; the second loses it."""
        if not self._state.terminated:
            valid = command in self._state.actions
            with self._random:
                self._game.step(command)
            self._state = self._observed(valid=valid)
        return self._state

    def fork(self) -> TextArenaEngine:
        """Return an independent copy of the game."""
        other = TextArenaEngine(self._game_id)
        other._random = self._random.copy()
        other._game = copy.deepcopy(self._game)
        other._state = self._state
        return other

    def key(self) -> Hashable:
        """Return the game's hidden state as text, with what may follow from it."""
        state = self._game.state
        return str(state.game_state), state.turn, state.error_count, state.done

    @property
    def game(self) -> Any:  # noqa: ANN401 (TextArena's environment)
        """The game, for players that read its hidden state."""
        return self._game

    @property
    def state(self) -> State:
        """The last state."""
        return self._state

    def _observed(self, *, valid: bool) -> State:
        shown = (ObservationType.PROMPT, ObservationType.PLAYER_ACTION)
        messages = [
            (text.strip(), kind)
            for _, text, kind in self._game.get_observation()[1]
            if kind not in shown
        ]
        done = self._game.state.done
        reward = 0.0
        if done:
            rewards, infos = self._game.close()
            reward = float(rewards[0])
            messages.append(
                (str(infos[0].get("reason", "")), ObservationType.GAME_MESSAGE)
            )
        boards = [text for text, kind in messages if kind == ObservationType.GAME_BOARD]
        return State(
            text="\n".join(text for text, _ in messages) or "Begin.",
            actions=() if done else GAMES[self._game_id](self._game),
            valid=valid,
            terminated=done,
            won=done and reward >= _WON,
            reward=reward,
            score=min(max(reward, 0.0), 1.0),  # an invalid move costs a point
            key=f"{boards[-1]}\n{done}" if boards else None,
        )


@cache
def different_games(game_id: str) -> dict[str, tuple[str, ...]]:
    """Return the ids of different games by split: of each beginning, the first seed that has it.

    The seed changes nothing in some games (TowerOfHanoi), and a number of 20 in others. The last tenth of the games is
    the split ``test``, which is empty where there are fewer than ten.
    """
    game = textarena.make(f"{game_id}-raw")
    first = dict[str, str]()
    for seed in range(SEEDS):
        with OwnRandom(seed):
            game.reset(num_players=1, seed=seed)
        first.setdefault(str(game.state.game_state), f"{game_id}-{seed}")
    ids = tuple(first.values())
    kept = len(ids) - len(ids) // _HELD_OUT
    return {"train": ids[:kept], "test": ids[kept:]}


class TextArenaSource:
    """The games of one kind: a task is a seed whose game no smaller seed has (`hgpo_envs.engine.TaskSource`).

    Args:
        game: TextArena's id.

    Raises:
        InputError: The game is not one of `GAMES`.
    """

    name = "TextArena"

    def __init__(self, game: str = "FrozenLake-v0") -> None:
        check_known("game", game, GAMES)
        self._game_id = game

    def ids(self, split: str) -> list[str]:
        """Return the ids, ``GAME-SEED``."""
        check_known("split", split, (*SPLITS, "all"))
        games = different_games(self._game_id)
        return [
            task_id
            for name in SPLITS
            if split in (name, "all")
            for task_id in games[name]
        ]

    def task(self, task_id: str) -> Task:
        """Return a task's description: the game's rules."""
        split = next(
            (
                name
                for name, ids in different_games(self._game_id).items()
                if task_id in ids
            ),
            None,
        )
        if split is None:
            raise UnknownTask(
                f"expected a task such as {self._game_id}-0, received {task_id!r}"
            )
        engine = self.engine()
        engine.start(task_id)
        rules = next(text for _, text in engine.game.state.logs)
        return Task(
            task_id,
            split,
            rules.strip(),
            self._game_id.partition("-")[0],
            {"textarena": textarena.__version__},
        )

    def engine(self) -> TextArenaEngine:
        """Return a new engine."""
        return TextArenaEngine(self._game_id)
