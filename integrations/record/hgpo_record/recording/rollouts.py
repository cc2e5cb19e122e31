"""The rollouts of a recording: which call belongs to which, their rewards, and their commits.

A rollout is open from its first call until its reward, or until the program ends. Then it is committed to the run, with
those of its task in one group. The branches of its calls are a line of `RUN/branches.jsonl`, which is written first.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson

from hgpo_envs.errors import one_line
from hgpo_envs.files import atomic
from hgpo_envs.files.secrets import has_secret, redact_json
from hgpo_envs.files.untrusted_files import open_regular
from hgpo_envs.unicode_text import clean_text
from hgpo_record.recording.branches import Branch, Branches
from hgpo_record.recording.calls import read_answer, read_request, state_of
from hgpo_record.recording.streams import whole_answer
from hgpo_train.policies.http_client import RequestError
from hgpo_train.policies.validation import checked_number
from hgpo_train.rollout.row import Row, columns_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from hgpo_datasets import StepWriter
    from hgpo_record.recording.calls import Request

BRANCHES: Final = "branches.jsonl"
LONGEST_NAME: Final = 1000
_SHARE: Final = 10
"""A pause between two commits is so many times as long as a commit, so that they take a tenth of the time."""
_LONGEST_PAUSE_S: Final = 1.0
_GATHERED_S: Final = 0.2
_BATCH: Final = 32
"""Calls of a rollout are read so many at a time. One by one, between requests, each takes twice as long: what the
processor has in its caches is then what forwards requests."""
_LONG_STREAM: Final = 1 << 16


class RefusedError(Exception):
    """A request of the program that the recorder does not serve.

    Attributes:
        status: The HTTP status of the answer.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(eq=False, slots=True)
class Call:
    """A request of the program, and its answer.

    Attributes:
        rollout: Its rollout; None if it is not recorded.
        interface: A key of `PROMPTS`.
        body: The request.
        began: When it arrived.
        seconds: The time until the answer.
        answer: The body of the answer.
        streamed: Whether it is a stream of events.
        settled: Whether it is recorded, or counted as failed, or neither is wanted.
    """

    rollout: Rollout | None
    interface: str
    body: bytes
    began: float = field(default_factory=monotonic)
    seconds: float = 0.0
    answer: bytes = b""
    streamed: bool = False
    settled: bool = False


@dataclass(eq=False)
class Rollout:
    """A rollout.

    Attributes:
        task: Its task.
        name: Its name among the rollouts of the task.
        calls: Its last calls, which are not read yet.
        rows: One row per call.
        last: The request of the last row.
        branches: The branches of its calls.
        others: Further choices of a call, by its step.
        problem: Why it lacks a step; empty if it does not.
        rewarded: Whether it has a reward.
        ended: Whether no further call belongs to it.
    """

    task: str
    name: str
    calls: list[Call] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    last: Request | None = None
    branches: Branches = field(default_factory=Branches)
    others: dict[int, Sequence[Any]] = field(default_factory=dict)
    problem: str = ""
    rewarded: bool = False
    ended: bool = False

    @property
    def trajectory(self) -> str:
        """Its identifier in the run."""
        return f"{self.task}/{self.name}"

    def line(self) -> bytes:
        """Return its line in `BRANCHES`, without secrets."""
        values = {
            "trajectory": self.trajectory,
            "branches": [vars(branch) for branch in self.branches.found],
        }
        if self.others:
            choices = [
                {"step": step, "choices": others}
                for step, others in self.others.items()
            ]
            values["other_choices"] = redact_json(choices)
        written = _json(values)
        # A key may have come after the fields of a request that repeat it.
        if has_secret(written):
            written = _json(redact_json(values))
        return written.encode("utf-8", "replace") + b"\n"


