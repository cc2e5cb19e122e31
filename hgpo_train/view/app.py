"""The viewer's server: its addresses, and its rules: a token, known hosts, and pages that run no foreign code.

Every address begins with the token: ``/<token>/`` is the page, ``/<token>/api/…`` the documents as JSON. All requests
read; none changes a run.
"""

from __future__ import annotations

import re
import secrets
import webbrowser
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from hgpo_envs.errors import InputError
from hgpo_envs.files.secrets import redact
from hgpo_train.advantages import registry
from hgpo_train.local_server import address_of, bound_socket, is_known_host, known_hosts
from hgpo_train.settings import build, read_assignments, types_of
from hgpo_train.view.connections import BACKLOG, Connection
from hgpo_train.view.documents import group_document, step_documents
from hgpo_train.view.encoding import encode
from hgpo_train.view.estimates import AS_TRAINED, estimate, estimator_documents, estimator_with, trained_estimate
from hgpo_train.view.overview import (
    comparison_document,
    curves_document,
    definitions_document,
    levels_document,
    overview_document,
)
from hgpo_train.view.page import STATIC
from hgpo_train.view.tasks import TaskFilter, search_document, tasks_document, trajectories_document

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from hgpo_train.view.index import Index
    from hgpo_train.view.sources import Source

    Document = Callable[[Source, Index, Request], object]


class _Digits(IntegerConvertor):
    """A number in an address, of at most 15 digits: Python refuses to read thousands of them."""

    regex = "[0-9]{1,15}"


register_url_convertor("digits", _Digits())

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The Content-Security-Policy of every answer: only the page's own files are loaded, and nothing inline runs."""

HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def make_app(
    sources: Sequence[Source], token: str, hosts: Sequence[str] = (), estimators: Sequence[str] = ()
) -> ASGIApp:
    """Create the application of some runs, whose addresses begin with a token.

    Requests may be addressed to loopback's names and to `hosts`. `estimators` are offered as ``module:function``, in
    addition to the registered ones, and the first two are the pair that is shown; an unknown one raises InputError.
    """
    names = list(dict.fromkeys([*registry.names(scored=True), *estimators]))
    head = {
        "estimators": estimator_documents(names),
        "opened": [*estimators],
        "definitions": definitions_document(),
    }

    def source_at(request: Request, name: str = "run") -> Source:
        number: int = request.path_params[name]
        if number >= len(sources):
            raise InputError(f"run: expected a number below {len(sources)}, received {number}")
        return sources[number]

    def of_run(document: Document) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            source = source_at(request)
            return _json(document(source, source.index(), request))

        return endpoint

    def compared(_: Source, index: Index, request: Request) -> object:
        return comparison_document(index, source_at(request, "other").index())

    def runs(_: Request) -> Response:
        return _json({"runs": [source.document() for source in sources], **head})

    def estimated(source: Source, index: Index, request: Request) -> object:
        query = request.query_params
        number = request.path_params["group"]
        name = query.get("estimator", "hgpo")
        if name == AS_TRAINED:
            return trained_estimate(source.run, index, number)
        return estimate(index, number, estimator_with(name, query.getlist("set"), names))

    paths = {
        **DOCUMENTS,
        "groups/{group:digits}/estimates": estimated,
        "against/{other:digits}": compared,
    }
    routes = [
        Route("/api/runs", runs),
        Route("/api/versions", lambda _: _json([source.version for source in sources])),
        *(Route(f"/api/runs/{{run:digits}}/{path}", of_run(document)) for path, document in paths.items()),
        Mount("/", StaticFiles(directory=STATIC, html=True)),
    ]
    handlers: dict[Any, Any] = {InputError: lambda _, error: _json({"error": redact(str(error))}, 400)}
    return _Guard(Starlette(routes=routes, exception_handlers=handlers), token, hosts)


def _listed(document: Callable[[Index, TaskFilter], object]) -> Document:
    def listed(_: Source, index: Index, request: Request) -> object:
        query = [f"{name}={value}" for name, value in request.query_params.items()]
        return document(index, build(TaskFilter, read_assignments("filter", query, types_of(TaskFilter)), "filter"))

    return listed


