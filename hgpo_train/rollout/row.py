"""A row of a rollout: one step, with the columns of the step table that the collector fills in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import asdict, astuple

if TYPE_CHECKING:
    from collections.abc import Sequence


class Row(Struct, gc=False):
    """One step: the columns of the step table that the collector fills in; the writer computes the others.

    The defaults are those of a step that failed before the policy replied.

    It takes a fifth of a dictionary's memory. The garbage collector does not scan it, because it contains only texts,
    numbers and tuples of these, and no cycle can go through it.
    """

    iteration: int
    task_id: str
    group: int
    trajectory: str
    step: int
    state: str
    parent: str | None = None
    branch_step: int | None = None
    task: str | None = None
    task_type: str | None = None
    split: str | None = None
    env_version: str | None = None
    prompt: str | None = None
    admissible_actions: Sequence[str] | None = None
    state_hash: int | None = None
    policy_version: int = 0
    response: str | None = None
    message: str | None = None
    action: str | None = None
    prompt_token_ids: Sequence[int] | None = None
    response_token_ids: Sequence[int] | None = None
    response_logprobs: Sequence[float] | None = None
    finish_reason: str | None = None
    cut_pairs: int | None = None
    cut_tokens: int | None = None
    policy_s: float | None = None
    action_valid: bool = True
    action_admissible: bool | None = None
    terminated: bool = False
    truncated: bool = False
    won: bool | None = False
    reward: float = 0.0
    score: float | None = None
    next_state: str | None = None
    next_state_hash: int | None = None
    aborted: bool = False
    error: str | None = None
    environment_s: float | None = None

    @property
    def group_key(self) -> tuple[int, str, int]:
        """The key of the row's group in its run."""
        return self.iteration, self.task_id, self.group

    def as_dict(self) -> dict[str, Any]:
        """Return the columns that have a value."""
        return {
            name: value for name, value in asdict(self).items() if value is not None
        }


def columns_of(
    rows: Sequence[Row], env_id: str | None = None
) -> dict[str, Sequence[Any]]:
    """Return the columns of rows by name, as `hgpo_datasets.StepWriter.add_group` takes them.

    Args:
        rows: The rows.
        env_id: Their environment, which is a column, too; None without one.
    """
    columns = zip(
        Row.__struct_fields__, zip(*map(astuple, rows), strict=True), strict=True
    )
    # most columns have a value in the first row, or in none
    known: dict[str, Sequence[Any]] = {
        name: values
        for name, values in columns
        if values[0] is not None or values.count(None) < len(values)
    }
    if env_id is not None:
        known["env_id"] = [env_id] * len(rows)
    return known
