"""Points of stored trajectories at which branches start: their states, rebuilt by replaying stored actions."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hgpo_envs.episode import Episode
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from hgpo_envs.engine import BranchingEngine, Engine, State
    from hgpo_train.rollout.env_handle import EnvHandle
    from hgpo_train.rollout.row import Row


@dataclass(frozen=True, slots=True)
class Replay:
    """Stored actions, which lead to a state again. It can be sent to another process.

    Attributes:
        task_id: The task.
        actions: The actions from its start on.
        text: The text of the state.
        key: Its key.
    """

    task_id: str
    actions: tuple[str, ...]
    text: str
    key: str | None

    def play(self, engine: Engine) -> State:
        """Execute the actions, and return the state.

        Raises:
            InputError: It is another state.
        """
        state = engine.start(self.task_id)
        for action in self.actions:
            state = engine.act(action)
        if (state.text, state.key) != (self.text, self.key):
            raise InputError(
                "replaying the stored actions twice gave two states; expected a deterministic environment"
            )
        return state


@dataclass(frozen=True, slots=True, eq=False)
class BranchPoint:
    """A step of a stored trajectory at which branches start.

    Attributes:
        step: The number of the step, which is the first one of the branches.
        rows: The trajectory's rows from step 0 on, of which branches share those before the step.
        episode: A copy of the episode in the step's state, without engine.
        snapshot: A copy of the engine in the step's state; None if the engine cannot be copied.
    """

    step: int
    rows: Sequence[Row]
    episode: Episode
    snapshot: BranchingEngine | None

    def begin(self, engine: Engine) -> tuple[Engine, State]:
        """Return the engine that plays a branch, another one than that of the slot if it was copied, and its state.

        Raises:
            InputError: A replay ended in another state than the one before.
        """
        if self.snapshot is not None:
            return self.snapshot.fork(), self.episode.state
        return engine, self.replay().play(engine)

    def replay(self) -> Replay:
        """Return the actions that lead to it from the start of the task."""
        expected = self.episode.state
        return Replay(
            self.rows[0].task_id,
            tuple([row.action or "" for row in self.rows[: self.step]]),
            expected.text,
            expected.key,
        )


def replayed_points(
    handle: EnvHandle, rows: Sequence[Row], steps: Collection[int]
) -> dict[int, BranchPoint]:
    """Replay a stored trajectory, and return the point at each of some steps.

    Args:
        handle: The environment.
        rows: The trajectory's rows from step 0 to the last point, without a gap.
        steps: Numbers of steps.

    Raises:
        InputError: The table stores no actions, or another state follows than the stored one.
    """
    points = {}
    before: Row | None = None
    is_response = handle.settings.action_format == "response"
    with closing(Episode(handle.shared, handle.settings)) as episode:
        fork = getattr(episode.engine, "fork", None)
        for row in rows:
            try:
                if before is None:
                    episode.start(row.task_id)
                elif before.action is not None:
                    well_formed = before.action_valid if is_response else None
                    state = episode.engine.act(before.action)
                    episode.observe(before.action, well_formed, state)
            except Exception as error:
                raise InputError(
                    f"{_name(row)}: it cannot be replayed here ({type(error).__name__}: {error})"
                ) from error
            if before is not None and before.action is None:
                raise InputError(
                    f"{_name(row)}: expected an action before it to replay, received a row without one"
                )
            if row.state_hash not in (None, episode.state_hash):
                raise InputError(
                    f"{_name(row)}: replaying the stored actions gave another state than the stored one; expected the "
                    "environment, data and options of the run, and an environment that is deterministic"
                )
            before = row
            if row.step in steps:
                with closing(Episode(handle.shared, handle.settings)) as copied:
                    copied.resume(episode)
                points[row.step] = BranchPoint(row.step, rows, copied, fork and fork())
    return points


def _name(row: Row) -> str:
    return f"task {row.task_id}, trajectory {row.trajectory}, step {row.step}"
