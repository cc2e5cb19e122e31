"""Data sets of generated games: drafted, written down, won by the expert; given out like any other store of games."""

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
"""The smallest data set: every task type in each split."""
BUNDLED_GAMES: Final = 216
BUNDLED_SEED: Final = 0
"""The bundled pack is ``hgpo data synth alfworld --games 216 --seed 0``."""


def split_sizes(games: int) -> dict[str, int]:
    """How many games each split gets: a sixth each for validation, the rest for training.

    >>> split_sizes(216)
    {'train': 144, 'valid_seen': 36, 'valid_unseen': 36}
    """
    if games < MIN_GAMES:
        raise InputError(f"expected at least {MIN_GAMES} games, so that each split has every task type; got {games}")
    return {"train": games - 2 * (games // 6), "valid_seen": games // 6, "valid_unseen": games // 6}


class GeneratedStore:
    """Generated games (`hgpo_envs.alfworld.data.game_folder.GameStore`); each is made when it is read.

    Args:
        games: How many in all splits, at least `MIN_GAMES`; in each split the task types take turns.
        seed: Each gives other games; the same gives the same to the byte.
    """

    def __init__(self, games: int, seed: int = 0) -> None:
        self._seed = seed
        self._numbers = {
            draft_game(split, index, seed).id: (split, index)
            for split, size in split_sizes(games).items()
            for index in range(size)
        }

    def ids(self) -> Sequence[str]:
        """All task ids, sorted."""
        return sorted(self._numbers)

    def read(self, task_id: str) -> dict[str, Any]:
        """The content of `game.tw-pddl`, walkthrough included. Raises KeyError for an unknown id."""
        game = self._draft(task_id)
        return game_data(game, walkthrough(game))

    def trajectory(self, task_id: str) -> dict[str, Any] | None:
        """The content of `traj_data.json`."""
        return traj_data(self._draft(task_id))

    def _draft(self, task_id: str) -> GameDraft:
        split, index = self._numbers[task_id]
        return draft_game(split, index, self._seed)


def walkthrough(game: GameDraft) -> list[str]:
    """The expert's commands, played to the win in the native engine."""
    engine = ALFWorldEngine()
    compiled = compile_game(game_data(game), game.id)
    state = engine.play(compiled)
    plan = find_plan(compiled, engine.game_state) or []
    assert plan, f"{game.id} is won at its start, or cannot be won"
    for number, command in enumerate(plan, start=1):
        state = engine.act(command)
        if state.won:  # now and then early: what lies on two receptacles at once stays on the second when it is taken
            return plan[:number]
    raise AssertionError(f"{game.id} is not won by {plan}")
