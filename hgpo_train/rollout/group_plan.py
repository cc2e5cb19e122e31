"""The plan of a collection: an endless sequence of groups in a fixed order."""

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

    from hgpo_train.rollout.run import RolloutSpec

Key = tuple[int, str, int]
"""The key of a group in a run: iteration, task id, group."""


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group of G rollouts of one task.

    Attributes:
        position: Position in the plan, from 0.
        iteration: Training iteration; 0 outside training.
        task_id: Id of the task.
        group: Number of the group among those of this task in this iteration, from 0.
        size: G, the number of rollouts.
    """

    position: int
    iteration: int
    task_id: str
    group: int
    size: int

    @property
    def key(self) -> Key:
        """The key of the group in a step table."""
        return self.iteration, self.task_id, self.group

    def trajectory(self, member: int) -> str:
        """Return the id of a member's trajectory. Ids are unique in a run and sort in the plan's order."""
        return f"{self.iteration:05d}-{self.position:07d}-{member:04d}"

    def seed(self, run_seed: int, member: int) -> int:
        """Return a member's seed in [0, 2⁶³). It does not depend on other groups or on timing."""
        return text_hash(f"{run_seed}/{self.iteration}/{self.task_id}/{self.group}/{member}") % (1 << 63)


def plan_groups(ids: Sequence[str], spec: RolloutSpec) -> Iterator[PlannedGroup]:
    """Yield groups of the tasks of a split without end, in the order of a collection.

    Raises:
        InputError: A task id is not text, or contains lone surrogates.
    """
    times: dict[str, int] = {}
    for position, task_id in enumerate(islice(task_stream(spec.order, ids, spec.seed), spec.skip, None)):
        value: object = task_id
        if not isinstance(value, str) or clean_text(value) != value:
            raise InputError(f"expected text without lone surrogates as a task id, received {task_id!r}")
        group = times.get(task_id, 0)
        times[task_id] = group + 1
        yield PlannedGroup(position, spec.iteration, task_id, group, spec.group_size)
