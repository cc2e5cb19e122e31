"""The customer as a model plays it, on any OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Final

import orjson
from yarl import URL

from hgpo_envs.errors import InputError
from hgpo_envs.files.secrets import redact, register, register_url
from hgpo_envs.unicode_text import clean_text
from hgpo_tau2 import retail
from hgpo_train.policies.chat_completion import completion_reply, read_completion
from hgpo_train.policies.http_client import HttpClient, RequestError

GREETING: Final = "Hi! How can I help you today?"
STOP: Final = "###STOP###"
"""What the customer says when the conversation is over."""

_RULES: Final = f"""You play a customer who writes to the service of an online shop. Your notes:

{{notes}}

- Write one message at a time, short and in your own words. Never show these rules or your notes as a whole.
- Tell only what was asked for or what your request needs, bit by bit. What your notes do not say, you do not know.
- The other side is the shop's agent. You cannot look anything up, and you never act for the agent.
- When your request is settled, refused for good, or passed on to somebody else, answer with {STOP} alone."""

_TIMEOUT_S: Final = 120.0
_RETRIES: Final = 3


class ServedUser:
    """A customer with the task's notes. The same conversation has the same reply within a process.

    Args:
        model: The server's name of the model.
        url: The server's address up to /v1. Its key, if it needs one, is in the variable ``TAU2_USER_API_KEY``.

    Raises:
        InputError: The address is none.
    """

    def __init__(self, model: str, url: str) -> None:
        self._model = model
        register_url(url)
        try:
            self._url = URL(url.rstrip("/") + "/chat/completions")
        except ValueError:
            self._url = URL()
        if self._url.scheme not in ("http", "https") or not self._url.host:
            expected = "expected an address such as http://localhost:8000/v1"
            raise InputError(f"user_url: {expected}, received {redact(url)!r}")
        key = os.environ.get("TAU2_USER_API_KEY", "")
        register(key)
        authorization = {"Authorization": f"Bearer {key}"} if key else {}
        self._headers = {"Content-Type": "application/json", **authorization}
        self._replies: dict[tuple[str, ...], Future[str]] = {}
        self._lock = Lock()

    def reply(self, task_id: str, messages: tuple[str, ...]) -> str:
        """Return the customer's next message; messages alternate, the agent's first.

        Raises:
            RequestError: The server gives no complete answer in time, or one that is too large or has no message.
        """
        conversation = (task_id, *messages)
        with self._lock:
            known = self._replies.get(conversation)
            reply = self._replies.setdefault(conversation, known or Future())
        # otherwise, another rollout has asked, and may still be waiting
        if known is None:
            try:
                reply.set_result(self._ask(task_id, messages))
            except Exception as error:  # noqa: BLE001 - raised below, by all who wait
                del self._replies[conversation]
                reply.set_exception(error)
        return reply.result()

    def _ask(self, task_id: str, messages: tuple[str, ...]) -> str:
        roles = ("user", "assistant") * len(messages)
        told = [
            {"role": role, "content": text}
            for role, text in zip(roles, messages, strict=False)
        ]
        body = {
            "model": self._model,
            "messages": [
                {
                    "role": "system",
                    "content": _RULES.format(notes=retail.notes(task_id)),
                },
                *told,
            ],
            "temperature": 0,
        }
        with ThreadPoolExecutor(1) as thread:  # this one may have an event loop
            return thread.submit(asyncio.run, self._post(orjson.dumps(body))).result()

    async def _post(self, body: bytes) -> str:
        client = HttpClient(self._headers, timeout_s=_TIMEOUT_S, retries=_RETRIES)
        try:
            return await client.request("POST", self._url, _said, body)
        finally:
            await client.close()


def _said(answer: bytes) -> str:
    """Return what the customer says in a chat completion, without thoughts."""
    written = completion_reply(read_completion(answer), with_logprobs=False).response
    text = clean_text(written.rpartition("</think>")[2].strip())
    # The thought of a reply that was cut off tells all of the notes.
    if not text or text.startswith("<think>"):
        raise RequestError(
            "the customer's server: expected a message, received none", transient=True
        )
    return text
