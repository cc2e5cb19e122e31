"""A row of a rollout: one step, with the columns of the step table that the collector fills in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Row(NamedTuple):
    """One step: the columns of the step table that the collector fills in; the writer computes the others.

    A tuple takes a fifth of a dictionary's memory, and the garbage collector does not scan it: it contains only texts,
    numbers and tuples of texts.
    """

    iteration: int
    task_id: str
    group: int
    trajectory: str
    task: str | None
    task_type: str | None
    split: str | None
    env_version: str | None
    step: int
    state: str
    prompt: str | None
    admissible_actions: Sequence[str] | None
    state_hash: int | None
    policy_version: int
    response: str | None
    message: str | None
    action: str | None
    prompt_token_ids: Sequence[int] | None
    response_token_ids: Sequence[int] | None
    response_logprobs: Sequence[float] | None
    finish_reason: str | None
    cut_pairs: int | None
    cut_tokens: int | None
    policy_s: float | None
    action_valid: bool
    action_admissible: bool | None
    terminated: bool
    truncated: bool
    won: bool | None
    reward: float
    score: float | None
    next_state: str | None
    next_state_hash: int | None
    aborted: bool
    error: str | None
    environment_s: float | None

    def as_dict(self) -> dict[str, Any]:
        """Return the columns that have a value."""
        return {name: value for name, value in zip(self._fields, self, strict=True) if value is not None}


def columns_of(rows: Sequence[Row]) -> dict[str, Sequence[Any]]:
    """Return the columns of rows by name, as `hgpo_datasets.StepWriter.add_group` takes them."""
    columns = dict(zip(Row._fields, zip(*rows, strict=True), strict=True))
    return {name: values for name, values in columns.items() if values.count(None) < len(values)}
