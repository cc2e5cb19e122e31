"""Streamed answers in the forms in which servers send them, by public reports: the whole answer is the one meant."""

import json

import pytest

from hgpo_record.recording.streams import whole_answer


def call(**fields):
    return {"delta": {"tool_calls": [{"index": 0, "type": "function", **fields}]}}


def paris(arguments):
    return {"type": "function", "id": "a", "function": {"name": "weather", "arguments": arguments}}


PARTS = {
    "parallel calls are all number 0, with objects as arguments (litellm #37792)": (
        [
            call(id="a", function={"name": "weather", "arguments": {"city": "Paris"}}),
            call(id="b", function={"name": "weather", "arguments": {"city": "Rome"}}),
        ],
        [paris({"city": "Paris"}), paris({"city": "Rome"}) | {"id": "b"}],
    ),
    "each part of a call has an id (litellm #40040)": (
        [
            call(id="a", function={"name": "weather", "arguments": ""}),
            call(id="b", function={"name": "", "arguments": '{"city": '}),
            call(id="c", function={"name": "", "arguments": '"Paris"}'}),
        ],
        [paris('{"city": "Paris"}')],
    ),
    "the brace comes with the name (req_llm #801), later ids are empty, and names repeated": (
        [
            call(id="a", function={"name": "weather", "arguments": "{"}),
            call(id="", function={"name": "weather", "arguments": "}"}),
        ],
        [paris("{}")],
    ),
    "the last part has arguments and the reason (vllm-ascend #8862)": (
        [
            call(id="a", function={"name": "weather", "arguments": "{"}),
            call(function={"arguments": "}"}) | {"finish_reason": "tool_calls"},
        ],
        [paris("{}")],
    ),
}


def streamed(parts):
    events = [{"choices": [{"index": 0, **part}]} for part in parts]
    lines = [f"data: {json.dumps(event)}\n\n" for event in events]
    answer = whole_answer("chat/completions", "".join([*lines, "data: [DONE]\n\n"]).encode())
    (choice,) = json.loads(answer)["choices"]
    return choice


@pytest.mark.parametrize("name", PARTS)
def test_tool_calls(name):
    parts, calls = PARTS[name]
    assert streamed(parts)["message"]["tool_calls"] == calls


def test_reasons_that_are_sent_several_times_are_not_joined():
    """SGLang #8417 sends the reason twice, a proxy (jcode #1326) with every part."""
    parts = [
        {"delta": {"content": "ha"}, "finish_reason": "stop", "matched_stop": "</x>"},
        {"delta": {"content": "ha"}, "finish_reason": "length", "matched_stop": "</x>"},
    ]
    choice = streamed(parts)
    assert choice["message"]["content"] == "haha"
    assert (choice["finish_reason"], choice["matched_stop"]) == ("length", "</x>")


def test_the_format_of_reasoning_is_not_joined():
    detail = {"type": "reasoning.text", "text": "so", "format": "anthropic-claude-v1", "index": 0}
    parts = [{"delta": {"role": role, "reasoning_details": [detail]}} for role in ("assistant", "")]
    message = streamed(parts)["message"]
    assert message["role"] == "assistant"
    assert message["reasoning_details"] == [{**detail, "text": "soso"}]
