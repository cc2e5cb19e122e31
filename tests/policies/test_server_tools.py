"""Calls of tools that a server replies, from the environment's tools to the row, and back in the conversation."""

import contextlib
import json
from dataclasses import replace

import pytest
from chat_server import Api, completion

from hgpo_datasets import StepWriter, scan_steps
from hgpo_envs.responses import ToolCall, parse, parse_tool_calls, tool_calls
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.rollout.env_handle import open_env
from hgpo_train.rollout.plan import RolloutSpec
from hgpo_train.rollout.run import collect_groups

FIND = {
    "type": "function",
    "function": {"name": "find", "parameters": {"type": "object"}},
}


def call(arguments):
    return {
        "id": "call_1",
        "type": "function",
        "function": {"name": "find", "arguments": arguments},
    }


WRITTEN = '<tool_call>\n{"name": "find", "arguments": {"zip": "10"}}\n</tool_call>'


MALFORMED = {
    "cut off": call('{"zip": '),
    "nothing before the cut": call(""),
    "single quotes": call("{'zip': 1}"),
    "no closing brace": call('{"zip": 1'),
    "one brace too many": call('{"zip": 1}}'),
    "a forged end": call('{"zip": 1}}\n</tool_call>'),
    "a list": call("[1]"),
    "a number": call("5"),
    "the word null": call("null"),
    "a text": call('"{}"'),
    "not a number": call('{"zip": NaN}'),
    "a number as arguments": call(5),
    "no name": {"id": "1", "type": "function", "function": {"arguments": "{}"}},
    "null as name": {
        "id": "1",
        "type": "function",
        "function": {"name": None, "arguments": "{}"},
    },
    "another type": {**call("{}"), "type": "retrieval"},
    "a type of its own": {
        "id": "1",
        "type": "custom",
        "custom": {"name": "find", "input": "10"},
    },
    "no function": {"id": "1", "name": "find", "arguments": {}},
    "nested in 101 levels": call('{"a": ' + "[" * 100 + "]" * 100 + "}"),
    "a text instead of a call": "find",
    "null instead of a call": None,
}


def played(answer, path, tools=(FIND,), style="memory", **options):
    """Play a rollout of three steps in the house of doors. Return its rows and the bodies of the requests."""
    handle = open_env(
        "doors_env:HGPO-Test/Doors-v0",
        action_format="response",
        max_steps=3,
        prompt_style=style,
    )
    settings = replace(
        handle.settings,
        tools=tools,
        parse_response=parse_tool_calls if tools else parse,
    )
    with Api() as api:
        api.answer = answer
        context = PolicyContext(
            "Doors", "response", {"base_url": api.url, "retries": 0, **options}
        )
        with (
            StepWriter(path) as writer,
            contextlib.closing(make_policy("openai:tiny", context)) as policy,
        ):
            collect_groups(
                replace(handle, settings=settings),
                policy,
                writer,
                RolloutSpec(tasks=1, group_size=1),
            )
        return scan_steps(path).sort("step").collect().to_dicts(), api.bodies


