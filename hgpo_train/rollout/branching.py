"""`branch_run`: rollouts of a saved run that fork where it matters, into a run of their own.

    run = branch_run("runs/first", at="mixed-outcomes", width=4)
    run.steps.filter(pl.col("parent").is_not_null())

The new run contains every row of the saved one and the branches, so that it stands alone. `hgpo branch` parses its
options and calls the same function.
"""

from __future__ import annotations

from contextlib import closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from hgpo_datasets import StepWriter, manifest, scan_steps
from hgpo_datasets.branches import with_prefixes
from hgpo_datasets.partitions import partitions
from hgpo_datasets.rows import frame as frame_of
from hgpo_datasets.sources import run_at
from hgpo_envs.errors import InputError
from hgpo_envs.files.secrets import redact_json
from hgpo_envs.hashing import text_hash
from hgpo_train.advantages.advantage_tables import fingerprint
from hgpo_train.policies.registry import PolicyContext, code_of, find_policy, policy_names
from hgpo_train.rollout import branch_rules
from hgpo_train.rollout.branch_points import BranchStarts, replayed_points
from hgpo_train.rollout.collection import CollectedRun, player_of, removed_if_unused
from hgpo_train.rollout.env_handle import open_env
from hgpo_train.rollout.failures import MAX_FAILED, allowed_in_a_row, failures_of, raise_if_too_many
from hgpo_train.rollout.groups import GroupScheduler
from hgpo_train.rollout.outcomes import GROUP, rollout_table
from hgpo_train.rollout.plan import ExecutionOptions, FailedGroup, PlannedGroup, RolloutSpec
from hgpo_train.rollout.progress_line import live_progress
from hgpo_train.rollout.row import Row, columns_of
from hgpo_train.rollout.run import play_groups, stop_on_interrupt
from hgpo_train.rollout.sessions import Session, read_sessions, record_session
from hgpo_train.rollout.tally import Tally
from hgpo_train.scores.tables import with_scores

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hgpo_datasets.manifest import Header
    from hgpo_train.rollout.branch_points import BranchPoint
    from hgpo_train.rollout.env_handle import EnvHandle
    from hgpo_train.rollout.plan import Key

WIDEST: Final = 1000
"""The largest number of branches at a point."""

_ROWS: Final = 50_000
"""About how many rows of the saved run are in memory."""

_READ: Final = (
    *branch_rules.POINT,
    "run",
    "state_hash",
    "action_hash",
    "episode_return",
    "episode_won",
    "episode_length",
    "parent",
    "branch_step",
    "aborted",
)
"""The columns that rules receive."""


@dataclass(frozen=True, slots=True)
class BranchedGroup(PlannedGroup):
    """The branches of a stored group; its members are branches, and its size is their number.

    Attributes:
        branches: The name of each branch, and its point.
    """

    branches: Sequence[tuple[str, BranchPoint]] = ()

    def trajectory(self, member: int) -> str:
        """See `PlannedGroup`."""
        return self.branches[member][0]

    def point(self, member: int) -> BranchPoint:
        """See `PlannedGroup`."""
        return self.branches[member][1]

    def seed(self, run_seed: int, member: int) -> int:
        """See `PlannedGroup`. It depends on the branch alone, so that further points change no other branch."""
        return text_hash(f"{run_seed}/{self.trajectory(member)}") % (1 << 63)


@dataclass(frozen=True, eq=False)
class BranchedRun(CollectedRun):
    """A run that was branched or resumed. It can be used as a path, as in ``scan_steps(run)``.

    Attributes:
        points: Number of points at which branches start.
        branches: Number of branches of the run, with those of earlier calls.
        replayed: Number of stored actions that this call replayed once per trajectory, to rebuild states.
    """

    points: int = 0
    branches: int = 0
    replayed: int = 0


