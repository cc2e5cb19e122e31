"""Streams of chat completions: the forms in which servers send the parts of calls, and errors between them."""

import json

import orjson
import pytest

from hgpo_envs.files import secrets
from hgpo_record.recording.calls import read_answer
from hgpo_record.recording.streams import is_whole, may_end, whole_answer


def stream(*deltas: dict, finish: str = "tool_calls") -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": finish})
    events = [orjson.dumps({"id": "c", "choices": [choice]}) for choice in choices]
    return b"".join(b"data: %s\n\n" % event for event in (*events, b"[DONE]"))


def read(answer: bytes) -> dict:
    return orjson.loads(whole_answer("chat/completions", answer))["choices"][0]


def part(arguments: str | dict, name: str | None = None, **fields: object) -> dict:
    return {"function": {"arguments": arguments, "name": name}, **fields}


ONE = [("a", "find", '{"x": 1}')]
TWO = [("a", "find", '{"x": 1}'), ("b", "look", "{}")]


@pytest.mark.parametrize(
    ("parts", "calls"),
    [
        # The rest of a call has an empty id and name, or those of its start, or no number.
        (
            [part('{"x"', "find", index=0, id="a"), part(": 1}", "", index=0, id="")],
            ONE,
        ),
        (
            [
                part('{"x"', "find", index=0, id="a"),
                part(": 1}", "find", index=0, id="a"),
            ],
            ONE,
        ),
        ([part('{"x"', "find", id="a"), part(": 1}")], ONE),
        ([part('{"x"', "find", id="a"), part(": 1}", id="a")], ONE),
        ([part("", index=1, id="a"), part('{"x": 1}', "find", index=1)], ONE),
        # Each part has an id of its own (litellm #40040).
        (
            [part('{"x"', "find", index=0, id="a"), part(": 1}", "", index=0, id="b")],
            ONE,
        ),
        # Several calls have the number 0 (litellm #37792), or none, and no ids.
        (
            [
                part({"x": 1}, "find", index=0, id="a"),
                part({"x": 2}, "find", index=0, id="b"),
            ],
            [("a", "find", {"x": 1}), ("b", "find", {"x": 2})],
        ),
        (
            [
                part('{"x": 1}', "find", index=0, id="a"),
                part("{}", "look", index=0, id="b"),
            ],
            TWO,
        ),
        ([part('{"x": 1}', "find", id="a"), part("{}", "look", id="b")], TWO),
        (
            [
                part('{"x"', "find", index=0),
                part(": 1}", index=0),
                part("{}", "find", index=0),
            ],
            [(None, "find", '{"x": 1}'), (None, "find", "{}")],
        ),
    ],
)
def test_the_parts_of_calls(parts, calls):
    made = read(stream(*({"tool_calls": [each]} for each in parts)))["message"][
        "tool_calls"
    ]
    read_calls = [(call.get("id"), *call["function"].values()) for call in made]
    assert [(name, found, text) for name, text, found in read_calls] == calls


def test_texts_that_each_part_repeats_are_not_continued():
    details = {"type": "reasoning.text", "format": "anthropic-claude-v1", "index": 0}
    deltas = [
        {"reasoning_details": [{**details, "text": text}]} for text in ("ha", "ha")
    ]
    choice = read(
        stream(*deltas, finish="stop") + stream({"content": "Hi"}, finish="stop")
    )
    assert choice["message"]["reasoning_details"] == [{**details, "text": "haha"}]
    assert choice["finish_reason"] == "stop"


def test_reasons_that_are_sent_several_times_are_not_joined():
    """SGLang #8417 sends the reason twice, a proxy (jcode #1326) one with every part."""
    ends = [
        {"finish_reason": end, "matched_stop": "</x>"} for end in ("stop", "tool_calls")
    ]
    events = [
        {"choices": [{"index": 0, "delta": {"content": "ha"}, **end}]} for end in ends
    ]
    choice = read(b"".join(b"data: %s\n\n" % orjson.dumps(event) for event in events))
    assert choice["message"]["content"] == "haha"
    assert (choice["finish_reason"], choice["matched_stop"]) == ("tool_calls", "</x>")


def test_thoughts_that_are_a_list_of_parts_and_the_text_after_them_are_joined():
    """Mistral's Magistral (litellm #16272) streams thoughts as parts, and then its answer as texts."""
    thoughts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": text}]}
        for text in ("A gree", "ting.")
    ]
    deltas = [{"content": ""}, *[{"content": [thought]} for thought in thoughts]]
    deltas += [{"content": "Hel"}, {"content": "lo"}]
    sent = whole_answer("chat/completions", stream(*deltas, finish="stop"))
    answer = read_answer("chat/completions", sent)
    assert answer.reply.response == "<think>\nA greeting.\n</think>\n\nHello"
    assert answer.action == "Hello"


def test_parts_of_a_text_after_which_a_list_comes_are_joined():
    choice = read(
        stream({"content": "Hi"}, {"content": [{"type": "text", "text": "!"}]})
    )
    assert [part["text"] for part in choice["message"]["content"]] == ["Hi", "!"]


def test_a_thought_and_its_encrypted_form_of_one_number_are_two_details():
    text = {"type": "reasoning.text", "index": 0}
    hidden = {"type": "reasoning.encrypted", "index": 0, "data": "X"}
    deltas = [{**text, "text": "a"}, {"index": 0, "text": "b"}, hidden]
    choice = read(stream(*[{"reasoning_details": [one]} for one in deltas]))
    assert choice["message"]["reasoning_details"] == [{**text, "text": "ab"}, hidden]