class Reward(msgspec.Struct, forbid_unknown_fields=True):
    """The body of ``POST /reward``.

    Attributes:
        reward: The reward of the last call.
        task: The task; by default the one of the address, the header or the program.
        rollout: The rollout, likewise.
        done: Whether the rollout ends.
        won: Whether the rollout solved its task; null if unknown.
    """

    reward: float
    task: str | None = None
    rollout: str | int | None = None
    done: bool = True
    won: bool | None = None


class Recording:
    """The open rollouts of a run, and the commits of the others. Its methods run in one event loop.

    Args:
        writer: The writer of the run.
        task: The task of calls that name none.
        state_key: Makes the state of a call from its messages.
        most_open: The most open rollouts.

    Attributes:
        counts: Numbers of steps, branches, and of rollouts by how they ended.
        failed: Numbers of calls that the server did not answer, by reason.
        passed: Numbers of requests that are no recorded calls, by address.
        notes: What was lost, and why.
    """

    def __init__(
        self,
        writer: StepWriter,
        *,
        task: str,
        state_key: Callable[[Sequence[Any]], object],
        most_open: int,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.passed: Counter[str] = Counter()
        self.notes: list[str] = []
        self._writer = writer
        self._task = task
        self._state_key = state_key
        self._most_open = most_open
        self._open: dict[tuple[str, str], Rollout] = {}
        self._current: dict[str, Rollout] = {}  # by task, of those without a name
        # by task, of the next rollout without a name
        self._numbers: Counter[str] = Counter()
        self._waiting: dict[Rollout, asyncio.Future[None]] = {}
        self._wake = asyncio.Event()
        self._closing = False

    @property
    def open(self) -> list[Rollout]:
        """The open rollouts, without those that wait for their first answer."""
        for rollout in self._open.values():
            self._read(rollout)
        return [
            rollout
            for rollout in self._open.values()
            if rollout.rows or rollout.problem
        ]

    @property
    def alone(self) -> int:
        """The number of tasks in the run with one rollout."""
        tasks = Counter(name.rpartition("/")[0] for name in self._writer.trajectories)
        return list(tasks.values()).count(1)

    def rollout(
        self, task: str | None, name: str | None, *, create: bool = True
    ) -> Rollout:
        """Return the open rollout with a task and a name. One without a name is the task's unnamed one.

        Raises:
            RefusedError: It has ended, there are too many, or a name is not usable.
        """
        task = _name("task", self._task if task is None else task)
        if name is None:
            found = self._current.get(task)
        else:
            name = _name("rollout", name)
            if "/" in name:
                raise RefusedError(
                    400, f"rollout: expected a name without /, received {name!r:.80}"
                )
            found = self._open.get((task, name))
        if found is not None:
            return found
        if not create:
            raise RefusedError(
                409,
                f"rollout {name or ''} of task {task!r:.80}: no open rollout; rewards follow calls",
            )
        if len(self._open) >= self._most_open:
            number = f"{len(self._open):,} rollouts"
            raise RefusedError(
                503,
                f"{number} are open; end some with POST /reward, or raise --max-open",
            )
        rollout = Rollout(task, self._free_name(task) if name is None else name)
        if name is None:
            self._current[task] = rollout
        elif self._is_known(rollout.trajectory):
            raise RefusedError(
                409,
                f"rollout {name!r:.80} of task {task!r:.80} has ended; use another name",
            )
        self._open[task, rollout.name] = rollout
        return rollout

    def _is_known(self, trajectory: str) -> bool:
        waits = any(rollout.trajectory == trajectory for rollout in self._waiting)
        return waits or trajectory in self._writer.trajectories

    def _free_name(self, task: str) -> str:
        number = self._numbers[task]
        while (task, str(number)) in self._open or self._is_known(f"{task}/{number}"):
            number += 1
        self._numbers[task] = number + 1
        return str(number)

    def add(self, rollout: Rollout, call: Call) -> None:
        """Add a call to a rollout."""
        if rollout.ended:  # it was rewarded while the call went on
            self.failed["after the end of the rollout"] += 1
            return
        rollout.calls.append(call)
        # A stream takes many times the memory of what is read from it.
        is_long = call.streamed and len(call.answer) > _LONG_STREAM
        if is_long or len(rollout.calls) >= _BATCH:
            self._read(rollout)

    def _read(self, rollout: Rollout) -> None:
        """Make steps of the calls of a rollout. It lacks those that cannot be steps."""
        calls = rollout.calls
        rollout.calls = []
        for call in calls:
            try:
                self._add_step(rollout, call)
            except RequestError:
                self.failed["an error with the status 200"] += 1
            except Exception as error:  # noqa: BLE001 - the program goes on, and the rollout lacks a step
                rollout.problem = (
                    f"a call could not be recorded: {type(error).__name__}: {error}"
                )

    def _add_step(self, rollout: Rollout, call: Call) -> None:
        request = read_request(call.interface, call.body, rollout.last)
        body = call.answer
        if call.streamed:
            body = whole_answer(call.interface, body) or b""
        answer = read_answer(call.interface, body)
        reply = answer.reply
        step = len(rollout.rows)
        row = Row(
            iteration=0,
            task_id=rollout.task,
            group=0,
            trajectory=rollout.trajectory,
            step=step,
            state=clean_text(state_of(request, self._state_key)),
            prompt=request.prompt,
            response=reply.response,
            message=None if reply.message is None else _json(reply.message),
            action=clean_text(answer.action),
            prompt_token_ids=reply.prompt_token_ids,
            response_token_ids=reply.response_token_ids,
            response_logprobs=reply.response_logprobs,
            finish_reason=reply.finish_reason,
            policy_s=call.seconds,
            won=None,
        )
        rollout.branches.add(request, answer)
        rollout.rows.append(row)
        rollout.last = request
        if answer.others:
            rollout.others[step] = answer.others

    def reward(
        self, reward: Reward, task: str | None = None, name: str | None = None
    ) -> Rollout:
        """Add a reward to the last step of its rollout, which is returned.

        Args:
            reward: The reward.
            task: The task, if the reward names none.
            name: The rollout, likewise.

        Raises:
            RefusedError: There is no such open rollout, or it has no step.
            InputError: The reward is not finite.
        """
        value = checked_number("reward", reward.reward)
        named = name if reward.rollout is None else str(reward.rollout)
        rollout = self.rollout(reward.task or task, named, create=False)
        self._read(rollout)
        if not rollout.rows:
            raise RefusedError(
                409,
                f"rollout {rollout.trajectory!r:.80} has no recorded call that could be rewarded",
            )
        last = rollout.rows[-1]
        last.reward += value
        if reward.won is not None:
            last.won = reward.won
        rollout.rewarded = True
        return rollout

    def end(self, rollout: Rollout, failure: str = "") -> asyncio.Future[None]:
        """End a rollout; the returned future is done when it is committed.

        Args:
            rollout: The rollout.
            failure: Why it was aborted; empty if it was not.
        """
        self._read(rollout)
        rollout.ended = True
        del self._open[rollout.task, rollout.name]
        if self._current.get(rollout.task) is rollout:
            del self._current[rollout.task]
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # What lacks a step is no complete rollout, whatever its reward.
        error = rollout.problem or failure
        if not rollout.rows:
            if error:
                self.notes.append(
                    f"not written: {rollout.trajectory}, which has no steps: {error}"
                )
            done.set_result(None)
            return done
        last = rollout.rows[-1]
        if error:
            last.aborted = True
            last.error = one_line(error, 300)
        else:
            last.terminated = rollout.rewarded
        self._waiting[rollout] = done
        self._wake.set()
        return done

    async def commit(self) -> None:
        """Commit ended rollouts, until `close`.

        Raises:
            Exception: After `close`, rollouts could not be written.
        """
        while True:
            await self._wake.wait()
            # Rollouts of a group often end together, and each commit writes the file of a group again.
            if not self._closing:
                await asyncio.sleep(_GATHERED_S)
            self._wake.clear()
            began = monotonic()
            batch = list(self._waiting)
            error = await asyncio.to_thread(self._commit, batch) if batch else None
            for rollout in batch:
                self._settle(rollout, error)
            if not self._closing:
                await asyncio.sleep(
                    min(_SHARE * (monotonic() - began), _LONGEST_PAUSE_S)
                )
            elif not self._waiting:
                return
            elif error is not None:
                error.add_note(
                    f"{len(self._waiting):,} finished rollouts could not be written"
                )
                raise error
            else:  # one ended meanwhile
                self._wake.set()

    def _commit(self, batch: Sequence[Rollout]) -> Exception | None:
        """Write rollouts. Return the error of those that could not be written."""
        try:
            append_lines(
                self._writer.folder / BRANCHES, [rollout.line() for rollout in batch]
            )
            self._writer.extend(
                columns_of([row for rollout in batch for row in rollout.rows])
            )
        except Exception as error:  # noqa: BLE001 - it is raised at the end, if it stays
            return error
        return None

    def _settle(self, rollout: Rollout, error: Exception | None) -> None:
        """Answer for a rollout that was to be committed. One that could not be written is tried again later."""
        done = self._waiting[rollout]
        if rollout.trajectory not in self._writer.trajectories:
            if not done.done():
                done.set_exception(
                    RefusedError(500, f"the rollout could not be written: {error}")
                )
                done.exception()  # nobody may wait for it
            return
        del self._waiting[rollout]
        is_aborted = rollout.rows[-1].aborted
        self.counts["branches"] += len(rollout.branches.found)
        self.counts["steps"] += len(rollout.rows)
        self.counts["aborted" if is_aborted else "ended"] += 1
        self.counts["unrewarded"] += not (rollout.rewarded or is_aborted)
        if not done.done():
            done.set_result(None)

    def close(self) -> None:
        """Let `commit` end after the rollouts that wait."""
        self._closing = True
        self._wake.set()


def _json(value: object) -> str:
    """Return a value as JSON in a line, with a space after each comma and colon."""
    try:
        written = orjson.dumps(value)
    except TypeError:  # integers of more than 64 bits
        return json.dumps(value, ensure_ascii=False)
    return msgspec.json.format(written, indent=0).decode()


def _name(what: str, name: str) -> str:
    name = clean_text(name)
    if not 0 < len(name) <= LONGEST_NAME:
        raise RefusedError(
            400,
            f"{what}: expected a name of 1 to {LONGEST_NAME} characters, received {len(name)}",
        )
    return name


def append_lines(path: Path, lines: Sequence[bytes]) -> None:
    """Append lines to a file, after what a killed process may have left of one."""
    descriptor = atomic.open_inside(path, os.O_CREAT | os.O_APPEND)
    try:
        os.lseek(descriptor, max(os.fstat(descriptor).st_size - 1, 0), os.SEEK_SET)
        is_torn = os.read(descriptor, 1) not in (b"", b"\n")
        atomic.append(descriptor, b"\n" * is_torn + b"".join(lines))
    finally:
        os.close(descriptor)


def read_branches(run: Path) -> dict[str, list[Branch]]:
    """Return the branches of the recorded trajectories of a run.

    The file can name trajectories that are not in the run, because the process was killed before it wrote them; of two
    lines of one trajectory, the later one holds.

    Raises:
        InputError: There is no such file.
    """
    found: dict[str, list[Branch]] = {}
    with open_regular(run / BRANCHES) as file:
        for line in file:
            try:
                values = msgspec.json.decode(line)
                found[values["trajectory"]] = msgspec.convert(
                    values["branches"], list[Branch]
                )
            except (msgspec.DecodeError, KeyError, TypeError):  # the rest of a line
                continue
    return found