def branch_run(
    run: str | os.PathLike[str],
    at: str = "uniform",
    *,
    width: int = 4,
    out: str | os.PathLike[str] | None = None,
    budget: int | None = None,
    seed: int = 0,
    policy: object = None,
    policy_options: Mapping[str, Any] | None = None,
    slots: int | None = None,
    retry_failed: bool = True,
    max_failed: float = MAX_FAILED,
    progress: bool | Callable[[Tally], None] = True,
) -> BranchedRun:
    """Continue rollouts of a saved run from some of their steps, each several times, with new actions from there on.

    Args:
        run: The folder of the saved run, whose environment can be opened here. It is not changed.
        at: The rule that chooses the steps (`hgpo_train.rollout.branch_rules`), or ``module:function``.
        width: W, the number of branches at each of them.
        out: The new run's folder; `run` with ``-branched`` by default. A run in it is resumed.
        budget: Number of environment steps, and so of model calls, of the branches: they are planned with the mean
            number of steps that rollouts of the run still take, and so are met on average. By default as many as the
            run has.
        seed: Seed of the choice of steps and of every branch.
        policy: As in `hgpo_train.rollout.collect`; the run's own by default.
        policy_options: Options of a policy that is selected by name; those of the run's own by default.
        slots: Number of concurrent environments; affects only the speed.
        retry_failed: Whether branches that failed in an earlier call are played again.
        max_failed: The largest share of failed branches without an error, in [0, 1].
        progress: As in `hgpo_train.rollout.collect`.

    Returns:
        The new run.

    Raises:
        InputError: An argument is invalid, the run cannot be replayed here, or the folder contains another run.
        RolloutError: More than `max_failed` of the branches failed, or too many in a row.
        KeyboardInterrupt: Ctrl-C was pressed. In all these cases, finished groups are committed.
    """
    if not 1 <= width <= WIDEST:
        raise InputError(f"width: expected a number of branches from 1 to {WIDEST}, received {width}")
    if not 0 <= max_failed <= 1:
        raise InputError(f"max_failed: expected a share from 0 to 1, received {max_failed}")
    if budget is not None and budget < 1:
        raise InputError(f"budget: expected a number of steps of at least 1, received {budget}")
    # 1. The saved run, and the names of what it was collected with.
    source, header = _saved(Path(run))
    folder = Path(out) if out is not None else source.with_name(f"{source.name}-branched")
    if folder.resolve() == source.resolve():
        raise InputError(f"--out {folder}: expected another folder than that of the run, which is not changed")
    policy, options = _policy(header, policy, policy_options)
    rule = branch_rules.get(at)
    maker, argument = find_policy(policy)
    with closing(_opened(header)) as handle:
        # 2. Where branches start.
        replays = not hasattr(handle.shared.source.engine(), "fork")
        steps = with_scores(scan_steps(source).select(_READ), source, rule.scores).drop("run")
        points = branch_rules.choose_points(steps, rule, width=width, budget=budget, seed=seed, replays=replays)
        if points.is_empty():
            raise InputError(f"{source}: the rule {at} found no step to branch at; use another rule, or more rollouts")
        # 3. The policy, and what the new run says of itself.
        context = PolicyContext(handle.shared.source.name, handle.settings.action_format, options)
        player, identity = player_of(maker, argument, policy, context)
        branched = {
            "run": header.run,
            "run_fingerprint": fingerprint(source),  # branches of a run that has changed are others
            "at": at,
            "outcomes": rule.outcomes,
            "width": width,
            "budget": budget,
            "seed": seed,
            "policy": identity,
        }
        config = redact_json({**header.config, "branches": branched})
        # 4. All groups of the run, with their branches.
        tally = Tally()
        session = Session(endpoint=getattr(player, "endpoint", None), slots=slots or ExecutionOptions().slots or 0)
        execution = ExecutionOptions(
            slots, max_consecutive_failures=allowed_in_a_row(points.height * width, max_failed)
        )
        with (
            closing(player),
            removed_if_unused(folder),
            StepWriter(folder, config=config, depth=header.depth) as writer,
        ):
            plan = _Plan(source, writer, handle, points, width, retry_failed=retry_failed)
            session.groups_before = len(writer.committed)
            with (
                stop_on_interrupt() as should_stop,
                record_session(folder, read_sessions(folder), session, tally),
                _shown(progress, plan.expected) as show,
            ):
                _play(plan, handle, player, execution, tally, seed, show, should_stop)
                if should_stop():
                    raise KeyboardInterrupt(f"{len(writer.committed):,} groups are kept in {folder}; run it again.")
    # 5. The verdict is about all branches.
    found = rollout_table(scan_steps(folder), branches=True).filter("branch").collect()
    result = BranchedRun(folder, tally, points.height, found.height, plan.replayed)
    raise_if_too_many(failures_of(found), max_failed, "Run it again with the same arguments to retry them.")
    return result


