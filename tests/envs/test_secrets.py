"""Redaction of keys and passwords in all encodings and outputs."""

import base64
import copy
import html
import io
import json
import logging
import pickle
import sys
import traceback
from urllib.parse import quote, quote_plus

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.files import secrets
from hgpo_envs.files.secrets import MARK, Secret, redact, redact_json, redact_logging, register, register_url
from hgpo_train.cli.redaction import RedactedStream


def forget() -> None:
    secrets._known, secrets._lowered, secrets._registered = frozenset(), (), None


@pytest.fixture(autouse=True)
def empty_registry():
    forget()
    yield
    forget()


KEYS = st.text(st.characters(min_codepoint=33, max_codepoint=0x24F, exclude_categories=["Cc"]), min_size=8, max_size=60)
ENCODINGS = {
    "as it is": str,
    "lower case": str.lower,
    "upper case": lambda key: key.upper() if key.upper().lower() == key.lower() else key,
    "percent-encoded": lambda key: quote(key, safe=""),
    "percent-encoded, slashes kept": quote,
    "form-encoded": quote_plus,
    "percent-encoded twice": lambda key: quote(quote(key, safe=""), safe=""),
    "JSON": json.dumps,
    "JSON in UTF-8": lambda key: json.dumps(key, ensure_ascii=False),
    "JSON in JSON": lambda key: json.dumps(json.dumps({"key": key})),
    "Python literal": repr,
    "Python bytes": lambda key: repr(key.encode()),
    "HTML": html.escape,
    "hexadecimal": lambda key: key.encode().hex(),
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "URL-safe base64": lambda key: base64.urlsafe_b64encode(key.encode()).decode(),
    "basic authorization": lambda key: base64.b64encode(f"user:{key}".encode()).decode(),
    "base64 of more": lambda key: base64.b64encode(f"ab{key} and more".encode()).decode(),
}


@given(KEYS, st.sampled_from(sorted(ENCODINGS)), st.text(max_size=9), st.text(max_size=9))
def test_all_encodings_of_a_registered_key_are_replaced(key, encoding, before, after):
    forget()
    register(key)
    encoded = ENCODINGS[encoding](key)
    found = redact(f"{before}{encoded}{after}", patterns=False)
    assert MARK in found
    for name, encode in ENCODINGS.items():
        if "base64" not in name and "basic" not in name:
            assert encode(key) not in found.replace(MARK, ""), name
    assert key.lower() not in found.replace(MARK, "").lower()


@given(KEYS, st.sampled_from(["\n", "\r\n", " ", "\t"]))
def test_a_key_with_a_line_break_is_found_with_and_without_it(key, ending):
    forget()
    register(key + ending)
    for shown in (key, f"{key}{ending}", f"Illegal header value {f'Bearer {key}{ending}'.encode()!r}"):
        assert key not in redact(shown, patterns=False)


@given(st.text(max_size=60), st.text(max_size=5))
def test_other_text_is_unchanged(text, short):
    forget()
    register(short)  # found in too many words to be looked for
    assert redact(text, patterns=False) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://me:pw@host:8000/v1", f"http://{MARK}@host:8000/v1"),
        ("at postgresql+x://tok@h/", f"at postgresql+x://{MARK}@h/"),
        ("http://host/v1?n=1&access_token=ab#x", f"http://host/v1?n=1&access_token={MARK}#x"),
        ("'Authorization': 'Basic dXNlcjpwdw=='", f"'Authorization': 'Basic {MARK}'"),
        ("(b'authorization', b'Bearer abcdefghi')", f"(b'authorization', b'Bearer {MARK}')"),
        ("no key sk-abcdefghijklmnopqrst here", f"no key {MARK} here"),
        ("mail me@host, see http://host/a@b", "mail me@host, see http://host/a@b"),
        ("the bearer of news", "the bearer of news"),
    ],
)
def test_texts_with_the_form_of_a_secret(text, expected):
    assert redact(text) == expected


