"""The registry of scores. A score is one function; others add theirs by the entry point group `hgpo.scores`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from hgpo_envs.errors import InputError, one_line
from hgpo_train.registry import NamedFunction, Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hgpo_train.scores.rows import ScoredRows


@dataclass(frozen=True)
class Score(NamedFunction):
    """A registered score.

    Attributes:
        name: Its name in the registry.
        function: Returns its columns, one value per row.
        columns: The dtypes of its columns by name.
    """

    function: Callable[[ScoredRows], Mapping[str, pl.Series]]
    columns: Mapping[str, pl.DataType]

    def __call__(self, rows: ScoredRows) -> dict[str, pl.Series]:
        """Return the score's columns.

        Raises:
            InputError: The function returned other columns, other types, or another number of rows.
        """
        # The function can be a user's, and its table is stored: other columns or lengths would shift values.
        found = dict(self.function(rows))
        if found.keys() != self.columns.keys():
            raise InputError(
                f"score {self.name}: expected the columns {sorted(self.columns)}, received {sorted(found)}"
            )
        for name, values in found.items():
            if len(values) != len(rows.steps):
                expected = f"{len(rows.steps)} values of {name}, one per row"
                raise InputError(
                    f"score {self.name}: expected {expected}, received {len(values)}"
                )
        try:
            return {
                name: found[name].cast(dtype).alias(name)
                for name, dtype in self.columns.items()
            }
        except pl.exceptions.PolarsError as error:
            expected = f"columns of {', '.join(map(str, self.columns.values()))}"
            raise InputError(
                f"score {self.name}: expected {expected} ({one_line(error, 200)})"
            ) from error


def score(
    name: str, *, columns: Mapping[str, pl.DataType]
) -> Callable[[Callable[[ScoredRows], Mapping[str, pl.Series]]], Score]:
    """Return a decorator that registers a function as a score.

    Args:
        name: The name in the registry.
        columns: The dtypes of the columns that the function returns, by name: a number per step, or a list with a
            number per response token.

    Raises:
        InputError: Another score is registered under this name.
    """

    def decorate(function: Callable[[ScoredRows], Mapping[str, pl.Series]]) -> Score:
        return SCORES.add(Score(name, function, dict(columns)))

    return decorate


def score_command(run: object, scores: Iterable[str]) -> str:
    """Return the command that adds scores to a run."""
    names = dict.fromkeys(scores)
    reference = " --reference OTHER" if "reference_logprobs" in names else ""
    return f"hgpo score {run} --model MODEL {' '.join(f'-s {name}' for name in names)}{reference}"


def columns_of(scores: Iterable[str]) -> dict[str, pl.DataType]:
    """Return the dtypes of the columns of several scores by name."""
    columns: dict[str, pl.DataType] = {}
    for name in scores:
        columns |= get(name).columns
    return columns


def _as_score(found: object, name: str) -> Score:
    if not isinstance(found, Score):
        raise InputError(
            f"{name}: expected a function with the decorator `score`, received {type(found).__name__}"
        )
    return found


SCORES: Final = Registry("hgpo.scores", "a score", _as_score)
get = SCORES.get
names = SCORES.names
