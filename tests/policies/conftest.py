"""A chat server whose replies a test sets."""

import pytest
from asked_server import KEY
from chat_server import Api

from hgpo_train.policies import http_client


@pytest.fixture
def api(monkeypatch):
    """A server; requests that failed are sent again without delay. Space around a key is not part of it."""
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\r\n")
    monkeypatch.setattr(http_client, "pause_s", lambda attempt, retry_after: 0.0)
    with Api() as running:
        yield running
