"""Conversations: tokens of a growing prompt, messages for servers, and what is left out of a long one."""

import json

import gymnasium
import pytest
from chat_server import Api, completion
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hgpo_datasets import scan_steps
from hgpo_envs.responses import ToolCall, action_text, parse_tool_calls, tool_calls
from hgpo_train.models.tiny import train_tokenizer
from hgpo_train.policies.conversation import (
    Turn,
    chat_messages,
    encode_conversation,
    fewest_dropped,
    without_oldest,
)
from hgpo_train.rollout import collect

TEXT = st.text("abc <>\n'é", min_size=1, max_size=12).filter(
    lambda text: text.strip() == text
)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(
        ["You are in a room. go to cabinet 1", "take plate 1 from shelf 2"] * 5, 300
    )


def played(tokenizer, texts, system_prompt=""):
    """Return the turns of a conversation as a policy plays them: each prompt follows from the one before."""
    turns: list[Turn] = []
    for message, response in texts:
        tokens = encode_conversation(tokenizer, system_prompt, turns, message)
        ended = [*tokenizer(response)["input_ids"], tokenizer.eos_token_id]
        turns.append(Turn(message, response, tokens, ended))
    return turns


@given(
    st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5),
    TEXT,
    st.sampled_from(["", "Be brief."]),
)
@settings(max_examples=60)
def test_a_conversation_is_what_the_chat_template_renders(
    tokenizer, texts, message, system_prompt
):
    turns = played(tokenizer, texts, system_prompt)
    tokens = encode_conversation(tokenizer, system_prompt, turns, message)
    whole = tokenizer.apply_chat_template(
        chat_messages(system_prompt, turns, message),
        add_generation_prompt=True,
        tokenize=False,
    )
    assert tokenizer.decode(tokens) == whole
    before = [*turns[-1].prompt_token_ids, *turns[-1].response_token_ids]
    assert tokens[: len(before)] == before
    unknown = [
        turn._replace(prompt_token_ids=None, response_token_ids=None) for turn in turns
    ]
    assert (
        tokenizer.decode(
            encode_conversation(tokenizer, system_prompt, unknown, message)
        )
        == whole
    )


def test_a_response_without_an_end_gets_one_and_its_own_tokens_stay(tokenizer):
    (turn,) = played(tokenizer, [("A hall.", "look")])
    odd = [5, 6, 7]  # not what the tokenizer makes of any text
    tokens = encode_conversation(
        tokenizer, "", [turn._replace(response_token_ids=odd)], "A door."
    )
    assert tokens[len(turn.prompt_token_ids) :][:4] == [*odd, tokenizer.eos_token_id]


def test_the_oldest_turns_after_the_first_are_left_out(tokenizer):
    turns = played(tokenizer, [(f"Room {number}.", "go") for number in range(6)])

    def length(turns: list[Turn]) -> int:
        return len(encode_conversation(tokenizer, "", turns, "Here."))

    for dropped in range(6):
        shorter = without_oldest(turns, dropped)
        assert [turn.message for turn in shorter] == [
            "Room 0.",
            *(f"Room {n}." for n in range(1 + dropped, 6)),
        ]
        most = length(shorter)
        assert (
            fewest_dropped(turns, lambda turns, most=most: length(turns) <= most)
            == dropped
        )
    assert fewest_dropped(turns, lambda turns: False) == 5


TAGS = [
    "<tool_call>",
    "</tool_call>",
    "</think>",
    "<think>",
    "<action>",
    '{"name": "x", "arguments": {}}',
]
ODD = st.lists(st.sampled_from([*'ab{}[]"\\\n <>/,:', *TAGS]), max_size=8).map("".join)
VALUES = st.recursive(
    st.none() | st.integers() | ODD,
    lambda parts: st.dictionaries(ODD, parts, max_size=3),
    max_leaves=5,
)
CALLS = st.lists(
    st.builds(ToolCall, ODD.filter(bool), st.dictionaries(ODD, VALUES, max_size=3)),
    min_size=1,
    max_size=3,
)


