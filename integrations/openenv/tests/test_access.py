"""Who may ask for what: nothing but /health is answered without the token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hgpo_envs.errors import InputError
from hgpo_openenv.access import Access, Refusal, token_from_environment

TOKEN = "abcdefghijklmnop"
ONE = Access(TOKEN, frozenset({"localhost"}), ("ALFWorld",))
TWO = Access(TOKEN, frozenset({"localhost"}), ("ALFWorld", "WebShop"))
BEARER = [f"Bearer {TOKEN}"]


def address(access, path, **headers):
    try:
        found = access.address(path, {"host": ["127.0.0.1:80"], **headers})
    except Refusal as refusal:
        return int(refusal.status)
    return found.resource, found.environment


@pytest.mark.parametrize(
    ("access", "path", "headers", "found"),
    [
        (ONE, "/health", {}, ("health", "")),
        (ONE, f"/{TOKEN}/ws", {}, ("ws", "ALFWorld")),
        (ONE, f"/{TOKEN}/ALFWorld/ws", {}, ("ws", "ALFWorld")),
        (ONE, "/ws", {"authorization": BEARER}, ("ws", "ALFWorld")),
        (ONE, "/ws", {"authorization": [f"bearer  {TOKEN}"]}, ("ws", "ALFWorld")),
        (TWO, "/WebShop/schema?x=1", {"authorization": BEARER}, ("schema", "WebShop")),
        (TWO, "/ws", {"authorization": BEARER}, 404),
        (TWO, "/Other/ws", {"authorization": BEARER}, 404),
        (TWO, "/WebShop/ALFWorld/ws", {"authorization": BEARER}, 404),
        (TWO, f"/{TOKEN}/health", {}, ("health", "")),
        (TWO, f"/{TOKEN}/WebShop/health", {}, ("health", "WebShop")),
        (TWO, "/WebShop/health", {}, 401),
        (TWO, f"/{TOKEN}/mcp", {}, 404),
        (ONE, f"/{TOKEN}/openapi.json", {}, ("openapi.json", "ALFWorld")),
        (TWO, "/WebShop/reset", {"authorization": BEARER}, 404),
        (TWO, "/", {"authorization": BEARER}, 404),
        (ONE, "/ws", {}, 401),
        (ONE, "/", {}, 401),
        (ONE, "", {}, 401),
        (ONE, "//[x", {}, 401),
        (ONE, "//[x/ws", {"authorization": BEARER}, 404),
        (ONE, "http://[::1/ws", {"authorization": BEARER}, 404),
        (ONE, "/ws", {"authorization": ["Bearer wrong"]}, 401),
        (ONE, "/ws", {"authorization": ["Bearer "]}, 401),
        (ONE, "/ws", {"authorization": [f"Basic {TOKEN}"]}, 401),
        (ONE, "/ws", {"authorization": BEARER * 2}, 401),
        (ONE, f"/{TOKEN}/ws", {"authorization": ["Bearer wrong"]}, 401),
        (ONE, f"/{TOKEN.upper()}/ws", {}, 401),
        (ONE, f"/ws?token={TOKEN}", {}, 401),
        (ONE, "/ws", {"authorization": BEARER, "origin": ["http://127.0.0.1:80"]}, 403),
        (ONE, "/health", {"origin": ["null"]}, 403),
        (ONE, "/ws", {"authorization": BEARER, "host": ["evil.example"]}, 400),
        (ONE, "/ws", {"authorization": BEARER, "host": []}, 400),
        (
            ONE,
            "/ws",
            {"authorization": BEARER, "host": ["LOCALHOST:9"]},
            ("ws", "ALFWorld"),
        ),
    ],
)
def test_addresses(access, path, headers, found) -> None:
    assert address(access, path, **headers) == found


pieces = st.sampled_from(
    [
        "ws",
        "schema",
        "tasks",
        "ALFWorld",
        "..",
        "%2e%2e",
        "health",
        TOKEN[:-1],
        TOKEN + "x",
        "",
        "?",
    ]
)


@given(
    st.lists(pieces | st.text(max_size=12), max_size=5),
    st.lists(st.text(max_size=30), max_size=2),
)
def test_nothing_but_health_is_answered_without_the_token(parts, authorization) -> None:
    path = "/" + "/".join(parts)
    if TOKEN in path or any(TOKEN in value for value in authorization):
        return
    found = address(ONE, path, authorization=authorization)
    assert found in (401, ("health", "")), path
    if found != 401:
        assert path.split("?")[0].strip("/") == "health"


def test_the_token_of_the_environment(monkeypatch) -> None:
    monkeypatch.delenv("HGPO_SERVE_TOKEN", raising=False)
    assert token_from_environment() is None
    monkeypatch.setenv("HGPO_SERVE_TOKEN", TOKEN)
    assert token_from_environment() == TOKEN
    for wrong in (
        "",
        "short",
        "with a space in its middle",
        "with/a/slash/in/it",
        "ünïcödë-ünïcödë-x",
    ):
        monkeypatch.setenv("HGPO_SERVE_TOKEN", wrong)
        with pytest.raises(
            InputError, match="HGPO_SERVE_TOKEN: expected 16 to 256"
        ) as error:
            token_from_environment()
        assert not wrong or wrong not in str(error.value)
