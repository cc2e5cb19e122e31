"""The branches of stored groups: which are missing, how they are played, and their commits.

A branch is identified by its name, which follows from its point and a number. What is missing is what was planned and
is not in the run, so that a run which was interrupted, or in which branches failed, is completed by the same plan.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from itertools import chain, count, filterfalse, groupby, islice
from operator import itemgetter
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from hgpo_datasets.branches import roots, with_prefixes
from hgpo_datasets.partitions import partitions
from hgpo_datasets.rows import frame as frame_of
from hgpo_train.rollout import branch_rules
from hgpo_train.rollout.branch_points import replayed_points
from hgpo_train.rollout.collector import play_groups
from hgpo_train.rollout.failures import (
    failures_of,
    raise_if_too_many,
)
from hgpo_train.rollout.groups import GroupScheduler
from hgpo_train.rollout.outcomes import GROUP, rollout_table
from hgpo_train.rollout.plan import PlannedGroup, RolloutSpec, independent_rollouts
from hgpo_train.rollout.row import Row, columns_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from hgpo_datasets import StepWriter
    from hgpo_train.policies.base import Policy
    from hgpo_train.rollout.branch_points import BranchPoint
    from hgpo_train.rollout.branch_rules import BranchRule
    from hgpo_train.rollout.env_handle import EnvHandle
    from hgpo_train.rollout.plan import ExecutionOptions, Key
    from hgpo_train.rollout.tally import Tally

ROWS: Final = 10_000
"""About how many rows of the branched run are read at a time."""

_RARER: Final = 4
"""How many times as many groups are committed together if their files are written again, so that few are twice."""

_POINT: Final = (
    "iteration",
    "task_id",
    "group",
    "trajectory",
    "step",
    "state",
    "state_hash",
    "action",
    "action_valid",
)
_TURN: Final = (
    "prompt",
    "response",
    "message",
    "prompt_token_ids",
    "response_token_ids",
    "cut_pairs",
    "cut_tokens",
)
"""Columns of a parent that its branches need, and those of conversations."""


def branch_rollouts(
    handle: EnvHandle,
    policy: Policy,
    writer: StepWriter,
    spec: RolloutSpec,
    execution: ExecutionOptions,
    tally: Tally,
    kept: Sequence[pl.DataFrame],
    *,
    retry_failed: bool,
    **controls: Any,
) -> None:
    """Branch the rollouts of a run at `spec.branch`, for as many steps as the rest of the group would have taken.

    The steps in `kept` are of further groups, which are committed with their branches. The other arguments and the
    errors are those of `hgpo_train.rollout.run.collect_groups`.
    """
    assert spec.branch is not None
    is_here = pl.col("iteration") == spec.iteration
    # listed now, because files are replaced
    files = partitions(writer.folder, ROWS) if writer.committed else []
    parts = [roots(file.scan().filter(is_here)) for file in files]
    parts += [frame.lazy() for frame in kept]
    rollouts = pl.concat(parts)
    raise_if_too_many(
        failures_of(rollout_table(rollouts).collect()),
        execution.max_failed,
        "Resume the run to repeat them.",
    )
    steps = rollouts.select(branch_rules.READ).collect()
    size = independent_rollouts(spec.group_size, spec.branch)
    branches = Branches(
        handle,
        writer,
        steps,
        branch_rules.get(spec.branch),
        width=spec.width,
        budget=steps.height * (spec.group_size - size) // size,
        seed=spec.seed,
        retry_failed=retry_failed,
    )
    if files:
        execution = replace(
            execution,
            groups_per_shard=_RARER * execution.groups_per_shard,
            shard_characters=_RARER * execution.shard_characters,
        )
    branches.play(parts, policy, execution, tally, **controls)


@dataclass
class Branches:
    """The branches of the groups of a run, and the play of those that are missing.

    Attributes:
        handle: The environment.
        writer: The writer of the run that contains the branches: the branched one, or another.
        steps: The steps that are branched, with the columns `hgpo_train.rollout.branch_rules.READ`.
        rule: Where they branch.
        width: W, the number of branches at each point.
        budget: As of `hgpo_train.rollout.branch_rules.choose_points`.
        seed: The seed of the choice and of every branch.
        retry_failed: Whether failed branches of the run are missing.
        points: Where branches start, as `choose_points` returns it.
        missing: The branches to play, for each group, as name, trajectory and step.
        replayed: Number of stored actions that were replayed.
    """

    handle: EnvHandle
    writer: StepWriter
    steps: InitVar[pl.DataFrame]
    rule: InitVar[BranchRule]
    _: KW_ONLY
    width: InitVar[int]
    budget: InitVar[int | None]
    seed: int
    retry_failed: InitVar[bool]
    points: pl.DataFrame = field(init=False)
    missing: dict[Key, list[tuple[str, str, int]]] = field(
        init=False, default_factory=dict
    )
    replayed: int = field(init=False, default=0)

    def __post_init__(
        self,
        steps: pl.DataFrame,
        rule: BranchRule,
        width: int,
        budget: int | None,
        retry_failed: bool,
    ) -> None:
        replays = not hasattr(self.handle.shared.source.engine(), "fork")
        self.points = branch_rules.choose_points(
            steps.lazy(),
            rule,
            width=width,
            budget=budget,
            seed=self.seed,
            replays=replays,
        )
        self._stored: dict[Key, pl.DataFrame] = {}
        # groups without branches are written while others are committed in a thread
        self._writing = Lock()
        done = set(self.writer.trajectories)
        if done and retry_failed:
            done -= set(self.played.filter("aborted")["trajectory"])
        taken = frozenset(steps["trajectory"])
        for *key, trajectory, step in self.points.sort(
            "trajectory", "step"
        ).iter_rows():
            names = (f"{trajectory}/{step:04d}.{number}" for number in count())
            for name in islice(filterfalse(taken.__contains__, names), width):
                if name not in done:
                    self.missing.setdefault(tuple(key), []).append(
                        (name, trajectory, step)
                    )

    @property
    def expected(self) -> int:
        """The number of branches to play."""
        return sum(map(len, self.missing.values()))

    def play(
        self,
        parts: Iterable[pl.LazyFrame],
        policy: Policy,
        execution: ExecutionOptions,
        tally: Tally,
        *,
        progress: Callable[[Tally], None],
        should_stop: Callable[[], bool],
    ) -> None:
        """Play the missing branches, and commit them with their groups. Groups without branches are copied.

        Args:
            parts: The steps of the branched run in parts of whole groups. Files of a part are replaced after it was
                read.
            policy: The policy.
            execution: How they are played.
            tally: The counts to update.
            progress: As in `hgpo_train.rollout.run.collect_groups`.
            should_stop: As there.

        Raises:
            RolloutError: Too many branches failed. Finished groups are committed.
        """
        groups = self._groups(parts)
        if self.missing:
            tasks = len(self.missing)
            # The number of environments is at most that of branches.
            size = max(1, self.expected // tasks)
            spec = RolloutSpec(tasks=tasks, group_size=size, seed=self.seed)
            scheduler = GroupScheduler(groups, spec, execution, self._commit, {}, {})
            play_groups(
                self.handle,
                policy,
                scheduler,
                spec,
                execution,
                tally,
                progress=progress,
                should_stop=should_stop,
            )
        if should_stop():
            return
        for _ in groups:  # none is left with branches: this copies the last groups
            pass
        self.writer.commit()
        raise_if_too_many(
            failures_of(self.played),
            execution.max_failed,
            "Resume the run to repeat them.",
        )

    @property
    def played(self) -> pl.DataFrame:
        """The branches of the run, one per row: `trajectory`, `aborted` and `error`."""
        rollouts = rollout_table(self.writer.scan(), branches=True)
        return (
            rollouts.filter("branch").select("trajectory", "aborted", "error").collect()
        )

    def _groups(self, parts: Iterable[pl.LazyFrame]) -> Iterator[PlannedGroup]:
        """Yield the groups whose branches are to be played. Groups without branches are copied on the way."""
        positions = count()
        for part in parts:
            rows = part.collect().with_columns(run=pl.lit(self.writer.header.run))
            parents = self._parents(rows)
            groups: Any = rows.partition_by(GROUP, maintain_order=True, as_dict=True)
            for key, group in groups.items():
                if key in self.missing:
                    self._stored[key] = group
                    branches = self._replayed(self.missing[key], parents)
                    iteration, task_id, number = key
                    size = len(branches)
                    yield PlannedGroup(
                        next(positions), iteration, task_id, number, size, branches
                    )
                elif key not in self.writer.committed:
                    with self._writing:
                        self.writer.add_group(group, checked=True)

    def _parents(self, rows: pl.DataFrame) -> dict[str, list[Row]]:
        """Return the trajectories that have points, from their first step to the last point."""
        last: dict[str, int] = {}
        for _, trajectory, step in chain.from_iterable(self.missing.values()):
            last[trajectory] = max(step, last.get(trajectory, 0))
        is_chat = self.handle.settings.prompt_style == "chat"
        columns = [*_POINT, *(_TURN if is_chat else ())]
        whole = with_prefixes(rows.select(*columns, "parent", "branch_step"))
        needed = pl.col("step") <= pl.col("trajectory").replace_strict(last, default=-1)
        steps = whole.filter(needed).sort("trajectory", "step").select(columns)
        parents: dict[str, list[Row]] = {}
        for values in steps.iter_rows(named=True):
            parents.setdefault(values["trajectory"], []).append(Row(**values))
        return parents

    def _replayed(
        self,
        missing: Sequence[tuple[str, str, int]],
        parents: Mapping[str, list[Row]],
    ) -> list[tuple[str, BranchPoint]]:
        """Replay the trajectories of a group that have points. Return its branches with their points."""
        branches = []
        for trajectory, some in groupby(missing, itemgetter(1)):
            steps = {name: step for name, _, step in some}
            points = replayed_points(
                self.handle, parents[trajectory], set(steps.values())
            )
            self.replayed += max(steps.values())
            branches += [(name, points[step]) for name, step in steps.items()]
        return branches

    def _commit(self, rows: list[Row], _: list[Row]) -> None:
        """Write the rows of branches with those of the groups that they are of."""
        known = self.writer.committed
        new = [row for row in rows if row.group_key not in known]
        old = [row for row in rows if row.group_key in known]
        for some, store in ((old, self.writer.replace), (new, self.writer.add_group)):
            if not some:
                continue
            columns = columns_of(some, self.handle.env_id)
            header = self.writer.header
            branches = frame_of(columns, header.depth, {"run": header.run})
            keys = dict.fromkeys(row.group_key for row in some)
            stored = [self._stored.pop(key) for key in keys]
            # in one piece, because sorting many takes half as long again
            whole = pl.concat([*stored, branches], rechunk=True)
            with self._writing:
                store(whole, checked=True)
        with self._writing:
            self.writer.commit()
