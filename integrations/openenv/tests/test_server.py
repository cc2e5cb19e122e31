"""The server's limits and refusals: a client that errs or vanishes costs only its own session."""

import socket
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from http.client import HTTPConnection

import httpx
import orjson
import pytest
from environment_server import TOKEN, ask, running
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("websockets")
from websockets.exceptions import ConnectionClosed, InvalidStatus

from hgpo_envs.engine import State, Task
from hgpo_envs.env import TextEnv
from hgpo_envs.errors import InputError, UnknownTask
from hgpo_openenv.environments import ServedEnvironment, open_environments
from hgpo_openenv.remote import RemoteEnv, RemoteError
from hgpo_openenv.server import Limits

SECRET = "/home/someone/private/data.pack"


class Engine:
    """An engine whose commands fail, or wait until a test lets them go on."""

    def __init__(self, source: "Source") -> None:
        self.source = source
        self.closed = False

    def start(self, task_id: str) -> State:
        if task_id == "broken":
            raise InputError(f"{SECRET}: damaged")
        return State("start", ["look"])

    def act(self, command: str) -> State:
        if command == "wait":
            self.source.entered.set()
            assert self.source.go_on.wait(30)
        if command == "fail":
            raise OSError(2, "No such file", SECRET)
        if command == "exit":
            raise SystemExit(3)
        return State(
            command, ["look"], reward=float("nan") if command == "nan" else 0.0
        )

    def close(self) -> None:
        self.source.closed += 1


class Source:
    """A source of two tasks, of which one is broken."""

    name = "Fragile"

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.go_on = threading.Event()
        self.closed = 0

    def ids(self, split: str) -> list[str]:
        return ["good", "broken"]

    def task(self, task_id: str) -> Task:
        return Task(task_id, "train", "do it", "kind")

    def engine(self) -> Engine:
        return Engine(self)


def fragile(threads: int = 0) -> ServedEnvironment:
    return ServedEnvironment("Test/Fragile-v0", TextEnv(Source()), threads)


def closed(connection) -> tuple[int, str]:
    """Wait until the server closes a session: code and reason."""
    with pytest.raises(ConnectionClosed) as error:  # noqa: PT012 - all that was sent before
        while True:
            connection.recv(timeout=30)
    assert error.value.rcvd is not None
    return error.value.rcvd.code, error.value.rcvd.reason


@pytest.fixture(scope="module")
def server():
    with running(
        *open_environments(["HGPO/ALFWorld-v0"], {"split": "train"}).values()
    ) as run:
        yield run


# ------------------------------------------------------------------------------------------------------ requests


def test_documents(server) -> None:
    get = partial(httpx.get, trust_env=False)
    assert get(f"http://127.0.0.1:{server.port}/health").json() == {"status": "healthy"}
    for base in (server.url(), server.url("ALFWorld")):
        assert get(f"{base}/health").json() == {"status": "healthy"}
    described = get(f"{server.url()}/openapi.json").json()["paths"]
    assert get(f"{server.url()}/mcp").status_code == 405
    for path, methods in described.items():
        (method,) = methods
        assert (
            httpx.request(method, server.url() + path, trust_env=False).status_code
            == 200
        )
    schema = get(f"{server.url('ALFWorld')}/schema").json()
    assert schema["action"]["required"] == ["action"]
    with server.connect() as client:
        observation = ask(client, "reset", seed=0)["data"]["observation"]
        state = ask(client, "state")["data"]
    assert set(schema["observation"]["properties"]) == set(observation)
    assert set(schema["state"]["properties"]) <= set(state)
    about = get(f"{server.url()}/metadata").json()
    assert (about["name"], about["tasks"], about["max_steps"]) == (
        "HGPO/ALFWorld-v0",
        144,
        50,
    )
    tasks = get(f"{server.url()}/tasks").json()
    assert (tasks["count"], len(tasks["tasks"])) == (144, 144)
    assert (
        get(f"{server.url()}/tasks?start=140").json()["tasks"] == tasks["tasks"][140:]
    )
    assert (
        get(f"{server.url()}/tasks?start=3&stop=5").json()["tasks"]
        == tasks["tasks"][3:5]
    )
    for query in ("start=x", "stop=-1", "start=" + "9" * 60, "a=1&" * 11):
        assert get(f"{server.url()}/tasks?{query}").status_code == 400
    answer = get(f"{server.url()}/schema")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "server" not in answer.headers


