"""Data sets of generated games with the interface of other game stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.alfworld.engine import ALFWorldEngine
from hgpo_envs.alfworld.engine.game import compile_game
from hgpo_envs.alfworld.generation.draft import GameDraft, draft_game
from hgpo_envs.alfworld.generation.problem import game_data, traj_data
from hgpo_envs.alfworld.players.expert import find_plan
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

MIN_GAMES: Final = 36
"""The size of the smallest data set with every task type in each split."""


def split_sizes(games: int) -> dict[str, int]:
    """Return the number of games of each split: a sixth for each validation split, the rest for training.

    Raises:
        InputError: If there are fewer than `MIN_GAMES` games.

    >>> split_sizes(216)
    {'train': 144, 'valid_seen': 36, 'valid_unseen': 36}
    """
    if games < MIN_GAMES:
        raise InputError(
            f"expected at least {MIN_GAMES} games (every task type in each split), received {games}"
        )
    return {
        "train": games - 2 * (games // 6),
        "valid_seen": games // 6,
        "valid_unseen": games // 6,
    }


class GeneratedStore:
    """Generated games (`hgpo_envs.alfworld.data.game_folder.GameStore`). Each game is generated when it is read.

    Args:
        games: The number of games in all splits, at least `MIN_GAMES`. Each split cycles through the task types.
        seed: Any integer. The same seed gives the same games, byte for byte.

    Attributes:
        ids: All task ids, sorted.

    Raises:
        InputError: If there are fewer than `MIN_GAMES` games.
    """

    def __init__(self, games: int, seed: int = 0) -> None:
        self._seed = seed
        self._numbers = {
            draft_game(split, index, seed).id: (split, index)
            for split, size in split_sizes(games).items()
            for index in range(size)
        }
        self.ids: Sequence[str] = sorted(self._numbers)

    def read(self, task_id: str) -> dict[str, Any]:
        """Return the content of `game.tw-pddl` with a walkthrough. Raises KeyError for an unknown id."""
        game = self._draft(task_id)
        return game_data(game, walkthrough(game))

    def trajectory(self, task_id: str) -> dict[str, Any] | None:
        """Return the content of `traj_data.json`."""
        return traj_data(self._draft(task_id))

    def _draft(self, task_id: str) -> GameDraft:
        split, index = self._numbers[task_id]
        return draft_game(split, index, self._seed)


def walkthrough(game: GameDraft) -> list[str]:
    """Return the expert's commands that win a game, checked in the native engine."""
    engine = ALFWorldEngine()
    compiled = compile_game(game_data(game), game.id)
    state = engine.play(compiled)
    plan = find_plan(compiled, engine.game_state) or []
    assert plan, f"{game.id} is won at its start, or cannot be won"
    for number, command in enumerate(plan, start=1):
        state = engine.act(command)
        # sometimes early: an object on two receptacles stays on the second one when it is taken
        if state.won:
            return plan[:number]
    raise AssertionError(f"{game.id} is not won by {plan}")
