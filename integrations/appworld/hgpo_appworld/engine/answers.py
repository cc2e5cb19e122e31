"""What the processes of worlds answer. A program of an agent can write these bytes, so they are checked on arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import msgspec

from hgpo_appworld.engine.worker import framing
from hgpo_envs.errors import one_line

if TYPE_CHECKING:
    import socket

_NOTE: Final = 100
"""Characters beyond the limit in which an output says what was left out."""

_FRAME: Final = 1 << 15
_ESCAPED: Final = 12
"""Bytes of a character outside the Basic Multilingual Plane in JSON: two escapes."""


class NoAnswerError(Exception):
    """What a process sent is no answer, or says why it has none."""


_Count = Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]


class Ready(msgspec.Struct, tag="ready", tag_field="is"):
    """A world has started."""


class Failed(msgspec.Struct, tag="failed", tag_field="is"):
    """A process ends, and says why."""

    error: str


class Executed(msgspec.Struct, tag="executed", tag_field="is"):
    """What a program did.

    Attributes:
        output: What it printed, or its error.
        failed: Whether it raised an error.
        completed: Whether the task was marked as done.
        calls: How often it called each API, of the first calls that fit into the limit of an output.
        api_calls: How many calls of APIs it made.
    """

    output: str
    failed: bool
    completed: bool
    calls: dict[str, _Count]
    api_calls: _Count


class Evaluated(msgspec.Struct, tag="evaluated", tag_field="is"):
    """What an evaluation says: whether all tests passed, how many did, and the requirements that are not met."""

    success: bool
    passed: _Count
    tests: _Count
    failed_tests: Annotated[list[str], msgspec.Meta(max_length=10_000)]


Answer = TypeVar("Answer", Ready, Executed, Evaluated)


def read_answer(
    connection: socket.socket, expected: type[Answer], longest: int, seconds: float
) -> Answer:
    """Read an answer.

    Args:
        connection: The socket of the process.
        expected: The type of the answer.
        longest: The maximum length of an output in characters, and of all calls together.
        seconds: The maximum time until it is complete.

    Raises:
        TimeoutError: If it takes longer.
        OSError: If the connection was closed, or the message is too large.
        NoAnswerError: If it is no such answer, or exceeds a limit.
    """
    try:
        data = framing.receive(connection, _ESCAPED * (2 * longest + _FRAME), seconds)
        answer: Answer | Failed = msgspec.json.decode(data, type=expected | Failed)
    except framing.FramingError as error:
        raise ConnectionError(str(error)) from None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NoAnswerError(f"it sent no answer: {one_line(error, 200)}") from None
    if isinstance(answer, Failed):
        raise NoAnswerError(one_line(answer.error, 300))
    if isinstance(answer, Executed):
        for name, length, most in (
            ("output", len(answer.output), longest + _NOTE),
            ("calls", sum(map(len, answer.calls)), longest),
        ):
            if length > most:
                raise NoAnswerError(
                    f"{name}: expected at most {most:,} characters, received {length:,}"
                )
    return answer
