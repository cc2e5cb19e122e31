"""Forms of answers that servers send, and those that are none: odd, endless, slow, compressed."""

import contextlib
import gzip
import time

import asked
import pytest
from asked import request
from asked_server import ask, asked_once, policy_of
from chat_server import completion
from refusals import refused

from hgpo_train.policies import http_client
from hgpo_train.policies.base import Failure, Reply
from hgpo_train.policies.validation import checked


def drip(handler):
    """Announce a long answer and send it byte by byte until the client disconnects."""
    handler.begin(200, Content_Type="application/json", Content_Length=1_000_000)
    with contextlib.suppress(OSError):
        while True:
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.02)


def flood(handler):
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
        with refused(reason):
            policy_of(api, timeout_s=0.3)
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
        {"message": TEXT, "finish_reason": "insufficient_system_resource"},
        "the choice ends with 'insufficient_system_resource'",
    ),
    (
        {"message": TEXT, "finish_reason": "network_error"},
        "the choice ends with 'network_error'",
    ),
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


@pytest.mark.parametrize("name", ["length", "MAX_TOKENS", "max_tokens", "model_length"])
def test_every_name_of_the_limit_of_tokens_is_length(api, name):
    """Gemini's, Anthropic's and Mistral's names pass through some gateways (litellm #12481)."""
    body = completion("a")[1]
    body["choices"][0]["finish_reason"] = name
    api.answer = lambda *_: (200, body)
    with contextlib.closing(policy_of(api)) as policy:
        (reply,) = asked.ask(policy, [request()])
    assert reply.finish_reason == "length"


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
