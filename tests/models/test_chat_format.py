"""What chat templates write around a response: ends of turns, special tokens in it, and opened thoughts."""

from types import SimpleNamespace

import pytest
from lazily import Lazy, lazily
from refusals import refused

from hgpo_train.models.tiny import train_tokenizer
from hgpo_train.policies.conversation import Turn, encode_conversation
from hgpo_train.policies.generation import FittedPrompt, GenerationOptions

(
    end_of_message,
    end_of_turn,
    end_tokens,
    opened_thought,
    without_opened_thought,
) = lazily(
    "hgpo_train.models.chat_format",
    "end_of_message end_of_turn end_tokens opened_thought without_opened_thought",
)
encode_chats = Lazy("hgpo_train.policies.conversation:encode_chats")

OPTIONS = GenerationOptions()
LOOP = "{% for m in messages %}"
PROMPT = "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
CHATML = f"{LOOP}<|im_start|>{{{{ m.role }}}}\n{{{{ m.content }}}}<|im_end|>\n{PROMPT}"
TEMPLATES = {
    "ChatML": (f"{CHATML}{{% endif %}}", "<|im_end|>"),
    "a space before it": (
        CHATML.replace("}<|im_end|>", "} <|im_end|>") + "{% endif %}",
        "<|im_end|>",
    ),
    "no end": (
        f"{LOOP}<|im_start|>{{{{ m.role }}}}\n{{{{ m.content }}}}\n{PROMPT}{{% endif %}}",
        "<|endoftext|>",
    ),
    "no special token": (
        f"{LOOP}{{{{ m.role }}}}: {{{{ m.content }}}}\n{{% endfor %}}",
        "<|endoftext|>",
    ),
    "another one at the very end": (
        CHATML.replace(
            "<|im_end|>",
            "{% if loop.last %}<|endoftext|>{% else %}<|im_end|>{% endif %}",
        )
        + "{% endif %}",
        "<|endoftext|>",
    ),
    "eos after the last turn": (
        f"{CHATML}{{% else %}}<|endoftext|>{{% endif %}}",
        "<|im_end|>",
    ),
    "responses are not rendered": (
        f"{LOOP}{{{{ m.role }}}}\n{{% endfor %}}",
        "<|endoftext|>",
    ),
    "refuses conversations": (
        f"{LOOP}{{{{ m.absent.content }}}}{{% endfor %}}",
        "<|endoftext|>",
    ),
}


@pytest.fixture
def tokenizer():
    """A tokenizer whose `eos_token` is not the token that ends a turn, as of Qwen's base models."""
    made = train_tokenizer(["Four boxes. open 1 think action user assistant"] * 20, 400)
    made.eos_token = "<|endoftext|>"
    return made


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_end_of_a_turn_is_the_templates(tokenizer, name):
    tokenizer.chat_template, end = TEMPLATES[name]
    assert tokenizer.decode([end_of_turn(tokenizer)]) == end
    assert {tokenizer.decode([token]) for token in end_tokens(tokenizer)} == {
        end,
        "<|endoftext|>",
    }


@pytest.mark.parametrize("name", ["ChatML", "eos after the last turn"])
def test_the_end_of_a_message_is_what_a_response_follows(tokenizer, name):
    """Phi's template ends a conversation that no response follows with `eos_token`."""
    tokenizer.chat_template, _ = TEMPLATES[name]
    assert tokenizer.decode(end_of_message(tokenizer)) == "<|im_end|>\n"


def test_a_template_that_leaves_out_a_message_is_refused(tokenizer):
    """Phi-3's first template skips the system's message, SmolVLM's a content that is no list of parts."""
    user = {"role": "user", "content": "A hall. <b>"}
    system = {"role": "system", "content": "A hall."}
    skips = (
        "{% for m in messages if m.role != 'system' %}{{ m.content | e }}{% endfor %}"
    )
    parts = f"{LOOP}{{% for part in m.content %}}{{{{ part.text }}}}{{% endfor %}}{{% endfor %}}"
    for template, chat, role in (
        (skips, [system, user], "system"),
        (parts, [user], "user"),
    ):
        tokenizer.chat_template = template
        with refused(f"the model's chat template leaves out the {role} message"):
            encode_chats(tokenizer, [chat])
    tokenizer.chat_template = skips
    assert len(encode_chats(tokenizer, [[user], [user]])) == 2

    # the result of a call, in a conversation
    written = '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
    turn = Turn("A hall.", written, [5], [6])
    tools = [{"type": "function", "function": {"name": "look"}}]
    tokens = encode_conversation(tokenizer, "", [turn], "A <door>.", tools=tools)
    assert tokenizer.decode(tokens[2:]) == "A &lt;door&gt;."
    tokenizer.chat_template = skips.replace("system", "tool")
    with refused("the model's chat template leaves out the tool message"):
        encode_conversation(tokenizer, "", [turn], "A door.", tools=tools)


