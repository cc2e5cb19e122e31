"""What a reader knows of a whole rollout, put into its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hgpo_datasets.interchange.readers.json_records import integer, without
from hgpo_datasets.schema import columns
from hgpo_envs.errors import InputError
from hgpo_envs.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    Row = dict[str, Any]

NAMED: Final = "rewards"
"""The key of a first row with the rewards of a rollout by name; `--reward` chooses among them."""
SUMMED: Final = "summed"
"""The key of a first row with the names of those whose sum without weights is the reward."""
PLACE: Final = "place"
"""The key of a first row with the file and line of its rollout, for errors."""
MOST: Final = 1 << 30
"""Limit of the characters and tokens in the prompts of a rollout, which grow with the square of its steps."""
_NOT_GIVEN: Final = {"run", "iteration", "task_id", "group", "trajectory", "extra"}
_GIVEN: Final = {column.name for column in columns(0)} - _NOT_GIVEN


def limited(steps: Iterable[Row], where: str) -> Iterator[Row]:
    """Yield steps while their prompts are within the limit."""
    total = 0
    for step in steps:
        total += len(step["prompt"]) + len(step.get("prompt_token_ids") or ())
        if total > MOST:
            raise InputError(
                f"{where}: expected prompts of at most {MOST:,} characters in a rollout, received more"
            )
        yield step


def add_columns(steps: Sequence[Row], given: Sequence[Row], where: str) -> None:
    """Add to steps what a file has for them: columns of the step table, and other fields to `extra`."""
    if len(given) > len(steps):
        raise InputError(
            f"{where}: expected at most one object for each of {counted(len(steps), 'step')}, received {len(given)}"
        )
    for row, columns_of_step in zip(steps, given, strict=False):
        for name, value in columns_of_step.items():
            if name in _GIVEN:
                row[name] = value
        row["extra"] = {**row.get("extra", {}), **without(columns_of_step, _GIVEN)}


def rollout_rows(
    steps: Iterable[Row],
    where: str,
    *,
    reward: float | Sequence[float | None] | None,
    named: Mapping[str, float] | None = None,
    summed: Sequence[str] = (),
    extra: Mapping[str, Any] | None = None,
    truncated: bool = False,
    error: str | None = None,
    iteration: object = None,
    **equal: object,
) -> list[Row]:
    """Return the rows of a rollout.

    Args:
        steps: The columns of each step, which come before those below.
        where: File and line of the rollout, for errors.
        reward: The reward of the rollout, which its last step gets, or that of each step; None if it is unknown.
        named: Rewards, and other numbers of which one could be the reward, by name.
        summed: The names of those whose sum is the reward, because their weights are unknown.
        extra: Fields of the rollout that are no columns.
        truncated: Whether a limit ended it.
        error: Why it was aborted; None if it was not.
        iteration: The training iteration; 0 if it is no integer.
        equal: Columns that are equal in all rows, such as `task_id` and `trajectory`.
    """
    equal["iteration"] = integer(iteration) or 0
    rows = [{"step": number, **equal, **step} for number, step in enumerate(steps)]
    if not rows:
        return rows
    if isinstance(reward, float | int | None):
        reward = [*[0.0] * (len(rows) - 1), reward]
    if len(reward) != len(rows):
        raise InputError(
            f"{where}: expected one reward for each of {counted(len(rows), 'step')}, received {len(reward)}"
        )
    for row, value in zip(rows, reward, strict=True):
        row["reward"] = value
    # What is of the whole rollout stands in its first row, where the step's own values come first.
    first = rows[0]
    first["extra"] = {**(extra or {}), **first.get("extra", {})}
    first[NAMED] = dict(named or {})
    first[SUMMED] = list(summed)
    first[PLACE] = where
    ends = {
        "aborted": error is not None,
        "error": error,
        "truncated": truncated and error is None,
        "terminated": not truncated and error is None,
    }
    # What a step itself has comes first, but no rollout that failed ended well.
    last = rows[-1]
    rows[-1] = {**last, **ends} if error else {**ends, **last}
    return rows
