"""The collector: plays rollouts in many environments without waiting for the slowest one.

An environment steps as soon as its own response arrives. The policy receives each request immediately and batches as it
chooses. A slot that has finished starts the next rollout. A failure (of a policy's call, an environment or a worker)
aborts only its trajectory; a bug in a user's own policy is raised instead. Replies, states and tasks are validated here
as they arrive (`hgpo_train.policies.validation`), and trusted from then on.
"""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Final, NoReturn

from hgpo_envs.engine import State, Task
from hgpo_envs.episode import Episode
from hgpo_envs.errors import InputError
from hgpo_train.policies.base import Failure, Reply, attempt, is_bug
from hgpo_train.policies.validation import BadValueError, checked, checked_count
from hgpo_train.rollout.failures import RolloutError, allowed_in_a_row
from hgpo_train.rollout.slots import Slots, ThreadSlots
from hgpo_train.rollout.trajectory import Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable

    from hgpo_train.policies.base import Policy, Request
    from hgpo_train.rollout.env_handle import EnvHandle
    from hgpo_train.rollout.groups import GroupScheduler
    from hgpo_train.rollout.plan import ExecutionOptions, PlannedGroup, RolloutSpec
    from hgpo_train.rollout.tally import Tally

# the longest wait for either environments or the policy: bounds the delay of should_stop
_WAIT_S = 0.2
_FAILING_TASKS = 3
# the longest wait for the policy while environments compute, whose results must not wait for it
_BOTH_WAIT_S = 0.002
_GARBAGE = 50_000
"""Number of new objects at which garbage is collected during a collection."""
_TURN_S: Final = 0.0001
"""Seconds of a thread's turn during a collection."""
_SETTINGS: Final[list[tuple[tuple[int, int, int], float]]] = []
"""The garbage collector's thresholds and the turn as each collection that is under way has found them."""
_SETTINGS_LOCK: Final = Lock()


@dataclass(slots=True)
class _Seat:
    """A slot, its episode and its rollout."""

    slot: int
    episode: Episode
    trajectory: Trajectory | None = None  # none while the slot is free
    asked_at: float = 0.0  # time of the last request to the policy


