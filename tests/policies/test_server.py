"""The server policy, against real HTTP servers on loopback that reply, delay, reject, disconnect and flood."""

import contextlib
import gzip
import shutil
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from email.utils import formatdate

import asked
import pytest
from asked import request
from chat_server import Api, Handler, completion
from yarl import URL

from hgpo_envs.errors import InputError
from hgpo_envs.files.secrets import redact
from hgpo_train.policies import http_client
from hgpo_train.policies.base import Failure, Reply, Request
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.policies.server import ServerPolicy
from hgpo_train.policies.validation import checked

KEY = "sk-secret-of-the-test"


@pytest.fixture
def api(monkeypatch):
    """A server; requests that failed are sent again without delay. Space around a key is not part of it."""
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\r\n")
    monkeypatch.setattr(http_client, "pause_s", lambda attempt, retry_after: 0.0)
    with Api() as running:
        yield running


def policy_of(api: Api, name: str = "openai:tiny", **options: object) -> ServerPolicy:
    return make_policy(
        name,
        PolicyContext(
            "ALFWorld", "response", {"base_url": api.url, "timeout_s": 5.0, **options}
        ),
    )


def ask(api: Api, *requests: Request, **options: object) -> list[Reply | Failure]:
    with contextlib.closing(policy_of(api, **options)) as policy:
        return asked.ask(policy, requests)


def asked_once(api: Api, *answer: object, **options: object) -> Reply | Failure:
    """Return the answer to one request, of a server that always sends this answer."""
    api.answer = lambda *_: answer
    (reply,) = ask(api, request(), **options)
    return reply


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
    with pytest.raises(
        InputError, match=r"option extra: .* received temperature; set temperature"
    ):
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


def start_answer(handler: Handler, length: str, part: bytes) -> None:
    """Announce an answer, send a part of it, and close the connection."""
    handler.begin(200, Content_Length=length)
    handler.wfile.write(part)
    close(handler)


def close(handler: Handler) -> None:
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


def too_long(limit: int) -> Callable[[dict, int], tuple]:
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
    with pytest.raises(InputError, match=line) as caught:
        policy_of(api, spec, **options)
    assert "\n" not in str(caught.value)


def drip(handler: Handler) -> None:
    """Announce a long answer and send it byte by byte until the client disconnects."""
    handler.begin(200, Content_Type="application/json", Content_Length=1_000_000)
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.02)


def flood(handler: Handler) -> None:
    """Send data without end."""
    handler.begin(200, Content_Type="application/json")
    handler.close_connection = True
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b" " * 65536)


@pytest.mark.slow
def test_a_reply_sent_byte_by_byte_times_out_and_is_retried(api):
    api.answer = lambda body, attempt: drip if attempt < 3 else completion("ok")
    (reply,) = ask(api, request(), timeout_s=0.3)
    assert reply == Reply("ok", cut_pairs=0)
    (reply,) = ask(api, request(1, "again"), timeout_s=0.3, retries=1)
    assert reply == Failure(
        "PolicyFailed", "timed out: no complete answer within 0.3 s"
    )
    assert len(api.bodies) == 5


def test_an_endless_answer_fails_at_the_limit(api, monkeypatch):
    monkeypatch.setattr(http_client, "LARGEST_ANSWER", 3 << 20)
    api.answer = lambda body, attempt: flood
    (reply,) = ask(api, request(), timeout_s=60.0)
    assert reply == Failure("PolicyFailed", "the answer is larger than 3 MB")


@pytest.mark.slow
def test_a_compressed_answer_does_not_expand(api):
    reply = asked_once(
        api, 200, gzip.compress(bytes(50 << 20)), {"Content-Encoding": "gzip"}
    )
    assert "is not a chat completion" in str(reply)
    assert api.headers[0]["accept-encoding"] == "identity"


def test_the_list_of_models(api):
    for models, reason in (
        (
            (200, b"<html>Hello</html>"),
            r"returned no list of models .*check_model=false",
        ),
        ((200, b'{"data": 3}'), r"returned no list of models .*check_model=false"),
        ((200, b"[" * 100_000), r"returned no list of models .*check_model=false"),
        ((401, {"error": {"message": "no"}}), "rejects the key in OPENAI_API_KEY"),
        (drip, "no OpenAI-compatible server answers at"),
    ):
        api.models = models
        with pytest.raises(InputError, match=reason) as caught:
            policy_of(api, timeout_s=0.3)
        assert "\n" not in str(caught.value)
    policy_of(api, check_model=False).close()
    for models in (
        # the first request shows whether the server has the model
        (404, {"error": {"message": "no such page"}}),
        (200, {"data": []}),
        (200, {"data": [{"id": "tiny"}, 3, None, {}, {"id": 5}]}),
    ):
        api.models = models
        policy_of(api).close()


