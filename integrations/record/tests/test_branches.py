"""Which call of a rollout continues which."""

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from hgpo_record.recording.branches import Branches
from hgpo_record.recording.calls import UnreadableError, read_answer, read_request

SYSTEM = {"role": "system", "content": "Find the exit."}
USER = {"role": "user", "content": "Room 0."}
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "look", "arguments": '{"far": 1}'},
}
REPLY = {
    "role": "assistant",
    "content": None,
    "reasoning_content": "Hm.",
    "tool_calls": [CALL],
    "refusal": None,
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "Room 1."}
DONE = {"role": "assistant", "content": "Done."}


def found(*calls):
    """Return parent, shared messages and steps of the branches of chat completions: messages and the reply."""
    branches = Branches()
    for messages, reply in calls:
        choice = {"index": 0, "message": reply, "finish_reason": "stop"}
        request = read_request(
            "chat/completions", json.dumps({"messages": messages}).encode()
        )
        branches.add(
            request,
            read_answer("chat/completions", json.dumps({"choices": [choice]}).encode()),
        )
    return [(branch.parent, branch.shared, branch.steps) for branch in branches.found]


START = [SYSTEM, USER]
NEXT = [*START, REPLY, RESULT]


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        # 1. One conversation, also if the program writes the reply in its own words: without thoughts and empty fields,
        # with the arguments written anew.
        ([(START, REPLY), (NEXT, DONE)], [(None, 0, [0, 1])]),
        (
            [(START, REPLY), ([*START, {"role": "assistant", "content": "", "tool_calls": [
                {**CALL, "function": {"arguments": '{"far":1}', "name": "look"}}]}, RESULT], DONE)],
            [(None, 0, [0, 1])],
        ),
        # 2. Another reply than the model's is another conversation, however similar.
        ([(START, DONE), ([*START, {**DONE, "content": "Done"}, USER], DONE)], [(None, 0, [0]), (0, 2, [1])]),
        ([(START, REPLY), ([*START, DONE, RESULT], DONE)], [(None, 0, [0]), (0, 2, [1])]),
        # 3. A second attempt at the same step, before and after a reply.
        ([(START, DONE), (START, DONE)], [(None, 0, [0]), (0, 2, [1])]),
        ([(START, REPLY), (NEXT, DONE), (NEXT, DONE)], [(None, 0, [0, 1]), (0, 3, [2])]),
        # 4. Compaction shares the system message; the new conversation goes on by itself.
        (
            [(START, REPLY), (NEXT, DONE), ([SYSTEM, RESULT], DONE), ([SYSTEM, RESULT, DONE, USER], DONE)],
            [(None, 0, [0, 1]), (1, 1, [2, 3])],
        ),
        # 5. A sub-agent shares nothing, and the main conversation continues after it.
        ([(START, REPLY), ([USER], DONE), (NEXT, DONE)], [(None, 0, [0, 2]), (None, 0, [1])]),
    ],
)  # fmt: skip
def test_chat_completions(calls, expected):
    assert found(*calls) == expected


def test_responses_continue_by_their_items_or_by_the_id_of_an_answer():
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    call = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c1",
        "name": "look",
        "arguments": "{}",
        "status": "completed",
    }
    sent = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c1", "output": "Room 1."}
    branches = Branches()
    for number, body in enumerate(
        (
            {"input": "Go."},
            {"input": [result], "previous_response_id": "resp_0"},
            {"input": [USER]},
            {"input": [USER, sent, result]},
            {"input": [result], "previous_response_id": "resp_0"},
        )
    ):
        answer = {
            "id": f"resp_{number}",
            "status": "completed",
            "output": [thought, call],
        }
        request = read_request("responses", json.dumps(body).encode())
        branches.add(request, read_answer("responses", json.dumps(answer).encode()))
    steps = [(branch.parent, branch.steps) for branch in branches.found]
    assert steps == [(None, [0, 1]), (None, [2, 3]), (0, [4])]


def test_further_choices_of_a_call_are_kept_beside_the_first():
    choices = [
        {"index": number, "message": DONE, "finish_reason": "stop", "logprobs": None}
        for number in (1, 0, 2)
    ]
    answer = read_answer("chat/completions", json.dumps({"choices": choices}).encode())
    assert [choice["index"] for choice in answer.others] == [1, 2]
    unnumbered = [
        {"message": {**DONE, "content": text}, "finish_reason": "stop"} for text in "ab"
    ]
    answer = read_answer(
        "chat/completions", json.dumps({"choices": unnumbered}).encode()
    )
    assert (answer.action, list(answer.others)) == ("a", unnumbered[1:])


@pytest.mark.parametrize(
    ("before", "after", "items"),
    [
        ('["a" ]', '["a", "b,]"]', ['"a"', '"b,]"']),
        ("[1]", "[12]", ["12"]),
        ('[["a"]]', '[["a","b"]]', ['["a","b"]']),
        ('["a","b"]', '["a"]', ['"a"']),
        ("[]", '["a"]', ['"a"']),
        ('"a"', '["a"]', ['"a"']),
        ('["a"]', '"a,"', ['"a,"']),
    ],
)
def test_messages_are_the_same_whatever_was_asked_before(before, after, items):
    first, second = (f'{{"messages": {raw}}}'.encode() for raw in (before, after))
    begun = read_request("chat/completions", first)
    request = read_request("chat/completions", second, begun)
    assert [item.decode() for item in request.items] == items
    assert request.prompt == after


MESSAGES = st.lists(
    st.sampled_from(["1", "12", '"a,"', '"]"', '{"role": "user"}', "[[1]]", '"é"']),
    min_size=1,
    max_size=4,
)
SPACE = st.sampled_from(["", " ", "\n"])


@given(data=st.data(), first=MESSAGES, second=MESSAGES, space=SPACE)
def test_a_longer_request_is_read_as_if_it_were_the_first(data, first, second, space):
    """Only what is new is read, also if other fields have the same messages, or there are two fields of one name."""
    whole = data.draw(st.sampled_from([first + second, second]))
    template = data.draw(
        st.sampled_from(
            [
                '{{"messages": [{0}]}}',
                '{{"model": "m", "messages":[{0}] , "n": 1}}',
                '{{"copy": [{0}], "messages": [{1}]}}',
                '{{"messages": [{1}], "copy": [{0}]}}',
                '{{"messages": [{1}], "messages": [{0}]}}',
                '{{"messages": [{0}], "mess\\u0061ges": [{1}]}}',
                '{{"messages": [{0},]}}',
                '{{"messages": [{0}, , 1]}}',
            ]
        )
    )
    bodies = [
        template.format(f"{space},".join(messages), ",".join(first)).encode()
        for messages in (first, whole)
    ]

    def read(before):
        try:
            return read_request("chat/completions", bodies[1], before)
        except UnreadableError:
            return None

    try:
        before = read_request("chat/completions", bodies[0])
    except UnreadableError:
        before = None
    expected = read(None)
    found = read(before)
    if expected is None:
        assert found is None
        return
    assert (found.prompt, found.items, found.settings) == (
        expected.prompt,
        expected.items,
        expected.settings,
    )
    assert list(found.items[: found.known]) == list(expected.items[: found.known])
