"""Points of stored trajectories at which branches start: their states, rebuilt by replaying stored actions."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hgpo_envs.episode import Episode
from hgpo_envs.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from hgpo_envs.engine import BranchingEngine, Engine, State
    from hgpo_train.rollout.env_handle import EnvHandle
    from hgpo_train.rollout.row import Row


@dataclass(frozen=True, slots=True, eq=False)
class BranchPoint:
    """A step of a stored trajectory at which branches start.

    Attributes:
        parent: The trajectory.
        step: The number of the step, which is the first one of the branches.
        rows: The trajectory's rows, from step 0 to this step, of which the branches share all but the last.
        states: Its states, one per row.
        snapshot: A copy of the engine in the last state; None if the engine cannot be copied.
    """

    parent: str
    step: int
    rows: Sequence[Row]
    states: Sequence[State]
    snapshot: BranchingEngine | None


def replayed_points(
    handle: EnvHandle, rows: Sequence[Row], steps: Sequence[int]
) -> list[BranchPoint]:
    """Replay a stored trajectory up to the last of some steps, and return the point at each of them.

    Args:
        handle: The environment.
        rows: The trajectory's rows from step 0 on, without a gap.
        steps: Numbers of steps of the trajectory, ascending.

    Raises:
        InputError: The table stores no actions, or another state follows than the stored one.
    """
    states: list[State] = []
    points = []
    with closing(Episode(handle.shared, handle.settings)) as episode:
        _attempt(rows[0], episode.start, rows[0].task_id)
        for row in rows[: steps[-1] + 1]:
            _check_state(row, episode)
            states.append(episode.state)
            if row.step in steps:
                fork = getattr(episode.engine, "fork", None)
                snapshot = None if fork is None else fork()
                prefix = rows[: row.step + 1]
                points.append(
                    BranchPoint(row.trajectory, row.step, prefix, tuple(states), snapshot)
                )
            if row.step < steps[-1]:
                if row.action is None:
                    raise InputError(
                        f"{_name(row)}: expected an action to replay, received a row without one"
                    )
                state = _attempt(row, episode.engine.act, row.action)
                episode.observe(row.action, None, state)
    return points


def _attempt(row: Row, call: Callable[[str], Any], text: str) -> Any:  # noqa: ANN401 (what the call returns)
    try:
        return call(text)
    except Exception as error:
        raise InputError(
            f"{_name(row)}: it cannot be replayed here ({type(error).__name__}: {error})"
        ) from error


def _check_state(row: Row, episode: Episode) -> None:
    if row.state_hash not in (None, episode.state_hash):
        raise InputError(
            f"{_name(row)}: replaying the stored actions gave another state than the stored one; expected the "
            "environment, data and options of the run, and an environment that is deterministic"
        )


def _name(row: Row) -> str:
    return f"task {row.task_id}, trajectory {row.trajectory}, step {row.step}"


class BranchStarts:
    """What a slot does to start: it continues in the state of a branch's point instead of starting a task.

    Args:
        points: The point of each branch by its name. A branch is removed when it starts, so that its states are freed.
    """

    def __init__(self, points: dict[str, BranchPoint]) -> None:
        self._points = points

    def __call__(self, engine: Engine, name: str) -> tuple[Engine, State]:
        """Return the engine to play on with, and the branch's first state.

        Raises:
            InputError: A replay ended in another state than the one before.
        """
        point = self._points.pop(name)
        expected = point.states[-1]
        if point.snapshot is not None:
            return point.snapshot.fork(), expected
        state = engine.start(point.rows[0].task_id)
        for row in point.rows[:-1]:
            state = engine.act(row.action or "")
        if (state.text, state.key) != (expected.text, expected.key):
            raise InputError(
                "replaying the stored actions twice gave two states; expected a deterministic environment"
            )
        return engine, state
