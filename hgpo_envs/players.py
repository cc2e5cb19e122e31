"""What scripted players of several benchmarks share: the engine that they read, and what is left of a solution."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hgpo_envs.engine import Engine

    Step = TypeVar("Step")

Read = TypeVar("Read", bound="Engine")


def engine_to_read(engine: Engine | None, kind: type[Read], reading: str) -> Read:
    """Return the engine that an expert reads.

    Args:
        engine: The engine that `hgpo_envs.engine.Player.reset` received.
        kind: The class whose hidden state the expert knows.
        reading: What the expert does, for the message, such as ``TextWorld's expert reads the game``.

    Raises:
        InputError: The engine is of another class, or in another process.
    """
    if not isinstance(engine, kind):
        raise InputError(f"{reading} of its own process; run it without --workers")
    return engine


def left_of(solution: Sequence[Step], executed: Iterable[Step]) -> Sequence[Step]:
    """Return a solution from its first step that was not executed. Steps count in order, whatever came between them.

    >>> left_of(["open", "take", "close"], ["look", "close", "open", "take"])
    ['close']
    """
    done = 0
    for step in executed:
        if done < len(solution) and step == solution[done]:
            done += 1
    return solution[done:]
