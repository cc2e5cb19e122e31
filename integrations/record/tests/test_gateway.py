"""The gateway of `hgpo record`: what it forwards, and the rows of what it records."""

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp
import polars as pl
import pytest
from aiohttp import web
from stub_server import Stub, completion
from yarl import URL

from hgpo_datasets import StepWriter, scan_steps, verify
from hgpo_record.recording.calls import last_input
from hgpo_record.recording.gateway import Gateway
from hgpo_record.recording.rollouts import Recording, append_lines, read_branches
from hgpo_record.recording.run import server_address
from hgpo_train import advantages
from hgpo_train.local_server import address_of, bound_socket

CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "look"}}]
KEY = {
    "Authorization": "Bearer sk-a-key-of-the-user",
    "Content-Type": "application/json",
}


class Session:
    """A stub server, a gateway before it, and a client."""

    def __init__(self, client, address, stub, direct, recording):
        self.address = address
        self.stub = stub
        self.direct = direct
        self.recording = recording
        self._client = client

    async def send(self, path, body=None, method="POST", address=None, **headers):
        """Return status, headers and body of an answer."""
        data = json.dumps(body) if isinstance(body, dict) else body
        url = URL((address or self.address) + path, encoded=True)
        async with self._client.request(
            method, url, data=data, headers={**KEY, **headers}
        ) as answer:
            return answer.status, answer.headers, await answer.read()

    async def chat(self, content, path=CHAT, **fields):
        """Send a message with nothing before it."""
        return await self.send(
            path,
            {
                "model": "m",
                "messages": [{"role": "user", "content": content}],
                **fields,
            },
        )


@asynccontextmanager
async def session(
    run,
    *,
    token_ids=False,
    state_key=last_input,
    most_open=99,
    most_body=1 << 20,
    path="/v1",
):
    stub = Stub()
    runner = web.ServerRunner(web.Server(stub.answer), shutdown_timeout=0.1)
    await runner.setup()
    with (
        StepWriter(run) as writer,
        bound_socket("127.0.0.1", 0) as behind,
        bound_socket("127.0.0.1", 0) as before,
    ):
        direct = address_of("127.0.0.1", behind)
        await web.SockSite(runner, behind).start()
        recording = Recording(
            writer, task="agent", state_key=state_key, most_open=most_open
        )
        upstream = server_address(direct + path)
        gateway = Gateway(upstream, recording, most_body=most_body, token_ids=token_ids)
        commits = asyncio.create_task(recording.commit())
        async with gateway.serving(before), aiohttp.ClientSession() as client:
            yield Session(
                client, address_of("127.0.0.1", before), stub, direct, recording
            )
        for rollout in recording.open:
            recording.end(rollout)
        recording.close()
        await commits
        await runner.cleanup()


def play(run, script, **options):
    """Run a script of calls. Return the rows of the run and the recording."""

    async def whole():
        async with session(run, **options) as opened:
            await script(opened)
            return opened.recording

    recording = asyncio.run(whole())
    assert verify(run).ok
    return scan_steps(run).collect(), recording


def test_requests_and_answers_are_forwarded_byte_for_byte(tmp_path):
    odd = b'{ "messages" : [ {"role":"user",\n"content":"caf\\u00e9 \xc3\xa9 \\ud83d"} ],"model":"m" , "n":1}'

    async def script(opened):
        for method, path, body in (
            ("POST", CHAT, odd),
            ("POST", "/v1/embeddings?a=%2F&b", b"not json"),
            ("GET", "/v1/models", None),
            ("PUT", "/other/%C3%A9", b"\0\xff"),
            (
                "POST",
                CHAT,
                b'{"model":"m","stream":true,"messages":[{"role":"user","content":"x"}]}',
            ),
        ):
            names = {"X-HGPO-Task": "t", "X-Mine": "1"}
            status, headers, answer = await opened.send(path, body, method, **names)
            seen_path, seen, seen_body = opened.stub.requests[-1]
            assert (seen_path, seen_body) == (path, body or b"")
            assert seen["Authorization"] == KEY["Authorization"]
            assert seen["X-Mine"] == "1"
            assert "X-HGPO-Task" not in seen
            direct = await opened.send(path, body, method, opened.direct)
            assert (status, answer, headers["Content-Type"]) == (
                direct[0],
                direct[2],
                direct[1]["Content-Type"],
            )
            assert headers.get("X-Other") == direct[1].get("X-Other")

    rows, recording = play(tmp_path / "run", script)
    # The escape of a lone surrogate stays an escape: the text of the prompt is what was sent.
    assert rows["prompt"][0].encode() == odd[odd.index(b"[") : odd.index(b"]") + 1]
    assert recording.passed.total() == 3