def _steps(source: Source, index: Index, request: Request) -> object:
    steps = request.query_params.get("steps", "1")
    if not re.fullmatch(_Digits.regex, steps):
        raise InputError(f"steps: expected a number of at most 15 digits, received {steps!r:.40}")
    return step_documents(
        index,
        request.path_params["row"],
        int(steps),
        source.tokenizer(),
    )


def _find(_: Source, index: Index, request: Request) -> object:
    """Return the group of a trajectory."""
    name = request.query_params.get("trajectory", "")
    episodes = index.episodes.filter(trajectory=name)
    if episodes.is_empty():
        raise InputError(f"no trajectory {name!r:.200} in this run")
    return {"group": episodes["number"][0], "row": episodes["row"][0]}


def serve(
    sources: Sequence[Source],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    open_browser: bool = True,
    estimators: Sequence[str] = (),
    say: Callable[[str], object] = print,
) -> None:
    """Serve a viewer until it is interrupted, and say the address of the page.

    Other machines reach it only if `host` is not an address of loopback.

    Raises:
        InputError: The host or the port cannot be used, or an estimator is unknown.
    """
    token = secrets.token_urlsafe(24)
    app = make_app(sources, token, [host], estimators)
    listener = bound_socket(host, port)
    address = f"{address_of(host, listener)}/{token}/"
    quiet: dict[str, Any] = {
        "log_level": "warning",
        "access_log": False,
        "server_header": False,
        "lifespan": "off",
    }
    config = uvicorn.Config(app, http=Connection, ws="none", backlog=BACKLOG, **quiet)
    listener.listen()  # from here on the page can be requested; it is answered as soon as the server runs
    say(f"The viewer is at {address}\nOnly someone with this address can open it. Press Ctrl-C to stop.")
    if open_browser:
        with suppress(webbrowser.Error):
            webbrowser.open(address)
    with suppress(KeyboardInterrupt), listener:
        uvicorn.Server(config).run(sockets=[listener])


DOCUMENTS: Final[dict[str, Document]] = {
    "overview": lambda source, index, _: overview_document(source, index),
    "curves": lambda source, index, _: curves_document(source, index),
    "levels": lambda _, index, request: levels_document(index, chance="chance" in request.query_params),
    "tasks": _listed(tasks_document),
    "trajectories": _listed(trajectories_document),
    "search": lambda _, index, request: search_document(index, request.query_params.get("text", "")),
    "find": _find,
    "groups/{group:digits}": lambda _, index, request: group_document(index, request.path_params["group"]),
    "steps/{row:digits}": _steps,
}
"""The documents of a run, by the end of their address."""


def _json(value: object, status: int = 200) -> Response:
    return Response(encode(value), status, media_type="application/json")


class _Guard:
    """An application that answers only requests with the token, to a known host, and adds `HEADERS` to every answer."""

    def __init__(self, app: ASGIApp, token: str, hosts: Sequence[str]) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = known_hosts(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *added]}
            await send(message)

        _, token, *rest = scope["path"].split("/", 2) if scope["path"].startswith("/") else ("", "")
        host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
        if not is_known_host(host, self._hosts):
            refusal: Response = PlainTextResponse("unknown host", 400)
        elif not secrets.compare_digest(token.encode("utf-8", "replace"), self._token):
            refusal = PlainTextResponse("wrong token: use the address that `hgpo view` printed", 403)
        elif scope["method"] not in ("GET", "HEAD"):
            refusal = PlainTextResponse("only GET", 405)
        elif not rest:
            refusal = Response(status_code=307, headers={"location": f"/{token}/"})
        else:
            path = f"/{rest[0]}"
            return await self._app(
                {
                    **scope,
                    "path": path,
                    "raw_path": path.encode(),
                },
                receive,
                with_headers,
            )
        return await refusal(scope, receive, with_headers)