@pytest.mark.parametrize("name", ["ChatML", "a space before it"])
def test_a_conversation_has_each_end_once(tokenizer, name):
    tokenizer.chat_template, _ = TEMPLATES[name]
    prompt = encode_chats(tokenizer, [[{"role": "user", "content": "A hall."}]])[0]
    # the second is cut by the token limit
    for response in ("open 1<|im_end|>", "open 1"):
        tokens = tokenizer(response, add_special_tokens=False)["input_ids"]
        turn = Turn("A hall.", "open 1", prompt, tokens)
        text = tokenizer.decode(encode_conversation(tokenizer, "", [turn], "A door."))
        assert text.split("<|im_start|>")[2].count("<|im_end|>") == 1
        assert text.count("<|im_end|>") == 3


TAGS = ("<action>", "</action>", "<think>", "</think>", "<tool_call>")


@pytest.mark.parametrize("special", [(), *((tag,) for tag in TAGS), TAGS])
def test_special_tokens_of_a_response_stay_in_its_text(tokenizer, special):
    text = "<think>\nhm\n</think>\n<action>open 1</action> <tool_call>"
    tokenizer.add_special_tokens(
        {"additional_special_tokens": list(special)}, replace_extra_special_tokens=False
    )
    ends = end_tokens(tokenizer)
    for ending in ("", "<|im_end|>", "<|endoftext|>", "<|im_end|><|endoftext|>"):
        tokens = tokenizer(text + ending, add_special_tokens=False)["input_ids"]
        reply = FittedPrompt([5]).reply(tokenizer, OPTIONS, ends, tokens, None)
        assert reply.response == text
    assert FittedPrompt([5]).reply(tokenizer, OPTIONS, ends, [], None).response == ""


@pytest.mark.parametrize("special", [(), ("<think>", "</think>")])
def test_a_thought_that_the_template_opens(tokenizer, special):
    tokenizer.add_special_tokens(
        {"additional_special_tokens": list(special)}, replace_extra_special_tokens=False
    )
    tokenizer.chat_template = f"{CHATML}<think>\n{{% endif %}}"
    (prompt,) = encode_chats(tokenizer, [[{"role": "user", "content": "Four boxes."}]])
    fitted = FittedPrompt(prompt)
    texts = {
        "hm\n</think>\nopen 1": "<think>\nhm\n</think>\nopen 1",
        "<think>hm</think>open 1": "<think>hm</think>open 1",
        "hm</think>Is <think> a tag?": "<think>\nhm</think>Is <think> a tag?",
        "open 1": "open 1",
    }
    for written, read in texts.items():
        tokens = tokenizer(written, add_special_tokens=False)["input_ids"]
        reply = fitted.reply(tokenizer, OPTIONS, (), tokens, [-1.0] * len(tokens))
        assert reply.response == read
        assert reply.response_token_ids == tokens
    opened = opened_thought(tokenizer, prompt)
    assert (
        without_opened_thought("<think>\nhm\n</think>\nopen 1", opened)
        == "hm\n</think>\nopen 1"
    )


def test_a_thought_that_is_not_opened(tokenizer):
    for end in ("", "<think>\n\n</think>\n\n", "<think> is a tag"):
        tokenizer.chat_template = f"{CHATML}{end}{{% endif %}}"
        (prompt,) = encode_chats(
            tokenizer, [[{"role": "user", "content": "Four boxes."}]]
        )
        assert opened_thought(tokenizer, prompt) == ""
        tokens = tokenizer("hm</think>", add_special_tokens=False)["input_ids"]
        reply = FittedPrompt(prompt).reply(tokenizer, OPTIONS, (), tokens, None)
        assert reply.response == "hm</think>"
    assert without_opened_thought("<think>hm</think>", "") == "<think>hm</think>"


@pytest.mark.parametrize("reason", [None, 5, "1"])
def test_replies_of_vllm_keep_special_tokens(tokenizer, reason):
    """Texts are made of the tokens; the engine's own, here "cut", end within a token after a stop text."""
    tokenizer.add_special_tokens(
        {"additional_special_tokens": list(TAGS)}, replace_extra_special_tokens=False
    )
    from hgpo_train.policies.vllm import VLLMPolicy

    policy = VLLMPolicy.__new__(VLLMPolicy)
    policy.tokenizer = tokenizer
    policy.options = OPTIONS
    policy._ends = end_tokens(tokenizer)
    last = (
        [reason]
        if isinstance(reason, int)
        else tokenizer.convert_tokens_to_ids(["<|im_end|>"])
    )
    tokens = (
        tokenizer("<action>open 1</action>", add_special_tokens=False)["input_ids"]
        + last
    )
    logprobs = [{token: SimpleNamespace(logprob=-0.5)} for token in tokens]
    done = {
        "token_ids": tokens,
        "logprobs": logprobs,
        "stop_reason": reason,
        "text": "cut",
        "finish_reason": "stop",
    }
    reply = policy._reply(
        SimpleNamespace(outputs=[SimpleNamespace(**done)]), FittedPrompt([7])
    )
    assert reply.response == "<action>open 1</action>"
    assert reply.response_token_ids == tokens
    assert reply.response_logprobs == [-0.5] * len(tokens)