def _saved(run: Path) -> tuple[Path, Header]:
    """Return the folder of a saved run, and what its manifest says of it."""
    folder = run_at(run) if run.is_dir() else None
    if folder is None:
        raise InputError(f"{run}: expected the folder of a saved run, as of hgpo rollout")
    header = manifest.read(folder).header
    if header is None or not isinstance(header.config.get("env"), dict):
        raise InputError(f"{run}: expected a run that names its environment, as one of hgpo rollout or hgpo eval does")
    return folder, header


def _policy(header: Header, policy: object, options: Mapping[str, Any] | None) -> tuple[object, dict[str, Any]]:
    """Return the policy, and its options; by default those of the saved run, unless they are code."""
    if policy is not None:
        return policy, dict(options or {})
    stored = header.config.get("policy")
    name = stored.get("name") if isinstance(stored, dict) else None
    if stored is None or not isinstance(name, str) or not _can_be_named(name):
        was = f"that of the run, {name!r}, is code of its own" if isinstance(name, str) else "the run names none"
        raise InputError(f"--policy: expected the policy that plays the branches, because {was}")
    unused = ("name", "weights", "chat_template_hash")
    kept = {key: value for key, value in stored.items() if key not in unused}
    return name, {**kept, **(options or {})}


def _can_be_named(policy: str) -> bool:
    """Return whether a name is that of a registered policy, and imports no code of its own."""
    return policy.partition(":")[0] in policy_names() and code_of(policy) is None


def _opened(header: Header) -> EnvHandle:
    """Open a saved run's environment with its options."""
    options = dict(header.config["env"])
    env_id = options.pop("id", None)
    if not isinstance(env_id, str) or ":" in env_id:
        raise InputError(f"expected the Gymnasium id of an installed environment in the run, received {env_id!r}")
    return open_env(env_id, **options)


def _shown(progress: bool | Callable[[Tally], None], expected: int) -> Any:  # noqa: ANN401 (a context manager)
    return nullcontext(progress) if callable(progress) else live_progress(expected, shown=progress)


