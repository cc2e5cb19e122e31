"""The games: their ids in TextArena and their admissible actions, which TextArena does not list."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def moves_on_ice(game: Any) -> list[str]:  # noqa: ANN401 (TextArena's environment)
    """Return the moves that do not leave the lake."""
    row, column = game.state.game_state["player_pos"]
    inside = range(game.size)
    return sorted(
        f"[{name}]"
        for name, (y, x) in game.actions.items()
        if row + y in inside and column + x in inside
    )


def moves_of_disks(game: Any) -> list[str]:  # noqa: ANN401
    """Return the moves of a disk to an empty tower or onto a larger disk."""
    towers = game.state.game_state["towers"]
    return [
        f"[{source} {target}]"
        for source, target in permutations(sorted(towers), 2)
        if towers[source]
        and (not towers[target] or towers[target][-1] > towers[source][-1])
    ]


def guesses(game: Any) -> list[str]:  # noqa: ANN401
    """Return the numbers that were not guessed yet."""
    return [
        f"[{n}]"
        for n in range(game.min_number, game.max_number + 1)
        if n not in game.guessed_numbers
    ]


GAMES: Final[Mapping[str, Callable[[Any], list[str]]]] = {
    **dict.fromkeys(
        ("FrozenLake-v0", "FrozenLake-v0-random", "FrozenLake-v0-hardcore"),
        moves_on_ice,
    ),
    **dict.fromkeys(
        (
            f"TowerOfHanoi-v0{size}"
            for size in ("", "-medium", "-hard", "-hardcore", "-extreme")
        ),
        moves_of_disks,
    ),
    **dict.fromkeys(("GuessTheNumber-v0", "GuessTheNumber-v0-hardcore"), guesses),
}
"""TextArena's id → the function that lists the admissible actions."""