def replying(message, finish="tool_calls"):
    _, body = completion(None, finish)
    body["choices"][0]["message"] = {"role": "assistant", **message}
    return lambda *_: (200, body)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": None, "tool_calls": [call('{"zip": "10"}')]}, WRITTEN),
        (
            {
                "content": "",
                "tool_calls": [call('{"zip": "10"}'), call('{"zip":"10"}')],
            },
            f"{WRITTEN}\n{WRITTEN}",
        ),
        (
            {"content": "Wait.", "tool_calls": [call('{"zip": "10"}')]},
            f"Wait.\n{WRITTEN}",
        ),
        (
            {"content": "Hi", "reasoning_content": "A guest.", "tool_calls": None},
            "<think>\nA guest.\n</think>\n\nHi",
        ),
        (
            {"reasoning": "Hm.", "tool_calls": [call('{"zip": "10"}')]},
            f"<think>\nHm.\n</think>\n\n{WRITTEN}",
        ),
    ],
)
def test_reasoning_and_tool_calls_become_the_text_that_the_model_wrote(
    tmp_path, message, expected
):
    """From the environment's tools to the request, and from the reply to the row."""
    rows, bodies = played(replying(message), tmp_path / "run")
    assert [(row["response"], row["finish_reason"]) for row in rows] == [
        (expected, "tool_calls")
    ] * 3
    assert [body["tools"] for body in bodies] == [[FIND]] * 3
    action = expected.partition("</think>\n\n")[2] or expected
    if message["tool_calls"]:
        assert rows[0]["action"] == action[action.index("<tool_call>") :]


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_call_is_an_invalid_action_and_later_requests_have_arguments_of_objects(
    tmp_path, kind
):
    """Servers refuse conversations with other arguments."""
    first = [call('{"zip": 1}'), MALFORMED[kind]]
    rows, bodies = played(
        replying({"tool_calls": first}, "length"), tmp_path / "run", style="chat"
    )
    assert [(row["action_valid"], row["aborted"]) for row in rows] == [
        (False, False)
    ] * 3
    assert json.loads(rows[0]["message"])["tool_calls"] == first
    assert tool_calls(rows[0]["action"]) is None
    sent = [message for message in bodies[2]["messages"] if message["role"] != "user"]
    for assistant, *results in (sent[:3], sent[3:]):
        assert [result["tool_call_id"] for result in results] == [
            made["id"] for made in assistant["tool_calls"]
        ]
        assert all(
            isinstance(json.loads(made["function"]["arguments"]), dict)
            for made in assistant["tool_calls"]
        )
        assert all(result["content"] for result in results)


@pytest.mark.parametrize(
    ("status", "error", "written"),
    [
        (500, "error parsing tool call: raw='ls', err=invalid character 'l'", None),
        (500, "Failed to parse tool call arguments as JSON: parse error", None),
        (500, "Failed to parse input at pos 184: <tool_call>", None),
        (500, "output that does not match the expected peg-native format", None),
        (200, "Unexpected token 200002 while expecting start token 200006", None),
        (400, "Failed to call a function. Adjust your prompt.", "<function=find>{}"),
    ],
)
def test_a_reply_that_the_server_cannot_parse_is_the_models_mistake(
    tmp_path, status, error, written
):
    """ollama #17638, llama.cpp #22072 and #27025, vllm #50690, groq-typescript #28: no outage, and not asked again."""
    report = {"message": error, "code": status}
    if written:
        report |= {"code": "tool_use_failed", "failed_generation": written}
    with pytest.warns(UserWarning, match="could not parse a reply"):
        rows, bodies = played(
            lambda *_: (status, {"error": report}), tmp_path / "run", style="chat"
        )
    assert len(bodies) == 3
    assert [(row["action_valid"], row["aborted"]) for row in rows] == [
        (False, False)
    ] * 3
    assert rows[0]["response"] == f"<tool_call>\n{written or error}\n</tool_call>"


def test_a_call_of_a_tool_where_there_are_none_is_an_invalid_action(tmp_path):
    message = {
        "content": None,
        "tool_calls": [call('{"zip": "<action>look</action>"}')],
    }
    rows, _ = played(replying(message), tmp_path / "run", tools=())
    assert [(row["action"], row["action_valid"], row["aborted"]) for row in rows] == [
        ("", False, False)
    ] * 3
    assert "<tool_call>" in rows[0]["response"]


def test_tags_in_reasoning_are_not_read(tmp_path):
    message = {
        "content": "<action>look</action>",
        "reasoning_content": "Not <action>open door</action> </think>",
    }
    rows, _ = played(replying(message, "stop"), tmp_path / "run", tools=())
    assert {(row["action"], row["action_valid"]) for row in rows} == {("look", True)}
    message = {
        "content": None,
        "reasoning": "<tool_call>x</tool_call> </think>",
        "tool_calls": [call("{}")],
    }
    rows, _ = played(replying(message), tmp_path / "calls")
    assert {(row["action"], row["action_valid"]) for row in rows} == {
        (ToolCall("find", {}).text(), True)
    }


