"""A client of the viewer's server, in the process of the test.

Importing it skips a module of tests where the server's library is missing.
"""

import warnings
from pathlib import Path

import pytest

pytest.importorskip("starlette")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Starlette prefers another client
    from starlette.testclient import TestClient

from hgpo_train.view.app import make_app
from hgpo_train.view.sources import open_sources

TOKEN = "the-token"


def client_of(*runs: Path, wait: bool = False) -> TestClient:
    app = make_app(open_sources(map(str, runs), wait=wait), TOKEN)
    return TestClient(app, base_url="http://127.0.0.1:8000")