def _play(
    plan: _Plan,
    handle: EnvHandle,
    player: Any,  # noqa: ANN401 (a policy)
    execution: ExecutionOptions,
    tally: Tally,
    seed: int,
    progress: Callable[[Tally], None],
    should_stop: Callable[[], bool],
) -> None:
    """Play the groups of a plan, and copy those without branches."""
    groups = plan.groups()
    if plan.wanted:
        # The number of environments is at most that of branches.
        spec = RolloutSpec(tasks=len(plan.wanted), group_size=max(1, plan.expected // len(plan.wanted)), seed=seed)
        scheduler = GroupScheduler(groups, spec, execution, plan.commit, {}, plan.failed)
        play_groups(
            handle,
            player,
            scheduler,
            spec,
            execution,
            tally,
            progress=progress,
            should_stop=should_stop,
            begin=BranchStarts(plan.starts),
        )
    if not should_stop():
        for _ in groups:  # none is left with branches: this copies the last groups
            pass


class _Plan:
    """The groups of a saved run in their order, with the branches of each.

    Attributes:
        wanted: Keys of the groups whose branches are to be played.
        failed: Of those, the groups that are in the new run with failed branches.
        expected: The number of branches to play.
        starts: The point of each branch of the groups that are being played.
        replayed: Number of stored actions that were replayed.
    """

    def __init__(
        self,
        source: Path,
        writer: StepWriter,
        handle: EnvHandle,
        points: pl.DataFrame,
        width: int,
        *,
        retry_failed: bool,
    ) -> None:
        self._source = source
        self._writer = writer
        self._handle = handle
        self._width = width
        self._points: dict[Key, dict[str, list[int]]] = {}
        for *key, trajectory, step in points.sort("step").iter_rows():
            self._points.setdefault(tuple(key), {}).setdefault(trajectory, []).append(step)
        self.failed: dict[Key, FailedGroup] = {}
        if writer.committed and retry_failed:
            self._find_failed()
        self.wanted = {key for key in self._points if key not in writer.committed or key in self.failed}
        members = [len(steps) for key in self.wanted for steps in self._points[key].values()]
        self.expected = width * sum(members)
        self.starts: dict[str, BranchPoint] = {}
        self.replayed = 0
        self._stored: dict[Key, pl.DataFrame] = {}

    def _find_failed(self) -> None:
        failed = rollout_table(scan_steps(self._writer.folder), branches=True).filter("branch", "aborted")
        for *key, names in failed.group_by(GROUP).agg("trajectory").collect().iter_rows():
            self.failed[tuple(key)] = FailedGroup(frozenset(names), ())

    def groups(self) -> Iterator[BranchedGroup]:
        """Yield the groups whose branches are to be played. Groups without branches are copied on the way."""
        position = 0
        for part in partitions(self._source, _ROWS):
            rows = part.scan().collect().drop("run")
            parents = self._parents(rows)
            for key, group in rows.partition_by(GROUP, as_dict=True, maintain_order=True).items():
                if key in self.wanted:
                    self._stored[key] = group
                    yield self._branched(position, key, parents)
                    position += 1
                elif key not in self._writer.committed:
                    self._writer.add_group(group, checked=True)

    def _parents(self, rows: pl.DataFrame) -> dict[Any, pl.DataFrame]:
        """Return the whole trajectories of the groups to play that have points."""
        names = [name for key in self.wanted for name in self._points[key]]
        known = [name for name in Row._fields if name in rows.columns]
        whole = with_prefixes(rows.select(known)).filter(pl.col("trajectory").is_in(names))
        return whole.sort("trajectory", "step").select(known).partition_by("trajectory", as_dict=True)

    def _branched(self, position: int, key: Key, parents: Mapping[Any, pl.DataFrame]) -> BranchedGroup:
        """Replay the trajectories of a group that have points, and name the branches."""
        taken = set(self._stored[key]["trajectory"])
        branches: list[tuple[str, BranchPoint]] = []
        for trajectory, steps in sorted(self._points[key].items()):
            stored = [Row(**row) for row in parents[trajectory,].iter_rows(named=True)]
            points = replayed_points(self._handle, stored, steps)
            self.replayed += steps[-1]
            for point in points:
                names = (f"{trajectory}/{point.step:04d}.{number}" for number in range(len(taken) + self._width))
                free = [name for name in names if name not in taken][: self._width]
                branches += [(name, point) for name in free]
        again = self.failed.get(key)
        self.starts |= {name: point for name, point in branches if again is None or name in again.trajectories}
        return BranchedGroup(position, *key, len(branches), branches)

    def commit(self, new: list[Row], again: list[Row]) -> None:
        """Write the rows of branches with those of the saved run's groups that they are of."""
        for rows, store in ((again, self._writer.replace), (new, self._writer.add_group)):
            if rows:
                store(self._whole_groups(rows), checked=True)
        self._writer.commit()

    def _whole_groups(self, rows: Sequence[Row]) -> pl.DataFrame:
        keys = dict.fromkeys((row.iteration, row.task_id, row.group) for row in rows)
        stored = [self._stored.pop(key) for key in keys]
        defaults = {"run": self._writer.header.run, "env_id": self._handle.env_id}
        branches = frame_of(columns_of(rows), self._writer.header.depth, defaults).drop("run")
        return pl.concat([*stored, branches])
