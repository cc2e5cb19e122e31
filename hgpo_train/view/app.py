"""The addresses of the viewer's server, and its rules: a token, known hosts, and pages that run no foreign code.

Every address begins with the token: ``/<token>/`` is the page, ``/<token>/api/…`` the documents as JSON. All requests
read; none changes a run.
"""

from __future__ import annotations

import secrets
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from hgpo_envs.errors import InputError
from hgpo_envs.files.secrets import redact
from hgpo_train.advantages import registry
from hgpo_train.assignments import read_assignments
from hgpo_train.local_server import is_known_host, known_hosts
from hgpo_train.settings import build, types_of
from hgpo_train.view.bundle import static_file
from hgpo_train.view.documents import group_document, step_document, whole_text
from hgpo_train.view.estimates import estimate, estimator_documents, estimator_with
from hgpo_train.view.overview import curves_document, levels_document, overview_document
from hgpo_train.view.search import search_document
from hgpo_train.view.tasks import TaskFilter, tasks_document

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from hgpo_train.view.index import Index
    from hgpo_train.view.sources import Source

STATIC: Final = {
    "": ("index.html", "text/html"),
    "app.js": ("app.js", "text/javascript"),
    "app.css": ("app.css", "text/css"),
}
"""The files of the page by address: the name in `static/`, and the media type."""

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
    addition to the registered ones; an unknown one raises InputError.
    """
    names = list(dict.fromkeys([*registry.names(), *estimators]))
    return _Guard(_routes(sources, names), token, hosts)


def _routes(sources: Sequence[Source], estimators: Sequence[str]) -> Starlette:
    """Return the application without its rules."""
    documents = estimator_documents(estimators)

    def of_run(document: Callable[[Source, Index, Request], object]) -> Callable[[Request], Response]:
        def endpoint(request: Request) -> Response:
            number = request.path_params["run"]
            if number >= len(sources):
                raise InputError(f"run: expected a number below {len(sources)}, received {number}")
            source = sources[number]
            return _json(document(source, source.index(), request))

        return endpoint

    def runs(_: Request) -> Response:
        return _json({"runs": [_run(source) for source in sources], "estimators": documents})

    run = "/api/runs/{run:int}"
    routes = [
        *(Route(f"/{name}", _static(*static)) for name, static in STATIC.items()),
        Route("/api/runs", runs),
        Route("/api/versions", lambda _: _json([source.version for source in sources])),
        Route(f"{run}/overview", of_run(lambda source, index, _: overview_document(source, index))),
        Route(f"{run}/curves", of_run(lambda source, index, _: curves_document(source, index))),
        Route(f"{run}/levels", of_run(lambda _, index, request: _levels(index, request))),
        Route(f"{run}/tasks", of_run(lambda _, index, request: _tasks(index, request))),
        Route(f"{run}/search", of_run(lambda _, index, request: _search(index, request.query_params.get("text", "")))),
        Route(f"{run}/find", of_run(lambda _, index, request: _find(index, request))),
        Route(f"{run}/groups/{{group:int}}", of_run(lambda _, index, request: _group(index, request))),
        Route(
            f"{run}/groups/{{group:int}}/estimates",
            of_run(lambda _, index, request: _estimate(index, request, estimators)),
        ),
        Route(f"{run}/steps/{{row:int}}", of_run(_step)),
        Route(f"{run}/steps/{{row:int}}/text", of_run(lambda _, index, request: _text(index, request))),
    ]
    handlers: dict[Any, Any] = {InputError: _bad_input, HTTPException: _not_found}
    return Starlette(routes=routes, exception_handlers=handlers)


def _run(source: Source) -> dict[str, object]:
    training = source.training()
    return {"name": source.name, "path": str(source.path), "version": source.version, "training": training is not None}


_search = lru_cache(16)(search_document)


def _tasks(index: Index, request: Request) -> dict[str, Any]:
    query = [f"{name}={value}" for name, value in request.query_params.items() if name != "search"]
    chosen = build(TaskFilter, read_assignments("filter", query, types_of(TaskFilter)), "filter")
    text = request.query_params.get("search", "")
    return tasks_document(index, chosen, _search(index, text)["groups"] if text else None)


def _levels(index: Index, request: Request) -> dict[str, Any]:
    return levels_document(index, chance="chance" in request.query_params)


def _find(index: Index, request: Request) -> dict[str, Any]:
    """Return the group of a trajectory."""
    name = request.query_params.get("trajectory", "")
    episodes = index.episodes.filter(trajectory=name)
    if episodes.is_empty():
        raise InputError(f"no trajectory {name!r:.200} in this run")
    return {"group": episodes["number"][0], "row": episodes["row"][0]}


def _group(index: Index, request: Request) -> dict[str, Any]:
    return group_document(index, request.path_params["group"])


def _step(source: Source, index: Index, request: Request) -> dict[str, Any]:
    return step_document(index, request.path_params["row"], source.token_texts())


def _text(index: Index, request: Request) -> dict[str, str]:
    column, item = request.query_params.get("column", ""), request.query_params.get("item", "0")
    if not item.isdecimal():
        raise InputError(f"item: expected a number, received {item!r}")
    return {"text": whole_text(index, request.path_params["row"], column, int(item))}


def _estimate(index: Index, request: Request, estimators: Sequence[str]) -> dict[str, Any]:
    query = request.query_params
    spec = estimator_with(query.get("estimator", "hgpo"), query.getlist("set"), estimators)
    return estimate(index, request.path_params["group"], spec)


def _static(name: str, media_type: str) -> Callable[[Request], Response]:
    def endpoint(_: Request) -> Response:
        return Response(static_file(name), media_type=media_type)

    return endpoint


def _json(value: object) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


def _bad_input(_: Request, error: Exception) -> Response:
    return Response(orjson.dumps({"error": redact(str(error))}), 400, media_type="application/json")


def _not_found(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(error.detail, error.status_code)


class _Guard:
    """An application that answers only requests with the token, to a known host, and adds `HEADERS` to every answer."""

    def __init__(self, app: ASGIApp, token: str, hosts: Sequence[str]) -> None:
        self._app, self._token, self._hosts = app, token.encode(), known_hosts(hosts)

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
            return await self._app({**scope, "path": path, "raw_path": path.encode()}, receive, with_headers)
        return await refusal(scope, receive, with_headers)
