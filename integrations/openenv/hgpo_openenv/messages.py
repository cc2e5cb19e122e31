"""The messages of a session, as in OpenEnv's protocol.

A client sends ``{"type": "reset", "data": {…}}``, ``{"type": "step", "data": {"action": "look"}}``,
``{"type": "state"}`` or ``{"type": "close"}``, and receives one message for each of the first three, of the type
``observation``, ``state`` or ``error``.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

import msgspec
import orjson

from hgpo_envs.errors import one_line

Seed = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
TaskId = Annotated[str, msgspec.Meta(max_length=1_000)]


class MessageError(Exception):
    """A message that cannot be carried out. The client receives `code` and the text; its session stays as it was.

    Attributes:
        code: The kind of error, such as ``VALIDATION_ERROR``.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class ResetData(msgspec.Struct, forbid_unknown_fields=True):
    """What a reset may name.

    Attributes:
        seed: Restarts the draws of tasks.
        task: A task id; an integer is accepted, too. Without one, the next task is drawn.
        episode_id: A name of the client's choice, which `state` returns.
    """

    seed: Seed | None = None
    task: TaskId | int | None = None
    episode_id: Annotated[str, msgspec.Meta(max_length=255)] | None = None


class StepData(msgspec.Struct, forbid_unknown_fields=True):
    """An action.

    Attributes:
        action: A command, a response or a number, depending on the action format.
        metadata: Ignored. Actions of OpenEnv's typed clients have it.
    """

    action: str
    metadata: dict[str, Any] = {}


class Reset(msgspec.Struct, tag_field="type", tag="reset", forbid_unknown_fields=True):
    """Starts an episode."""

    data: ResetData = msgspec.field(default_factory=ResetData)


class Step(msgspec.Struct, tag_field="type", tag="step", forbid_unknown_fields=True):
    """Executes an action."""

    data: StepData


class GetState(
    msgspec.Struct, tag_field="type", tag="state", forbid_unknown_fields=True
):
    """Asks where the session is."""

    data: dict[str, Any] = {}


class Close(msgspec.Struct, tag_field="type", tag="close", forbid_unknown_fields=True):
    """Ends the session."""

    data: dict[str, Any] = {}


Message: TypeAlias = Reset | Step | GetState | Close

_decoder: Final[msgspec.json.Decoder[Message]] = msgspec.json.Decoder(Message)


def read_message(raw: bytes) -> Message:
    """Read a client's message.

    Raises:
        MessageError: It is not JSON, has an unknown type, or values of other types than expected.

    >>> read_message(b'{"type": "step", "data": {"action": "look"}}')
    Step(data=StepData(action='look', metadata={}))
    """
    try:
        return _decoder.decode(raw)
    except msgspec.ValidationError as error:
        text = one_line(error, 300)
        if text.endswith("`$.type`"):
            text = f"{text}; expected reset, step, state or close"
            raise MessageError("UNKNOWN_TYPE", text) from None
        raise MessageError("VALIDATION_ERROR", text) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MessageError(
            "INVALID_JSON", f"expected a JSON object: {one_line(error, 200)}"
        ) from None
    except RecursionError:
        raise MessageError(
            "INVALID_JSON",
            "expected a JSON object, received one that is nested too deeply",
        ) from None


def write_message(kind: str, data: object) -> bytes:
    """Return a message to a client.

    Raises:
        TypeError: A value has no form in JSON.
    """
    return orjson.dumps({"type": kind, "data": data}, option=orjson.OPT_SERIALIZE_NUMPY)


def error_message(code: str, text: str) -> bytes:
    """Return an error to a client.

    >>> error_message("RESET_NEEDED", "call reset first")
    b'{"type":"error","data":{"message":"call reset first","code":"RESET_NEEDED"}}'
    """
    return write_message("error", {"message": text, "code": code})
