"""Keys, passwords and certificates of servers: sent to that server alone, and never printed or stored."""

import shutil
import ssl
import subprocess

import pytest
from asked import request
from asked_server import ask, asked_once, policy_of
from chat_server import Api, completion
from refusals import refused
from yarl import URL

from hgpo_envs.errors import InputError
from hgpo_envs.files.secrets import redact
from hgpo_train.policies import http_client
from hgpo_train.policies.base import Failure, Reply
from hgpo_train.policies.validation import checked


@pytest.mark.parametrize(
    "key", ["sk-first\nsecond-half", "sk-schlüssel-lang", "sk-with\x1bescape-in-it"]
)
def test_a_key_that_a_header_does_not_allow_is_refused_without_being_printed(
    api, monkeypatch, key
):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with refused("the key in OPENAI_API_KEY contains a character") as caught:
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
    with refused(
        r"expected an HTTP proxy in the environment, received socks5://\*\*\*@"
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
    with refused("certificate verify failed"):
        ask(api, request(), base_url=url)
    monkeypatch.setenv("SSL_CERT_FILE", certificate)
    (reply,) = ask(api, request(), base_url=url)
    assert isinstance(reply, Reply), reply
