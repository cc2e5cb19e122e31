"""A random key is planted wherever a user can put one: nothing that is printed or stored holds it."""

import base64
import json
import random
import re
import string
from urllib.parse import quote

import polars as pl
import pytest
from chat_server import Api, by_seed, completion
from command import DOORS, finished, python
from nightly import ALL

pytestmark = pytest.mark.slow

PLAIN = string.ascii_letters + string.digits + "-_"
AWKWARD = PLAIN + "!$&'()*+,;=~^|%"


def forms(secret):
    """What must be nowhere: the value, nor more than half of it."""
    return {secret.encode(), secret[: len(secret) // 2 + 1].encode()}


KINDS = ("error", "text", "type", "header", "nothing")
PLACES = ("key", "key with a line break", "password", "user alone", "query")
PLANTED = [  # by default each kind in two places
    (kind, where)
    for number, kind in enumerate(KINDS)
    for place, where in enumerate(PLACES)
    if ALL or (number + place) % len(PLACES) in (0, 2)
]


def searched(folder, printed):
    """Everything that was printed or stored: as bytes, and tables as the values that are in them."""
    found = {
        "printed": printed.encode(),
        "printed, lines joined": re.sub(r"\s+", "", printed).encode(),
    }
    for path in folder.rglob("*"):
        if path.is_file():
            found[str(path)] = path.read_bytes()
            if path.suffix == ".parquet":
                found[f"{path}, rows"] = json.dumps(
                    pl.read_parquet(path).to_dicts(), default=str
                ).encode()
                found[f"{path}, metadata"] = json.dumps(
                    pl.read_parquet_metadata(path)
                ).encode()
    return found


def echo(api, kind):
    """Answers that repeat everything that the client sent, in errors, in texts, as types that nobody expects."""

    def answer(body, attempt):
        sent = api.headers[-1].get("authorization", "")
        token = sent.partition(" ")[2]
        decoded = (
            base64.b64decode(token + "==").decode("utf-8", "replace")
            if sent.startswith("Basic")
            else token
        )
        told = f"you sent {sent} that is {decoded} or {quote(decoded, safe='')} or {json.dumps(decoded)} {api.url}"
        if kind == "error":
            return 400, {"error": {"message": told, "code": decoded}}, {}
        if kind == "header":
            return 400, {"error": {"message": "no"}}, {"x-request-id": quote(decoded)}
        if kind == "text":
            return completion(
                f"<think></think><action>go {decoded}</action> {told}",
                finish=token or "stop",
            )
        if kind == "type":
            return 200, {
                "choices": [
                    {"message": {"content": {"key": told}}, "finish_reason": [token]}
                ]
            }
        return by_seed(body)

    return answer


@pytest.mark.parametrize(
    "option",
    [
        "api_key_env={}",
        "base_url=http://localhost:1/v1#{}",
        "base_url=http://localhost:1/v1?user_token={}",
        "base_url=http://{}@localhost:1/v1",
        'extra={{"user_token": "{}", "headers": {{"cookie": ["{}"]}}}}',
    ],
)
@pytest.mark.parametrize(
    "secret", ["sk-live_0a1B2c3D4e5F", "AKIAIOSFODNN7SECRET1", "hf_abcdEFGHijkl1234"]
)
def test_an_option_of_a_server_is_nowhere(tmp_path, hgpo, monkeypatch, option, secret):
    """A key in place of the name of its variable, a fragment, and names that the user chose."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    given = option.replace("{}", secret).replace("{{", "{").replace("}}", "}")
    options = [
        "--policy-option",
        given,
        "--policy-option",
        "retries=0",
        "--tasks",
        "1",
        "--group-size",
        "1",
    ]
    shown = hgpo(
        "rollout",
        "--env",
        "HGPO/ALFWorld-v0",
        "--policy",
        "openai:m",
        *options,
        "--out",
        tmp_path / "run",
    )
    if option.startswith("extra"):
        table = (
            json.dumps({"user_token": secret})
            .replace(":", " =")
            .replace('"user_token"', "user_token")
        )
        settings = ["--set", f"rollout.engine_options={table}", "--print-config"]
        printed = hgpo("train", "tiny-alfworld", *settings)
        assert printed[0] == 0
        shown += printed
    for where, text in searched(tmp_path, " ".join(map(str, shown))).items():
        assert secret.encode() not in text, where


@pytest.mark.parametrize(("kind", "where"), PLANTED)
def test_a_planted_secret_is_nowhere(tmp_path, kind, where):
    draw = random.Random(f"{kind} {where}")
    secret = "".join(
        draw.choice(AWKWARD if where in ("key", "password") else PLAIN)
        for _ in range(24)
    )
    environment = {"OPENAI_API_KEY": "none", "OPENAI_LOG": "debug"}
    with Api() as api:
        api.answer = echo(api, kind)
        url = api.url
        if where.startswith("key"):
            environment["OPENAI_API_KEY"] = secret + "\n" * (where != "key")
        elif where == "query":
            url = f"{url}?api_key={secret}"
        else:
            user = secret if where == "user alone" else f"me:{quote(secret, safe='')}"
            url = url.replace("http://", f"http://{user}@")
        command = [
            *DOORS,
            *[
                "--policy",
                "openai:tiny",
                "--tasks",
                "2",
                "--group-size",
                "2",
                "--policy-option",
                "retries=0",
            ],
        ]
        for option in ("retries=0", "check_model=false", f"base_url={url}"):
            command += ["--policy-option", option]
        _, out, error = finished(*command, "--out", tmp_path / "run", **environment)
    assert api.bodies or where == "query", error
    for place, data in searched(tmp_path, out + error).items():
        for form in forms(secret):
            assert form not in data, (place, form)
    stored = list((tmp_path / "run").glob("steps/*.parquet"))
    assert stored or where == "query"


@pytest.mark.parametrize(
    "fault",
    ["config", "unknown option", "crash", "chained crash", "warning", "log", "thread"],
)
def test_a_secret_in_an_error_of_the_program_itself_is_not_printed(tmp_path, fault):
    """The last door: tracebacks, warnings, logs, threads, whatever holds the key by then."""
    secret = "Zk" + "".join(random.Random(fault).choice(PLAIN) for _ in range(24))
    code = f"""
import sys, threading, warnings, logging
from cyclopts import App
from hgpo_train.cli import app as commands, main
from hgpo_envs.files.secrets import register_url
key = {secret!r}
register_url("http://me:" + {secret!r} + "@host/v1")

def work():
    local = key
    fault = {fault!r}
    if fault == "crash":
        raise RuntimeError(local)
    if fault == "chained crash":
        try:
            int(local)
        except ValueError as error:
            raise KeyError(repr(local.encode())) from error
    if fault == "warning":
        warnings.warn(local)
    if fault == "log":
        logging.basicConfig(level="DEBUG")
        logging.getLogger("httpx").debug("sent %s", {{"headers": local}})
        try:
            int(local)
        except ValueError:
            logging.exception("oh")
    if fault == "thread":
        thread = threading.Thread(target=int, args=(local,))
        thread.start()
        thread.join()
    if fault == "config":
        from hgpo_envs.errors import InputError
        raise InputError("base_url: expected a name, received " + repr("http://me:" + local + "@host"))
    if fault == "unknown option":
        from hgpo_train.policies.server import ServerOptions
        from hgpo_train.settings import build
        build(ServerOptions, {{"temperature": "http://me:" + local + "@host"}})

def application():
    app = App()
    app.command(work)
    return app

commands.application = application
sys.argv = ["hgpo", "work"]
main()
"""
    done = python(code, timeout=120)
    printed = done.stdout + done.stderr
    # The source of a traceback's line is this program's own text, never a value.
    shown = "\n".join(line for line in printed.splitlines() if "key = " not in line)
    for form in forms(secret):
        assert form.decode("utf-8", "replace") not in shown, printed
    assert "***" in shown
    codes = {"config": 2, "unknown option": 2, "crash": 1, "chained crash": 1}
    assert done.returncode == codes.get(fault, 0), printed
