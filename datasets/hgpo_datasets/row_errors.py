"""Errors that list the rows that violate the schema, so that one invalid value affects only its own trajectory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable


def preview(value: object, most: int = 80) -> str:
    """Return a short one-line description of a value for error messages.

    Args:
        value: Any value.
        most: The maximum length in characters.

    >>> preview("a" * 100, most=5)
    "'aaaa"
    """
    try:
        return f"{value!r:.{most}}".replace("\n", " ")
    except Exception:  # noqa: BLE001 (the repr of a user's object may raise any exception)
        return f"a {type(value).__name__}"


def name_preview(name: object) -> str:
    """Return the description of a task, trajectory or group, whose names are longer than other values."""
    return preview(name, 200)


@dataclass(frozen=True, slots=True)
class WrongRow:
    """One row that violates the schema.

    Attributes:
        row: Index among the input rows; None if only trajectory and step are known.
        trajectory: The row's trajectory in the input; None if the row has none.
        step: The row's step; None if only the index is known.
        column: The invalid column.
        message: The error in one line.
    """

    row: int | None
    trajectory: object
    step: int | None
    column: str
    message: str

    def of(self, trajectory: object) -> WrongRow:
        """Return a copy with the trajectory set."""
        return replace(self, trajectory=trajectory)


class RowError(InputError):
    """An error for rows that violate the schema. The message describes the first of them.

    Attributes:
        wrong: The first invalid row of each trajectory. Rules are checked in stages, and the error lists the rows that
            fail the first failing stage; other rows may fail later stages.
    """

    def __init__(self, wrong: Iterable[WrongRow]) -> None:
        first: dict[object, WrongRow] = {}
        for one in wrong:
            first.setdefault(one.trajectory if isinstance(one.trajectory, str) else ("row", one.row), one)
        self.wrong = tuple(first.values())
        more = f" (and {len(self.wrong) - 1} more trajectories have invalid rows)" if len(self.wrong) > 1 else ""
        super().__init__(f"{self.wrong[0].message}{more}")

    @property
    def trajectories(self) -> frozenset[str]:
        """The trajectories with invalid rows, without rows that have no trajectory."""
        return frozenset(one.trajectory for one in self.wrong if isinstance(one.trajectory, str))