TEXT = {"content": "a"}
ODD_CHOICES = [
    (None, "contains no reply"),
    ({}, "contains no reply"),
    ({"index": 0}, "expected a message with a text or parts, received None"),
    ({"message": 3}, "expected a message with a text or parts, received 3"),
    (
        {"message": {"content": 3}},
        "expected a message with a text or parts, received {'content': 3}",
    ),
    ({"message": {}}, "expected a message with a text or parts, received {}"),
    (
        {"delta": {"content": "a"}, "finish_reason": "stop"},
        "expected a message with a text or parts, received None",
    ),
    (
        {
            "message": {"content": "", "error": {"message": "lost"}},
            "finish_reason": "stop",
        },
        "no reply: lost",
    ),
    (
        {"message": TEXT, "logprobs": {"content": [{"logprob": 0.5}]}},
        "response_logprobs: expected numbers",
    ),
    ({"message": {}, "finish_reason": "error"}, "the choice ends with 'error'"),
    (
        {"message": TEXT, "logprobs": {"content": [{"logprob": "a"}]}},
        "response_logprobs: expected numbers",
    ),
    (
        {"message": TEXT, "token_ids": [1 << 31]},
        "response_token_ids: expected integers from 0 to 2147483647",
    ),
    (
        {"message": TEXT, "token_ids": [1], "logprobs": {"content": []}},
        "expected one log-probability for each of 1",
    ),
]
ODD_BODIES = [
    (b"", "is not a chat completion: Expecting value"),
    (b"<html>Hello</html>", "is not a chat completion: Expecting value"),
    (b"null", "contains no reply"),
    (b'{"choices": []}', "contains no reply"),
    (
        b'{"error": {"message": "no GPU is free", "code": 503}}',
        "contains no reply: no GPU is free",
    ),
    (
        b'[{"error": {"message": "no GPU is free", "code": 503}}]',
        "contains no reply: no GPU is free",
    ),
    (b"[" * 100_000, "is not a chat completion: "),
    (b'{"other": ' + b"[" * 100_000, "is not a chat completion: "),
]
FORMS = [
    (b'\xef\xbb\xbf{"choices": [{"message": {"content": "ok"}}]}', "ok"),
    (b'{"choices": [{"message": {"content": "\\ud800"}}]}', "\ufffd"),
    (b'{"choices": [{"message": {"content": ["o", "k"]}, "logprobs": []}]}', "ok"),
    (
        b'{"choices": [{"message": {"content": "ok"}, "logprobs": {}}], "usage": {"prompt_tokens": null}}',
        "ok",
    ),
    (
        b'{"choices": [{"message": {"content": "ok"}, "logprobs": {"content": null}}], "error": {}}',
        "ok",
    ),
    (
        b'{"choices": [{"message": {"content": null, "refusal": "no"}}], "usage": []}',
        "no",
    ),
    (b'{"choices": [{"message": null, "finish_reason": "length"}]}', ""),
    (
        b'{"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]}',
        "",
    ),
    (b'{"choices": [{"text": "ok", "finish_reason": "stop"}]}', "ok"),
    (
        b'{"choices": [null, {"index": 1, "message": {"content": "no"}}, {"index": 0, "message": "ok"}]}',
        "ok",
    ),
    (
        b'{"choices": [{"message": {"content": {"value": "ok"}}}], "usage": {"prompt_tokens": -1}}',
        "ok",
    ),
    (
        b'{"choices": [{"message": "ok", "logprobs": {"content": [null]}}], "usage": {"completion_tokens": 1e30}}',
        "ok",
    ),
]


def test_the_forms_of_answers_that_servers_send(api):
    with contextlib.closing(policy_of(api)) as policy:
        for body, response in FORMS:
            api.answer = lambda *_, body=body: (200, body)
            reply = checked(Reply, *asked.ask(policy, [request()]))
            assert isinstance(reply, Reply), (body, reply)
            assert (reply.response, reply.response_logprobs) == (response, None)


@pytest.mark.slow
def test_an_invalid_answer_is_a_failure_with_its_reason(api):
    choices = [
        ({**completion("")[1], "choices": [choice]}, reason)
        for choice, reason in ODD_CHOICES
    ]
    with contextlib.closing(
        policy_of(api, logprobs=True, token_ids=True, retries=0)
    ) as policy:
        for body, reason in (*ODD_BODIES, *choices):
            api.answer = lambda *_, body=body: (200, body)
            answer = checked(Reply, *asked.ask(policy, [request()]))
            assert isinstance(answer, Failure), body
            assert answer.category == "PolicyFailed"
            assert reason in answer.message


