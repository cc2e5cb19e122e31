"""The collector: keeps every environment and the policy busy, and waits for nobody.

An environment steps when its own response arrives; the policy is handed each request at once and batches as it likes; a
slot that has finished takes the next rollout. Whatever fails (a policy's call, an environment, a worker) costs the
trajectory that it happened to. Replies and states are validated as they arrive (`hgpo_train.policies.validation`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from hgpo_envs.episode import Episode
from hgpo_train.policies.base import Failure, Reply, Request, attempt
from hgpo_train.policies.validation import checked_count, checked_reply, checked_state, checked_task
from hgpo_train.rollout.failures import FailureReasons, RolloutError
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

_WAIT_S = 0.2
_BOTH_WAIT_S = 0.002


@dataclass
class Tally:
    """What has happened so far.

    Attributes:
        steps: Steps taken.
        tokens: Response tokens, where the policy counts them.
        trajectories: Rollouts that ended, aborted ones included.
        aborted: Rollouts that failed.
        won: Rollouts that solved their task.
        score: Sum of the last scores of rollouts that did not fail.
        policy_s: Seconds in the policy's calls in this thread.
        environment_s: Seconds in engines and prompts.
        seconds: Seconds since the start.
        failures: Rollouts that failed since a step was last taken.
        reasons: Why rollouts failed.
        retried: Rollouts that had failed in an earlier run and were played again.
        retries_failed: How many of those failed.
    """

    steps: int = 0
    tokens: int = 0
    trajectories: int = 0
    aborted: int = 0
    won: int = 0
    score: float = 0.0
    policy_s: float = 0.0
    environment_s: float = 0.0
    seconds: float = 0.0
    failures: int = 0
    reasons: FailureReasons = field(default_factory=FailureReasons)
    retried: int = 0
    retries_failed: int = 0

    def refused(self, failure: Failure) -> None:
        """Counts a rollout that ended well and whose rows the step table refused."""
        self.aborted += 1
        self.reasons.add(failure)

    @property
    def success(self) -> float:
        """The share of whole rollouts that solved their task; NaN before the first."""
        whole = self.trajectories - self.aborted
        return self.won / whole if whole else float("nan")


@dataclass(slots=True)
class _Place:
    """A slot, and how far the rollout in it is.

    Attributes:
        slot: Its number.
        episode: Over the slot's engine.
        trajectory: The rollout; None while the slot is free.
        action: The command that the engine carries out, and whether the response was well formed; None while the engine
            starts the task.
        asked_at: When the policy was last asked.
    """

    slot: int
    episode: Episode
    trajectory: Trajectory | None = None
    action: tuple[str, bool | None] | None = None
    asked_at: float = 0.0


class Collector:
    """Plays groups until none is left.

    Args:
        shared: The task source.
        settings: Prompts, parsing, limits.
        slots: Where the engines run.
        policy: What acts.
        groups: What is to be played, and where finished groups go.
        seed: The run's seed.
        max_consecutive_failures: How many rollouts may fail without a step taken between them before the run stops.
        policy_timeout_s: Seconds after which a request that the policy has not answered fails.
        progress: Called now and then with the tally.
        should_stop: Asked now and then whether to stop early; whole groups are committed then.
        tally: What counts.
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
        self._places = [_Place(slot, Episode(shared, settings, slots.engine(slot))) for slot in range(slots.count)]
        self._free = self._places[::-1]
        self._asked: dict[int, _Place] = {}  # by request, in the order of their times
        self._requests: list[Request] = []  # not yet handed to the policy
        self._members: list[tuple[PlannedGroup, int]] = []  # of the group that began last, not yet played
        self._next_id = 0
        self.tally = tally or Tally()

    def run(self) -> Tally:
        """Plays until every wanted group is done, or `should_stop` says so; commits every whole group either way.

        Raises:
            RolloutError: `max_consecutive_failures` rollouts failed one after the other; whole groups are committed.
        """
        began = perf_counter()
        try:
            while self._fill() and not self._stopping():
                self._turn()
                self.tally.seconds = perf_counter() - began
                self._progress(self.tally)
        finally:
            self.tally.seconds = perf_counter() - began
            self._groups.flush()
        return self.tally

    def _fill(self) -> bool:
        """Gives the next rollouts to free slots; False when nothing is left to do."""
        while self._free:
            if not self._members:
                begun = self._groups.begin()
                if begun is None:
                    break
                group, members = begun
                self._members = [(group, member) for member in members][::-1]
            group, member = self._members.pop()
            place = self._free.pop()
            seed = group.seed(self._seed, member)
            clocked = not self._policy.reproducible
            place.trajectory = Trajectory(group, member, seed, place.episode, clocked=clocked)
            self._slots.start(place.slot, group.task_id)
        return len(self._free) < self._slots.count

    def _turn(self) -> None:
        """Takes in what has arrived from environments, then what has arrived from the policy."""
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
                self._replied(place, reply)

    def _exchange(self) -> list[tuple[int, Reply | Failure]]:
        """Hands waiting requests to the policy and takes its replies; a policy that raises fails all that it holds."""
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
        """Failures for requests that have waited too long; an answer that comes later is ignored."""
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
        """Takes a state in and asks for the next action, unless the episode is over."""
        episode = trajectory.episode
        action, place.action = place.action, None
        if action is None:
            task = checked_task(self._shared.source.task(trajectory.group.task_id))
            if isinstance(task, Failure):
                return task
            episode.begin(task, state)
            if episode.done:
                return Failure("EnvironmentFailed", "the task had ended before its first step")
        else:
            episode.observe(*action, state)
            trajectory.close_row(seconds)
            self.tally.steps += 1
            self.tally.failures = 0
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
        self.tally.tokens += len(reply.response_token_ids or ())
        place.action = command, well_formed
        self._slots.act(place.slot, command)

    def _end(self, place: _Place, trajectory: Trajectory, failure: Failure | None) -> None:
        again = self._groups.is_retry(trajectory.group)
        self.tally.retried += again
        if failure is not None:
            trajectory.abort(failure)
            self.tally.aborted += 1
            self.tally.retries_failed += again
            self.tally.failures += 1
            self.tally.reasons.add(failure)
        else:
            self.tally.won += trajectory.episode.state.won
            self.tally.score += trajectory.episode.state.score
        self.tally.trajectories += 1
        place.trajectory = place.action = None
        self._free.append(place)
        self._groups.finish(trajectory)
        if self.tally.failures >= self._failures_allowed:
            raise RolloutError(
                f"{self.tally.failures} rollouts failed one after the other, the last with {failure}. Whole groups are "
                "committed; the same command continues from there."
            )
