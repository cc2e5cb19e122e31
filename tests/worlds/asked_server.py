"""A server policy that is asked: the key that it sends, and its answers."""

import contextlib

import asked
from asked import request
from chat_server import Api

from hgpo_train.policies.base import Failure, Reply, Request
from hgpo_train.policies.registry import PolicyContext, make_policy
from hgpo_train.policies.server import ServerPolicy

KEY = "sk-secret-of-the-test"


def policy_of(api: Api, name: str = "openai:tiny", **options: object) -> ServerPolicy:
    return make_policy(
        name,
        PolicyContext(
            "ALFWorld", "response", {"base_url": api.url, "timeout_s": 5.0, **options}
        ),
    )


def ask(api: Api, *requests: Request, **options: object) -> list[Reply | Failure]:
    with contextlib.closing(policy_of(api, **options)) as policy:
        return asked.ask(policy, requests)


def asked_once(api: Api, *answer: object, **options: object) -> Reply | Failure:
    """Return the answer to one request, of a server that always sends this answer."""
    api.answer = lambda *_: answer
    (reply,) = ask(api, request(), **options)
    return reply