@pytest.mark.parametrize(
    ("body", "code", "number"),
    [
        (b'{"jsonrpc": "2.0", "id": 7, "method": "tools/list"}', -32601, 7),
        (
            b'{"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": {"name": "look"}}',
            -32601,
            "a",
        ),
        *[
            (wrong, -32600, None)
            for wrong in (b"{}", b"{", b"\xff", b"", b'{"a":' * 20_000)
        ],
    ],
)
def test_a_call_of_a_tool_is_answered_in_json_rpc(server, body, code, number) -> None:
    answer = httpx.post(f"{server.url('ALFWorld')}/mcp", content=body, trust_env=False)
    assert answer.status_code == 200
    assert (
        answer.json()["jsonrpc"],
        answer.json()["error"]["code"],
        answer.json()["id"],
    ) == (
        "2.0",
        code,
        number,
    )


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_every_request_is_answered(server, method) -> None:
    request = partial(httpx.request, method, trust_env=False)
    answer = request(f"{server.url()}/tasks", content=b"x")
    assert (answer.status_code, answer.json()) == (
        405,
        {"error": "expected GET of …/tasks"},
    )
    assert answer.headers["allow"] == "GET, POST"
    assert request(f"{server.url()}/reset", json={}).status_code == 404
    assert request(f"http://127.0.0.1:{server.port}/mcp", json={}).status_code == 401
    assert (
        request(
            f"{server.url()}/mcp", json={}, headers={"Origin": "http://127.0.0.1"}
        ).status_code
        == 403
    )
    assert request(f"{server.url()}/mcp", content=bytes(1 << 19)).status_code == 413


def test_a_request_may_come_in_pieces(server) -> None:
    head = f"POST /{TOKEN}/mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        for byte in f"{head}2\r\n{{}}\r\n0\r\n\r\n".encode():
            raw.sendall(bytes([byte]))
        assert b'"code":-32600' in raw.makefile("rb").read()


@given(st.binary(max_size=60))
@settings(max_examples=50, deadline=None)
def test_no_bytes_stop_the_server(server, sent) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(b"POST " + sent + b"\r\n\r\n")
        assert raw.makefile("rb").read(12) in (
            b"HTTP/1.1 400",
            b"HTTP/1.1 401",
            b"HTTP/1.1 404",
        )


def test_unauthorised_requests_are_refused(server) -> None:
    get = partial(httpx.get, trust_env=False)
    base = f"http://127.0.0.1:{server.port}"
    before = server.server.counts["sessions"]
    for path in (
        "/",
        "/ws",
        "/schema",
        "/ALFWorld/tasks",
        "/wrong/ws",
        f"/ws?token={TOKEN}",
    ):
        answer = get(base + path)
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"] == "Bearer"
        assert TOKEN not in answer.text
    with closing(HTTPConnection("127.0.0.1", server.port)) as raw:
        raw.request("GET", "//[x")
        assert raw.getresponse().status == 401
    from websockets.sync.client import connect

    legacy = partial(connect, legacy=True)
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with pytest.raises(InvalidStatus) as error:
            legacy(f"ws://127.0.0.1:{server.port}/ws", additional_headers=headers)
        assert error.value.response.status_code == 401
    with pytest.raises(InvalidStatus) as error:
        server.connect(origin="http://127.0.0.1")
    assert error.value.response.status_code == 403
    with pytest.raises(InvalidStatus) as error:
        server.connect(additional_headers={"Host": "127.0.0.1"})  # a second one
    assert error.value.response.status_code == 400
    assert (
        get(f"{server.url()}/schema", headers={"Host": "evil.example"}).status_code
        == 400
    )
    assert server.server.counts["sessions"] == before
    with legacy(
        f"ws://127.0.0.1:{server.port}/ALFWorld/ws",
        additional_headers={"Authorization": f"Bearer {TOKEN}"},
    ) as client:
        assert ask(client, "reset", seed=0)["type"] == "observation"


def test_a_remote_environment_names_what_was_refused(server, monkeypatch) -> None:
    base = f"http://127.0.0.1:{server.port}"
    monkeypatch.delenv("HGPO_SERVE_TOKEN", raising=False)
    with pytest.raises(
        InputError,
        match=r"refused the connection \(401\): .*expected the token of `hgpo serve`",
    ):
        RemoteEnv(base)
    with pytest.raises(
        InputError,
        match=r"refused the connection .404.*expected one of ALFWorld before /ws",
    ):
        RemoteEnv(server.url("WebShop"))
    with pytest.raises(InputError, match="url: expected an address of `hgpo serve`"):
        RemoteEnv("127.0.0.1")
    RemoteEnv(base, token=TOKEN).close()
    monkeypatch.setenv("HGPO_SERVE_TOKEN", TOKEN)
    RemoteEnv(f"{base}/ALFWorld/").close()


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(
            RemoteError, match="cannot connect to the server: ConnectionRefusedError"
        ):
            RemoteEnv(f"http://127.0.0.1:{free.getsockname()[1]}/x")


