"""The record of a run's sessions, `RUN/sessions.json`: when and how it was played, with which server, at what expense.

A session is one call of `hgpo rollout` or `hgpo eval` that played rollouts. The rows of a run do not depend on the
values here, so a run can be resumed with others: the address of the server, time limits, the number of environments.

The file is replaced as a whole, atomically, at most every `EVERY_S` seconds while rollouts are played, and at the end.
If the process is killed, the counts of the last seconds are lost, and `ended` stays ``killed``.
"""

from __future__ import annotations

import json
import os
import platform
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import write_file
from hgpo_envs.files.secrets import redact_json
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_envs.plugins import installed_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from hgpo_train.rollout.collector import Tally

NAME: Final = "sessions.json"
FORMAT: Final = "hgpo sessions 1"
EVERY_S: Final = 10.0
"""Seconds between two updates of the file while rollouts are played."""

_BYTES: Final = 64 << 20
_PACKAGES: Final = ("hgpo", "torch", "transformers", "vllm")


@dataclass(slots=True)
class Session:
    """One session of a run.

    Attributes:
        started_at: UTC time of the start, in ISO 8601.
        seconds: Seconds in which rollouts were played.
        ended: ``complete``, ``interrupted`` by Ctrl-C, ``failed`` with an error, or ``killed``.
        endpoint: Address of the policy's server, without secrets; None without a server.
        policy_options: Options of the policy that do not affect its replies.
        slots: Number of environments that ran concurrently.
        workers: Whether each environment ran in its own process.
        groups_before: Number of groups that the run contained at the start.
        rollouts: Number of rollouts that ended.
        failed: Number of them that failed.
        steps: Number of steps.
        prompt_tokens: Number of tokens of all prompts, including those of rollouts that failed later; None if the
            policy did not report them for every reply.
        response_tokens: Number of tokens of all responses, likewise.
        versions: Versions of the installed packages and of Python.
    """

    started_at: str
    seconds: float = 0.0
    ended: str = "killed"
    endpoint: str | None = None
    policy_options: Mapping[str, Any] = field(default_factory=dict)
    slots: int = 0
    workers: bool = False
    groups_before: int = 0
    rollouts: int = 0
    failed: int = 0
    steps: int = 0
    prompt_tokens: int | None = None
    response_tokens: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)

    def count(self, tally: Tally) -> None:
        """Take the counts of a tally."""
        self.seconds = round(tally.seconds, 3)
        self.rollouts, self.failed, self.steps = tally.trajectories, tally.aborted, tally.steps
        known = not tally.uncounted
        self.prompt_tokens = tally.prompt_tokens if known else None
        self.response_tokens = tally.tokens if known else None


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that affect rollouts."""
    packages = {name: number for name in _PACKAGES if (number := installed_version(name)) is not None}
    return {"python": platform.python_version(), **packages}


def read_sessions(run: Path) -> list[Session]:
    """Return the sessions of a run, the first first; none if it has no record of them.

    Raises:
        InputError: The record cannot be read.
    """
    path = run / NAME
    if not os.path.lexists(path):
        return []
    try:
        values = json.loads(read_bytes(path, _BYTES, "record of sessions"))
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict) or values.get("format") != FORMAT or not isinstance(values.get("sessions"), list):
        raise InputError(f"{path}: expected a record of the form {FORMAT!r}; move the file elsewhere to resume the run")
    known = {field.name for field in fields(Session)}
    return [
        Session(**{name: value for name, value in session.items() if name in known})
        for session in values["sessions"]
        if isinstance(session, dict) and isinstance(session.get("started_at"), str)
    ]


@contextmanager
def record_session(
    run: Path, before: Sequence[Session], session: Session, tally: Tally
) -> Iterator[Callable[[], None]]:
    """Record a session while the block runs. A session without rollouts is not recorded.

    Args:
        run: The run's folder.
        before: The earlier sessions.
        session: The new session; its counts and `ended` are updated.
        tally: The counts, which are updated while the block runs.

    Yields:
        A function to call regularly, which updates the file every `EVERY_S` seconds.
    """
    last = perf_counter()

    def write() -> None:
        if tally.trajectories:
            session.count(tally)
            values = redact_json({"format": FORMAT, "sessions": [asdict(record) for record in (*before, session)]})
            write_file(run / NAME, json.dumps(values, indent=1, ensure_ascii=False).encode() + b"\n")

    def update() -> None:
        nonlocal last
        if perf_counter() - last >= EVERY_S:
            last = perf_counter()
            write()

    try:
        yield update
    except BaseException as error:
        session.ended = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        with suppress(OSError):  # the error of the block is more important
            write()
        raise
    session.ended = "complete"
    write()
