"""The collector: plays rollouts in many environments without waiting for the slowest one.

An environment steps as soon as its own response arrives. The policy receives each request immediately and batches as it
chooses. A slot that has finished starts the next rollout. A failure (of a policy's call, an environment or a worker)
aborts only its trajectory; a bug in a user's own policy is raised instead. Replies and states are validated as they
arrive (`hgpo_train.policies.validation`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, NoReturn

from hgpo_envs.episode import Episode
from hgpo_envs.errors import InputError
from hgpo_train.policies.base import Failure, Reply, Request, attempt, is_bug
from hgpo_train.policies.validation import BadValueError, checked_count, checked_reply, checked_state, checked_task
from hgpo_train.rollout.failures import FailureReasons, FailureSummary, RolloutError
from hgpo_train.rollout.trajectory import Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable

    from hgpo_envs.engine import State
    from hgpo_envs.episode import Settings
    from hgpo_envs.sources import SharedSource
    from hgpo_train.policies.base import Policy
    from hgpo_train.rollout.group_plan import PlannedGroup
    from hgpo_train.rollout.group_scheduler import GroupScheduler
    from hgpo_train.rollout.slots import Slots

_WAIT_S = 0.2  # the longest wait for either environments or the policy: bounds the delay of should_stop
_FAILING_TASKS = 3
_LONGEST_ROWS = 4  # a rollout that hangs delays the stop by at most this many times the failures or the slots
_BOTH_WAIT_S = 0.002  # the longest wait for the policy while environments compute, whose results must not wait for it


@dataclass
class Tally:
    """Counts of a collection so far.

    Attributes:
        steps: Number of steps.
        tokens: Number of response tokens in replies whose policy reports them.
        prompt_tokens: Number of prompt tokens in the same replies.
        uncounted: Number of replies whose policy did not report both numbers of tokens.
        trajectories: Number of rollouts that ended, including aborted ones.
        aborted: Number of rollouts that failed.
        won: Number of rollouts that solved their task.
        unknown: Number of rollouts whose environment does not say whether they did.
        score: Sum of the final scores of rollouts that did not fail.
        policy_s: Seconds spent in the policy's calls in this thread.
        environment_s: Seconds spent in engines and prompts.
        seconds: Seconds since the start.
        failures: Number of rollouts that failed since the last step.
        failing_tasks: The tasks of these rollouts.
        reasons: Reasons of the failures.
        retried: Number of retried rollouts, which failed in an earlier run.
        retries_failed: Number of retried rollouts that failed again.
    """

    steps: int = 0
    tokens: int = 0
    prompt_tokens: int = 0
    uncounted: int = 0
    trajectories: int = 0
    aborted: int = 0
    won: int = 0
    unknown: int = 0
    score: float = 0.0
    policy_s: float = 0.0
    environment_s: float = 0.0
    seconds: float = 0.0
    failures: int = 0
    failing_tasks: set[str] = field(default_factory=set)
    reasons: FailureReasons = field(default_factory=FailureReasons)
    retried: int = 0
    retries_failed: int = 0

    def add_step(self) -> None:
        """Count a step, which ends a row of failures."""
        self.steps += 1
        self.failures = 0
        self.failing_tasks.clear()

    def add_tokens(self, reply: Reply) -> None:
        """Count the tokens of a reply."""
        prompt, response = reply.token_counts
        self.prompt_tokens += prompt or 0
        self.tokens += response or 0
        self.uncounted += prompt is None or response is None

    def refused(self, failure: Failure) -> None:
        """Count a rollout that did not fail, but whose rows the step table rejected."""
        self.aborted += 1
        self.reasons.add(failure)

    @property
    def success(self) -> float:
        """The share of rollouts that solved their task, of those that say so and did not fail; NaN if there is none."""
        whole = self.trajectories - self.aborted - self.unknown
        return self.won / whole if whole else float("nan")


@dataclass(slots=True)
class _Place:
    """A slot and the state of its rollout.

    Attributes:
        slot: The slot's number.
        episode: The episode that the slot's engine plays.
        trajectory: The rollout; None while the slot is free.
        action: The command that the engine executes, and whether the response was well formed; None while the engine
            starts the task.
        asked_at: Time of the last request to the policy, in seconds of `perf_counter`.
        number: Number of the rollout in the order of starts.
    """

    slot: int
    episode: Episode
    trajectory: Trajectory | None = None
    action: tuple[str, bool | None] | None = None
    asked_at: float = 0.0
    number: int = 0


class Collector:
    """Plays groups of rollouts until the scheduler has no more.

    Args:
        shared: The task source.
        settings: Prompt template, action format and step limit of episodes.
        slots: The engines.
        policy: The policy.
        groups: The scheduler, which hands out groups and commits finished ones.
        seed: The run's seed.
        max_consecutive_failures: Number of rollouts that fail without a step in between at which the run stops. The
            row must contain three tasks, every rollout that was running when it began, and one that started later: a
            task that always fails, a few requests that fail faster than others succeed, or one broken connection of
            all slots does not stop a run.
        policy_timeout_s: Seconds after which a request without a reply fails.
        progress: Called with the tally after every turn of the loop.
        should_stop: Called after every turn of the loop; True stops early. Finished groups are committed.
        tally: The counts to update, which may contain those of an earlier call; a new tally by default.
    """

    def __init__(
        self,
        shared: SharedSource,
        settings: Settings,
        slots: Slots,
        policy: Policy,
        groups: GroupScheduler,
        *,
        seed: int = 0,
        max_consecutive_failures: int = 64,
        policy_timeout_s: float = 3600.0,
        progress: Callable[[Tally], None] = lambda _: None,
        should_stop: Callable[[], bool] = lambda: False,
        tally: Tally | None = None,
    ) -> None:
        self._shared, self._slots, self._policy, self._groups = shared, slots, policy, groups
        self._seed, self._failures_allowed, self._policy_timeout_s = seed, max_consecutive_failures, policy_timeout_s
        self._progress, self._stopping = progress, should_stop
        self._raise_errors = bool(getattr(policy, "raise_errors", False))
        self._places = [_Place(slot, Episode(shared, settings, slots.engine(slot))) for slot in range(slots.count)]
        self._free = self._places[::-1]
        self._asked: dict[int, _Place] = {}  # by request id, oldest first, which _overdue relies on
        self._requests: list[Request] = []  # not yet submitted to the policy
        self._members: list[tuple[PlannedGroup, int]] = []  # members of the newest group that have not started
        self._next_id = self._started = 0
        self._row_began = 0  # number of rollouts that had started when the first of the current row of failures failed
        self.tally = tally or Tally()
        self._persists = self.tally.failures > 0  # whether a rollout of the row had started after that

    def run(self) -> Tally:
        """Play until every wanted group is finished or `should_stop` returns True. Finished groups are committed.

        Raises:
            RolloutError: At least `max_consecutive_failures` rollouts failed in a row, and there are more to play.
                Finished groups are committed.
            Exception: A bug in a user's own policy (`hgpo_train.policies.own`). Finished groups are committed.
        """
        began = perf_counter() - self.tally.seconds
        try:
            while self._fill() and not self._stopping():
                self._check_row_of_failures()
                self._turn()
                self.tally.seconds = perf_counter() - began
                self._progress(self.tally)
        finally:
            self.tally.seconds = perf_counter() - began
            self._groups.flush()
        return self.tally

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
            place = self._free.pop()
            place.number = self._started
            self._started += 1
            seed = group.seed(self._seed, member)
            clocked = not self._policy.reproducible
            place.trajectory = Trajectory(group, member, seed, place.episode, clocked=clocked)
            self._slots.start(place.slot, group.task_id)
        return len(self._free) < self._slots.count

    def _turn(self) -> None:
        """Process the results of environments, then the policy's replies."""
        wait = 0 if self._asked else _WAIT_S
        while arrivals := self._slots.collect(wait):
            for slot, outcome, seconds in arrivals:
                self._arrived(self._places[slot], outcome, seconds)
            self._fill()
            wait = 0
        began = perf_counter()
        replies = self._exchange()
        self.tally.policy_s += perf_counter() - began
        for request_id, reply in replies:
            place = self._asked.pop(request_id, None)
            if place is not None:
                if isinstance(reply, Failure) and self._raise_errors and is_bug(reply):
                    self._raise_bug(place, reply)
                self._replied(place, reply)

    def _raise_bug(self, place: _Place, failure: Failure) -> NoReturn:
        """Raise the exception behind a failure of a user's own policy: it would be the same in every rollout."""
        assert place.trajectory is not None
        assert failure.error is not None
        if isinstance(failure.error, BadValueError):
            raise InputError(f"policy {self._policy.name}: {failure.error}") from failure.error
        task, step = place.trajectory.group.task_id, len(place.trajectory.rows)
        if not isinstance(failure.error, InputError):
            where = f"at step {step} of task {task}"
            failure.error.add_note(f"Raised by the policy {self._policy.name} {where}. Finished groups are committed.")
        raise failure.error

    def _exchange(self) -> list[tuple[int, Reply | Failure]]:
        """Submit waiting requests and collect replies. If the policy raises, all open requests fail."""
        requests, self._requests = self._requests, []
        replies = attempt("PolicyFailed", self._call_policy, requests)
        if isinstance(replies, Failure):
            return [(request_id, replies) for request_id in self._asked]
        return replies + self._overdue()

    def _call_policy(self, requests: list[Request]) -> list[tuple[int, Reply | Failure]]:
        if requests:
            self._policy.submit(requests)
        if not self._asked:
            return []
        replies = self._policy.collect(_BOTH_WAIT_S if self._slots.busy else _WAIT_S)
        return [(int(request_id), checked_reply(reply)) for request_id, reply in replies]

    def _overdue(self) -> list[tuple[int, Reply | Failure]]:
        """Return failures for requests that exceeded the time limit. A later reply to them is ignored."""
        late = perf_counter() - self._policy_timeout_s
        overdue: list[tuple[int, Reply | Failure]] = []
        for request_id, place in self._asked.items():
            if place.asked_at > late:
                break
            overdue.append((request_id, Failure("PolicyTimedOut", f"no answer within {self._policy_timeout_s:g} s")))
        return overdue

    def _arrived(self, place: _Place, outcome: object, seconds: float) -> None:
        trajectory = place.trajectory
        if trajectory is None:
            return
        began = perf_counter()
        state = checked_state(outcome)
        failure: Failure | None
        if isinstance(state, Failure):
            failure = state
        else:
            failure = attempt("EnvironmentFailed", self._advance, place, trajectory, state, seconds)
        self.tally.environment_s += seconds + perf_counter() - began
        if failure is not None or trajectory.episode.done:
            self._end(place, trajectory, failure)

    def _advance(self, place: _Place, trajectory: Trajectory, state: State, seconds: float) -> Failure | None:
        """Add a state to the episode and request the next action, unless the episode is done."""
        episode = trajectory.episode
        action, place.action = place.action, None
        if action is None:
            task = checked_task(self._shared.source.task(trajectory.group.task_id))
            if isinstance(task, Failure):
                return task
            episode.begin(task, state)
            if episode.done:
                return Failure("EnvironmentFailed", "the task ended before its first step")
        else:
            episode.observe(*action, state)
            trajectory.close_row(seconds)
            self.tally.add_step()
        if not episode.done:
            self._ask(place, trajectory)
        return None

    def _ask(self, place: _Place, trajectory: Trajectory) -> None:
        episode = trajectory.episode
        prompt = episode.prompt()
        trajectory.open_row(prompt)
        request = Request(
            id=self._next_id,
            prompt=prompt,
            seed=trajectory.step_seed(),
            slot=place.slot,
            step=len(trajectory.rows),
            task=episode.task,
            state=episode.state,
            engine=self._slots.engine(place.slot),
            with_shorter_history=episode.prompt,
            read_history=episode.history,
        )
        self._next_id += 1
        place.asked_at = perf_counter()
        self._asked[request.id] = place
        self._requests.append(request)

    def _replied(self, place: _Place, reply: Reply | Failure) -> None:
        trajectory = place.trajectory
        assert trajectory is not None
        failure = reply if isinstance(reply, Failure) else attempt("PolicyFailed", self._act, place, trajectory, reply)
        if failure is not None:
            self._end(place, trajectory, failure)

    def _act(self, place: _Place, trajectory: Trajectory, reply: Reply) -> None:
        version = checked_count("the policy's version", self._policy.version)
        command, well_formed = trajectory.episode.read(reply.response)
        trajectory.add_reply(reply, command, perf_counter() - place.asked_at, version)
        self.tally.add_tokens(reply)
        place.action = command, well_formed
        self._slots.act(place.slot, command)

    def _end(self, place: _Place, trajectory: Trajectory, failure: Failure | None) -> None:
        again = self._groups.is_retry(trajectory.group)
        self.tally.retried += again
        if failure is not None:
            trajectory.abort(failure)
            self.tally.aborted += 1
            self.tally.retries_failed += again
            if not self.tally.failures:
                self._row_began = self._started
            self._persists = bool(self.tally.failures) and (self._persists or place.number >= self._row_began)
            self.tally.failures += 1
            self.tally.failing_tasks.add(trajectory.group.task_id)
            self.tally.reasons.add(failure)
        else:
            won = trajectory.episode.state.won
            self.tally.won += won is True
            self.tally.unknown += won is None
            self.tally.score += trajectory.episode.state.score
        self.tally.trajectories += 1
        place.trajectory = place.action = None
        self._free.append(place)
        self._groups.finish(trajectory)

    def _check_row_of_failures(self) -> None:
        """Stop if everything fails. See `max_consecutive_failures`."""
        tally, allowed = self.tally, self._failures_allowed
        if tally.failures < allowed or len(tally.failing_tasks) < min(_FAILING_TASKS, allowed) or not self._persists:
            return
        running = [place.number for place in self._places if place.trajectory is not None]
        if min(running) < self._row_began and tally.failures < _LONGEST_ROWS * max(allowed, len(self._places)):
            return
        so_far = FailureSummary(tally.trajectories, tally.aborted, tally.reasons.counts())
        raise RolloutError(
            f"stopped after {tally.failures} failures in a row: {so_far}. Finished groups are committed; when the "
            "cause is fixed, run the same command again to resume and to retry them."
        )