class Collector:
    """Plays groups of rollouts until the scheduler has no more.

    Args:
        handle: The environment.
        slots: The engines.
        policy: The policy.
        groups: The scheduler, which hands out groups and commits finished ones.
        spec: The content of the collection, of which the seed is used.
        execution: The limits of failures in a row and of the time of a reply.
        tally: The counts to update, which may contain those of an earlier call.
    """

    def __init__(
        self,
        handle: EnvHandle,
        slots: Slots,
        policy: Policy,
        groups: GroupScheduler,
        spec: RolloutSpec,
        execution: ExecutionOptions,
        tally: Tally,
    ) -> None:
        self._source = handle.shared.source
        self._slots = slots
        self._policy = policy
        self._groups = groups
        self._seed = spec.seed
        self._policy_timeout_s = execution.policy_timeout_s
        self.tally = tally
        self._failures_allowed = execution.max_consecutive_failures or allowed_in_a_row(
            spec.rollouts
        )
        self._raises_bugs = bool(getattr(policy, "raise_errors", False))
        self._failing_act_loses = bool(
            getattr(self._source, "failing_act_loses", False)
        )
        self._seats = [
            _Seat(slot, Episode(handle.shared, handle.settings, engine))
            for slot, engine in enumerate(slots.engines)
        ]
        self._free = self._seats[::-1]
        # by request id, oldest first, which _exchange relies on
        self._asked: dict[int, _Seat] = {}
        self._requests: list[Request] = []  # not yet submitted to the policy
        # members of the newest group that have not started
        self._members: list[tuple[PlannedGroup, int]] = []
        self._next_id = 0
        self._version = 0

    def run(
        self, progress: Callable[[Tally], None], should_stop: Callable[[], bool]
    ) -> None:
        """Play until every wanted group is finished. In any case, commit finished groups and close the engines.

        Args:
            progress: Called with the tally after every turn of the loop.
            should_stop: Called after every turn of the loop; True stops early.

        Raises:
            RolloutError: Too many rollouts failed in a row, and there are more to play.
            Exception: A bug in a user's own policy (`hgpo_train.policies.registry`).
        """
        began = perf_counter() - self.tally.seconds
        try:
            # 1. Free slots start the next rollouts.
            while self._fill() and not should_stop():
                # The run stops if two rollouts for each slot, of three tasks, fail in a row: not for a task that always
                # fails, for a few requests that fail faster than others succeed, or for one broken connection.
                failing = self.tally.failing
                allowed = self._failures_allowed
                if len(failing) >= max(allowed, 2 * len(self._seats)) and (
                    len(set(failing)) >= min(_FAILING_TASKS, allowed)
                ):
                    raise RolloutError(
                        f"stopped after {len(failing)} failures in a row: {self.tally.failures.describe()}. Finished "
                        "groups are committed; when the cause is fixed, run the same command again to resume and to "
                        "retry them."
                    )
                # 2. States that have arrived become requests. A start may arrive at once, so this is repeated, without
                # waiting: the policy, which has requests, should not wait for environments either.
                wait = 0 if self._asked else _WAIT_S
                while arrivals := self._slots.collect(wait):
                    for slot, outcome, seconds in arrivals:
                        seat = self._seats[slot]
                        failure = attempt(
                            "EnvironmentFailed", self._advance, seat, outcome, seconds
                        )
                        if failure is not None or seat.episode.done:
                            self._end(seat, failure)
                    self._fill()
                    wait = 0
                # 3. The policy receives the requests, and those that it has answered become commands.
                replies = attempt("PolicyFailed", self._exchange)
                # the policy raised: all open requests fail
                if isinstance(replies, Failure):
                    replies = [(request_id, replies) for request_id in self._asked]
                for request_id, reply in replies:
                    if asked := self._asked.pop(request_id, None):
                        self._replied(asked, reply)
                # 4. The counts are reported.
                self.tally.seconds = perf_counter() - began
                progress(self.tally)
        finally:
            self.tally.seconds = perf_counter() - began
            try:
                self._groups.close()
            finally:
                self._slots.close()
                for seat in self._seats:
                    seat.episode.shared.close(seat.episode)

    def _fill(self) -> bool:
        """Start rollouts in free slots. Return False if no rollout is running."""
        while self._free:
            if not self._members:
                begun = self._groups.begin()
                if begun is None:
                    break
                group, members = begun
                self._members = [(group, member) for member in members][::-1]
            group, member = self._members.pop()
            seat = self._free.pop()
            seed = group.seed(self._seed, member)
            seat.trajectory = Trajectory(
                group,
                member,
                seed,
                seat.episode,
                clocked=not self._policy.reproducible,
            )
            self._slots.call(seat.slot, "start", seat.trajectory.point or group.task_id)
        return len(self._free) < len(self._seats)

    def _exchange(self) -> list[tuple[int, Reply | Failure]]:
        """Submit waiting requests. Return the policy's replies, and failures for requests over the time limit."""
        requests = self._requests
        self._requests = []
        if requests:
            self._policy.submit(requests)
        if not self._asked:
            return []
        collected = self._policy.collect(_BOTH_WAIT_S if self._slots.busy else _WAIT_S)
        self._version = checked_count("the policy's version", self._policy.version)
        replies = [
            (int(request_id), checked(Reply, reply)) for request_id, reply in collected
        ]
        # The oldest requests come first, so the search for late ones ends at the first that is in time.
        late = perf_counter() - self._policy_timeout_s
        for request_id, seat in self._asked.items():
            if seat.asked_at > late:
                break
            replies.append(
                (
                    request_id,
                    Failure(
                        "PolicyTimedOut",
                        f"no answer within {self._policy_timeout_s:g} s",
                    ),
                )
            )
        return replies

    def _advance(self, seat: _Seat, outcome: object, seconds: float) -> Failure | None:
        """Add a state to the episode and request the next action, unless the episode is done."""
        trajectory = seat.trajectory
        assert trajectory is not None
        # Where an action of the policy can end its world, a failure counts as lost: otherwise a policy could raise its
        # measured success by ending the worlds in which it would fail.
        if (
            isinstance(outcome, Failure)
            and self._failing_act_loses
            and trajectory.action is not None
        ):
            outcome = State(
                "",
                (),
                terminated=True,
                info={"lost": str(outcome)},
            )
        state = checked(State, outcome)
        if isinstance(state, Failure):
            return state
        episode = seat.episode
        # Without an action the state is the first one: the task is known from here on.
        if trajectory.action is None:
            task = checked(Task, self._source.task(trajectory.group.task_id))
            if isinstance(task, Failure):
                return task
            trajectory.begin(task, state)
            if episode.done:
                return Failure(
                    "EnvironmentFailed", "the task ended before its first step"
                )
        else:
            trajectory.add_state(state, seconds)
            self.tally.steps += 1
            self.tally.failing.clear()
        # Not submitted here: a batch is larger if all states that have arrived are in it.
        if not episode.done:
            request = trajectory.request(
                self._next_id,
                seat.slot,
                self._slots.engines[seat.slot],
            )
            self._next_id += 1
            seat.asked_at = perf_counter()
            self._asked[request.id] = seat
            self._requests.append(request)
        return None

    def _replied(self, seat: _Seat, reply: Reply | Failure) -> None:
        trajectory = seat.trajectory
        assert trajectory is not None
        if isinstance(reply, Failure):
            if self._raises_bugs and is_bug(reply):
                self._raise_bug(trajectory, reply)
            self._end(seat, reply)
            return
        # The response is parsed here.
        seconds = perf_counter() - seat.asked_at
        command = attempt(
            "EnvironmentFailed", trajectory.add_reply, reply, seconds, self._version
        )
        if isinstance(command, Failure):
            self._end(seat, command)
            return
        prompt_tokens = reply.prompt_tokens
        if prompt_tokens is None and reply.prompt_token_ids is not None:
            prompt_tokens = len(reply.prompt_token_ids)
        tokens = reply.response_tokens
        if tokens is None and reply.response_token_ids is not None:
            tokens = len(reply.response_token_ids)
        self.tally.prompt_tokens += prompt_tokens or 0
        self.tally.tokens += tokens or 0
        self.tally.uncounted += prompt_tokens is None or tokens is None
        self._slots.call(seat.slot, "act", command)

    def _raise_bug(self, trajectory: Trajectory, failure: Failure) -> NoReturn:
        """Raise the exception behind a failure of a user's own policy: it would be the same in every rollout."""
        error = failure.error
        assert error is not None
        if isinstance(error, BadValueError):
            raise InputError(f"policy {self._policy.name}: {error}") from error
        # SystemExit would end the command without a word
        if not isinstance(error, Exception):
            error = RuntimeError(f"the policy raised {failure.message}").with_traceback(
                error.__traceback__
            )
        if not isinstance(error, InputError):
            where = f"at step {len(trajectory.rows)} of task {trajectory.group.task_id}"
            error.add_note(
                f"Raised by the policy {self._policy.name} {where}. Finished groups are committed."
            )
        raise error

    def _end(self, seat: _Seat, failure: Failure | None) -> None:
        trajectory = seat.trajectory
        assert trajectory is not None
        tally = self.tally
        tally.trajectories += 1
        if failure is None:
            tally.won += seat.episode.state.won is True
            tally.unknown += seat.episode.state.won is None
        else:
            finished = len(trajectory.rows)
            trajectory.abort(failure)
            tally.steps += len(trajectory.rows) - finished  # the step that failed
            tally.aborted += 1
            tally.reasons[str(failure)] += 1
            tally.failing.append(trajectory.group.task_id)
        seat.trajectory = None
        self._free.append(seat)
        self._groups.finish(trajectory)


