"""The record of a run's sessions, `RUN/sessions.json`: when and how it was played, with which server, at what expense.

A session is one call of `hgpo_train.rollout.collect`, `hgpo rollout` or `hgpo eval`. The rows of a run do not depend on
the values here, so a run can be resumed with others: the address of the server, time limits, the number of
environments.

The file is replaced as a whole, atomically, at the start and at the end of a session. If the process is killed, the
session has no counts, and `ended` stays ``killed``.
"""

from __future__ import annotations

import os
import platform
import signal
import threading
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct, field

from hgpo_envs.errors import InputError
from hgpo_envs.files.atomic import write_file
from hgpo_envs.files.sealed import seal
from hgpo_envs.files.secrets import redact_json
from hgpo_envs.files.untrusted_files import read_bytes
from hgpo_envs.plugins import installed_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from hgpo_datasets import StepWriter
    from hgpo_train.rollout.tally import Tally

NAME: Final = "sessions.json"
FORMAT: Final = "hgpo sessions 1"

_BYTES: Final = 64 << 20
_PACKAGES: Final = ("hgpo", "torch", "transformers", "vllm")


def installed_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that affect rollouts."""
    packages = {
        name: number
        for name in _PACKAGES
        if (number := installed_version(name)) is not None
    }
    return {"python": platform.python_version(), **packages}


class Session(Struct, kw_only=True):
    """One session of a run.

    Attributes:
        started_at: UTC time of the start, in ISO 8601.
        seconds: Seconds in which rollouts were played.
        ended: ``complete``, ``interrupted`` by Ctrl-C, ``failed`` with an error, or ``killed``.
        endpoint: Address of the policy's server, without secrets; None without a server.
        policy_code: A hash of the code of a policy of one's own; None if it is unknown.
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

    started_at: str = field(
        default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds")
    )
    seconds: float = 0.0
    ended: str = "killed"
    endpoint: str | None = None
    policy_code: str | None = None
    policy_options: dict[str, Any] = {}
    slots: int = 0
    workers: bool = False
    groups_before: int = 0
    rollouts: int = 0
    failed: int = 0
    steps: int = 0
    prompt_tokens: int | None = None
    response_tokens: int | None = None
    versions: dict[str, str] = field(default_factory=installed_versions)


class _Record(Struct):
    format: str
    sessions: list[Session]


def read_sessions(run: Path) -> list[Session]:
    """Return the sessions of a run, the first first; none if it has no record of them.

    Raises:
        InputError: The record cannot be read.
    """
    path = run / NAME
    if not os.path.lexists(path):
        return []
    try:
        record = msgspec.json.decode(
            read_bytes(path, _BYTES, "record of sessions"), type=_Record
        )
    except (msgspec.DecodeError, RecursionError):
        record = _Record("", [])
    if record.format != FORMAT:
        raise InputError(
            f"{path}: expected a record of the form {FORMAT!r}; move the file elsewhere to resume the run"
        )
    return record.sessions


@contextmanager
def record_session(
    writer: StepWriter, before: Sequence[Session], session: Session, tally: Tally
) -> Iterator[Callable[[], bool]]:
    """Record a session of a run while the block plays, and yield a function that returns whether to stop.

    It does after Ctrl-C, so that finished groups can be committed. A second Ctrl-C interrupts at once.

    Args:
        writer: The writer of the run.
        before: The earlier sessions.
        session: The new session; its counts and `ended` are updated.
        tally: The counts at the end of the block.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed within the block. The message says what is kept.
    """
    presses: list[int] = []

    def note(number: int, _: object) -> None:
        if presses:
            raise KeyboardInterrupt
        presses.append(number)

    def write() -> None:
        values = redact_json(msgspec.to_builtins(_Record(FORMAT, [*before, session])))
        data = msgspec.json.format(msgspec.json.encode(values), indent=1)
        write_file(writer.folder / NAME, seal(data))

    session.groups_before = len(writer.committed)
    with ExitStack() as opened:
        # Only the main thread receives Ctrl-C.
        if threading.current_thread() is threading.main_thread():
            handler = signal.signal(signal.SIGINT, note)
            opened.callback(signal.signal, signal.SIGINT, handler)
        # The first write says "killed": it stays if the process is.
        write()
        ended = "failed"
        try:
            yield lambda: bool(presses)
            ended = "interrupted" if presses else "complete"
        except KeyboardInterrupt:
            ended = "interrupted"
            raise
        finally:
            session.ended = ended
            session.seconds = round(tally.seconds, 3)
            session.rollouts = tally.trajectories
            session.failed = tally.aborted
            session.steps = tally.steps
            if not tally.uncounted:
                session.prompt_tokens = tally.prompt_tokens
                session.response_tokens = tally.tokens
            # the error of the block is more important
            with suppress(OSError) if ended == "failed" else nullcontext():
                write()
    if presses:
        groups = len(writer.committed)
        if not groups:
            raise KeyboardInterrupt("Nothing was kept, because no group had ended.")
        are = "group is" if groups == 1 else "groups are"
        raise KeyboardInterrupt(
            f"{groups:,} finished {are} kept in {writer.folder}; run the same command again to resume."
        )
