"""The viewer's server: its addresses, and its rules: a token, known hosts, and pages that run no foreign code.

Every address begins with the token: ``/<token>/`` is the page, ``/<token>/api/…`` the documents as JSON. One request
writes: a note, beside a run's tables, and only from this page.
"""

from __future__ import annotations

import secrets
import webbrowser
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import IntegerConvertor, register_url_convertor
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from hgpo_envs.errors import InputError
from hgpo_envs.files.secrets import redact
from hgpo_train.advantages import Estimator, registry
from hgpo_train.local_server import address_of, bound_socket, is_known_host, known_hosts
from hgpo_train.view.connections import BACKLOG, Connection
from hgpo_train.view.documents import group_document, step_documents
from hgpo_train.view.encoding import encode
from hgpo_train.view.estimates import (
    AS_TRAINED,
    estimate,
    estimator_documents,
    estimator_with,
    rollout_estimates,
)
from hgpo_train.view.notes import notes_document, save_note
from hgpo_train.view.overview import (
    comparison_document,
    curves_document,
    definitions_document,
    levels_document,
    overview_document,
    results,
)
from hgpo_train.view.page import STATIC
from hgpo_train.view.rollouts import rollouts_document, search_document, selected
from hgpo_train.view.sources import Source, add_evaluations, run_documents

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from hgpo_train.view.index import Index

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

NOTE_BYTES: Final = 1 << 17
"""Bytes of a note that is saved, as JSON."""
ADDRESS_BYTES: Final = 1 << 16
"""Bytes of an address: a selection has a bit for each rollout."""

HEADERS: Final = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def make_app(
    sources: list[Source],
    token: str,
    hosts: Sequence[str] = (),
    estimators: Sequence[str] = (),
) -> ASGIApp:
    """Create the application of some runs, to which it adds evaluations that begin. Addresses begin with a token.

    Requests may be addressed to loopback's names and to `hosts`. `estimators` are offered as ``module:function``, in
    addition to the registered ones, and the first two are the pair that is shown; an unknown one raises InputError.
    """
    names = list(dict.fromkeys([*registry.names(scored=True), *estimators]))
    head = {
        "estimators": estimator_documents(names),
        "opened": [*estimators],
        "definitions": definitions_document(),
    }

    routes = [
        Route("/api/runs", lambda _: _json({"runs": run_documents(sources), **head})),
        Route("/api/versions", lambda _: _json(_versions(sources))),
        Route("/api/runs/{run:digits}/notes", _save, methods=["POST"]),
        *(
            Route(f"/api/runs/{{run:digits}}/{path}", _endpoint(document))
            for path, document in DOCUMENTS.items()
        ),
        Mount("/", StaticFiles(directory=STATIC, html=True)),
    ]
    handlers: dict[Any, Any] = {
        InputError: lambda _, error: _json({"error": redact(str(error))}, 400)
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.state.sources = sources
    app.state.estimators = names
    return _Guard(app, token, hosts)


def _versions(sources: list[Source]) -> list[str]:
    """Return a text per run that changes with it. The page asks often, so that new evaluations are found here."""
    add_evaluations(sources)
    return [source.changes for source in sources]


def _source(request: Request, name: str = "run") -> Source:
    """Return the run that a number in the address means."""
    sources: Sequence[Source] = request.app.state.sources
    number: int = request.path_params[name]
    if number >= len(sources):
        raise InputError(
            f"run: expected a number below {len(sources)}, received {number}"
        )
    return sources[number]


def _endpoint(document: Document) -> Callable[[Request], Response]:
    def endpoint(request: Request) -> Response:
        source = _source(request)
        return _json(document(source, source.index(), request))

    return endpoint


async def _save(request: Request) -> Response:
    source = _source(request)
    if source.notes is None:
        raise InputError("notes are kept in the folder of a run; this table has none")
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > NOTE_BYTES:
            raise InputError(
                f"note: expected at most {NOTE_BYTES:,} bytes, received more"
            )
    index = await run_in_threadpool(source.index)
    return _json(await run_in_threadpool(save_note, source.notes, index, body))


def _estimator(request: Request) -> Estimator | None:
    """Return the estimator of a request; None for the advantages of training."""
    query = request.query_params
    name = query.get("estimator", "hgpo")
    if name == AS_TRAINED:
        return None
    return estimator_with(name, query.getlist("set"), request.app.state.estimators)


def _estimate(_: Source, index: Index, request: Request) -> object:
    return estimate(index, request.path_params["group"], _estimator(request))


def _steps(source: Source, index: Index, request: Request) -> object:
    place = request.path_params
    return step_documents(index, place["row"], place["steps"], source.tokenizer())


def _selected(_: Source, index: Index, request: Request) -> object:
    (found,) = results(selected(index, request.query_params.get("rows", "")))
    return found


def serve(
    sources: list[Source],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    open_browser: bool = True,
    estimators: Sequence[str] = (),
) -> None:
    """Serve a viewer until it is interrupted, and print the address of the page.

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
        "h11_max_incomplete_event_size": ADDRESS_BYTES,
        "lifespan": "off",
    }
    config = uvicorn.Config(app, http=Connection, ws="none", backlog=BACKLOG, **quiet)
    # from here on the page can be requested; it is answered as soon as the server runs
    listener.listen()
    print(
        f"The viewer is at {address}\nOnly someone with this address can open it. Press Ctrl-C to stop."
    )
    if open_browser:
        with suppress(webbrowser.Error):
            webbrowser.open(address)
    with suppress(KeyboardInterrupt), listener:
        uvicorn.Server(config).run(sockets=[listener])


DOCUMENTS: Final[dict[str, Document]] = {
    "against/{other:digits}": lambda _, index, request: comparison_document(
        index, _source(request, "other").index()
    ),
    "estimates": lambda _, index, request: rollout_estimates(
        index, _estimator(request)
    ),
    "groups/{group:digits}/estimates": _estimate,
    "overview": lambda source, index, _: overview_document(source, index),
    "curves": lambda source, index, _: curves_document(source, index),
    "levels": lambda _, index, request: levels_document(
        index, chance="chance" in request.query_params
    ),
    "rollouts": lambda _, index, __: rollouts_document(index),
    "results": _selected,
    "notes": lambda source, _, __: notes_document(source.notes),
    "search": lambda _, index, request: search_document(
        index, request.query_params.get("text", "")
    ),
    "groups/{group:digits}": lambda _, index, request: group_document(
        index, request.path_params["group"]
    ),
    "steps/{row:digits}/{steps:digits}": _steps,
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

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [
                    (name.encode(), value.encode()) for name, value in HEADERS.items()
                ]
                message = {**message, "headers": [*message.get("headers", []), *added]}
            await send(message)

        token, slash, path = scope["path"].removeprefix("/").partition("/")
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if not is_known_host(host, self._hosts):
            refusal: Response = PlainTextResponse("unknown host", 400)
        elif not secrets.compare_digest(token.encode("utf-8", "replace"), self._token):
            refusal = PlainTextResponse(
                "wrong token: use the address that `hgpo view` printed", 403
            )
        elif scope["method"] not in ("GET", "HEAD", "POST"):
            refusal = PlainTextResponse("only GET, and POST for notes", 405)
        elif (
            scope["method"] == "POST"
            and headers.get(b"origin", "").partition("//")[2] != host
        ):
            refusal = PlainTextResponse("another site's page must not write", 403)
        elif not slash:
            refusal = Response(status_code=307, headers={"location": f"/{token}/"})
        else:
            return await self._app({**scope, "path": f"/{path}"}, receive, with_headers)
        return await refusal(scope, receive, with_headers)
