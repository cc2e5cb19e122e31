"""Which rows break the schema, so that one bad value costs its own trajectory and never others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class WrongRow:
    """One row that breaks the schema.

    Attributes:
        row: Its position among the rows given; None where only trajectory and step are known.
        trajectory: Its trajectory, as it was given; None where the row names none.
        step: Its step; None where only its position is known.
        column: The column that is wrong.
        message: What is wrong, in one line.
    """

    row: int | None
    trajectory: object
    step: int | None
    column: str
    message: str

    def of(self, trajectory: object) -> WrongRow:
        """The same for a trajectory that has become known."""
        return replace(self, trajectory=trajectory)


class RowError(InputError):
    """Rows break the schema. The message names the first of them.

    Attributes:
        wrong: The first wrong row of each trajectory that has one, as far as it was looked: rows without the errors
            named here may have others.
    """

    def __init__(self, wrong: Iterable[WrongRow]) -> None:
        first: dict[object, WrongRow] = {}
        for one in wrong:
            first.setdefault(one.trajectory if isinstance(one.trajectory, str) else ("row", one.row), one)
        self.wrong = tuple(first.values())
        more = f" (and {len(self.wrong) - 1} more trajectories have wrong rows)" if len(self.wrong) > 1 else ""
        super().__init__(f"{self.wrong[0].message}{more}")

    @property
    def trajectories(self) -> frozenset[str]:
        """The trajectories that have wrong rows, as far as their rows name them."""
        return frozenset(one.trajectory for one in self.wrong if isinstance(one.trajectory, str))