def test_a_row_has_what_was_read_and_what_was_replied(tmp_path):
    messages = [{"role": "user", "content": [{"type": "text", "text": "Go."}]}]
    reply = completion({"messages": messages, "tools": TOOLS, "model": "m"})["choices"][
        0
    ]["message"]
    result = {"role": "tool", "tool_call_id": "call_1", "content": "A hall."}

    async def script(opened):
        await opened.send(CHAT, {"model": "m", "messages": messages, "tools": TOOLS})
        await opened.send(
            CHAT,
            {"model": "m", "messages": [*messages, reply, result], "temperature": 0.5},
        )

    rows, _ = play(tmp_path / "run", script, token_ids=True)
    first, second = rows.to_dicts()
    assert (first["state"], second["state"]) == ("Go.", "A hall.")
    assert json.loads(first["message"]) == reply
    assert (
        first["action"]
        == '<tool_call>\n{"name": "look", "arguments": {"turn": 1}}\n</tool_call>'
    )
    # No key of JSON that the client wrote is lost, and text alone needs no message.
    assert json.loads(second["prompt"]) == [*messages, reply, result]
    assert (second["response"], second["message"]) == (
        "I have read 3 messages. é\u2028",
        None,
    )
    assert bytes(second["response_token_ids"]).decode() == second["response"]
    assert bytes(second["prompt_token_ids"]).decode() == json.dumps(
        [*messages, reply, result]
    )
    assert second["response_logprobs"] == pytest.approx(
        [-token / 1000 for token in second["response_token_ids"]]
    )
    (branch,) = read_branches(tmp_path / "run")["agent/0"]
    assert (branch.steps, branch.requests[1]) == (
        [0, 1],
        {"step": 1, "model": "m", "temperature": 0.5},
    )


@pytest.mark.parametrize("tools", [[], TOOLS])
@pytest.mark.parametrize("path", [CHAT, "/v1/responses"])
def test_a_streamed_call_has_the_same_row(tmp_path, path, tools):
    name = "input" if path.endswith("responses") else "messages"

    async def script(opened):
        for stream in (False, True):
            body = {
                "model": "m",
                name: [{"role": "user", "content": "x"}],
                "tools": tools,
                "stream": stream,
            }
            await opened.send(path, body, **{"X-HGPO-Rollout": str(stream)})

    rows, _ = play(tmp_path / "run", script, token_ids=True)
    whole, streamed = rows.drop("trajectory", "policy_s").to_dicts()
    assert json.loads(whole.pop("message") or "null") == json.loads(
        streamed.pop("message") or "null"
    )
    assert whole == streamed
    assert whole["action"] == ("" if tools else whole["response"]) or tools
    assert (whole["response_token_ids"] is None) == (name == "input")


def test_rollouts_of_a_task_become_one_group_whenever_they_end(tmp_path):
    async def script(opened):
        # By address, by header, and without a name; each ends before the next begins.
        await opened.chat("x", "/v1/t/a%2Fb/r/one/chat/completions")
        assert (
            await opened.send(
                "/reward", {"reward": 1, "task": "a/b", "rollout": "one", "won": True}
            )
        )[0] == 200
        await opened.send(
            CHAT,
            {"model": "m", "messages": [{"role": "user", "content": "x"}]},
            **{"X-HGPO-Task": "a/b"},
        )
        assert scan_steps(tmp_path / "run").collect().height == 1
        await opened.send("/v1/t/a%2Fb/reward", {"reward": 0.25, "done": False})
        await opened.chat("y", "/v1/t/a%2Fb/chat/completions")
        assert (await opened.send("/v1/t/a%2Fb/reward", {"reward": -0.25}))[0] == 200
        # A rollout that has ended gets no further call, and no reward without one.
        assert (await opened.chat("x", "/v1/t/a%2Fb/r/one/chat/completions"))[0] == 409
        assert (await opened.send("/reward", {"reward": 1}))[0] == 409
        assert (await opened.send("/reward", {"reward": "much"}))[0] == 400

    rows, _ = play(tmp_path / "run", script)
    assert rows.select("trajectory", "step", "reward", "terminated", "won").rows() == [
        ("a/b/0", 0, 0.25, False, None),
        ("a/b/0", 1, -0.25, True, None),
        ("a/b/one", 0, 1.0, True, True),
    ]
    assert rows.select("task_id", "group").unique().rows() == [("a/b", 0)]
    # As in verl-agent, each row counts: returns 0, 0 and 1 have the mean 1/3 and the standard deviation √(1/3).
    found = advantages.compute(
        rows, "grpo", epsilon=0, invalid_action_penalty=0
    ).collect()["advantage"]
    assert found.to_list() == pytest.approx([-(3**-0.5), -(3**-0.5), 2 * 3**-0.5])


