"""Makes whole data sets of generated games: drafted, written down, won by the expert, stored as official folders."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.alfworld.engine import ALFWorldEngine
from hgpo_envs.alfworld.expert import find_plan
from hgpo_envs.alfworld.games import compile_game
from hgpo_envs.alfworld.generator import draft
from hgpo_envs.alfworld.problem import game_data, traj_data
from hgpo_envs.alfworld.source import GAME_FILE, SPLITS
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hgpo_envs.alfworld.generator import Draft

LEAST: Final = 36
"""The smallest data set: every task type in each split."""


@dataclass(frozen=True, slots=True)
class Generated:
    """A generated game.

    Attributes:
        id: `<split>/<task folder>/<trial folder>`.
        game: The content of `game.tw-pddl`, walkthrough included.
        traj: The content of `traj_data.json`.
    """

    id: str
    game: dict[str, Any]
    traj: dict[str, Any]


def split_sizes(games: int) -> dict[str, int]:
    """How many games each split gets: a sixth each for validation, the rest for training.

    >>> split_sizes(192)
    {'train': 128, 'valid_seen': 32, 'valid_unseen': 32}
    """
    if games < LEAST:
        raise InputError(f"expected at least {LEAST} games, so that each split has every task type; got {games}")
    return {"train": games - 2 * (games // 6), "valid_seen": games // 6, "valid_unseen": games // 6}


def generate(games: int, seed: int = 0) -> Iterator[Generated]:
    """Generates a data set, split by split; the task types take turns.

    Args:
        games: How many, at least `LEAST`.
        seed: Each gives other games; the same gives the same to the byte.
    """
    for split, size in split_sizes(games).items():
        for index in range(size):
            yield finish(draft(split, index, seed))


def finish(game: Draft) -> Generated:
    """Writes a drafted game down, with the walkthrough by which the expert won it."""
    return Generated(game.id, game_data(game, walkthrough(game)), traj_data(game))


def walkthrough(game: Draft) -> list[str]:
    """The expert's commands, played to the win in the native engine."""
    engine = ALFWorldEngine()
    compiled = compile_game(game_data(game), game.id)
    state = engine.play(compiled)
    plan = find_plan(compiled, engine.world) or []
    assert plan, f"{game.id} is won at its start, or cannot be won"
    for command in plan:
        state = engine.act(command)
    assert state.won, f"{game.id} is not won by {plan}"
    return plan


def write_folder(games: Iterator[Generated], folder: Path) -> int:
    """Writes games as official folders: `<folder>/<split>/<task>/<trial>/game.tw-pddl` and `traj_data.json`.

    Args:
        games: What `generate` gives.
        folder: Must not exist, or be empty.

    Returns:
        How many games were written.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder} is there already; name a new folder, or remove it first")
    count = 0
    for count, game in enumerate(games, start=1):  # noqa: B007 (the last number is the count)
        place = folder / game.id
        place.mkdir(parents=True)
        (place / GAME_FILE).write_text(json.dumps(game.game), encoding="utf-8")
        (place / "traj_data.json").write_text(json.dumps(game.traj), encoding="utf-8")
    return count


assert tuple(split_sizes(LEAST)) == SPLITS
