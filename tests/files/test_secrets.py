"""Keys and passwords are not printed or stored: registered values, and credentials in URLs."""

import io
import logging

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.files import secrets
from hgpo_envs.files.secrets import (
    MARK,
    has_secret,
    redact,
    redact_json,
    redact_logging,
    register,
    register_url,
)
from hgpo_train.cli.redaction import RedactedStream


@pytest.fixture(autouse=True)
def empty_registry(monkeypatch):
    monkeypatch.setattr(secrets, "registered", ())


KEYS = st.text(
    st.characters(min_codepoint=33, max_codepoint=0x24F, exclude_categories=["Cc"]),
    min_size=8,
    max_size=60,
)


@given(
    KEYS,
    st.sampled_from(["", "\n", "\r\n", " "]),
    st.text(max_size=9),
    st.text(max_size=5),
)
def test_registered_values_are_replaced_and_nothing_else(key, ending, around, short):
    secrets.registered = ()
    register(short)  # found in too many words to be looked for
    assert redact(around, patterns=False) == around
    register(key + ending)
    register(f"{key} and more")
    for shown in (key, key + ending, f"{key} and more"):
        text = f"{around}{shown}{around}"
        assert key not in redact(text, patterns=False)
        assert has_secret(orjson.dumps(text).decode())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://me:pw@host:8000/v1", f"http://{MARK}@host:8000/v1"),
        ("at postgresql+x://tok@h/", f"at postgresql+x://{MARK}@h/"),
        (
            "http://host/v1?n=1&access_token=ab#x",
            f"http://host/v1?n=1&access_token={MARK}#x",
        ),
        (
            "http://host/v1?user_token=abc&n=1&max_tokens=5",
            f"http://host/v1?user_token={MARK}&n=1&max_tokens=5",
        ),
        ("mail me@host, see http://host/a@b", "mail me@host, see http://host/a@b"),
    ],
)
def test_credentials_in_urls(text, expected):
    assert redact(text) == expected


@pytest.mark.parametrize(
    "url",
    [
        "http://me:hunter-2222@h/v1",
        "http://hunter-2222@h/v1",
        "http://h/?key=hunter-2222",
        "http://h/v1#hunter-2222",
        "http://h/?user_token=hunter-2222",
    ],
)
def test_a_urls_password_is_registered(url):
    register_url(url)
    assert redact("it said hunter-2222!") == f"it said {MARK}!"
    register_url("http://[broken")
    assert redact("it said [broken") == "it said [broken"


def test_nested_values():
    register("a-long-password")
    values = {
        "base_url": "https://me:pw@host/v1",
        "extra": {
            "api_key": "abc",
            "X-Api-Key": "abc",
            "password": "",
            "hf_token": "t",
            "eos_token": "</s>",
        },
        "list": [1, None, True, 0.5, ("a-long-password",)],
        "more": {
            "user_token": "t",
            "accessToken": "t",
            "private_key_id": "t",
            "cookies": {"id": "t"},
            "password": ["p"],
            "stop_token": "</s>",
        },
        "api_key_env": "OPENAI_API_KEY",
        "other": {"api_key_env": "sk-literal", "eos_token_id": 3},
        "max_prompt_tokens": 3,
        "a-long-password": "something else",
    }
    assert redact_json(values) == {
        "base_url": f"https://{MARK}@host/v1",
        "extra": {
            "api_key": MARK,
            "X-Api-Key": MARK,
            "password": "",
            "hf_token": MARK,
            "eos_token": "</s>",
        },
        "list": [1, None, True, 0.5, [MARK]],
        "more": {
            "user_token": MARK,
            "accessToken": MARK,
            "private_key_id": MARK,
            "cookies": MARK,
            "password": MARK,
            "stop_token": "</s>",
        },
        "api_key_env": "OPENAI_API_KEY",
        "other": {"api_key_env": MARK, "eos_token_id": 3},
        "max_prompt_tokens": 3,
        MARK: MARK,
    }


def test_logs_of_any_library_are_redacted():
    before = logging.getLogRecordFactory()
    register("the-key-itself")
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    log = logging.getLogger("somebody.else.entirely")
    log.addHandler(handler)
    try:
        redact_logging()
        redact_logging()
        log.warning("sent %s to %s", "the-key-itself", "http://me:pw@host")
        try:
            int("the-key-itself")
        except ValueError:
            log.exception("failed")
    finally:
        logging.setLogRecordFactory(before)
        log.removeHandler(handler)
    shown = stream.getvalue()
    assert shown.startswith(f"sent {MARK} to http://{MARK}@host\n")
    assert f"ValueError: invalid literal for int() with base 10: '{MARK}'" in shown
    assert "itself" not in shown
    inner = io.StringIO()
    print("the-key-itself", 1, file=RedactedStream(inner))
    assert inner.getvalue() == f"{MARK} 1\n"


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["x", "a.", "?a-", "&a", "://", " "])
def test_redaction_takes_linear_time(piece):
    """With quadratic time, a text of a million characters would take hours."""
    assert "me:pw" not in redact(
        piece * (1_000_000 // len(piece)) + " http://me:pw@host"
    )
    redact_json({piece * (1_000_000 // len(piece)): "value"})
