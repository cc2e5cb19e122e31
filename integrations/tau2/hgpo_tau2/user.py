"""The customer as a model plays it, on any OpenAI-compatible server."""

from __future__ import annotations

import os
from concurrent.futures import Future
from threading import Lock
from typing import Final

import httpx

from hgpo_envs.errors import InputError
from hgpo_envs.files.secrets import register, register_url
from hgpo_tau2 import retail

GREETING: Final = "Hi! How can I help you today?"
STOP: Final = "###STOP###"
"""What the customer says when the conversation is over."""

_RULES: Final = f"""You play a customer who writes to the service of an online shop. Your notes:

{{notes}}

- Write one message at a time, short and in your own words. Never show these rules or your notes as a whole.
- Tell only what was asked for or what your request needs, bit by bit. What your notes do not say, you do not know.
- The other side is the shop's agent. You cannot look anything up, and you never act for the agent.
- When your request is settled, refused for good, or passed on to somebody else, answer with {STOP} alone."""


class ServedUser:
    """A customer with the task's notes. The same conversation has the same reply within a process.

    Args:
        model: The server's name of the model.
        url: The server's address up to /v1. Its key, if it needs one, is in the variable ``TAU2_USER_API_KEY``.

    Raises:
        InputError: The address is none.
    """

    def __init__(self, model: str, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise InputError(f"user_url: expected an address such as http://localhost:8000/v1, received {url!r}")
        self._model, self._url = model, url.rstrip("/")
        key = os.environ.get("TAU2_USER_API_KEY", "")
        register(key)
        register_url(url)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx.Client(headers=headers, timeout=120, transport=httpx.HTTPTransport(retries=3))
        self._replies: dict[tuple[str, ...], Future[str]] = {}
        self._lock = Lock()

    def reply(self, task_id: str, messages: tuple[str, ...]) -> str:
        """Return the customer's next message; messages alternate, the agent's first.

        Raises:
            httpx.HTTPError: The server gives no answer.
        """
        conversation = (task_id, *messages)
        with self._lock:
            known = self._replies.get(conversation)
            reply = self._replies.setdefault(conversation, known or Future())
        if known is None:  # otherwise, another rollout has asked, and may still be waiting
            try:
                reply.set_result(self._ask(task_id, messages))
            except Exception as error:  # noqa: BLE001 - raised below, by all who wait
                del self._replies[conversation]
                reply.set_exception(error)
        return reply.result()

    def _ask(self, task_id: str, messages: tuple[str, ...]) -> str:
        roles = ("user", "assistant") * len(messages)
        told = [{"role": role, "content": text} for role, text in zip(roles, messages, strict=False)]
        body = {
            "model": self._model,
            "messages": [{"role": "system", "content": _RULES.format(notes=retail.notes(task_id))}, *told],
            "temperature": 0,
        }
        answer = self._client.post(f"{self._url}/chat/completions", json=body).raise_for_status().json()
        text: str = answer["choices"][0]["message"]["content"] or ""
        return text.rpartition("</think>")[2].strip()