def test_a_byte_order_mark_costs_no_event_and_an_empty_reason_no_reason():
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": ""}]}
    sent = stream({"content": "Hi"}, finish="length") + b"data: " + orjson.dumps(last)
    choice = read(b"\xef\xbb\xbf" + sent)
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Hi", "length")


def completion_of(logprobs: int, **choice: object) -> bytes:
    entries = {"content": [{"token": "a", "logprob": -0.5}] * logprobs}
    only = {"message": {"content": "a"}, "logprobs": entries, "finish_reason": "stop"}
    usage = {"prompt_tokens": 5, "completion_tokens": 9}
    return orjson.dumps({"choices": [{**only, **choice}], "usage": usage})


@pytest.mark.parametrize(
    ("number", "known"), [(1, 0), (7, 0), (8, 8), (9, 9), (10, 10)]
)
def test_log_probabilities_of_a_part_of_the_tokens_are_unknown(number, known):
    """SGLang sends none for thoughts and calls (#26778, #28456). The end of the turn may count or not."""
    reply = read_answer("chat/completions", completion_of(number)).reply
    assert len(reply.response_logprobs or ()) == known


CUSTOM = '<tool_call>\n{"name": "exec", "arguments": {"input": "ls"}}\n</tool_call>'
SHELL = '<tool_call>\n{"name": "local_shell", "arguments": {"action": {"command": ["ls"]}}}\n</tool_call>'


def test_calls_of_tools_that_take_a_text_are_no_malformed_ones():
    call = {"id": "1", "type": "custom", "custom": {"name": "exec", "input": "ls"}}
    body = {"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "stop"}]}
    assert read_answer("chat/completions", orjson.dumps(body)).action == CUSTOM


@pytest.mark.parametrize(
    ("item", "action"),
    [
        ({"type": "custom_tool_call", "name": "exec", "input": "ls"}, CUSTOM),
        ({"type": "local_shell_call", "action": {"command": ["ls"]}}, SHELL),
        # The server itself executes this one.
        ({"type": "web_search_call", "action": {"query": "ls"}, "call_id": None}, ""),
    ],
)
def test_what_the_program_executes_is_the_action_of_a_response(item, action):
    body = {"status": "completed", "output": [{"id": "x", "call_id": "1", **item}]}
    assert read_answer("responses", orjson.dumps(body)).action == action


@pytest.mark.parametrize("error", [{"error": {"message": "lost"}}, {"object": "error"}])
def test_an_error_within_a_stream_is_kept(error):
    begun = stream({"content": "Hi"}).partition(b"\n\n")[0]
    answer = whole_answer(
        "chat/completions", begun + b"\n\ndata: " + orjson.dumps(error) + b"\n\n"
    )
    assert orjson.loads(answer)["error"]


def test_a_response_whose_last_event_is_empty_has_the_items_of_the_stream():
    item = {"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}
    last = {
        "status": "completed",
        "output": [],
        "usage": {"input_tokens": 5, "output_tokens": 3},
    }
    events = [
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": last},
    ]
    sent = b"".join(b"data: %s\n\n" % orjson.dumps(event) for event in events)
    answer = read_answer("responses", whole_answer("responses", sent))
    assert (answer.action, list(answer.items)) == ("Hi", [item])
    assert (answer.reply.prompt_tokens, answer.reply.response_tokens) == (5, 3)


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
def test_why_a_response_is_incomplete(reason):
    body = {
        "status": "incomplete",
        "incomplete_details": {"reason": reason},
        "output": [],
    }
    reply = read_answer("responses", orjson.dumps(body)).reply
    assert reply.finish_reason == {"max_output_tokens": "length"}.get(reason, reason)


@pytest.mark.parametrize("unknown", [b"NaN", b"null"])
def test_a_log_probability_that_is_unknown_loses_no_call(unknown):
    body = (
        b'{"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop", '
        b'"logprobs": {"content": [{"logprob": -1}, {"logprob": %s}]}}]}' % unknown
    )
    reply = read_answer("chat/completions", body).reply
    assert (reply.response, reply.response_logprobs) == ("Hi", None)


@pytest.mark.parametrize(
    "message",
    [
        {"content": 'Your key is sk-"1234.'},
        {"content": None, "reasoning": 'sk-"1234', "tool_calls": []},
        {"content": "\ud800", "reasoning": 'sk-"1234'},
    ],
)
def test_a_key_that_the_server_repeats_is_in_no_column(monkeypatch, message):
    monkeypatch.setattr(secrets, "registered", ('sk-"1234',))
    body = json.dumps({"choices": [{"message": message, "finish_reason": "stop"}]})
    answer = read_answer("chat/completions", body.encode())
    written = [answer.action, answer.reply.response, answer.reply.message]
    assert "***" in str(written)
    assert "1234" not in str(written)


@pytest.mark.parametrize("space", ["", " "])
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_only_a_line_of_its_own_ends_a_stream(space, line_end):
    """A model may write [DONE] itself."""
    part = {"index": 0, "delta": {"content": "[DONE]"}, "finish_reason": None}
    stream = b"data: " + orjson.dumps({"choices": [part]}) + line_end * 2
    assert not may_end("chat/completions", stream, len(stream))
    assert not is_whole("chat/completions", stream)
    last = f"data:{space}[DONE]".encode() + line_end * 2
    assert may_end("chat/completions", stream + last, len(last) - 9)
    assert is_whole("chat/completions", stream + last)
