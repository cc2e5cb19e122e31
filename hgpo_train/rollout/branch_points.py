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


@dataclass(frozen=True, slots=True, eq=False)
class BranchPoint:
    """A step of a stored trajectory at which branches start.

    Attributes:
        step: The number of the step, which is the first one of the branches.
        rows: The trajectory's rows from step 0 on, of which branches share those before the step.
        states: Its states, one per row.
        snapshot: A copy of the engine in the step's state; None if the engine cannot be copied.
    """

    step: int
    rows: Sequence[Row]
    states: Sequence[State]
    snapshot: BranchingEngine | None

    def begin(self, engine: Engine) -> tuple[Engine, State]:
        """Return the engine that plays a branch, another one than that of the slot if it was copied, and its state.

        Raises:
            InputError: A replay ended in another state than the one before.
        """
        expected = self.states[self.step]
        if self.snapshot is not None:
            return self.snapshot.fork(), expected
        state = engine.start(self.rows[0].task_id)
        for row in self.rows[: self.step]:
            state = engine.act(row.action or "")
        if (state.text, state.key) != (expected.text, expected.key):
            raise InputError(
                "replaying the stored actions twice gave two states; expected a deterministic environment"
            )
        return engine, state


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
    states: list[State] = []
    points = {}
    action: str | None = None
    with closing(Episode(handle.shared, handle.settings)) as episode:
        fork = getattr(episode.engine, "fork", None)
        for row in rows:
            name = f"task {row.task_id}, trajectory {row.trajectory}, step {row.step}"
            try:
                if not states:
                    episode.start(row.task_id)
                elif action is not None:
                    episode.observe(action, None, episode.engine.act(action))
            except Exception as error:
                raise InputError(
                    f"{name}: it cannot be replayed here ({type(error).__name__}: {error})"
                ) from error
            if states and action is None:
                raise InputError(
                    f"{name}: expected an action before it to replay, received a row without one"
                )
            if row.state_hash not in (None, episode.state_hash):
                raise InputError(
                    f"{name}: replaying the stored actions gave another state than the stored one; expected the "
                    "environment, data and options of the run, and an environment that is deterministic"
                )
            states.append(episode.state)
            action = row.action
            if row.step in steps:
                points[row.step] = BranchPoint(row.step, rows, states, fork and fork())
    return points