@pytest.mark.slow
@given(CALLS, ODD, ODD, st.booleans())
@settings(deadline=None)
def test_the_calls_of_a_message_are_executed_whatever_texts_they_contain(
    calls, thought, content, as_objects
):
    def entry(call: ToolCall) -> dict:
        arguments = call.arguments if as_objects else json.dumps(call.arguments)
        return {
            "id": "1",
            "type": "function",
            "function": {"name": call.name, "arguments": arguments},
        }

    message = {
        "content": content,
        "reasoning": thought,
        "tool_calls": [entry(call) for call in calls],
    }
    response = parse_tool_calls(action_text(message, tools=True))
    assert response.valid
    assert tool_calls(response.action) == calls


@pytest.mark.slow
@given(CALLS, st.data())
@settings(deadline=None)
def test_a_call_that_is_cut_off_is_malformed_wherever_it_ends(calls, data):
    text = f"<think>\nHm.\n</think>\n{calls[0].text()}"
    end = data.draw(st.integers(text.index("{") + 1, len(text) - 1))
    assert not parse_tool_calls(text[:end]).valid


@given(ODD, ODD)
@settings(deadline=None)
def test_other_arguments_than_objects_are_malformed_whatever_they_contain(
    name, arguments
):
    assume(arguments.strip())
    response = parse_tool_calls(
        action_text(
            {"tool_calls": [{"function": {"name": name, "arguments": arguments}}]},
            tools=True,
        )
    )
    try:
        is_object = isinstance(json.loads(arguments), dict) and name != ""
    except ValueError:
        is_object = False
    assert response.valid is is_object
    assert (tool_calls(response.action) is not None) is is_object


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            'I use <tool_call> for this.\n<tool_call>{"name": "find"}</tool_call>',
            ["find"],
        ),
        (
            'Tags: <tool_call>…</tool_call>.\n<tool_call>{"name": "find"}</tool_call>',
            ["find"],
        ),
        ("I use <tool_call> for this.", []),
        ("<tool_call>", None),
        ("<tool_call>find(10)</tool_call>", None),
        ('<tool_call>{"name": "find"}</tool_call><tool_call>find()</tool_call>', None),
        ('<tool_call>{"name": "find"}', None),
        ('<tool_call>{"name": null}</tool_call>', None),
        (
            '<tool_call>{"name": "find", "arguments": {"x": '
            + "[" * 100
            + "]" * 100
            + "}}</tool_call>",
            None,
        ),
        ('<tool_call>{"name": "find", "arguments": {"x": NaN}}</tool_call>', None),
        ('<tool_call>{"name": "find", "arguments": {"x": -1e999}}</tool_call>', None),
        (
            'A <tool_call>{"name": "no"}</tool_call> draft</think><tool_call>{"name": "find"}</tool_call>',
            ["find"],
        ),
    ],
)
def test_a_tag_that_is_mentioned_is_no_call(text, names):
    calls = tool_calls(text)
    assert (calls and [call.name for call in calls]) == names


CALL_IDS = st.sampled_from(["", "z", "aB3dE6gH9", "call00000"])
KINDS = st.sampled_from(["text", "calls", "message"])


