"""Messages between processes: what is sent arrives, and what is no message is an error in time."""

import json
import socket
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hgpo_appworld.engine.worker import framing
from hgpo_appworld.engine.worker.world import shortened

LARGEST = 1 << 24
Pair = tuple[socket.socket, socket.socket]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4)
    ),
)


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


@settings(max_examples=20)
@given(st.lists(st.dictionaries(st.text(), JSON), min_size=1, max_size=3))
def test_messages_arrive(messages: list[dict[str, object]]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for message in messages:
            framing.send(ours, message)
        assert [
            json.loads(framing.receive(theirs, LARGEST, 10)) for _ in messages
        ] == messages


def test_lone_surrogates_and_large_messages_arrive(pair: Pair) -> None:
    message = {"output": "\ud800" + "x" * 5_000_000}
    sender = threading.Thread(target=framing.send, args=(pair[0], message))
    sender.start()
    assert json.loads(framing.receive(pair[1], LARGEST, 60)) == message
    sender.join()


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"\xff\xff\xff\xff", "4,294,967,295 bytes"),
        (b"\0\0\0\x05{}", "closed"),
        (b"", "closed"),
    ],
)
def test_what_is_no_message_is_an_error(pair: Pair, data: bytes, line: str) -> None:
    pair[0].sendall(data)
    pair[0].close()
    with pytest.raises(framing.FramingError, match=line):
        framing.receive(pair[1], LARGEST, 10)


@pytest.mark.parametrize("data", [b"", b"\0\0", b"\0\0\0\x05{}"])
def test_a_message_that_does_not_end_is_given_up(pair: Pair, data: bytes) -> None:
    pair[0].sendall(data)
    with pytest.raises(TimeoutError):
        framing.receive(pair[1], LARGEST, 0.05)


@given(st.text(), st.integers(1, 30))
def test_outputs_are_bounded_and_keep_both_ends(text: str, longest: int) -> None:
    short = shortened(text, longest)
    if len(text) <= longest:
        assert short == text
    else:
        start = short[: longest - longest // 2]
        note = f"[… {len(text) - longest} characters left out …]"
        end = longest // 2
        assert text.startswith(start)
        assert note in short
        assert text.endswith(short[len(short) - end :])
        assert len(short) == longest + len(note) + 2
