"""What is to be played: groups of rollouts in a fixed order, endless where groups may be refilled."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from hgpo_envs.errors import InputError
from hgpo_envs.hashing import text_hash
from hgpo_envs.task_sampling import task_stream
from hgpo_envs.unicode_text import clean_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """G rollouts of one task.

    Attributes:
        position: Place in the plan, from 0.
        iteration: Training iteration; 0 outside training.
        task_id: The task.
        group: Which group of this task in this iteration, from 0.
        size: G.
    """

    position: int
    iteration: int
    task_id: str
    group: int
    size: int

    @property
    def key(self) -> tuple[int, str, int]:
        """What names the group in a step table: iteration, task id, group."""
        return self.iteration, self.task_id, self.group

    def trajectory(self, member: int) -> str:
        """The identifier of a member's trajectory; unique in a run, in the plan's order when sorted."""
        return f"{self.iteration:05d}-{self.position:07d}-{member:04d}"

    def seed(self, run_seed: int, member: int) -> int:
        """A member's seed in [0, 2⁶³): it does not depend on what else is played, nor when."""
        return text_hash(f"{run_seed}/{self.iteration}/{self.task_id}/{self.group}/{member}") % (1 << 63)


def plan_groups(
    ids: Sequence[str], *, order: str, seed: int, group_size: int, iteration: int = 0, skip: int = 0
) -> Iterator[PlannedGroup]:
    """The groups, endlessly, in the order that `hgpo_envs.task_sampling` names.

    Args:
        ids: The split's tasks.
        order: ``shuffled``, ``sweep``, ``random`` or ``verl-agent``.
        seed: Seeds the order.
        group_size: G.
        iteration: Training iteration.
        skip: How many tasks of the order to pass over: what earlier iterations have played.

    Raises:
        InputError: A task id is no text, or a text that no table can hold.
    """
    times: dict[str, int] = {}
    for position, task_id in enumerate(islice(task_stream(order, ids, seed), skip, None)):
        given: object = task_id
        if not isinstance(given, str) or clean_text(given) != given:
            raise InputError(f"expected text without lone surrogates as a task id, got {task_id!r}")
        group = times.get(task_id, 0)
        times[task_id] = group + 1
        yield PlannedGroup(position, iteration, task_id, group, group_size)
