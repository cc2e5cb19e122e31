"""The server policy, against real HTTP servers on loopback: requests, retries, pauses, and limits of prompts."""

import threading
import time
from email.utils import formatdate

import pytest
from asked import request
from asked_server import KEY, ask, asked_once, policy_of
from chat_server import completion
from refusals import refused

from hgpo_train.policies import http_client
from hgpo_train.policies.base import Failure, Reply


def test_each_request_gets_its_reply_without_waiting_for_the_slowest(api):
    slowest = 40
    others_are_there = threading.Event()

    def echo(body: dict, attempt: int) -> tuple:
        prompt = body["messages"][0]["content"]
        if prompt == str(slowest):
            others_are_there.wait(30)
        return completion(f"<action>{prompt}</action>")

    api.answer = echo
    policy = policy_of(api)
    policy.submit([request(i, str(i)) for i in range(60)])
    answers: dict[int, Reply | Failure] = {}
    while len(answers) < 59:
        answers |= dict(policy.collect(30))
    assert slowest not in answers
    others_are_there.set()
    answers |= dict(policy.collect(30))
    policy.close()
    assert {i: reply.response for i, reply in answers.items()} == {
        i: f"<action>{i}</action>" for i in range(60)
    }


def test_the_request_body(api):
    query = "?api-version=2&api_key=abcdefgh"
    sampling = {
        "temperature": 0.4,
        "top_p": 0.9,
        "stop": ["</action>"],
        "extra": {"top_k": 5},
        "logprobs": True,
    }
    ask(api, request(3, seed=1 << 40 | 3), base_url=f"{api.url}{query}", **sampling)
    (body,) = api.bodies
    sent = {name: value for name, value in sampling.items() if name != "extra"}
    messages = [{"role": "user", "content": "look around"}]
    limits = {"max_tokens": 512, "max_completion_tokens": 512}
    assert (
        body
        == {"model": "tiny", "messages": messages, "seed": 3, "top_k": 5}
        | limits
        | sent
    )
    assert api.headers[0]["authorization"] == f"Bearer {KEY}"
    assert api.paths == [f"/v1/models{query}", f"/v1/chat/completions{query}"]
    ask(api, request(), chat_template_options={"enable_thinking": False})
    assert api.bodies[1]["chat_template_kwargs"] == {"enable_thinking": False}
    with refused(r"option extra: .* received temperature; set temperature"):
        ask(api, request(), extra={"temperature": 0.3})


