"""Serve the viewer on this machine until it is interrupted."""

from __future__ import annotations

import secrets
import webbrowser
from contextlib import suppress
from typing import TYPE_CHECKING

import uvicorn

from hgpo_train.local_server import address_of, bound_socket
from hgpo_train.view.app import make_app

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hgpo_train.view.sources import Source


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
    config = uvicorn.Config(app, log_level="warning", access_log=False, server_header=False, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    listener.listen()  # from here on the page can be requested; it is answered as soon as the server runs
    say(f"The viewer is at {address}\nOnly someone with this address can open it. Press Ctrl-C to stop.")
    if open_browser:
        with suppress(webbrowser.Error):
            webbrowser.open(address)
    with suppress(KeyboardInterrupt), listener:
        server.run(sockets=[listener])
