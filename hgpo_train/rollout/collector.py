"""The collector: keeps every environment and the policy busy, and waits for nobody.

An environment steps when its own response arrives; the policy is handed each request at once and batches as it likes; a
slot that has finished takes the next rollout. What fails — a policy's call, an environment, a worker — costs the
trajectory that it happened to.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from hgpo_envs.episode import Episode
from hgpo_train.policies.base import Failure, Reply, Request
from hgpo_train.rollout.trajectory import Trajectory

if TYPE_CHECKING:
    from collections.abc import Callable

    from hgpo_envs.engine import State
    from hgpo_envs.episode import Settings
    from hgpo_envs.sources import SharedSource
    from hgpo_train.policies.base import Policy
    from hgpo_train.rollout.groups import Groups
    from hgpo_train.rollout.plan import Group
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
        aborted: Rollouts that broke off.
        won: Rollouts that solved their task.
        score: Sum of the last scores of rollouts that did not break off.
        policy_s: Seconds in the policy's calls in this thread.
        environment_s: Seconds in engines and prompts.
        seconds: Seconds since the start.
        failures: Rollouts that broke off since a step was last taken.
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

    @property
    def success(self) -> float:
        """The share of whole rollouts that solved their task; NaN before the first."""
        whole = self.trajectories - self.aborted
        return self.won / whole if whole else float("nan")


class RolloutError(RuntimeError):
    """Rollouts break off one after the other: the run stops rather than fill with broken ones."""


@dataclass
class _Asked:
    slot: int
    at: float


@dataclass
class _Moving:
    command: str
    well_formed: bool | None


class Collector:
    """Plays groups until none is left.

    Args:
        shared: The task source.
        settings: Prompts, parsing, limits.
        slots: Where the engines run.
        policy: What acts.
        groups: What is to be played, and where finished groups go.
        seed: The run's seed.
        failures_allowed: How many rollouts may break off without a step taken between them before the run stops.
        progress: Called now and then with the tally.
        stopping: Asked now and then whether to stop early; whole groups are committed then.
    """

    def __init__(
        self,
        shared: SharedSource,
        settings: Settings,
        slots: Slots,
        policy: Policy,
        groups: Groups,
        *,
        seed: int = 0,
        failures_allowed: int = 64,
        progress: Callable[[Tally], None] = lambda _: None,
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._shared, self._slots, self._policy, self._groups = shared, slots, policy, groups
        self._seed, self._failures_allowed = seed, failures_allowed
        self._progress, self._stopping = progress, stopping
        self._episodes = [Episode(shared, settings, slots.engine(slot)) for slot in range(slots.count)]
        self._playing: list[Trajectory | None] = [None] * slots.count
        self._moving: list[_Moving | None] = [None] * slots.count
        self._free = list(range(slots.count))[::-1]
        self._asked: dict[int, _Asked] = {}
        self._requests: list[Request] = []
        self._members: list[tuple[Group, int]] = []
        self._next_id = 0
        self.tally = Tally()

    def run(self) -> Tally:
        """Plays until every wanted group is done, or `stopping` says so; commits every whole group either way.

        Raises:
            RolloutError: Policy or environment fail and fail; what was whole is committed.
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
                group = self._groups.begin()
                if group is None:
                    break
                self._members = [(group, member) for member in range(group.size)][::-1]
            group, member = self._members.pop()
            slot = self._free.pop()
            seed = group.seed(self._seed, member)
            clocked = not self._policy.reproducible
            self._playing[slot] = Trajectory(group, member, seed, self._episodes[slot], clocked=clocked)
            self._slots.start(slot, group.task_id)
        return len(self._free) < self._slots.count

    def _turn(self) -> None:
        """Takes in what has arrived from environments, then what has arrived from the policy."""
        wait = 0 if self._asked else _WAIT_S
        while arrivals := self._slots.collect(wait):
            for slot, outcome, seconds in arrivals:
                self._arrived(slot, outcome, seconds)
            self._fill()
            wait = 0
        began = perf_counter()
        replies = self._exchange()
        self.tally.policy_s += perf_counter() - began
        for request_id, reply in replies:
            asked = self._asked.pop(request_id, None)
            if asked is not None:
                self._replied(asked, reply)

    def _exchange(self) -> list[tuple[int, Reply | Failure]]:
        """Hands waiting requests to the policy and takes its replies; a policy that raises fails all that it holds."""
        requests, self._requests = self._requests, []
        try:
            if requests:
                self._policy.submit(requests)
            if not self._asked:
                return []
            return list(self._policy.collect(_BOTH_WAIT_S if self._slots.busy else _WAIT_S))
        except Exception as error:  # noqa: BLE001 - whatever a policy raises is data
            return [(request_id, Failure.of("PolicyFailed", error)) for request_id in self._asked]

    def _arrived(self, slot: int, outcome: State | Failure, seconds: float) -> None:
        trajectory, episode = self._playing[slot], self._episodes[slot]
        if trajectory is None:
            return
        began = perf_counter()
        if isinstance(outcome, Failure):
            self._end(slot, outcome)
            return
        moving, self._moving[slot] = self._moving[slot], None
        try:
            if moving is None:
                episode.begin(self._shared.source.task(trajectory.group.task_id), outcome)
            else:
                episode.observe(moving.command, moving.well_formed, outcome)
                trajectory.moved(seconds)
                self.tally.steps += 1
                self.tally.failures = 0
            if not episode.done:
                self._ask(slot, trajectory)
        except Exception as error:  # noqa: BLE001 - a prompt or a task that fails costs its own trajectory
            self._end(slot, Failure.of("EnvironmentFailed", error))
            return
        finally:
            self.tally.environment_s += seconds + perf_counter() - began
        if episode.done:
            ended = moving is not None
            self._end(slot, None if ended else Failure("EnvironmentFailed", "the task had ended before its first step"))

    def _ask(self, slot: int, trajectory: Trajectory) -> None:
        episode = trajectory.episode
        prompt = episode.prompt()
        trajectory.asked(prompt)
        request = Request(
            id=self._next_id,
            prompt=prompt,
            seed=trajectory.step_seed(),
            slot=slot,
            step=len(trajectory.rows),
            task=episode.task,
            state=episode.state,
            engine=self._slots.engine(slot),
            shorter=episode.prompt,
        )
        self._next_id += 1
        self._asked[request.id] = _Asked(slot, perf_counter())
        self._requests.append(request)

    def _replied(self, asked: _Asked, reply: Reply | Failure) -> None:
        trajectory = self._playing[asked.slot]
        assert trajectory is not None
        if isinstance(reply, Failure):
            self._end(asked.slot, reply)
            return
        command, well_formed = trajectory.episode.read(reply.response)
        trajectory.answered(reply, command, perf_counter() - asked.at, self._policy.version)
        self.tally.tokens += len(reply.response_token_ids or ())
        self._moving[asked.slot] = _Moving(command, well_formed)
        self._slots.act(asked.slot, command)

    def _end(self, slot: int, failure: Failure | None) -> None:
        trajectory = self._playing[slot]
        assert trajectory is not None
        if failure is not None:
            trajectory.broke_off(failure)
            self.tally.aborted += 1
            self.tally.failures += 1
            if self.tally.failures >= self._failures_allowed:
                raise RolloutError(
                    f"{self.tally.failures} rollouts broke off one after the other, the last with {failure}"
                )
        else:
            self.tally.won += trajectory.episode.state.won
            self.tally.score += trajectory.episode.state.score
        self.tally.trajectories += 1
        self._playing[slot] = self._moving[slot] = None
        self._free.append(slot)
        self._groups.finish(trajectory)
