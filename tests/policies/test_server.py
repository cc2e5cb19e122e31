"""The server policy, against a real HTTP server on loopback that replies, delays, rejects and disconnects."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from chat_server import Api, Handler, completion

from hgpo_envs.engine import State, Task
from hgpo_envs.errors import InputError
from hgpo_train.policies.base import Failure, Reply, Request
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.policies.validation import checked_reply

KEY = "sk-secret-of-the-test"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with Api() as running:
        yield running


def request(
    number: int, prompt: str = "look around", step: int = 0, with_shorter_history: Callable[[int], str] = str
) -> Request:
    task = Task("t", "train", "do it", "kind")
    state = State("a room", ("look",), True, False, False, 0.0, 0.0, {})
    return Request(number, prompt, 1 << 40 | number, 0, step, task, state, None, with_shorter_history)


def ask(api: Api, requests: list[Request], **options: object) -> dict[int, Reply | Failure]:
    given = {"base_url": api.url, "timeout_s": 5.0, **options}
    policy = make_policy("openai:tiny", PolicyContext("ALFWorld", "response", given))
    try:
        policy.submit(requests)
        answers: dict[int, Reply | Failure] = {}
        while len(answers) < len(requests):
            answers |= dict(policy.collect(20))
        return answers
    finally:
        policy.close()


def test_each_request_gets_its_reply_without_waiting_for_the_slowest(api: Api) -> None:
    slowest, others_are_there = 40, threading.Event()

    def echo(body: dict, attempt: int) -> tuple:
        prompt = body["messages"][0]["content"]
        if prompt == str(slowest):
            others_are_there.wait(30)
        return completion(f"<action>{prompt}</action>")

    api.answer = echo
    policy = make_policy("openai:tiny", PolicyContext("ALFWorld", "response", {"base_url": api.url}))
    policy.submit([request(i, str(i)) for i in range(60)])
    answers: dict[int, Reply | Failure] = {}
    while len(answers) < 59:
        answers |= dict(policy.collect(30))
    assert slowest not in answers
    others_are_there.set()
    answers |= dict(policy.collect(30))
    policy.close()
    assert {number: reply.response for number, reply in answers.items()} == {
        i: f"<action>{i}</action>" for i in range(60)
    }


def test_the_request_body(api: Api) -> None:
    ask(api, [request(3)], temperature=0.4, top_p=0.9, stop=["</action>"], extra={"top_k": 5}, logprobs=True)
    (body,) = api.bodies
    assert body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "look around"}],
        "temperature": 0.4,
        "top_p": 0.9,
        "stop": ["</action>"],
        "seed": 3,
        "logprobs": True,
        "max_completion_tokens": 512,
        "top_k": 5,
    }
    assert api.headers[0]["authorization"] == f"Bearer {KEY}"


def test_tokens_and_log_probabilities_are_read(api: Api) -> None:
    told = {"content": [{"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
    status, body = completion("a", finish="length", logprobs=told, token_ids=[7])
    api.answer = lambda *_: (status, {**body, "prompt_token_ids": [1, 2]})
    (reply,) = ask(api, [request(0)], logprobs=True, token_ids=True).values()
    assert reply.response_logprobs == [-0.5]
    assert (reply.prompt_token_ids, reply.response_token_ids, reply.finish_reason) == ([1, 2], [7], "length")
    assert api.bodies[0]["return_token_ids"] is True


@pytest.mark.parametrize(
    "trouble",
    [
        (429, {"error": {"message": "slow down"}}, {"Retry-After": "0.05"}),
        (503, {"error": {"message": "busy"}}, {}),
        "cut",
    ],
    ids=["rate limit", "overload", "cut connection"],
)
def test_transient_errors_are_retried(api: Api, trouble: object) -> None:
    api.answer = lambda body, attempt: trouble if attempt < 3 else completion("ok")
    (reply,) = ask(api, [request(0)]).values()
    assert isinstance(reply, Reply)
    assert reply.response == "ok"
    assert len(api.bodies) == 3


def test_a_timeout_is_retried_and_then_fails_one_request(api: Api) -> None:
    def slow(body: dict, attempt: int) -> tuple:
        if body["messages"][0]["content"] == "slow":
            time.sleep(1.0)
        return completion("ok")

    api.answer = slow
    answers = ask(api, [request(0, "slow"), request(1, "quick")], timeout_s=0.3, retries=1)
    assert isinstance(answers[0], Failure)
    assert "timed out" in answers[0].line.lower()
    assert isinstance(answers[1], Reply)
    assert sum(b["messages"][0]["content"] == "slow" for b in api.bodies) == 2


def test_an_empty_response_is_not_a_failure(api: Api) -> None:
    api.answer = lambda *_: completion(None)
    (reply,) = ask(api, [request(0)]).values()
    assert isinstance(reply, Reply)
    assert reply.response == ""


def test_a_reply_without_choices_is_a_failure(api: Api) -> None:
    api.answer = lambda *_: (200, {**completion("")[1], "choices": []})
    (reply,) = ask(api, [request(0)]).values()
    assert isinstance(reply, Failure)
    assert "no choice" in reply.line


def too_long(limit: int) -> Callable[[dict, int], tuple]:
    def answer(body: dict, attempt: int) -> tuple:
        if len(body["messages"][0]["content"]) > limit:
            return 400, {"error": {"message": f"This model's maximum context length is {limit}", "code": 400}}, {}
        return completion("ok")

    return answer


def test_the_oldest_history_goes_first_when_the_prompt_is_too_long(api: Api) -> None:
    api.answer = too_long(30)
    long = request(0, "x" * 100, step=9, with_shorter_history=lambda pairs: "x" * (10 + 5 * min(pairs, 6)))
    (reply,) = ask(api, [long]).values()
    assert isinstance(reply, Reply)
    assert (reply.prompt, reply.cut_pairs) == ("x" * 30, 5)


def test_a_prompt_that_is_too_long_without_history_is_a_failure(api: Api) -> None:
    api.answer = too_long(5)
    (reply,) = ask(api, [request(0, "x" * 100, step=3, with_shorter_history=lambda pairs: "x" * (50 + pairs))]).values()
    assert isinstance(reply, Failure)
    assert "maximum context length" in reply.line
    (reply,) = ask(api, [request(0, "y" * 100, step=3)], overflow="error").values()
    assert isinstance(reply, Failure)


def test_the_key_is_in_no_failure(api: Api) -> None:
    api.answer = lambda *_: (401, {"error": {"message": "Incorrect API key provided"}}, {})
    (reply,) = ask(api, [request(0)]).values()
    assert isinstance(reply, Failure)
    assert KEY not in str(reply)


@pytest.mark.parametrize(
    ("spec", "options", "line"),
    [
        ("openai", {}, "expected a model"),
        ("openai:tinny", {}, "did you mean 'tiny'"),
        ("openai:tiny", {"temprature": 1.0}, "unknown policy option 'temprature'; did you mean 'temperature'"),
        ("openai:tiny", {"top_p": 0.0}, "policy option top_p: expected float > 0.0, received 0.0"),
        ("openai:tiny", {"concurrency": 0}, "policy option concurrency: expected int >= 1, received 0"),
        (
            "openai:tiny",
            {"base_url": "http://127.0.0.1:9/v1"},
            "no OpenAI-compatible server answers at http://127.0.0.1:9",
        ),
        ("openai:tiny", {"base_url": "https://api.example.com/v1", "api_key_env": "NOT_SET"}, "variable NOT_SET"),
    ],
)
def test_permanent_errors_are_raised_before_the_first_rollout(api: Api, spec: str, options: dict, line: str) -> None:
    with pytest.raises(InputError, match=line) as caught:
        make_policy(spec, PolicyContext("ALFWorld", "response", {"base_url": api.url, **options}))
    assert "\n" not in str(caught.value)


def test_a_rejected_key_and_a_server_without_a_list_of_models(api: Api) -> None:
    context = PolicyContext("ALFWorld", "response", {"base_url": api.url})
    api.models = (401, {"error": {"message": "no"}})
    with pytest.raises(InputError, match="rejects the key in OPENAI_API_KEY"):
        make_policy("openai:tiny", context)
    api.models = (404, {"error": {"message": "no such page"}})
    make_policy("openai:tiny", context).close()


def drip(handler: Handler) -> None:
    """Announce a long answer and send it byte by byte until the client disconnects."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.02)