def test_what_the_server_did_not_answer_is_no_step(tmp_path):
    async def script(opened):
        await opened.chat("x")
        status, _, answer = await opened.chat("fail")
        assert (status, json.loads(answer)["error"]["message"]) == (503, "no capacity")
        assert (await opened.chat("refuse"))[0] == 200
        with pytest.raises(aiohttp.ClientPayloadError):
            await opened.chat("break", stream=True)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(opened.chat("hang"), 0.2)
        await opened.chat("y")

    rows, recording = play(tmp_path / "run", script)
    assert rows["state"].to_list() == ["x", "y"]
    assert not rows["aborted"].any()
    assert recording.failed == {
        "HTTP 503": 1,
        "an error with the status 200": 1,
        "connection lost": 1,
        "left by the program": 1,
    }


def test_a_rollout_that_lacks_a_call_is_aborted(tmp_path):
    def state_key(messages):
        return {"x": "a state"}[messages[-1]["content"]]

    async def script(opened):
        for rollout, content in (("whole", "x"), ("packed", "pack"), ("keyless", "z")):
            await opened.chat("x", f"/v1/r/{rollout}/chat/completions")
            assert (await opened.chat(content, f"/v1/r/{rollout}/chat/completions"))[
                0
            ] == 200
            await opened.send(f"/v1/r/{rollout}/reward", {"reward": 1})

    rows, _ = play(tmp_path / "run", script, state_key=state_key)
    ends = rows.filter(pl.col("step") == pl.col("episode_length") - 1)
    assert ends.select("trajectory", "step", "aborted").rows() == [
        ("agent/keyless", 0, True),
        ("agent/packed", 0, True),
        ("agent/whole", 1, False),
    ]
    assert "--state-key raised KeyError" in ends["error"][0]
    assert "gzip" in ends["error"][1]


def test_what_is_refused(tmp_path):
    async def script(opened):
        assert (await opened.chat("x"))[0] == 200
        assert (await opened.send(CHAT, b"x", Origin="https://page.example"))[0] == 403
        assert (await opened.send(CHAT, b"x", Host="page.example"))[0] == 400
        assert (await opened.send(CHAT, b"x" * 1001))[0] == 413
        assert (await opened.chat("x", "/v1/r/other/chat/completions"))[0] == 503
        assert (await opened.chat("x", "/v1/r/a%2Fb/chat/completions"))[0] == 400
        assert len(opened.stub.requests) == 1

    play(tmp_path / "run", script, most_open=1, most_body=1000)


def test_a_server_that_is_away_and_one_with_another_path(tmp_path):
    async def script(opened):
        await opened.send("/v1/models?x=1", None, "GET")
        assert opened.stub.requests[-1][0] == "/openai/v1/models?version=2&x=1"
        gateway = Gateway(
            server_address("http://127.0.0.1:9"),
            opened.recording,
            most_body=99,
            token_ids=False,
        )
        with bound_socket("127.0.0.1", 0) as listener:
            async with gateway.serving(listener):
                answer = await opened.send(
                    CHAT, b"{}", address=address_of("127.0.0.1", listener)
                )
        assert answer[0] == 502

        assert opened.recording.failed.total() == 1
        await opened.chat("x")

    play(tmp_path / "run", script, path="/openai/v1?version=2")


def test_rollouts_that_cannot_be_written_are_written_later(tmp_path, monkeypatch):
    full = [OSError(28, "No space left on device")]
    extend = StepWriter.extend

    def fail_once(writer, steps):
        if full:
            raise full.pop()
        return extend(writer, steps)

    monkeypatch.setattr(StepWriter, "extend", fail_once)

    async def script(opened):
        await opened.chat("x")
        status, _, answer = await opened.send("/reward", {"reward": 1})
        assert (status, b"No space left" in answer) == (500, True)

    rows, _ = play(tmp_path / "run", script)
    assert rows["reward"].to_list() == [1.0]


def test_lines_of_branches_after_a_kill(tmp_path):
    path = tmp_path / "branches.jsonl"
    path.write_bytes(b'{"trajectory":"a","branches":[{"parent":nu')
    for shared in (0, 1):
        branch = {"parent": None, "shared": shared, "steps": [0], "requests": []}
        append_lines(
            path,
            [json.dumps({"trajectory": "b", "branches": [branch]}).encode() + b"\n"],
        )
    assert {
        name: found[0].shared for name, found in read_branches(tmp_path).items()
    } == {"b": 1}