@pytest.mark.parametrize("url", ["http://me:hunter-2222@h/v1", "http://hunter-2222@h/v1", "http://h/?key=hunter-2222"])
def test_a_urls_password_is_registered(url):
    register_url(url)
    assert redact("it said hunter-2222!") == f"it said {MARK}!"
    register_url("http://[broken")
    assert redact("it said [broken") == "it said [broken"


def test_nested_values():
    register("a-long-password")
    values = {
        "base_url": "https://me:pw@host/v1",
        "extra": {"api_key": "abc", "X-Api-Key": "abc", "password": "", "hf_token": "t", "eos_token": "</s>"},
        "list": [1, None, True, 0.5, ("a-long-password",)],
        "api_key_env": "OPENAI_API_KEY",
        "max_prompt_tokens": 3,
        "a-long-password": Secret("something else"),
    }
    assert redact_json(values) == {
        "base_url": f"https://{MARK}@host/v1",
        "extra": {"api_key": MARK, "X-Api-Key": MARK, "password": "", "hf_token": MARK, "eos_token": "</s>"},
        "list": [1, None, True, 0.5, [MARK]],
        "api_key_env": "OPENAI_API_KEY",
        "max_prompt_tokens": 3,
        MARK: MARK,
    }


def test_a_secret_is_not_printed_or_serialised():
    secret = Secret("the-key-itself")
    shown = [str(secret), repr(secret), f"{secret}", f"{secret!r}", "%s" % secret, str({"k": [secret]})]  # noqa: UP031
    assert not any("itself" in text for text in shown)
    assert secret.reveal() == "the-key-itself"
    assert (bool(secret), bool(Secret(""))) == (True, False)
    for write in (pickle.dumps, json.dumps, orjson.dumps, copy.deepcopy):
        with pytest.raises(TypeError) as caught:
            write(secret)
        assert "itself" not in str(caught.value)


def test_logs_of_any_library_are_redacted(monkeypatch):
    monkeypatch.setattr(secrets, "_logging_redacted", False)
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
        log.warning("untouched %d", 3)
        try:
            int("the-key-itself")
        except ValueError:
            log.exception("failed")
    finally:
        logging.setLogRecordFactory(before)
        log.removeHandler(handler)
    told = stream.getvalue()
    assert told.startswith(f"sent {MARK} to http://{MARK}@host\nuntouched 3\n")
    assert f"ValueError: invalid literal for int() with base 10: '{MARK}'" in told
    assert "itself" not in told


def test_redacted_streams():
    register("the-key-itself")
    raw = io.BytesIO()
    inner = io.TextIOWrapper(raw, encoding="utf-8")
    stream = RedactedStream(inner)
    print("the-key-itself", 1, file=stream)
    stream.writelines(["a", "the-key-itself", "\n"])
    stream.flush()
    stream.buffer.write(b"bytes \xff the-key-itself\n")
    assert raw.getvalue() == f"{MARK} 1\na{MARK}\n".encode() + b"bytes \xff " + MARK.encode() + b"\n"
    assert (stream.encoding, stream.isatty()) == ("utf-8", False)


def test_a_traceback_with_causes_is_redacted():
    register("the-key-itself")
    try:
        try:
            int("the-key-itself")
        except ValueError as error:
            raise RuntimeError("http://me:pw@host") from error
    except RuntimeError:
        text = redact("".join(traceback.format_exception(*sys.exc_info())))
    assert f"ValueError: invalid literal for int() with base 10: '{MARK}'" in text
    assert f"RuntimeError: http://{MARK}@host" in text


@pytest.mark.parametrize(
    "piece",
    ["x", "a.", "a-", "?a-", "?-", "&a", "://", "sk-", "authorization", "authorization: a ", "bearer ", "b ", " "],
)
def test_redaction_takes_linear_time(piece):
    """With quadratic time, a text of a million characters would take hours."""
    assert "me:pw" not in redact(piece * (1_000_000 // len(piece)) + " http://me:pw@host")
    redact_json({piece * (1_000_000 // len(piece)): "value"})