@given(
    st.lists(
        st.tuples(KINDS, st.lists(CALL_IDS, min_size=1, max_size=3)),
        min_size=1,
        max_size=7,
    ),
    st.data(),
)
def test_every_result_that_is_kept_follows_its_call(kinds, data):
    """The response of turn n is named n, and the message after it says so."""
    turns = []
    for number, (kind, ids) in enumerate(kinds):
        calls = [ToolCall("find", {"turn": number}) for _ in ids]
        response = f"response {number}"
        reply = None
        if kind == "calls":
            response = "\n".join(call.text() for call in calls)
        if kind == "message":
            entries = [
                {
                    "id": name,
                    "function": {"name": "find", "arguments": {"turn": number}},
                }
                for name in ids
            ]
            response = ""
            reply = json.dumps({"content": "", "tool_calls": entries})
        turns.append(
            Turn(
                f"after {number - 1}" if number else "the task",
                response,
                None,
                None,
                reply,
            )
        )
    dropped = 0
    for _ in range(2):  # as for a server, which refuses the shorter conversation too
        dropped += data.draw(st.integers(0, len(turns) - 1 - dropped))
    kept = without_oldest(without_oldest(turns, dropped // 2), dropped - dropped // 2)
    assert kept == without_oldest(turns, dropped)
    first, *messages = chat_messages(
        "", kept, f"after {len(turns) - 1}", [{"function": {"name": "find"}}]
    )
    assert first == {"role": "user", "content": "the task"}
    answers = [
        at for at, message in enumerate(messages) if message["role"] == "assistant"
    ]
    assert len(answers) == len(kept)
    used = [
        call["id"] for message in messages for call in message.get("tool_calls", ())
    ]
    assert len(used) == len(set(used))
    for number, at in enumerate(answers, dropped):
        answer = messages[at]
        results = messages[at + 1 : next((n for n in answers if n > at), None)]
        assert results[-1]["content"] == f"after {number}"
        assert all(message.get("content") != "" for message in (answer, *results))
        if "tool_calls" not in answer:
            assert (answer["content"], len(results), results[0]["role"]) == (
                f"response {number}",
                1,
                "user",
            )
            continue
        assert [result["tool_call_id"] for result in results] == [
            call["id"] for call in answer["tool_calls"]
        ]
        given = [call["function"]["arguments"] for call in answer["tool_calls"]]
        assert all(
            (json.loads(text) if isinstance(text, str) else text) == {"turn": number}
            for text in given
        )


def test_calls_in_a_text_and_their_results_are_messages_of_their_own():
    calls = "\n".join(
        ToolCall("find", {"zip": zip_code}).text() for zip_code in ("10", "11")
    )
    turns = [
        Turn("Where am I?", f"<think>Two places.</think>\n{calls}"),
        Turn("Paris, Rome", "In Paris or Rome."),
    ]
    messages = chat_messages(
        "", turns, "Thanks.", [{"type": "function", "function": {"name": "find"}}]
    )
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
    ]
    asked = [
        json.loads(call["function"]["arguments"]) for call in messages[1]["tool_calls"]
    ]
    assert asked == [{"zip": "10"}, {"zip": "11"}]
    assert (messages[1]["content"], messages[3]["content"]) == (
        "<think>Two places.</think>",
        "Paris, Rome",
    )
    assert [message["role"] for message in chat_messages("", turns, "Thanks.")][
        2
    ] == "user"


@pytest.mark.slow
def test_a_server_receives_the_growing_conversation(tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    with Api() as api:
        api.answer = lambda body, attempt: completion(
            "<think>I look.</think><action>look</action>"
        )
        options = {
            "policy_options": {"base_url": api.url},
            "tasks": 1,
            "group_size": 1,
            "max_steps": 3,
        }
        chat = {"prompt_style": "chat", "system_prompt": "Be brief."}
        collect("HGPO/ALFWorld-v0", "openai:tiny", tmp_path / "run", **options, **chat)
        bodies = api.bodies
    assert [[message["role"] for message in body["messages"]] for body in bodies] == [
        ["system", *["user", "assistant"] * step, "user"] for step in range(3)
    ]
    assert (
        bodies[2]["messages"][2]["content"]
        == "<think>I look.</think><action>look</action>"
    )
    stored = scan_steps(tmp_path / "run").sort("step").collect()["prompt"].to_list()
    assert stored == [body["messages"][-1]["content"] for body in bodies]


def test_an_environment_gives_the_next_message():
    env = gymnasium.make(
        "HGPO/WebShop-v0", prompt_style="chat", action_format="response"
    )
    first, info = env.reset(seed=1)
    second = env.step("<think>I search.</think><action>search[shoes]</action>")[0]
    assert info["task"] in first["prompt"]
    assert info["task"] not in second["prompt"]
    assert second["state"] in second["prompt"]