def test_tokens_and_log_probabilities_are_read(api):
    told = {
        "content": [{"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []}]
    }
    status, body = completion("a", finish="length", logprobs=told, token_ids=[7])
    body["prompt_token_ids"] = [1, 2]
    reply = asked_once(api, status, body, logprobs=True, token_ids=True)
    assert reply.response_logprobs == [-0.5]
    assert (reply.prompt_token_ids, reply.response_token_ids, reply.finish_reason) == (
        [1, 2],
        [7],
        "length",
    )
    assert api.bodies[0]["return_token_ids"] is True
    body["choices"][0]["logprobs"] = {"content": [{"token": "a", "logprob": None}]}
    reply = asked_once(api, status, body, logprobs=True, token_ids=True)
    assert (reply.response_token_ids, reply.response_logprobs) == ([7], None)


TROUBLES = {
    "rate limit": (429, {"error": {"message": "slow down"}}, {"Retry-After": "0.05"}),
    "overload": (503, {"error": {"message": "busy"}}, {}),
    "a gateway's page": (502, b"<html>Bad gateway</html>", {}),
    "an error with status 200": (
        200,
        {"choices": None, "error": {"message": "lost", "code": 502}},
        {},
    ),
    "an error in the choice": (
        200,
        {"choices": [{"error": {"message": "lost"}, "message": {"content": ""}}]},
        {},
    ),
    "a choice that ends with an error": completion("", "error"),
    "a body cut off": (200, b'{"choices": [{"message": {"content": "<act', {}),
    "a page with status 200": (200, b"<html>Bad gateway</html>", {}),
    "no choices": (200, {"choices": []}, {}),
    "cut before the answer": "cut",
    "cut within the answer": lambda handler: start_answer(
        handler, "1000000", b'{"choices": [{"mess'
    ),
    "not HTTP": lambda handler: (
        handler.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n") and close(handler)
    ),
}


def start_answer(handler, length, part):
    """Announce an answer, send a part of it, and close the connection."""
    handler.begin(200, Content_Length=length)
    handler.wfile.write(part)
    close(handler)


def close(handler):
    handler.close_connection = True


@pytest.mark.parametrize("trouble", TROUBLES)
def test_transient_errors_are_retried(api, monkeypatch, trouble):
    pauses: list[tuple[int, str | None]] = []
    monkeypatch.setattr(
        http_client, "pause_s", lambda *arguments: pauses.append(arguments) or 0.0
    )
    api.answer = lambda body, attempt: (
        TROUBLES[trouble] if attempt < 3 else completion("ok")
    )
    (reply,) = ask(api, request())
    assert isinstance(reply, Reply), reply
    assert reply.response == "ok"
    assert len(api.bodies) == 3
    header = "0.05" if trouble == "rate limit" else None
    assert pauses == [(0, header), (1, header)]


def test_what_remains_broken_fails_after_the_retries_and_permanent_errors_at_once(api):
    for answer, attempts, line in (
        (TROUBLES["rate limit"], 3, "HTTP 429: slow down"),
        (TROUBLES["a gateway's page"], 3, "HTTP 502: <html>Bad gateway</html>"),
        (
            TROUBLES["cut before the answer"],
            3,
            "the connection failed: ServerDisconnectedError: Server disconnected",
        ),
        ((404, {"detail": "no such model"}, {}), 1, "HTTP 404: no such model"),
        (
            (401, {"error": {"message": "Incorrect API key provided"}}, {}),
            1,
            "HTTP 401: Incorrect API key provided",
        ),
        (
            (429, {"error": {"message": "no money", "code": "insufficient_quota"}}, {}),
            1,
            "HTTP 429: no money",
        ),
        (
            (501, {"error": {"message": "no such method"}}, {}),
            1,
            "HTTP 501: no such method",
        ),
        ((400, b"", {}), 1, "HTTP 400: Bad Request"),
        (
            (200, {"error": {"message": "bad key", "code": 401}}, {}),
            1,
            "the answer contains no reply: bad key",
        ),
    ):
        api.bodies.clear()
        api.answer = lambda body, attempt, answer=answer: answer
        (reply,) = ask(api, request(), retries=2)
        assert (reply, len(api.bodies)) == (Failure("PolicyFailed", line), attempts)


@pytest.fixture
def tokyo():
    """The time zone of this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("tokyo")
def test_pauses_are_those_that_the_server_asks_for_and_grow_otherwise():
    for attempt, header, least, most in (
        (0, None, 0.375, 0.5),
        (3, None, 3.0, 4.0),
        (50, None, 6.0, 8.0),
        (0, "2", 2.0, 2.5),
        (9, "0.01", 0.01, 0.0125),
        (0, "86400", 60.0, 60.0),
        (0, "9" * 20, 60.0, 60.0),
        (0, "9" * 400, 60.0, 60.0),
        (0, f"Thu, 01 Jan {'9' * 20} 00:00:00 GMT", 0.375, 0.5),
        (0, "-5", 0.375, 0.5),
        (1, "0", 0.75, 1.0),
        (0, "nan", 0.375, 0.5),
        (0, "soon", 0.375, 0.5),
        (0, formatdate(time.time() + 30, usegmt=True), 20.0, 38.0),
        (0, formatdate(time.time() + 30), 20.0, 38.0),  # with -0000
        # the third form of RFC 9110
        (0, time.asctime(time.gmtime(time.time() + 30)), 20.0, 38.0),
        (0, formatdate(0), 0.375, 0.5),
    ):
        pauses = {http_client.pause_s(attempt, header) for _ in range(20)}
        assert all(least <= pause <= most for pause in pauses), (
            attempt,
            header,
            pauses,
        )
        # requests that failed together return apart
        assert len(pauses) > 1 or least == most


def too_long(limit):
    def answer(body: dict, attempt: int) -> tuple:
        if len(body["messages"][0]["content"]) > limit:
            return (
                400,
                {
                    "error": {
                        "message": f"This model's maximum context length is {limit}",
                        "code": 400,
                    }
                },
                {},
            )
        return completion("ok")

    return answer


def test_the_oldest_history_goes_first_when_the_prompt_is_too_long(api):
    """And without history it is a failure."""
    api.answer = too_long(30)
    (reply,) = ask(
        api,
        request(
            0, "x" * 100, step=9, shorter=lambda pairs: "x" * (10 + 5 * min(pairs, 6))
        ),
    )
    assert isinstance(reply, Reply)
    assert (reply.prompt, reply.cut_pairs) == ("x" * 30, 5)
    (reply,) = ask(
        api, request(0, "x" * 100, step=3, shorter=lambda pairs: "x" * (50 + pairs))
    )
    assert isinstance(reply, Failure)
    assert "maximum context length" in reply.message
    (reply,) = ask(api, request(0, "y" * 100, step=3), overflow="error")
    assert isinstance(reply, Failure)


@pytest.mark.parametrize(
    ("finish", "tokens"),
    [("length", 0), ("length", 1), ("model_context_window_exceeded", 9)],
)
def test_a_window_that_the_prompt_fills_is_no_answer_of_the_model(api, finish, tokens):
    """Such servers cut the prompt to the window, and answer nothing with the status 200."""

    def answer(body: dict, attempt: int) -> tuple:
        if len(body["messages"][0]["content"]) <= 30:
            return completion("ok")
        status, full = completion("", finish)
        return status, {**full, "usage": {"completion_tokens": tokens}}

    api.answer = answer
    (reply,) = ask(
        api, request(0, "x" * 100, step=3, shorter=lambda pairs: "x" * (10 * pairs))
    )
    assert isinstance(reply, Reply)
    assert (reply.response, reply.cut_pairs) == ("ok", 1)
    (reply,) = ask(api, request(0, "x" * 100, step=0))
    assert isinstance(reply, Failure)
    assert "fills the context window" in reply.message


def test_a_limit_that_is_ignored_or_refused(api):
    status, body = completion("ok")
    body["usage"] = {"prompt_tokens": "2000", "completion_tokens": 4000.0}
    with pytest.warns(
        UserWarning, match="counted 4000 tokens for a limit of 16: the server ignores"
    ):
        reply = asked_once(api, status, body, max_response_tokens=16)
    assert (reply.prompt_tokens, reply.response_tokens) == (2000, 4000)
    with pytest.warns(
        UserWarning,
        match="counted 2000 tokens for a prompt of 90000 characters: the server probably cuts",
    ):
        ask(api, request(0, "x" * 90_000), max_response_tokens=4000)
    reason = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
    refused = (400, {"error": {"message": reason}}, {})
    api.bodies.clear()
    api.answer = lambda body, attempt: (
        refused if "max_tokens" in body else completion("ok")
    )
    assert [reply.response for reply in ask(api, request(0), request(1, "again"))] == [
        "ok",
        "ok",
    ]
    assert all("max_completion_tokens" in body for body in api.bodies)


@pytest.mark.parametrize(
    ("spec", "options", "line"),
    [
        ("openai", {}, "expected a model"),
        ("openai:tinny", {}, "did you mean 'tiny'"),
        (
            "openai:tiny",
            {"temprature": 1.0},
            "unknown policy option 'temprature'; did you mean 'temperature'",
        ),
        (
            "openai:tiny",
            {"top_p": 0.0},
            "policy option top_p: expected float > 0.0, received 0.0",
        ),
        (
            "openai:tiny",
            {"concurrency": 0},
            "policy option concurrency: expected int >= 1, received 0",
        ),
        (
            "openai:tiny",
            {"base_url": "http://127.0.0.1:9/v1"},
            "no OpenAI-compatible server answers at http://127.0.0",
        ),
        (
            "openai:tiny",
            {"base_url": "https://api.example.com/v1", "api_key_env": "NOT_SET"},
            "variable NOT_SET",
        ),
    ],
)
def test_permanent_errors_are_raised_before_the_first_rollout(api, spec, options, line):
    with refused(line):
        policy_of(api, spec, **options)