# ------------------------------------------------------------------------------------------------------ messages


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=30)
@given(st.lists(st.binary(max_size=50) | values, max_size=10))
def test_a_session_survives_whatever_it_is_sent(server, messages) -> None:
    from json import dumps

    with server.connect() as client:
        before = ask(client, "reset", seed=1)
        for message in messages:
            client.send(message if isinstance(message, bytes) else dumps(message))
            answer = orjson.loads(client.recv(timeout=30))
            assert answer["type"] == "error"
            assert set(answer["data"]) == {"message", "code"}
        assert ask(client, "step", action="look")["type"] == "observation"
        assert ask(client, "reset", seed=1) == before


def test_steps_need_an_episode(server) -> None:
    with server.connect() as client:
        assert ask(client, "step", action="look")["data"] == {
            "message": "no episode was started; send a reset first",
            "code": "RESET_NEEDED",
        }
        assert ask(client, "state")["data"]["step_count"] == 0
        ask(client, "reset", seed=1, episode_id="mine")
        assert (
            ask(client, "reset", task="no such task")["data"]["code"]
            == "VALIDATION_ERROR"
        )
        for _ in range(50):
            answer = ask(client, "step", action="look")
        assert answer["data"]["done"]
        assert answer["data"]["observation"]["truncated"]
        assert (
            "the episode has ended"
            in ask(client, "step", action="look")["data"]["message"]
        )
        state = ask(client, "state")["data"]
        assert (state["episode_id"], state["step_count"], state["done"]) == (
            "mine",
            50,
            True,
        )
        assert ask(client, "reset", seed=2)["type"] == "observation"


def test_a_close_message_ends_the_session(server) -> None:
    with server.connect() as client:
        client.send('{"type": "close"}')
        assert closed(client) == (1000, "")


# -------------------------------------------------------------------------------------------------------- limits


def test_an_oversized_message_closes_only_its_session() -> None:
    with (
        running(fragile(), limits=Limits(message_bytes=1000)) as run,
        run.playing() as other,
    ):
        with run.playing() as client:
            client.send(b"x" * 1001)
            code, reason = closed(client)
        assert code == 1009
        assert "1000" in reason
        with run.connect() as client:  # in two frames, each within the limit
            # the server closes it at the second frame, while the last is being sent
            with suppress(ConnectionClosed):
                client.send([b"x" * 600, b"x" * 600])
            assert closed(client)[0] == 1009
        assert ask(other, "step", action="y" * 500)["type"] == "observation"
        run.wait_for(lambda: run.server.open_sessions == 1)


def test_no_more_sessions_than_allowed() -> None:
    with running(fragile(), limits=Limits(sessions=2)) as run:
        first = run.playing()
        second = run.playing()
        with run.connect() as third:
            refused = orjson.loads(third.recv(timeout=30))["data"]
            assert refused["code"] == "CAPACITY_REACHED"
            assert closed(third) == (1013, refused["message"])
            assert "all 2 sessions are in use" in refused["message"]
        assert ask(first, "step", action="look")["type"] == "observation"
        second.close()
        run.wait_for(lambda: run.server.open_sessions == 1)
        run.playing().close()
        first.close()


def test_an_idle_session_is_closed() -> None:
    with (
        running(fragile(), limits=Limits(idle_seconds=0.2)) as run,
        run.playing() as client,
    ):
        assert closed(client) == (1008, "idle for 0.2 s; connect again")
        run.wait_for(lambda: run.server.open_sessions == 0)


