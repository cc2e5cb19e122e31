"""Messages of clients: whatever they send is a message or an error of one line."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hgpo_openenv.messages import (
    Close,
    GetState,
    MessageError,
    Reset,
    Step,
    error_message,
    read_message,
)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
    ),
    max_leaves=12,
)
kinds = st.sampled_from(["reset", "step", "state", "close", "mcp", ""]) | values
fields = st.dictionaries(
    st.sampled_from(["seed", "task", "episode_id", "action", "metadata", "other"]),
    values,
    max_size=4,
)


def read(raw: bytes) -> Reset | Step | GetState | Close | MessageError:
    try:
        message = read_message(raw)
    except MessageError as error:
        message = error
    if isinstance(message, MessageError):
        assert message.code in ("INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR")
        assert str(message).isprintable()
        assert len(str(message)) < 500
        assert (
            json.loads(error_message(message.code, str(message)))["data"]["code"]
            == message.code
        )
    else:
        assert isinstance(message, Reset | Step | GetState | Close)
    return message


@given(st.binary(max_size=200))
@example(b'{"type":"reset","data":' + b'{"a":' * 100_000)
@example(b'{"type":"step","data":{"action":"x","metadata":' + b"[" * 200_000)
@example(b'{"type":"reset","data":{"seed":' + b"9" * 100_000 + b"}}")
@example(b'{"type":"step","data":{"action":"\\ud800"}}')
@example(b'{"type":"step","data":{"action":"\xff"}}')
def test_bytes_are_a_message_or_an_error(raw) -> None:
    read(raw)


@given(values)
def test_values_are_a_message_or_an_error(value) -> None:
    read(json.dumps(value).encode())


@given(
    st.fixed_dictionaries(
        {"type": kinds, "data": fields | values}, optional={"more": values}
    )
)
def test_objects_are_a_message_or_an_error(value) -> None:
    message = read(json.dumps(value).encode("utf-8", "surrogatepass"))
    if isinstance(message, Step):
        assert set(value) == {"type", "data"}
        assert set(value["data"]) <= {"action", "metadata"}
        assert message.data.action == value["data"]["action"]
    if isinstance(message, Reset):
        assert set(value["data"]) <= {"seed", "task", "episode_id"}
        assert message.data.seed == value["data"].get("seed")
        assert message.data.seed is None or 0 <= message.data.seed < 1 << 32


@pytest.mark.parametrize(
    ("raw", "code", "line"),
    [
        (b"", "INVALID_JSON", "expected a JSON object"),
        (b"[]", "VALIDATION_ERROR", "Expected `object`, got `array`"),
        (b"{}", "VALIDATION_ERROR", "missing required field `type`"),
        (
            b'{"type":"mcp"}',
            "UNKNOWN_TYPE",
            "Invalid value 'mcp' - at `$.type`; expected reset, step, state or close",
        ),
        (
            b'{"type":"step","data":{"action":7}}',
            "VALIDATION_ERROR",
            "Expected `str`, got `int` - at `$.data.action`",
        ),
        (
            b'{"type":"step","data":{"action":NaN}}',
            "INVALID_JSON",
            "expected a JSON object",
        ),
        (b'{"type":"step"}', "VALIDATION_ERROR", "missing required field `data`"),
        (
            b'{"type":"reset","data":{"seed":-1}}',
            "VALIDATION_ERROR",
            "Expected `int` >= 0",
        ),
        (
            b'{"type":"reset","data":{"seed":true}}',
            "VALIDATION_ERROR",
            "Expected `int | null`, got `bool`",
        ),
        (
            b'{"type":"reset","data":{"sede":1}}',
            "VALIDATION_ERROR",
            "unknown field `sede`",
        ),
    ],
)
def test_errors_say_what_was_expected(raw, code, line) -> None:
    with pytest.raises(MessageError) as error:
        read_message(raw)
    assert error.value.code == code
    assert line in str(error.value)