@pytest.mark.parametrize(
    "key", ["sk-first\nsecond-half", "sk-schlüssel-lang", "sk-with\x1bescape-in-it"]
)
def test_a_key_that_a_header_does_not_allow_is_refused_without_being_printed(
    api, monkeypatch, key
):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(
        InputError, match="the key in OPENAI_API_KEY contains a character"
    ) as caught:
        ask(api, request())
    assert not any(part in str(caught.value) for part in (key, key[:8], key[-8:]))


def test_a_key_that_the_server_repeats_is_in_no_reply_and_no_failure(api):
    """Neither the one in the header, nor one in a field that the user adds."""

    def echo(body: dict, attempt: int) -> tuple:
        sent = api.headers[-1]["authorization"] + "".join(body["auth"]["tokens"])
        if body["messages"][0]["content"] == "error":
            return 400, {"error": {"message": f"bad header {sent}"}}, {}
        return completion(f"<action>{sent}</action>", finish=sent)

    api.answer = echo
    extra = {"auth": {"tokens": ["first-of-two", "second-of-two"]}}
    failed, said = ask(api, request(0, "error"), request(1, "say"), extra=extra)
    assert "bad header Bearer *********" in str(failed)
    told = checked(Reply, said)
    assert told.response == "<action>Bearer *********</action>"
    assert told.finish_reason == "Bearer *********"


def test_an_invalid_address_is_one_line_without_its_password(api):
    secret = api.url.replace("http://", "http://me:hunter-2222@")
    for model, url, line in (
        ("tinny", secret, "http://***@127.0.0.1"),
        (
            "tiny",
            secret.removeprefix("http://"),
            "an address such as http://localhost:8000/v1, received 'me:***",
        ),
        (
            "tiny",
            "http://host:port/v1",
            "base_url: expected the address of a server, received 'http://host:port/v1'",
        ),
        ("tiny", "http://[::1/v1", "base_url: expected the address of a server"),
    ):
        with pytest.raises(InputError) as caught:
            policy_of(api, f"openai:{model}", base_url=url)
        assert line in str(caught.value)
        assert "hunter" not in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_redirect_is_an_error_and_the_key_is_sent_nowhere_else(api):
    with Api() as other:
        for status in (301, 302, 303, 307, 308):
            address = f"{other.url}/chat/completions"
            reply = asked_once(api, status, {}, {"Location": address})
            assert reply == Failure(
                "PolicyFailed",
                f"HTTP {status}: redirected to {address}; use that address",
            )
        assert not other.paths


def test_the_proxy_of_the_environment_is_used(api, monkeypatch):
    monkeypatch.setenv(
        "http_proxy",
        api.url.replace("http://", "me:no-scheme-secret@").removesuffix("/v1"),
    )
    (reply,) = ask(api, request(), base_url="http://served.invalid/v1")
    assert isinstance(reply, Reply), reply
    assert redact("no-scheme-secret") == "***"
    assert api.paths[-1] == "http://served.invalid/v1/chat/completions"
    assert api.headers[-1]["proxy-authorization"].startswith("Basic ")
    ask(api, request())
    assert api.paths[-1] == "/v1/chat/completions"  # of this machine: without the proxy
    monkeypatch.setenv("no_proxy", "served.invalid:8000")
    assert http_client.environment_proxy(URL("http://served.invalid:8000/v1")) is None
    monkeypatch.setenv("http_proxy", "socks5://me:proxy-secret@127.0.0.1:1")
    with pytest.raises(
        InputError,
        match=r"expected an HTTP proxy in the environment, received socks5://\*\*\*@",
    ):
        ask(api, request(), base_url="http://served.invalid/v1")


def test_certificates_are_verified_against_those_of_the_environment(
    api, tmp_path, monkeypatch
):
    if shutil.which("openssl") is None:
        pytest.skip("requires openssl")
    certificate = str(tmp_path / "certificate.pem")
    key = str(tmp_path / "key.pem")
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *subject]
    command += ["-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    api.socket = context.wrap_socket(api.socket, server_side=True)
    url = api.url.replace("http://", "https://")
    with pytest.raises(InputError, match="certificate verify failed"):
        ask(api, request(), base_url=url)
    monkeypatch.setenv("SSL_CERT_FILE", certificate)
    (reply,) = ask(api, request(), base_url=url)
    assert isinstance(reply, Reply), reply