def test_a_client_that_never_reads_is_closed() -> None:
    big = "x" * 16_000
    with running(
        fragile(), limits=Limits(idle_seconds=1.0, message_bytes=1 << 20)
    ) as run:
        client = socket.create_connection(("127.0.0.1", run.port))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(
            f"GET /{TOKEN}/ws HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        run.wait_for(lambda: run.server.open_sessions == 1)

        def frame(payload: bytes) -> bytes:
            return (
                b"\x81"
                + bytes([0x80 | 126])
                + len(payload).to_bytes(2, "big")
                + b"\0\0\0\0"
                + payload
            )

        messages = frame(orjson.dumps({"type": "reset", "data": {"task": "good"}}))
        messages += frame(orjson.dumps({"type": "step", "data": {"action": big}})) * 45
        client.settimeout(5)
        try:
            for _ in range(50):
                client.sendall(messages)
        except OSError:  # the server reads no more than it can answer
            pass
        run.wait_for(lambda: run.server.open_sessions == 0)
        client.close()
        run.playing().close()


def test_a_killed_client_frees_its_session() -> None:
    with running(fragile()) as run:
        clients = [run.playing() for _ in range(20)]
        assert run.server.open_sessions == 20
        for client in clients[:10]:
            linger = (1).to_bytes(4, "little") + (0).to_bytes(4, "little")
            # the connection is reset, as by a kill
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            client.socket.close()
        run.wait_for(lambda: run.server.open_sessions == 10)
        assert all(
            ask(client, "step", action="look")["type"] == "observation"
            for client in clients[10:]
        )
        for client in clients:
            client.close()


def test_requests_that_are_not_http(server) -> None:
    for sent in (
        b"\0" * 100,
        b"GET / HTTP/1.1\r\nHost",
        b"POST /reset HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"\r\n",
    ):
        with socket.create_connection(("127.0.0.1", server.port)) as client:
            client.sendall(sent)
            client.shutdown(socket.SHUT_WR)
            client.settimeout(30)
            while client.recv(4096):
                pass
    with server.connect() as client:
        assert ask(client, "reset", seed=0)["type"] == "observation"


# -------------------------------------------------------------------------------------------------- environments


@pytest.mark.parametrize("threads", [0, 1, 4])
def test_errors_of_an_environment_reach_the_log_and_not_the_client(threads) -> None:
    with running(fragile(threads)) as run, run.connect() as client:
        for ask_for in (
            {"kind": "reset", "task": "broken"},
            *({"kind": "step", "action": a} for a in ("fail", "nan", "exit")),
        ):
            if ask_for["kind"] == "step":
                assert ask(client, "reset", task="good")["type"] == "observation"
            answer = ask(client, **ask_for)["data"]
            assert answer == {
                "message": "Test/Fragile-v0 failed; the server's log has the reason. Send a reset to start again",
                "code": "EXECUTION_ERROR",
            }
            assert ask(client, "step", action="look")["data"]["code"] == "RESET_NEEDED"
    assert [line.partition(":")[0] for line in run.log] == [
        "InputError",
        "FileNotFoundError",
        "ValueError",
        "SystemExit",
    ]
    assert SECRET in run.log[0]


def test_a_hanging_call_ends_only_its_session() -> None:
    served = fragile(threads=2)
    source = served._env.shared.source
    with (
        running(served, limits=Limits(call_seconds=0.3)) as run,
        run.playing() as other,
    ):
        with run.playing() as client:
            client.send(
                orjson.dumps({"type": "step", "data": {"action": "wait"}}), text=True
            )
            assert source.entered.wait(30)
            # meanwhile
            assert ask(other, "step", action="look")["type"] == "observation"
            answer = orjson.loads(client.recv(timeout=30))["data"]
            assert answer["code"] == "EXECUTION_ERROR"
            assert closed(client) == (
                1011,
                "a call took more than 0.3 s (--call-timeout); connect again",
            )
        source.go_on.set()
        run.wait_for(lambda: run.server.open_sessions == 1)
        assert source.closed
        assert ask(other, "step", action="look")["type"] == "observation"


def test_a_stopping_server_tells_its_clients() -> None:
    with running(fragile()) as run:
        clients = [run.playing() for _ in range(5)]
        ends = [
            threading.Thread(target=closed, args=(client,)) for client in clients[1:]
        ]
        for end in ends:
            end.start()
        assert run.stop() == 5
        assert closed(clients[0]) == (1001, "the server was stopped")
        for end in ends:
            end.join(30)
        with pytest.raises(ConnectionRefusedError):
            run.connect()


class Tasks(Sequence):
    """More ids than memory could hold; iterating over all of them never ends."""

    def __len__(self) -> int:
        return 1 << 62

    def __getitem__(self, place: int) -> str:
        return str(range(1 << 62)[place])


class EndlessSource:
    name = "Endless"

    def ids(self, _split: str) -> Tasks:
        return Tasks()

    def task(self, task_id: str) -> Task:
        if not task_id.isdecimal():
            raise UnknownTask(f"expected a number, received {task_id!r}")
        return Task(task_id, "train", "Look.", "")


def test_tasks_of_an_endless_split_are_found() -> None:
    served = ServedEnvironment("Test/Endless-v0", TextEnv(EndlessSource()))
    assert served.has_task(str(1 << 61))
    assert not served.has_task("no such task")
    assert "4,611,686,018,427,387,904 ids" in served.unknown_task("no such task")