def play_groups(
    handle: EnvHandle,
    policy: Policy,
    groups: GroupScheduler,
    spec: RolloutSpec,
    execution: ExecutionOptions,
    tally: Tally,
    *,
    progress: Callable[[Tally], None],
    should_stop: Callable[[], bool],
) -> None:
    """Play the groups of a scheduler.

    The other arguments and the errors are those of `hgpo_train.rollout.run.collect_groups`.
    """
    # 1. The engines. More slots than rollouts would only cost memory.
    count = min(execution.slots_for(policy), spec.rollouts)
    concurrent: int | None = getattr(handle.shared.source, "concurrent", None)
    slots: Slots
    if execution.workers:
        from hgpo_train.rollout.workers import WorkerSlots

        slots = WorkerSlots(handle.shared, count, timeout_s=execution.worker_timeout_s)
    elif concurrent is not None:
        # engines that wait for other processes, of which the source allows so many
        slots = ThreadSlots(
            [handle.shared.source.engine() for _ in range(min(count, concurrent))]
        )
    else:
        slots = Slots([handle.shared.source.engine() for _ in range(count)])
    # 2. Python looks for garbage less often: nearly all of a step's objects end without the garbage collector, and
    # looking at the others again and again takes a tenth of the time of a scripted policy's step. Threads take turns
    # more often: a commit in its thread waits for its turn after each of hundreds of calls of Polars, and with Python's
    # five milliseconds a turn, the play would wait for commits in the end.
    with _SETTINGS_LOCK:
        thresholds = gc.get_threshold()
        turn_s = sys.getswitchinterval()
        _SETTINGS.append((thresholds, turn_s))
        young, *older = thresholds
        if young:  # 0 turns it off
            gc.set_threshold(max(young, _GARBAGE), *older)
        sys.setswitchinterval(min(turn_s, _TURN_S))
    try:
        Collector(handle, slots, policy, groups, spec, execution, tally).run(
            progress, should_stop
        )
    finally:
        # Of collections in several threads, the last one restores what the first one has found.
        with _SETTINGS_LOCK:
            thresholds, turn_s = _SETTINGS.pop()
            if not _SETTINGS:
                gc.set_threshold(*thresholds)
                sys.setswitchinterval(turn_s)