def flood(handler: Handler) -> None:
    """Send data without end."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.end_headers()
    handler.close_connection = True
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b" " * 65536)


def test_a_reply_sent_byte_by_byte_times_out_and_is_retried(api: Api) -> None:
    api.answer = lambda body, attempt: drip if attempt < 3 else completion("ok")
    (reply,) = ask(api, [request(0)], timeout_s=0.3).values()
    assert reply == Reply("ok", prompt="look around", cut_pairs=0)
    assert len(api.bodies) == 3


def test_replies_always_sent_byte_by_byte_fail_one_request(api: Api) -> None:
    api.answer = lambda body, attempt: drip if body["messages"][0]["content"] == "slow" else completion("ok")
    answers = ask(api, [request(0, "slow"), request(1, "quick")], timeout_s=0.3, retries=1)
    assert isinstance(answers[0], Failure)
    assert "timed out" in answers[0].line
    assert isinstance(answers[1], Reply)


@pytest.mark.parametrize(
    ("options", "megabytes"),
    [({}, "3"), ({"max_response_tokens": 4096}, "17"), ({"max_answer_mb": 1.5}, "1.5")],
)
def test_an_endless_answer_fails_at_the_limit(api: Api, options: dict[str, float], megabytes: str) -> None:
    """The limit depends on the request, so many such answers together take little memory."""
    api.answer = lambda body, attempt: flood
    (reply,) = ask(api, [request(0)], timeout_s=60.0, **options).values()
    line = f"OpenAIError: the answer is larger than {megabytes} MB; the policy option max_answer_mb allows more"
    assert reply == Failure("PolicyFailed", line)


def test_the_longest_valid_answer_is_within_the_limit(api: Api) -> None:
    """A prompt of one token per byte, whose ids are returned, and twenty alternatives per token of the response."""
    prompt, tokens, text = "é" * 50_000, 512, "length"
    told = {"token": text, "logprob": -12.345678901234567, "bytes": list(text.encode())}
    logprobs = {"content": [{**told, "top_logprobs": [told] * 20}] * tokens}
    status, body = completion(text * tokens, logprobs=logprobs, token_ids=[151_643] * tokens)
    api.answer = lambda *_: (status, {**body, "prompt_token_ids": [151_643] * 100_000})
    (reply,) = ask(api, [request(0, prompt)], logprobs=True, token_ids=True, timeout_s=60.0).values()
    assert isinstance(reply, Reply), reply
    assert len(reply.prompt_token_ids or ()) == 100_000


MALFORMED = [b"<html>Hello</html>", b'{"data": 3}', b"[" * 100_000]


@pytest.mark.parametrize("body", MALFORMED)
def test_a_malformed_list_of_models_is_one_line(api: Api, body: bytes) -> None:
    api.models = (200, body)
    context = PolicyContext("ALFWorld", "response", {"base_url": api.url})
    with pytest.raises(InputError, match=r"returned no list of models .*check_model=false") as caught:
        make_policy("openai:tiny", context)
    assert "\n" not in str(caught.value)
    unchecked = {"base_url": api.url, "check_model": False}
    make_policy("openai:tiny", PolicyContext("ALFWorld", "response", unchecked)).close()


@pytest.mark.parametrize("entries", [[], [3, None, {}, {"id": 5}, {"id": None}], [{"id": "tiny"}, "x"]])
def test_invalid_entries_in_the_list_of_models_are_skipped(api: Api, entries: list) -> None:
    api.models = (200, {"data": entries})
    make_policy("openai:tiny", PolicyContext("ALFWorld", "response", {"base_url": api.url})).close()


def test_a_list_of_models_sent_byte_by_byte_times_out(api: Api) -> None:
    api.models = drip
    with pytest.raises(InputError, match="no OpenAI-compatible server answers at"):
        make_policy("openai:tiny", PolicyContext("ALFWorld", "response", {"base_url": api.url, "timeout_s": 0.2}))


ODD_CHOICES = [
    None,
    {"message": 3, "finish_reason": "stop"},
    {"message": {"content": ["a"]}, "finish_reason": "stop"},
    {"message": {"content": "a"}, "finish_reason": 3},
    {"message": {"content": "a"}, "finish_reason": "stop", "logprobs": {"content": [{"logprob": "a"}]}},
    {"message": {"content": "a"}, "finish_reason": "stop", "logprobs": {"content": [{"logprob": float("nan")}]}},
    {"message": {"content": "a"}, "finish_reason": "stop", "token_ids": [1 << 31]},
    {"message": {"content": "a"}, "finish_reason": "stop", "token_ids": [1], "logprobs": {"content": []}},
]
ODD_BODIES = [b"", b"null", b'{"choices": []}', b"[" * 100_000]


@pytest.mark.parametrize("choice", ODD_CHOICES)
def test_an_invalid_choice_is_an_empty_reply_or_a_failure_with_its_reason(api: Api, choice: object) -> None:
    api.answer = lambda *_: (200, {**completion("")[1], "choices": [choice]})
    (reply,) = ask(api, [request(0)], logprobs=True, token_ids=True).values()
    checked = checked_reply(reply)
    if isinstance(checked, Reply):
        assert checked.response == ""
    else:
        assert ": expected " in str(checked) or "expected one log-probability" in str(checked)


@pytest.mark.parametrize("body", ODD_BODIES)
def test_an_invalid_body_is_a_failure_with_its_reason(api: Api, body: bytes) -> None:
    api.answer = lambda *_: (200, body)
    (reply,) = ask(api, [request(0)]).values()
    assert isinstance(reply, Failure)
    assert reply.kind == "PolicyFailed"
    assert len(reply.line) > 10


@pytest.mark.parametrize("ending", ["\r\n"])
def test_space_around_a_key_is_not_part_of_it(api: Api, monkeypatch: pytest.MonkeyPatch, ending: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY + ending)
    (reply,) = ask(api, [request(0)]).values()
    assert isinstance(reply, Reply)
    assert api.headers[0]["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("key", ["sk-first\nsecond-half", "sk-schlüssel-lang", "sk-with\x1bescape-in-it"])
def test_a_key_that_a_header_does_not_allow_is_refused_without_being_printed(
    api: Api, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(InputError, match="the key in OPENAI_API_KEY contains a character") as caught:
        ask(api, [request(0)])
    assert not any(part in str(caught.value) for part in (key, key[:8], key[-8:]))


def test_a_key_that_the_server_repeats_is_in_no_reply_and_no_failure(api: Api) -> None:
    def echo(body: dict, attempt: int) -> tuple:
        sent = api.headers[-1]["authorization"]
        if body["messages"][0]["content"] == "error":
            return 400, {"error": {"message": f"bad header {sent}"}}, {}
        return completion(f"<action>{sent}</action>", finish=sent)

    api.answer = echo
    answers = ask(api, [request(0, "error"), request(1, "say")])
    assert "bad header Bearer ***" in str(answers[0])
    told = checked_reply(answers[1])
    assert (told.response, told.finish_reason) == ("<action>Bearer ***</action>", "Bearer ***")


def test_a_password_in_the_address_is_in_no_line(api: Api) -> None:
    url = api.url.replace("http://", "http://me:hunter-2222@")
    with pytest.raises(InputError, match="did you mean 'tiny'") as caught:
        make_policy("openai:tinny", PolicyContext("ALFWorld", "response", {"base_url": url}))
    assert "hunter" not in str(caught.value)
    assert "http://***@127.0.0.1" in str(caught.value)


@pytest.mark.parametrize("url", ["localhost:8000", "http://host:port/v1", "http://[::1/v1"])
def test_an_invalid_address_is_one_line(url: str) -> None:
    with pytest.raises(InputError) as caught:
        make_policy("openai:tiny", PolicyContext("ALFWorld", "response", {"base_url": url, "timeout_s": 1.0}))
    assert "\n" not in str(caught.value)