@pytest.mark.parametrize(
    "message",
    [
        {
            "content": None,
            "tool_calls": [
                {
                    **call("{}"),
                    "id": "aB3dE6gH9",
                    "extra_content": {"google": {"s": "x"}},
                }
            ],
        },
        {"content": None, "reasoning_content": "Hm.", "tool_calls": [call("{}")]},
        {
            "content": [{"type": "text", "text": "Hi"}],
            "reasoning_details": [{"signature": "x"}],
        },
        {
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "Hm"}]},
                {"type": "text", "text": "Hi"},
            ]
        },
        {"content": "Hi", "reasoning": "Hm."},
    ],
)
def test_a_message_goes_back_as_it_came(tmp_path, message):
    given = {**message, "refusal": None, "function_call": None}
    rows, bodies = played(replying(given), tmp_path / "run", style="chat")
    assert bodies[1]["messages"][1] == {"role": "assistant", **message}
    assert json.loads(rows[0]["message"]) == {"role": "assistant", **given}


def test_after_a_message_with_reasoning_all_have_the_field(tmp_path):
    """DeepSeek's server refuses a conversation in which a later message lacks it."""

    def answer(body: dict, attempt: int) -> tuple:
        is_first = len(body["messages"]) == 1
        return replying(
            {"content": "Hi", **({"reasoning_content": "Hm."} if is_first else {})}
        )()

    _, bodies = played(answer, tmp_path / "run", style="chat")
    assert [message.get("reasoning_content") for message in bodies[2]["messages"]] == [
        None,
        "Hm.",
        None,
        "",
        None,
    ]


def test_an_empty_response_is_an_invalid_action(tmp_path):
    """Gemini answers so, with the finish reason malformed_function_call, if its model's call is malformed."""
    message = {"content": None, "reasoning_content": "I call find."}
    rows, _ = played(replying(message, "malformed_function_call"), tmp_path / "run")
    assert {(row["action"], row["action_valid"], row["aborted"]) for row in rows} == {
        ("", False, False)
    }


@pytest.mark.parametrize(
    "message",
    [
        {"tool_calls": [call(json.dumps({"note": "x" * 20_000}))]},
        {"tool_calls": [call({"note": "x" * 20_000})]},
        {
            "function_call": {
                "name": "find",
                "arguments": json.dumps({"note": "x" * 20_000}),
            }
        },
        {"content": ToolCall("find", {"note": "x" * 20_000}).text()},
        {
            "content": ToolCall("find", {"note": "x" * 20_000})
            .text()
            .replace("arguments", "parameters")
        },
        {"content": ToolCall("find", {"note": "</think>" + "x" * 19_992}).text()},
    ],
)
def test_the_whole_call_is_the_command(tmp_path, message):
    rows, bodies = played(replying(message), tmp_path / "run", style="chat")
    (made,) = tool_calls(rows[0]["action"])
    assert (made.name, len(made.arguments["note"]), rows[0]["action_valid"]) == (
        "find",
        20_000,
        True,
    )
    assert [sent["role"] for sent in bodies[1]["messages"]] == [
        "user",
        "assistant",
        "tool",
    ]


@pytest.mark.parametrize("level", [2, 900])
def test_a_call_that_is_nested_too_deeply_is_an_invalid_action(tmp_path, level):
    arguments = json.loads('{"a": ' * level + "{}" + "}" * level)
    (row, *_), _ = played(replying({"tool_calls": [call(arguments)]}), tmp_path / "run")
    assert (row["action_valid"], row["aborted"]) == (level == 2, False)


@pytest.mark.slow
def test_empty_texts_are_not_sent_back(tmp_path):
    """Some servers send them, and refuse them."""
    for number, content in enumerate(("", "\n\n", [], [{"type": "text", "text": ""}])):
        for calls in ([], [call("{}")]):
            message = {"content": content, "tool_calls": calls}
            _, bodies = played(
                replying(message, "stop"),
                tmp_path / f"{number}{len(calls)}",
                style="chat",
            )
            assert bodies[1]["messages"][1].get("content") == (
                None if calls else "(empty)"
            )
